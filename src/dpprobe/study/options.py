"""The options of a study, except the options of its datasets, backbones and methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, create_model, field_validator, model_validator

from dpprobe.data.options import Headline
from dpprobe.data.subsample import ClassName
from dpprobe.errors import PrivacyError
from dpprobe.options import AtMost, Name, Options, reject_repeats
from dpprobe.privacy.limits import LONGEST_HORIZON, SMALLEST_DELTA, Budget, epsilon_token
from dpprobe.privacy.risk import Risk
from dpprobe.release_part_registry import load_parts

SQLITE = "sqlite:///"
URI_PATTERN = r"(sqlite:///|https?://)[^\s]+"


class FeatureOptions(Options):
    """Extraction and storage of features."""

    shards: Annotated[int, AtMost(10_000, "each is one job, which starts Python")] = Field(
        1, ge=1, description="Files per split; each is one job."
    )
    batch_size: int = Field(256, ge=1, description="Images per forward pass.")
    dtype: Literal["float16", "float32"] = Field("float16", description="Number format on disk.")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of a network's forward pass; auto is float32 on a CPU, float16 "
        "on a GPU.",
    )
    memory_mb: int = Field(
        16000,
        ge=1,
        description="Features that need more than this many MB of memory as float32 are read from "
        "disk in blocks at each pass. Methods that sample batches need all features in memory.",
    )


class FineTuningOptions(Options):
    """Resources of jobs that train networks; options here change networks only by rounding."""

    physical_batch: int = Field(
        64,
        ge=1,
        description="Images per pass through a network, each with all its augmented views; a step "
        "adds up the gradients of as many passes as it needs. More images need more memory.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes of one machine that train a network together, each on its share of "
        "every batch: one GPU each, or CPUs. Epsilon and noise do not depend on this number.",
    )
    checkpoint_minutes: float = Field(
        5.0,
        gt=0,
        allow_inf_nan=False,
        description="Minutes between checkpoints; a killed job resumes from the last one with the "
        "same result.",
    )


class RiskOptions(Options):
    """Limit on the best attack on one unit: write `advantage`, or `true_positives` with `at`."""

    advantage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="True-positive rate of an attack minus its false-positive rate; guessing has "
        "0.",
    )
    true_positives: float | None = Field(
        None, gt=0, lt=1, description="True-positive rate at the false-positive rate `at`."
    )
    at: float | None = Field(
        None, gt=0, lt=1, description="False-positive rate, below `true_positives`."
    )

    @model_validator(mode="after")
    def _check_target(self) -> RiskOptions:
        try:
            self.to_risk()
        except PrivacyError as error:
            raise ValueError(str(error)) from None
        return self

    def to_risk(self) -> Risk:
        return Risk(advantage=self.advantage, true_positives=self.true_positives, at=self.at)


class PrivacyOptions(Options):
    """Privacy settings for all datasets of a study."""

    unit: Literal["image", "patient"] | None = Field(
        None,
        description="Unit of privacy of datasets that do not set their own: patient (every "
        "dataset then needs a unit_column) or image. If absent: patient for a dataset with a "
        "unit_column, otherwise image.",
    )
    max_epsilon: Budget | dict[Name, Budget] | None = Field(
        None,
        description="Limit on the total epsilon, per unit, of all releases of a dataset, at the "
        "dataset's delta. Write one number for all datasets, or a mapping of dataset names to "
        "numbers. A release beyond the limit is refused.",
    )
    max_risk: RiskOptions | None = Field(
        None,
        description="Limit on the best attack on one unit, given all releases of "
        "a dataset, such as "
        "{advantage: 0.1}. You may also set max_epsilon. A release beyond the limit is "
        "refused.",
    )


class CardOptions(Options):
    """Texts that a person wrote for the model card of a release."""

    license: str | None = Field(
        None,
        min_length=1,
        description="License of the head, in the Hub's spelling, such as apache-2.0.",
    )
    intended_use: str | None = Field(
        None, min_length=1, description="Purpose that the head is made for."
    )
    limits: str | None = Field(
        None, min_length=1, description="Known limits, and uses that the head is not made for."
    )
    contact: str | None = Field(
        None, min_length=1, description="Contact for questions about the head."
    )


class _ReleaseKeys(Options):
    """The keys of a release before the blocks of its parts."""

    dataset: Name = Field(description="A private dataset of the study.")
    backbone: Name = Field(description="A backbone of the study.")
    method: Name = Field(
        description="A method with all options fixed, or a search whose cost is part of the "
        "epsilon (head: tuned)."
    )
    epsilon: Budget | RiskOptions = Field(
        description="Epsilon of the head, spent for good; or the permitted risk, such as "
        "{advantage: 0.1}."
    )
    delta: float | None = Field(
        None,
        ge=SMALLEST_DELTA,
        lt=1,
        description="Delta of the release; if absent, the dataset's delta.",
    )
    allow_useless: bool = Field(
        False,
        description="Release a head even if its benchmark, or the planner, shows that it is no "
        "better than the same answer for all images.",
    )
    card: CardOptions = CardOptions()
    predecessor: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda value: value is None,
        description="The release that is replaced: its name in this study, or the path of a "
        "bundle's folder. The new bundle names the replaced release with its SHA-256.",
    )
    cohort: str | None = Field(
        None,
        min_length=1,
        max_length=80,
        exclude_if=lambda value: value is None,
        description="A name for the units of the dataset, such as 2026-11, if the data grow. The "
        "units' sums are kept, and a later release, whose `predecessor` is this release, adds the "
        "sums of its own units.",
    )
    horizon: int | None = Field(
        None,
        ge=2,
        le=LONGEST_HORIZON,
        exclude_if=lambda value: value is None,
        description="With `cohort`: the largest number of releases in the chain, which together "
        "cost a unit this epsilon. With a horizon, noise grows less, but the exact sums of all "
        "cohorts are stored next to the ledger. All releases of a chain need the same horizon.",
    )
    sign_key: str | None = Field(
        None, min_length=1, description="An Ed25519 private key in PEM, which signs the bundle."
    )


def _with_parts(beginning: type[Options]) -> type[Options]:
    """Adds the blocks that parts of releases declare, each absent by default."""
    blocks: dict[str, Any] = {
        part.key: (
            part.options | None,
            Field(None, exclude_if=lambda value: value is None, description=part.describe),
        )
        for part in load_parts().values()
        if part.options is not None
    }
    return create_model("_WithParts", __base__=beginning, **blocks)


if TYPE_CHECKING:
    _WithParts = _ReleaseKeys
else:
    _WithParts = _with_parts(_ReleaseKeys)


class ReleaseOptions(_WithParts):
    """One head for publication, trained with noise that nobody can recompute."""

    @property
    def test_metric(self) -> Headline | None:
        """The test metric that a release part publishes, if any."""
        metrics = (part.test_metric(self) for part in load_parts().values())
        return next((metric for metric in metrics if metric is not None), None)

    @property
    def token(self) -> str:
        """The release's budget as written in paths."""
        budget = self.epsilon
        return budget.to_risk().token if isinstance(budget, RiskOptions) else epsilon_token(budget)


class OverlapOptions(Options):
    """A search for near-duplicates between the private images and public ones."""

    public: tuple[Name, ...] = Field(
        min_length=1,
        description="Names under public_datasets: the data that the backbone was trained on.",
    )
    threshold: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Two images are near-duplicates if the cosine similarity of their features is "
        "larger.",
    )


class FewShotOptions(Options):
    """Linear probes on N training images per class, not private, for comparison."""

    shots: tuple[Annotated[int, Field(ge=1)] | Literal["full"], ...] = Field(
        (1, 2, 4, 8, 16, 32, "full"),
        min_length=1,
        description="Numbers N of images per class; full is the whole training split.",
    )
    seeds: Annotated[int, AtMost(1000, "each trains a probe for every N")] = Field(
        5, ge=1, description="Number of random draws of N images per class; full has one draw."
    )
    backbones: tuple[Name, ...] | None = Field(
        None,
        description="Backbones whose features are used; if absent, the backbones that read text.",
    )

    _check_shots = field_validator("shots")(reject_repeats)


class ImbalanceOptions(Options):
    """Copies of datasets in which one class keeps a fraction of its training images."""

    datasets: tuple[Name, ...] = Field(min_length=1, description="Datasets of the study.")
    classes: tuple[ClassName, ...] = Field(
        min_length=1, description="Names of the classes that become rare, one at a time."
    )
    fractions: tuple[Annotated[float, Field(ge=1e-4, le=1)], ...] = Field(
        (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01),
        description="Shares of the class's training images; 1, the whole dataset, is always "
        "included.",
    )
    seed: int = Field(0, ge=0, description="Public seed for the choice of the images.")

    @model_validator(mode="after")
    def _check_twice(self) -> ImbalanceOptions:
        for key in ("datasets", "classes", "fractions"):
            values = getattr(self, key)
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"{key}: {value} appears twice in the list; remove one")
        if min(self.fractions, default=1.0) == 1:
            raise ValueError(
                "fractions: no fraction is below 1, so no class becomes rare; add a fraction "
                "below 1"
            )
        return self


class PaperOptions(Options):
    """Settings for the study's rows in the papers' tables."""

    datasets: dict[Name, Name] = Field(
        {},
        description="For a dataset of the study, its name in resources/published.yaml. If absent: "
        "the name of its catalog entry. Any other dataset is in no paper, whatever its name.",
    )
    methods: tuple[Name, ...] = Field(
        (), description="Methods shown next to published results; all private methods if empty."
    )
    base: Name | None = Field(
        None,
        description="The method that the table of single changes starts from; if absent, the "
        "method from which most others differ in a single option.",
    )


class TsneOptions(Options):
    """The t-SNE plot of each (dataset, backbone)."""

    split: Literal["train", "test"] = Field("test", description="The split that is embedded.")
    points: int = Field(
        5000,
        ge=50,
        description="Largest number of images to embed; a larger split is sampled with a seed.",
    )

    def embedding_params(self) -> dict[str, Any]:
        """Returns the values that determine the embedding, JSON-compatible."""
        chosen = {"split": self.split, "points": self.points}
        return {**chosen, "perplexity": 30.0, "components": 50}


class TrackingOptions(Options):
    """MLflow settings."""

    uri: str | None = Field(
        None,
        description="MLflow tracking URI: sqlite:///relative/path or http(s)://server. If absent, "
        "mlflow.db in results_dir, so each results_dir has a store of its own.",
        json_schema_extra={"pattern": f"^{URI_PATTERN}$"},
    )

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, value: str | None) -> str | None:
        # Errors do not show the value, which may contain a password.
        if value is None:
            return None
        scheme, slashes, _ = value.partition("://")
        try:
            parts = urlsplit(value)
            _ = parts.port  # raises ValueError if the port is not a number
        except ValueError:
            parts = urlsplit("")
        served = parts.scheme in ("http", "https") and parts.hostname
        file = sqlite_file(value)
        local = file is not None and file.name and not value.endswith("/")
        if not (served or local) or any(character.isspace() for character in value):
            known = {"http": "not a valid address", "https": "not a valid address"}
            known["sqlite"] = "the address names no file"
            other = f"the scheme {scheme!r} is not supported" if slashes else "not an address"
            raise ValueError(
                f"{known.get(scheme, other)}; write sqlite:///path, or start `mlflow server` "
                "and write its http address"
            )
        if "@" in parts.netloc:
            raise ValueError(
                "a user name or password in the URI would be written into the results; remove it "
                "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
            )
        return value


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a `sqlite:///path` URI; None for another URI or an empty path."""
    path = uri.removeprefix(SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(SQLITE) and path else None
