"""The study: what a user writes, checked before any job starts.

A study names datasets, backbones, methods, epsilons, delta and seeds. Datasets, backbones and
methods are open sets: each `source`, `family` or `head` is one module that defines an `Options`
class, found through a registry below. Those modules import nothing heavy at the top, so that
checking a study stays cheap: it happens at every start of Snakemake, on every cluster node.
"""

from __future__ import annotations

import importlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from dpprobe import catalog, prompts
from dpprobe.errors import ConfigError
from dpprobe.normalisation import NoNormalisation, Normalize, Priced
from dpprobe.options import Options
from dpprobe.privacy.plan import split_budget
from dpprobe.receipts import sqlite_file

if TYPE_CHECKING:
    from dpprobe.privacy.plan import Mechanism, Selection

# Every name a user may write, and the module that gives it meaning.
SOURCES: dict[str, str] = {
    "csv": "dpprobe.data.csv_manifest",
    "huggingface": "dpprobe.data.huggingface",
    "imagefolder": "dpprobe.data.imagefolder",
    "parquet": "dpprobe.data.parquet",
    "sklearn": "dpprobe.data.sklearn_datasets",
    "torchvision": "dpprobe.data.torchvision_datasets",
    "url": "dpprobe.data.url",
}
FAMILIES: dict[str, str] = {
    "open_clip": "dpprobe.backbones.open_clip_models",
    "pixels": "dpprobe.backbones.pixels",
    "scattering": "dpprobe.backbones.scattering",
    "timm": "dpprobe.backbones.timm_models",
}
HEADS: dict[str, str] = {
    "adam": "dpprobe.heads.adam",
    "feature_covariance": "dpprobe.heads.feature_covariance",
    "lamb": "dpprobe.heads.lamb",
    "least_squares": "dpprobe.heads.least_squares",
    "momentum": "dpprobe.heads.momentum",
    "newton": "dpprobe.heads.newton",
    "nonprivate": "dpprobe.heads.nonprivate",
    "prototypes": "dpprobe.heads.prototypes",
    "sgd": "dpprobe.heads.sgd",
    "tuned": "dpprobe.heads.tuned",
}

NAME_PATTERN = r"[a-z0-9][a-z0-9_]*"
# Snakemake formats paths, MLflow puts them into URIs, and neither expands `~`.
_FOLDER_CHARACTERS = r"[^/\s{}~?#%*\[\]\"'`$\\:;,&<>|]"
FOLDER_PATTERN = rf"/?{_FOLDER_CHARACTERS}+(/{_FOLDER_CHARACTERS}+)*/?"
URI_PATTERN = r"(sqlite:///|https?://)[^\s]+"
INFINITE = "inf"
# What noise can be calibrated for, and what the accountants were held against each other on.
SMALLEST_EPSILON = 0.01
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-10


class Expected(Options):
    """Sizes of a dataset, known beforehand."""

    train: int | None = Field(None, ge=1, description="Rows of the train table.")
    test: int | None = Field(None, ge=1, description="Rows of the test table.")
    classes: int | None = Field(None, ge=2, description="Classes, or labels a row may have.")


class Limit(Options):
    """Use only the first rows of each split."""

    train: int | None = Field(None, ge=1)
    test: int | None = Field(None, ge=1)


Prompts = str | tuple[str, ...]
# Options of a dataset that do not decide its tables, only whether they are accepted.
DATASET_NOTES = frozenset(
    {
        "catalog", "delta", "duplicates", "expect", "metric", "missing_classes", "prompts",
        "prompt_names", "verify",
    }
)  # fmt: skip


class DatasetOptions(Options, ABC):
    """A dataset; `source` selects the module that reads it."""

    # The options that are paths, such as "joins.*.file"; and whether one is put under the download
    # folder by a source that downloads, or is relative to one that is.
    paths: ClassVar[Mapping[str, Literal["moves", "stays"]]] = {}

    source: str
    delta: float | None = Field(
        None,
        ge=SMALLEST_DELTA,
        lt=1,
        description="The delta of this dataset; the study's where absent.",
    )
    metric: Literal["accuracy", "auc"] | None = Field(
        None,
        description="What tables and figures show. Absent, accuracy where a row has one label, auc "
        "(the mean over labels) where it may have several. auc needs two classes or several "
        "labels a row.",
    )

    catalog: str | None = Field(
        None,
        description="The entry of resources/catalog that gives the options which are not written.",
    )
    expect: Expected = Field(
        default_factory=lambda: Expected(),
        description="Sizes that the split tables must have, checked when they are made.",
    )
    duplicates: Literal["error", "warn"] = Field(
        "error", description="What an image that stands in both splits is, byte for byte."
    )
    missing_classes: Literal["error", "warn"] = Field(
        "error",
        description="What a class without test rows is, where the source itself says what is "
        "tested on; without training rows it is always an error.",
    )
    verify: Literal["decode", "hash"] = Field(
        "decode",
        description="Decode every image once when the split tables are made, so that all that "
        "cannot be decoded are reported together; hash only reads their bytes.",
    )
    prompts: Prompts = Field(
        "simple",
        description="What a CLIP text encoder reads for each class: a set of "
        "resources/prompts.yaml, or templates with {c} for the class.",
    )
    prompt_names: Literal["imagenet"] | dict[str, str] = Field(
        {},
        description="Words for {c} in the prompts, by class name; the name itself where absent. Or "
        "imagenet: the thousand names that CLIP's authors wrote for its labels.",
    )

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError when what the options name is not there. Cheap: no image is read."""

    def download_params(self) -> dict[str, Any] | None:
        """The options that decide what is downloaded, JSON-compatible; None where nothing is."""
        return None

    def input_files(self) -> tuple[str, ...]:
        """Files and folders whose change makes the split tables stale."""
        return ()

    def source_state(self) -> str | None:
        """A hash that changes with files that `input_files` does not list one by one.

        None where it lists them all. Cheap: asked at each start of Snakemake, reads no image.
        """
        return None

    def preparation_params(self) -> dict[str, Any]:
        """The options that decide the split tables, JSON-compatible."""
        return self.model_dump(mode="json", exclude=set(DATASET_NOTES))

    def text_params(self) -> dict[str, Any]:
        """The options that decide what a text encoder reads, JSON-compatible."""
        return self.model_dump(mode="json", include={"prompts", "prompt_names"})

    def row_limit(self) -> Limit:
        """How many rows of what is named are used at most."""
        return Limit()

    def has_test(self) -> bool:
        """Whether the source itself says what is tested on; otherwise a rule splits its rows."""
        return True

    def expected(self) -> Expected:
        """`expect`, as far as a limit leaves it."""
        limit = self.row_limit()
        if not self.has_test() and limit.train is not None:
            return Expected(classes=self.expect.classes)
        most = limit.model_dump(exclude_none=True)
        sizes = self.expect.model_dump(exclude_none=True)
        return Expected(**{name: min(size, most.get(name, size)) for name, size in sizes.items()})

    def expected_rows(self) -> tuple[int, int] | None:
        """The rows of the train and the test table where `expect` says both."""
        sizes = self.expected()
        return None if sizes.train is None or sizes.test is None else (sizes.train, sizes.test)

    @abstractmethod
    def count_rows(self) -> tuple[int, int] | None:
        """The rows that the train and the test table will hold, found cheaply.

        None where only a download tells; what depends on them is then checked after it.
        """

    def multi_label(self) -> bool:
        """Whether a row may have several labels. Cheap."""
        return False

    def count_classes(self) -> int | None:
        """The number of classes, or of labels; None where only preparing the data tells. Cheap."""
        return None


# Options of a backbone that do not decide its features.
BACKBONE_NOTES = frozenset({"catalog", "dimension"})


class BackboneOptions(Options, ABC):
    """A frozen feature extractor; `family` selects the module that loads it."""

    # Whether it is a neural network, which gains from threads.
    network: ClassVar[bool] = False

    family: str
    catalog: str | None = Field(
        None,
        description="The entry of resources/backbones.yaml that gives the options which are not "
        "written.",
    )
    dimension: int | None = Field(
        None, ge=1, description="Features an image; another number that comes out is an error."
    )

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError when what the options name is missing. Cheap: reads no weights."""

    def input_files(self) -> tuple[str, ...]:
        """Files whose change makes the features stale."""
        return ()

    @property
    def reads_text(self) -> bool:
        """Whether it has a text encoder that this environment can run."""
        return False

    @property
    def random_crops(self) -> bool:
        """Whether training images enter by a part that depends on their bytes."""
        return False

    def warnings(self) -> list[str]:
        """What a user should know beforehand, one line each. Cheap."""
        return []

    def text_params(self) -> dict[str, Any]:
        """The options that decide text embeddings, JSON-compatible."""
        return self.extraction_params()

    def extraction_params(self) -> dict[str, Any]:
        """The options that decide the features, JSON-compatible: not where an input file lies."""
        return self.model_dump(mode="json", exclude=set(BACKBONE_NOTES))


class MethodOptions(Options, ABC):
    """A way to train a head; `head` selects the module that fits it."""

    private: ClassVar[bool] = True
    # What the head does with private rows beside its mechanisms, for the privacy statement.
    private_choices: ClassVar[str | None] = None
    # Options that hold the path of a public file; "{dataset}" and "{backbone}" may stand in it.
    paths: ClassVar[tuple[str, ...]] = ()

    head: str
    normalize: Normalize = Field(
        default_factory=NoNormalisation,
        description="What is done to each feature row: none, l2, layer_norm, group_norm (each row "
        "by itself), or one that releases statistics of the rows from the head's own budget: "
        "centred, channels.",
    )

    @model_validator(mode="after")
    def _check_normalize(self) -> MethodOptions:
        if self.normalize.priced and not self.private:
            raise ValueError(
                f"normalize: {self.normalize.kind} takes a share of a privacy budget, and head "
                f"{self.head} has none; write l2 or none"
            )
        return self

    @property
    def multi_label(self) -> bool:
        """Whether a fit takes rows with several labels."""
        return False

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        """What makes probabilities of the head's scores; none where they are no logits."""
        return "softmax"

    def link_on(self, multi_label: bool) -> Literal["softmax", "sigmoid", "none"]:  # noqa: ARG002
        """The link of a fit on rows of one label, or of several."""
        return self.link

    def input_files(self) -> tuple[str, ...]:
        """Public files whose change makes the head stale, such as initial weights."""
        paths = (getattr(self, name) for name in self.paths)
        return tuple(path for path in paths if path is not None)

    def identity(self) -> dict[str, Any]:
        """The options that make the head what it is: a public file is what it holds, not where."""
        return self.model_dump(mode="json", exclude=set(self.paths))

    def located(self, *, dataset: str, backbone: str) -> Self:
        """The options of one dataset's and backbone's cells: their names put into the paths.

        Raises:
          ConfigError: for braces that hold anything else.
        """
        changes = {}
        for name in self.paths:
            path = getattr(self, name)
            if path is None:
                continue
            try:
                changes[name] = path.format(dataset=dataset, backbone=backbone)
            except (KeyError, IndexError, ValueError):
                raise ConfigError(
                    f"{name}: {path!r}: only {{dataset}} and {{backbone}} may stand in braces"
                ) from None
        return self.model_copy(update=changes)

    @abstractmethod
    def releases(self, n: int) -> tuple[Mechanism, ...]:
        """What the head itself releases of n rows, noise multipliers up to a common factor."""

    def mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        """All that a fit on n rows releases, noise multipliers up to a common factor.

        Raises:
          ConfigError: when n rows are too few for the options.
        """
        own = self.releases(n)
        if not isinstance(self.normalize, Priced):
            return own
        share = self.normalize.share
        return split_budget([(share, self.normalize.releases(n)), (1 - share, own)])

    def selection(self, n: int) -> Selection | None:  # noqa: ARG002
        """Which mechanisms are repeated, with only the best run released; None where none is."""
        return None


OptionsT = TypeVar("OptionsT", bound=Options)


def options_class(registry: Mapping[str, str], name: str) -> type[Options]:
    """The `Options` of a registered module."""
    cls: type[Options] = importlib.import_module(registry[name]).Options
    return cls


def _known(registry: Mapping[str, str], key: str, name: Any) -> str:
    if isinstance(name, str) and name in registry:
        return name
    known = ", ".join(sorted(registry))
    raise ValueError(f"unknown {key} {name!r}; write one of: {known}")


def _dispatch(registry: Mapping[str, str], key: str) -> BeforeValidator:
    def validate(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = _from_catalog(key, value)
        name = _known(registry, key, value.get(key))
        return options_class(registry, name).model_validate(dict(value))

    return BeforeValidator(validate)


def _from_catalog(key: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A dataset's or backbone's options, completed by the catalog entry that they name."""
    if value.get("catalog") is None:
        return value
    try:
        if key == "source":
            return catalog.complete_dataset(value)
        if key == "family":
            return catalog.complete_backbone(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


AnyDataset = Annotated[SerializeAsAny[DatasetOptions], _dispatch(SOURCES, "source")]
AnyBackbone = Annotated[SerializeAsAny[BackboneOptions], _dispatch(FAMILIES, "family")]
AnyMethod = Annotated[SerializeAsAny[MethodOptions], _dispatch(HEADS, "head")]
Name = Annotated[
    str,
    Field(
        pattern=f"^{NAME_PATTERN}$",
        description="Lower-case letters, digits and underscores; it becomes part of paths.",
    ),
]
Folder = Annotated[
    str,
    Field(pattern=f"^{FOLDER_PATTERN}$"),
    AfterValidator(lambda value: str(PurePosixPath(value))),
]


def _read_epsilons(value: Any) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{value!r}: write a list, such as [0.5, 1, 2, inf]")
    tokens = [epsilon_token(item) for item in value]
    for token in tokens:
        if tokens.count(token) > 1:
            raise ValueError(f"{token} stands twice in the list; remove one")
        number = epsilon_value(token)
        if number < SMALLEST_EPSILON or LARGEST_EPSILON < number < math.inf:
            remedy = "a larger one" if number < SMALLEST_EPSILON else "inf for no privacy"
            raise ValueError(
                f"{token} is outside {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, what noise is "
                f"calibrated for; write {remedy}"
            )
    return tokens


class FeatureOptions(Options):
    """How features are extracted and stored."""

    shards: int = Field(1, ge=1, description="Files a split is cut into; each is one job.")
    batch_size: int = Field(256, ge=1, description="Images a forward pass.")
    dtype: Literal["float16", "float32"] = Field("float16", description="The type on disk.")
    workers: int = Field(
        0, ge=0, description="Processes that decode images; 0 decodes in threads of the job's own."
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Of a network's forward pass; auto is float32 on a CPU, float16 on a GPU.",
    )
    compile: bool = Field(
        False, description="Compile networks with torch.compile: pays on large sets only."
    )
    memory_mb: int = Field(
        16000,
        ge=1,
        description="Features that would take more than so many MB in memory, as float32, are read "
        "from disk in blocks at each pass; methods that sample rows need theirs in memory.",
    )


class OverlapOptions(Options):
    """A search for near-duplicates between the private images and public ones."""

    public: tuple[Name, ...] = Field(
        min_length=1, description="Names under public_datasets: what the backbone was trained on."
    )
    threshold: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Features of a larger cosine than this are taken for the same picture.",
    )


class FewShotOptions(Options):
    """Linear probes on N training images a class: not private, to compare with."""

    shots: tuple[Annotated[int, Field(ge=1)] | Literal["full"], ...] = Field(
        (1, 2, 4, 8, 16, 32, "full"), min_length=1, description="N; full is the whole split."
    )
    seeds: int = Field(5, ge=1, le=1000, description="Draws of the N images; full has one.")
    backbones: tuple[Name, ...] | None = Field(
        None, description="On whose features; where absent the backbones that read text."
    )

    @field_validator("shots")
    @classmethod
    def _check_shots(cls, values: tuple[int | str, ...]) -> tuple[int | str, ...]:
        for value in values:
            if values.count(value) > 1:
                raise ValueError(f"{value} stands twice in the list; remove one")
        return values


class PaperOptions(Options):
    """How a study fills the papers' tables."""

    datasets: dict[Name, Name] = Field(
        {},
        description="Of a dataset of the study, the name in resources/published.yaml that it "
        "stands for; where absent its catalog entry, else its own name.",
    )
    methods: tuple[Name, ...] = Field(
        (), description="Methods that stand beside published results; all private ones if empty."
    )
    base: Name | None = Field(
        None,
        description="The method that the table of single changes starts from; where absent the one "
        "with most others a single option away.",
    )


class TsneOptions(Options):
    """The t-SNE plot of each (dataset, backbone)."""

    split: Literal["train", "test"] = Field("test", description="Whose features are embedded.")
    points: int = Field(5000, ge=50, description="At most so many rows, a seeded sample beyond.")
    perplexity: float = Field(30.0, gt=1)
    components: int = Field(50, ge=2, description="Principal components kept before t-SNE.")
    thumbnails: bool = Field(
        False,
        description="Put the rows' images and ids into the interactive page. They are private: "
        "whoever is shown the page sees them.",
    )

    def embedding_params(self) -> dict[str, Any]:
        """The options that decide the embedding, JSON-compatible."""
        return self.model_dump(mode="json", exclude={"thumbnails"})


class TrackingOptions(Options):
    """Where MLflow runs are written."""

    uri: str | None = Field(
        None,
        description="MLflow tracking URI; SQLite beside the results where absent. "
        "sqlite:///relative/path or http(s)://server.",
        json_schema_extra={"pattern": f"^{URI_PATTERN}$"},
    )
    register_heads: bool | tuple[str, ...] = Field(
        False,
        description="Heads for MLflow's model registry: true for the best private one of each "
        "dataset and epsilon, or patterns of dataset/backbone/method/eps-epsilon, such as "
        '"digits/*/sgd/eps-1".',
    )

    @field_validator("uri")
    @classmethod
    def _check_uri(cls, value: str | None) -> str | None:
        # What was written is not shown: it may hold a password.
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            _ = parts.port  # raises where it is no port
        except ValueError:
            parts = urlsplit("")
        served = parts.scheme in ("http", "https") and parts.hostname
        file = sqlite_file(value)
        local = file is not None and file.name and not value.endswith("/")
        if not (served or local) or any(character.isspace() for character in value):
            raise ValueError(
                f"a URI of scheme {parts.scheme!r} is not used here; write sqlite:///path, or "
                "start `mlflow server` on that database and write its http address"
            )
        if "@" in parts.netloc:
            raise ValueError(
                "a user name or password in the URI would be written into the results; remove it "
                "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
            )
        return value


class Study(Options):
    """One study: every (dataset, backbone, method, epsilon) of the lists, with all its seeds."""

    study: Name = Field("study", description="The study's name: a tag on every MLflow run.")
    datasets: dict[Name, AnyDataset] = Field(min_length=1)
    public_datasets: dict[Name, AnyDataset] = Field(
        {},
        description="Datasets that only lend public statistics, such as a covariance: their "
        "features are extracted where a method names them, no head is trained on them.",
    )
    backbones: dict[Name, AnyBackbone] = Field(min_length=1)
    methods: dict[Name, AnyMethod] = Field(min_length=1)
    epsilons: Annotated[tuple[str, ...], BeforeValidator(_read_epsilons)] = Field(
        min_length=1,
        description=f"Privacy budgets: numbers from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, "
        'or "inf" for none.',
    )
    delta: float = Field(1e-5, ge=SMALLEST_DELTA, lt=1, description="At most 1 / (training rows).")
    accountant: Literal["pld", "rdp"] = Field(
        "pld", description="What prices sampled steps; unsampled ones are priced exactly."
    )
    seeds: int = Field(5, ge=1, le=1000, description="Repetitions of each cell.")
    seed: int = Field(0, ge=0, description="The number all of the study's seeds derive from.")
    mode: Literal["benchmark"] = Field(
        "benchmark",
        description="Seeded and reproducible, so the noise can be recomputed: not for release. "
        "There is no other mode yet.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where features and heads are computed; auto takes a GPU if there is."
    )
    features: FeatureOptions = FeatureOptions()
    tsne: TsneOptions = TsneOptions()
    overlap: OverlapOptions | None = Field(
        None,
        description="Look for near-duplicates of the private images in public ones; what is found "
        "goes into the privacy statements.",
    )
    few_shot: FewShotOptions | None = Field(
        None, description="Linear probes on a few images a class, not private; none where absent."
    )
    papers: PaperOptions = PaperOptions()
    tracking: TrackingOptions = TrackingOptions()
    data_dir: Folder = Field("data", description="Split tables go here.")
    results_dir: Folder = Field("results", description="Everything else goes here.")

    @model_validator(mode="after")
    def _check_cells(self) -> Study:
        for name in self.public_datasets:
            if name in self.datasets:
                raise ValueError(
                    f"public_datasets.{name}: also the name of a private dataset; rename one"
                )
        for name in self.overlap.public if self.overlap else ():
            if name not in self.public_datasets:
                raise ValueError(f"overlap.public: {name!r} is not under public_datasets; add it")
        for name, backbone in self.backbones.items() if self.overlap else ():
            if backbone.random_crops:
                raise ValueError(
                    f"overlap: backbone {name} crops training images at random, so that copies of "
                    "one picture look different; run the check with crop: centre"
                )
        self._check_names("papers.datasets", self.papers.datasets, self.datasets)
        self._check_names("papers.methods", self.papers.methods, self.methods)
        self._check_names("papers.base", filter(None, [self.papers.base]), self.methods)
        few = self.few_shot.backbones if self.few_shot else None
        self._check_names("few_shot.backbones", few or (), self.backbones)
        if not self.cells():
            raise ValueError(
                "no cell to train: the methods are all non-private, or epsilons is empty"
            )
        self._check_registered()
        if self.tracking.uri and self.tracking.uri.startswith("http") and self.study == "study":
            raise ValueError(
                "study: 'study' is every unnamed study's name, and on a server studies of one "
                "name replace each other's runs; write a name of its own"
            )
        return self

    def _check_registered(self) -> None:
        patterns = self.tracking.register_heads
        names = ["/".join((*cell[:3], f"eps-{cell.epsilon}")) for cell in self.cells()]
        for pattern in () if isinstance(patterns, bool) else patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"tracking.register_heads: {pattern!r}: no cell of the study; write "
                    f"dataset/backbone/method/eps-epsilon, such as {names[0]}"
                )

    @staticmethod
    def _check_names(where: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
        for name in names:
            if name not in known:
                raise ValueError(f"{where}: {name!r} is not in this study; write one that is")

    def published_names(self) -> dict[str, str]:
        """Of each dataset, the name that published results know it by."""
        return {
            name: self.papers.datasets.get(name) or options.catalog or name
            for name, options in self.datasets.items()
        }

    def text_backbones(self) -> tuple[str, ...]:
        """The backbones that read text, so that they classify without training."""
        return tuple(name for name, backbone in self.backbones.items() if backbone.reads_text)

    def few_shot_backbones(self) -> tuple[str, ...]:
        """The backbones on whose features few-shot probes are trained."""
        if self.few_shot is None:
            return ()
        own = self.few_shot.backbones
        return self.text_backbones() if own is None else own

    def all_datasets(self) -> dict[str, DatasetOptions]:
        """Private and public ones, by name."""
        return {**self.datasets, **self.public_datasets}

    def dataset_delta(self, dataset: str) -> float:
        own = self.datasets[dataset].delta
        return self.delta if own is None else own

    def job_epsilons(self) -> tuple[str, ...]:
        """The epsilons that have at least one method; non-private ones train at inf alone."""
        tokens = list(self.epsilons)
        if INFINITE not in tokens:
            tokens.append(INFINITE)
        return tuple(token for token in tokens if self.job_methods(token))

    def job_methods(self, epsilon: str) -> tuple[str, ...]:
        """The methods a training job at this epsilon trains."""
        return tuple(
            name
            for name, method in self.methods.items()
            if (epsilon in self.epsilons if method.private else epsilon == INFINITE)
        )

    def cells(self) -> list[Cell]:
        return [
            Cell(dataset, backbone, method, epsilon)
            for dataset in self.datasets
            for backbone in self.backbones
            for epsilon in self.job_epsilons()
            for method in self.job_methods(epsilon)
        ]


class Cell(NamedTuple):
    """The unit of results: all seeds of one method at one epsilon on one set of features."""

    dataset: str
    backbone: str
    method: str
    epsilon: str


def epsilon_token(value: Any) -> str:
    """The one spelling of an epsilon, used in paths: "0.5", "8", "inf".

    Raises:
      ValueError: when the value is not a positive number or "inf".
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number > 0:
        raise ValueError(f"{value!r} is not a positive number or inf")
    return INFINITE if math.isinf(number) else f"{number:.12g}"


def epsilon_value(token: str) -> float:
    """The number an epsilon token stands for."""
    return math.inf if token == INFINITE else float(token)


def load(values: Mapping[str, Any]) -> Study:
    """Checks a configuration as read from YAML.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    return _validated(Study, values, "config")


def dataset_options(values: Mapping[str, Any]) -> DatasetOptions:
    """A dataset's options from their serialised form, as a rule's params carry them."""
    return _by_registry(SOURCES, "source", values, DatasetOptions)  # type: ignore[type-abstract]


def backbone_options(values: Mapping[str, Any]) -> BackboneOptions:
    """A backbone's options from their serialised form."""
    return _by_registry(FAMILIES, "family", values, BackboneOptions)  # type: ignore[type-abstract]


def method_options(values: Mapping[str, Any]) -> MethodOptions:
    """A method's options from their serialised form."""
    return _by_registry(HEADS, "head", values, MethodOptions)  # type: ignore[type-abstract]


def _by_registry(
    registry: Mapping[str, str], key: str, values: Mapping[str, Any], base: type[OptionsT]
) -> OptionsT:
    try:
        name = _known(registry, key, values.get(key))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    options = _validated(options_class(registry, name), values, key)
    assert isinstance(options, base)
    return options


def _validated(cls: type[OptionsT], values: Mapping[str, Any], where: str) -> OptionsT:
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        lines = [f"{where}: {line}" for line in _explain_all(error.errors(), values)]
        raise ConfigError("\n".join(lines)) from None


def _explain_all(items: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    """One line for each thing that is wrong: the alternatives of a union are one thing."""
    found: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], Any]]] = {}
    for number, item in enumerate(items):
        path, union = _locate(item, values)
        place = ("alone", number) if union is None else ("union", *union)
        found.setdefault(place, []).append((path, item))
    lines = []
    for place, group in found.items():
        deeper = [pair for pair in group if len(pair[0]) > len(place) - 1]
        if place[0] == "alone" or deeper:
            lines += [_explain(path, item) for path, item in deeper or group]
            continue
        wanted = [_wanted(item) for _, item in group]
        name = ".".join(map(str, place[1:]))
        lines.append(f"{name}: {group[0][1]['input']!r}: write {' or '.join(wanted)}")
    return lines


def _locate(item: Any, values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
    """Where an error is, without pydantic's names of a union's alternatives; where the union is."""
    path: list[Any] = []
    union = None
    for part in item["loc"]:
        if part == "[key]":
            continue
        inside: Any = None
        if isinstance(values, Mapping):
            known = part in values or item["type"] == "missing"
            inside = values.get(part)
        else:
            known = isinstance(part, int)
            if known and isinstance(values, Sequence) and part < len(values):
                inside = values[part]
        if known:
            path.append(part)
            values = inside
        elif union is None:
            union = tuple(path)
    return tuple(path), union


def _wanted(item: Any) -> str:
    """What one alternative of a union asks for."""
    text = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return text.partition(",")[0] if item["type"].endswith("_parsing") else text


def _explain(place: Sequence[Any], item: Any) -> str:
    """One line for one of pydantic's errors: where, what was written, what to write."""
    path = ".".join(map(str, place))
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown key; remove it or correct its spelling"
    if item["type"] == "missing":
        return f"{path}: missing; it must be given"
    if item["type"] == "string_pattern_mismatch" and NAME_PATTERN in item["ctx"]["pattern"]:
        return f"{path}: a name is lower-case letters, digits and underscores"
    if item["type"] == "string_pattern_mismatch" and FOLDER_PATTERN in item["ctx"]["pattern"]:
        return (
            f"{path}: {item['input']!r}: a folder's path without spaces, ~, doubled slashes, "
            "braces and other signs that paths in rules cannot have; write another"
        )
    if item["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}: {item['input']!r}: {message[0].lower()}{message[1:]}"


def check(study: Study) -> list[str]:
    """Checks a study against the machine: files exist, delta fits each dataset's size.

    Returns:
      Warnings, one line each.

    Raises:
      ConfigError: with one line for each thing that is wrong.
    """
    errors: list[str] = []
    warnings: list[str] = []
    for name, dataset in study.datasets.items():
        try:
            dataset.check()
            _check_overwritten(study, name, dataset)
            rows = dataset.count_rows()
            multi_label = dataset.multi_label()
            classes = dataset.count_classes() if dataset.metric == "auc" else None
            headline(dataset.metric, num_classes=classes, multi_label=multi_label)
            prompts.check(dataset.prompts)
        except ConfigError as error:
            errors.append(f"config: datasets.{name}: {error}")
            continue
        errors.extend(_check_labels(study, name, multi_label=multi_label))
        errors.extend(_check_sizes(study, name, dataset, rows))
        if rows is None:
            continue
        _check_delta(name, study.dataset_delta(name), rows[0], errors, warnings)
        errors.extend(_check_methods(study, name, rows[0], multi_label=multi_label))
        errors.extend(_check_shards(study, name, rows))
    for name, method in study.methods.items():
        try:
            method.located(dataset="dataset", backbone="backbone")
        except ConfigError as error:
            errors.append(f"config: methods.{name}: {error}")
    for name, dataset in study.public_datasets.items():
        try:
            dataset.check()
            _check_overwritten(study, name, dataset)
            sizes = dataset.expected()
            counted = dataset.count_rows() if sizes.train or sizes.test else None
            errors.extend(_check_sizes(study, name, dataset, counted))
            errors.extend(_check_shards(study, name, dataset.count_rows()))
        except ConfigError as error:
            errors.append(f"config: public_datasets.{name}: {error}")
    for name, backbone in study.backbones.items():
        try:
            backbone.check()
            warnings.extend(f"backbones.{name}: {line}" for line in backbone.warnings())
        except ConfigError as error:
            errors.append(f"config: backbones.{name}: {error}")
    if errors:
        raise ConfigError("\n".join(errors))
    return warnings


def headline(
    metric: str | None, *, num_classes: int | None, multi_label: bool
) -> Literal["accuracy", "auc"]:
    """The metric that stands for a cell in tables and figures.

    Args:
      metric: the dataset's own choice.
      num_classes: None where it is not known yet; the choice is then believed.

    Raises:
      ConfigError: for auc with one label a row and other than two classes.
    """
    if metric is None:
        return "auc" if multi_label else "accuracy"
    if metric == "auc" and not multi_label and num_classes not in (2, None):
        raise ConfigError(
            f"metric: auc with {num_classes} classes and one label a row is not defined; "
            "write accuracy"
        )
    return "auc" if metric == "auc" else "accuracy"


def delta_fault(delta: float, rows: int) -> str | None:
    """Why a delta promises nothing for so many rows; None where it does."""
    if delta * rows <= 1.0 or math.isclose(delta * rows, 1.0, rel_tol=1e-9):
        return None
    return (
        f"delta {delta:g} is above 1/n = {1 / rows:.3g} (n = {rows} training rows); "
        "write a smaller delta"
    )


def delta_warning(delta: float, rows: int) -> str | None:
    """What is to be said of a delta of 1/n; None of others."""
    if not math.isclose(delta * rows, 1.0, rel_tol=1e-9):
        return None
    return (
        f"delta {delta:g} is 1/n (n = {rows}); a mechanism that publishes one row at random "
        "satisfies it. Prefer a smaller delta."
    )


def _check_delta(
    name: str, delta: float, rows: int, errors: list[str], warnings: list[str]
) -> None:
    if fault := delta_fault(delta, rows):
        errors.append(f"config: datasets.{name}: {fault}")
    if warning := delta_warning(delta, rows):
        warnings.append(f"datasets.{name}: {warning}")


def _check_sizes(
    study: Study, name: str, dataset: DatasetOptions, rows: tuple[int, int] | None
) -> list[str]:
    """What `expect` says and the dataset is not, as far as that is known beforehand."""
    expected = dataset.expected().model_dump(exclude_none=True)
    if not expected:
        return []
    key = "datasets" if name in study.datasets else "public_datasets"
    found: dict[str, int | None] = dict.fromkeys(expected)
    remedy = "complete the source or correct `expect`"
    if dataset.download_params() is not None:
        folder = Path(study.data_dir) / name
        found |= _table_sizes(folder / "dataset.json", dataset)
        remedy = (
            f"correct `expect`, or delete {folder / 'dataset.json'}, so that the tables are made "
            "again"
        )
    else:
        train, test = rows or (None, None)
        found |= {"train": train, "test": test, "classes": dataset.count_classes()}
    return [
        f"config: {key}.{name}: expect.{part}: {size}, where there are {found[part]} "
        f"{'classes' if part == 'classes' else f'{part} rows'}; {remedy}"
        for part, size in expected.items()
        if found[part] not in (None, size)
    ]


def _check_overwritten(study: Study, name: str, dataset: DatasetOptions) -> None:
    """Raises ConfigError where a source stands in the place of its own split tables.

    Snakemake deletes what a job is about to write.
    """
    folder = Path(study.data_dir) / name
    written = {
        (folder / file).resolve() for file in ("train.parquet", "test.parquet", "dataset.json")
    }
    for file in dataset.input_files():
        if resolve_path(file).resolve() in written:
            raise ConfigError(
                f"{file}: the split tables of {name!r} are written into {folder}, over this file; "
                "move it elsewhere, or write another data_dir"
            )


def _table_sizes(dataset_json: Path, dataset: DatasetOptions) -> dict[str, int]:
    """The sizes of tables that were made by the same options before; empty without such tables."""
    if not dataset_json.is_file():
        return {}
    try:
        info = json.loads(dataset_json.read_text(encoding="utf-8"))
        if info["source"] != dataset.preparation_params():
            return {}  # they are made again
        sizes = {name: int(part["rows"]) for name, part in info["splits"].items()}
        return {**sizes, "classes": len(info["class_names"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # what reads it for its content says what is wrong with it


def _check_shards(study: Study, name: str, rows: tuple[int, int] | None) -> list[str]:
    """Splits that cannot be cut into so many shards."""
    shards = study.features.shards
    return [
        f"config: features.shards: {shards} is above the {count} {split} rows of {name}; write at "
        f"most {count}"
        for split, count in zip(("train", "test"), rows or (shards, shards), strict=True)
        if shards > count
    ]


def _check_labels(study: Study, dataset: str, *, multi_label: bool) -> list[str]:
    """Methods that take one label a row, on a dataset of several."""
    return [
        f"config: methods.{name} on datasets.{dataset}: the dataset is multi-label and "
        f"head {method.head} takes one label a row; remove one of the two"
        for name, method in study.methods.items()
        if multi_label and not method.multi_label
    ]


def _check_methods(study: Study, dataset: str, rows: int, *, multi_label: bool) -> list[str]:
    """Methods that do not fit a dataset, such as a batch larger than its training split."""
    errors = []
    for name, method in study.methods.items():
        if multi_label and not method.multi_label:
            continue
        try:
            method.mechanisms(rows)
        except ConfigError as error:
            errors.append(f"config: methods.{name} on datasets.{dataset}: {error}")
    return errors


def check_yaml(path: Path) -> None:
    """Checks what YAML readers let pass: of a key that stands twice they keep the last, silently.

    Raises:
      ConfigError: for a file that is missing, is not YAML, holds no mapping, or has a key twice
        in one mapping: naming file, line and key.
    """
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); name a YAML file") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{path}: not YAML ({line}); correct it") from None
    if not isinstance(root, yaml.MappingNode):
        found = "empty" if root is None else "no mapping"
        raise ConfigError(f"{path}: {found}; write a study, that is keys and their values")
    pending: list[Any] = [root]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = (key.tag, str(key.value))
            if name in lines:
                raise ConfigError(
                    f"{path}: line {line}: key {key.value!r} stands twice, first in line "
                    f"{lines[name]}; rename or remove one"
                )
            lines[name] = line
            pending.append(value)


def resolve_path(path: str) -> Path:
    """A path a user wrote: `~` expanded, relative to the working directory.

    Raises:
      ConfigError: for `~name` without such a user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path!r}: no home folder for what stands after ~; write ./~") from error


def json_schema() -> dict[str, Any]:
    """The JSON schema of a study's file, for editors and for reviewers."""
    schema = Study.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    for field, key, registry in (
        ("datasets", "source", SOURCES),
        ("public_datasets", "source", SOURCES),
        ("backbones", "family", FAMILIES),
        ("methods", "head", HEADS),
    ):
        choices = []
        for name in sorted(registry):
            own = options_class(registry, name).model_json_schema(mode="validation")
            definitions.update(own.pop("$defs", {}))
            own["properties"][key] = {"const": name}
            own["required"] = sorted({*own.get("required", []), key})
            definitions[f"{key}_{name}"] = own
            choices.append({"$ref": f"#/$defs/{key}_{name}"})
        if field != "methods":
            choices.append(_catalog_schema(field))
        schema["properties"][field]["additionalProperties"] = {"anyOf": choices}
        schema["properties"][field].pop("patternProperties", None)
        schema["properties"][field]["propertyNames"] = {"pattern": f"^{NAME_PATTERN}$"}
    limits = {"minimum": SMALLEST_EPSILON, "maximum": LARGEST_EPSILON}
    epsilon = {"anyOf": [{"type": "number", **limits}, {"const": INFINITE}]}
    schema["properties"]["epsilons"].update({"items": epsilon, "uniqueItems": True})
    for unused in ("DatasetOptions", "BackboneOptions", "MethodOptions"):
        definitions.pop(unused, None)
    schema["title"] = "dpprobe study"
    return schema


def _catalog_schema(field: str) -> dict[str, Any]:
    """A dataset or backbone that is named by its entry; its other keys are those of the entry."""
    known = catalog.backbone_entries() if field == "backbones" else catalog.dataset_names()
    return {
        "type": "object",
        "properties": {"catalog": {"enum": sorted(known)}},
        "required": ["catalog"],
    }
