"""Writes and reads a bundle: the folder of files that one release publishes.

    bundle.json         classes, preprocessing, backbone, options of the head
    head.safetensors    weights [classes, d + 1], released statistics of a normalisation, priors
    privacy.json        the privacy statement, with all values from which epsilon is computed
    README.md           the model card
    release.html        one page for a privacy officer
    SHA256SUMS          hashes of the files above, for `sha256sum --check`
    SHA256SUMS.sig      an Ed25519 signature of SHA256SUMS, if the release has a signing key

Every value in a bundle is public, fixed before training, or released with noise. A bundle holds no
seed, no hash of private data, no path, and no name of a user or machine. The only counts in a
bundle are numbers of units, and the only time is the day of an audit.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpprobe.backbones import external, joined
from dpprobe.backbones.feature_digest import is_probe
from dpprobe.errors import ConfigError, DataError
from dpprobe.files.array_files import pack_tensors
from dpprobe.files.atomic_writes import atomic_path, write_text
from dpprobe.files.json_files import write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.release.earlier_bundles import read_statement_facts, take_options
from dpprobe.release.stated_values import is_hash, read_json, require_true
from dpprobe.wrong_keys_and_values import explain_first

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dpprobe.heads.options import MethodOptions
    from dpprobe.release.probabilities import Calibration

FORMAT = "dpprobe-bundle"
FORMAT_VERSION = 1

FACTS_FILE = "bundle.json"
HEAD_FILE = "head.safetensors"
STATEMENT_FILE = "privacy.json"
CARD_FILE = "README.md"
PAGE_FILE = "release.html"
SUMS_FILE = "SHA256SUMS"
SIGNATURE_FILE = "SHA256SUMS.sig"
RELEASES_FOLDER = "releases"  # in a results_dir, with one folder per release

# The files that SHA256SUMS lists, in the order of its lines.
LISTED_FILES = (CARD_FILE, FACTS_FILE, HEAD_FILE, STATEMENT_FILE, PAGE_FILE)
BUNDLE_FILES = (*LISTED_FILES, SUMS_FILE)
# Largest accepted file sizes in bytes, checked before a file is read.
LARGEST_TEXT, LARGEST_HEAD = 16 * 2**20, 8 * 2**30

WEIGHTS = "weights"
# Keys in the preprocessing of vectors: how patches were pooled, and the name of a file's array.
POOL, ARRAY = "pool", "array"
# The study's name in bundles of `PrivateClassifier`, which has no study.
ESTIMATOR = "estimator"


class Facts(BaseModel):
    """A block of bundle.json, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BackboneFacts(Facts):
    """The frozen model that computes the features."""

    name: str = Field(description="The backbone's name in the study.")
    options: dict[str, Any] = Field(
        description="The backbone's options, such as `family`, without file paths."
    )
    checkpoint: str | None = Field(
        description="File name of the weights, which are not in the bundle; null without a file."
    )
    weights_sha256: str | None = Field(
        description="SHA-256 of the weights; null for a backbone without weights."
    )
    architecture: str | None
    pretrained_tag: str | None
    trained: bool
    preprocessing: dict[str, Any] = Field(
        description="Steps that turn an image into a tensor, fully resolved."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        description="Number format of the forward pass that computed the training features."
    )
    dtype: Literal["float16", "float32"] = Field(
        description="Number format to which features are rounded before the head reads them, as "
        "in the feature store."
    )
    probe: dict[str, Any] = Field(
        description="Features of a public test image, which other machines compare with their "
        "own result."
    )
    versions: dict[str, str] = Field(
        description="Versions of the libraries that computed the features."
    )
    members: tuple[BackboneFacts, ...] = Field(
        (),
        exclude_if=lambda value: not value,
        description="The backbones whose features, each scaled to L2 norm 1, a joined backbone "
        "puts side by side, in this order. Absent for other backbones.",
    )

    @property
    def parts(self) -> tuple[BackboneFacts, ...]:
        """The members of a joined backbone; for other backbones, only the backbone itself."""
        return self.members or (self,)

    @property
    def takes_vectors(self) -> bool:
        """True if a model outside dpprobe computed the features as vectors."""
        return bool(self.options.get("family") == external.FAMILY)

    @property
    def loaded_preprocessing(self) -> dict[str, Any]:
        """A loaded backbone's preprocessing, without the keys for reading vectors from files."""
        told = (POOL, ARRAY) if self.takes_vectors else ()
        return {key: value for key, value in self.preprocessing.items() if key not in told}

    @property
    def pool(self) -> Literal["mean", "max"] | None:
        """The rule that pooled the patches of an item's file to a vector; None without pooling."""
        pool: Literal["mean", "max"] | None = self.preprocessing.get(POOL)
        return pool if self.takes_vectors else None

    @property
    def array(self) -> str | None:
        """The name of the array with the vectors in a file; None if the study named none."""
        return self.preprocessing.get(ARRAY) if self.takes_vectors else None

    @property
    def public_data(self) -> dict[str, Any]:
        """The facts about the model for a privacy statement."""
        return {
            "backbone": self.name,
            "backbone_options": self.options,
            "trained": self.trained,
            "weights_sha256": self.weights_sha256,
        }


class StudentFacts(Facts):
    """The release that decided if a student on public images replaced the head."""

    gain: float = Field(
        description="How many more units of privacy the student had right than the head, on the "
        "training images, with noise; by weight of their classes if the head balances classes."
    )
    threshold: float = Field(
        description="Two standard deviations of the noise on `gain`; above it, the student "
        "replaces the head."
    )
    used: bool = Field(description="True if the weights are the student's.")


class HeadFacts(Facts):
    """The trained head."""

    options: dict[str, Any] = Field(
        description="Options of the method: `head`, `normalize` and others."
    )
    method: str = Field(description="The method's name in the study.")
    chosen: dict[str, Any] | None = Field(
        description="Options chosen by the private hyperparameter search, with their noisy score; "
        "null without a search."
    )
    class_priors: tuple[float, ...] | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Noisy class frequencies among the training images; the head answers as if "
        "classes were equally frequent. Absent if no class frequencies were released.",
    )
    student: StudentFacts | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Whether a student on public images replaced the trained head. Absent if no "
        "student was tried.",
    )
    link: Literal["softmax", "sigmoid", "none"] = Field(
        description="Function that turns scores into probabilities; `none` leaves scores unchanged."
    )

    def read_options(self) -> MethodOptions:
        """Reads the method's options; raises ConfigError for unknown or wrong options."""
        return method_options(take_options(self.options))


class CardFacts(Facts):
    """Texts of the model card that a person wrote."""

    license: str | None = None
    intended_use: str | None = None
    limits: str | None = None
    contact: str | None = None


class BundleFacts(Facts):
    """The content of bundle.json."""

    format: Literal["dpprobe-bundle"] = "dpprobe-bundle"
    format_version: Literal[1] = 1
    name: str = Field(description="The release's name.")
    study: str
    dataset: str = Field(description="The name of the private dataset in the study.")
    dpprobe: str = Field(description="The version of dpprobe that made the bundle.")
    class_names: tuple[str, ...]
    multi_label: bool
    dimension: int = Field(ge=1, description="Number of features per image.")
    backbone: BackboneFacts
    head: HeadFacts
    card: CardFacts = CardFacts()

    @property
    def is_of_estimator(self) -> bool:
        """True for a head of `PrivateClassifier`, which records no library versions."""
        return self.study == ESTIMATOR and not self.backbone.versions

    def hash_parts(self) -> dict[str, str]:
        """Hashes classes, preprocessing, probe and backbone; the privacy statement records them."""
        backbone = self.backbone.model_dump(mode="json")
        preprocessing, probe = backbone.pop("preprocessing"), backbone.pop("probe")
        parts = {"classes": list(self.class_names), "preprocessing": preprocessing, "probe": probe}
        return {name: hash_value(part) for name, part in {**parts, "backbone": backbone}.items()}


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle as read from its folder.

    Attributes:
      facts: bundle.json.
      weights: float32 [classes, d + 1], for normalised rows of d features; biases come last.
      arrays: released arrays other than the weights, by name.
      statement: the facts of privacy.json, in the form of the newest version.
    """

    folder: Path
    facts: BundleFacts
    weights: npt.NDArray[np.float32]
    arrays: Mapping[str, npt.NDArray[np.float32]]
    statement: Mapping[str, Any]

    @cached_property
    def calibration(self) -> Calibration | None:
        """The conversion of scores to probabilities; None for a release without calibration."""
        return _read_calibration(self.statement)

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        """The function that turns scores, after any calibration, into probabilities."""
        return "softmax" if "calibration" in self.statement else self.facts.head.link


def published_options(options: MethodOptions) -> dict[str, Any]:
    """Returns a method's options; public files have their names without folders."""
    names = {path: Path(path).name for path in options.public_files().values()}
    values: dict[str, Any] = _replace_texts(options.model_dump(mode="json"), names)
    return values


def _replace_texts(value: Any, names: Mapping[str, str]) -> Any:
    """Replaces texts by `names` in a JSON value, also inside mappings."""
    if isinstance(value, Mapping):
        return {key: _replace_texts(each, names) for key, each in value.items()}
    return names.get(value, value) if isinstance(value, str) else value


def write_bundle(
    folder: Path,
    facts: BundleFacts,
    *,
    weights: npt.NDArray[np.float32],
    arrays: Mapping[str, npt.NDArray[np.float32]],
    statement: Mapping[str, Any],
) -> None:
    """Writes bundle.json, the head (weights: float32 [classes, d + 1]) and the statement."""
    write_json(folder / FACTS_FILE, facts.model_dump(mode="json"))
    write_json(folder / STATEMENT_FILE, dict(statement))
    mark = mark_head(facts, statement["epsilon_target"])
    content = pack_tensors({WEIGHTS: weights, **arrays}, mark)
    with atomic_path(folder / HEAD_FILE) as temporary:
        temporary.write_bytes(content)


def mark_head(facts: BundleFacts, epsilon: float) -> dict[str, str]:
    """Returns the metadata that mark a head's file as private."""
    # slow to import, and Snakemake imports this module at each start
    from dpprobe.privacy.private_mark import mark_metadata

    cell = {
        "dataset": facts.dataset,
        "backbone": facts.backbone.name,
        "method": facts.head.method,
        "epsilon": f"{epsilon:g}",
    }
    return mark_metadata(cell, facts.head.options)


def write_sums(folder: Path) -> None:
    lines = [f"{sha256_file(folder / name)}  {name}\n" for name in LISTED_FILES]
    write_text(folder / SUMS_FILE, "".join(lines))


def read_sums(folder: Path) -> dict[str, str]:
    """Reads SHA256SUMS: SHA-256 by file name; raises DataError if it cannot be read."""
    path = folder / SUMS_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: unreadable ({error}); fetch the bundle again") from error


def bundle_digest(folder: Path) -> str:
    """Returns the SHA-256 of SHA256SUMS, which identifies the whole bundle."""
    return sha256_file(folder / SUMS_FILE)


def damaged_files(folder: Path) -> list[str]:
    """Lists missing and altered files of a bundle, and unknown names in SHA256SUMS."""
    sums = read_sums(folder)
    names = dict.fromkeys([*LISTED_FILES, *sums])
    return [
        name
        for name in names
        if name not in LISTED_FILES
        or not (folder / name).is_file()
        or sha256_file(folder / name) != sums.get(name)
    ]


def check_outside(output: Path) -> None:
    """Raises ConfigError for an output inside a bundle, which would then fail to verify."""
    for folder in output.resolve().parents:
        if all((folder / name).is_file() for name in (FACTS_FILE, SUMS_FILE)):
            raise ConfigError(
                f"{output}: {folder} is a bundle, which must not change; name another folder"
            )


def check_files(folder: Path) -> int:
    """Counts a bundle's files; raises DataError unless all are plain files with known names."""
    if not (folder / SUMS_FILE).is_file():
        raise DataError(
            f"{folder}: no bundle in this folder; name the folder that contains {SUMS_FILE}"
        )
    modes = {path.name: path.lstat() for path in folder.iterdir()}
    missing = [name for name in BUNDLE_FILES if name not in modes]
    others = sorted(set(modes) - {*BUNDLE_FILES, SIGNATURE_FILE})
    require_true(not missing, f"{folder}: missing: {', '.join(missing)}; fetch the bundle again")
    require_true(
        not others,
        f"{folder}: {', '.join(others)}: not part of a bundle, so no guarantee covers it; remove "
        "it from the folder",
    )
    for name, status in modes.items():
        require_true(
            stat.S_ISREG(status.st_mode), f"{name}: not a plain file; fetch the bundle again"
        )
        largest = LARGEST_HEAD if name == HEAD_FILE else LARGEST_TEXT
        require_true(
            status.st_size <= largest, f"{name}: {status.st_size} bytes, but the limit is {largest}"
        )
    return len(modes)


def read_facts(folder: Path) -> BundleFacts:
    """Reads bundle.json from an untrusted source; raises DataError or ValidationError."""
    path = folder / FACTS_FILE
    read_json(path)
    facts = BundleFacts.model_validate_json(path.read_bytes(), strict=True)
    names = facts.class_names
    require_true(0 < len(set(names)) == len(names), "class_names: empty, or a name appears twice")
    for name in (facts.name, facts.study, facts.dataset):
        _check_name(name)
    _check_members(facts.backbone)
    for backbone in (facts.backbone, *facts.backbone.members):
        _check_backbone(backbone)
    return facts


def _check_name(name: str) -> None:
    require_true("/" not in name and "\\" not in name, f"{name}: is a path, but must be a name")


def _check_members(backbone: BackboneFacts) -> None:
    """Raises DataError unless the options of a joined backbone describe its members."""
    described = [
        {
            "backbone": one.name,
            "backbone_options": one.options,
            "trained": one.trained,
            "weights_sha256": one.weights_sha256,
        }
        for one in backbone.members
    ]
    joins = backbone.options.get("family") == joined.FAMILY
    require_true(
        joins == bool(described)
        and len({one.name for one in backbone.members}) == len(described)
        and backbone.options.get("members", []) == described,
        "backbone.members: must be the backbones that backbone.options names",
    )
    require_true(
        all(not one.members and not one.takes_vectors for one in backbone.members)
        and (not joins or backbone.checkpoint is None),
        "backbone.members: each member must compute features of images by itself",
    )


def _check_backbone(backbone: BackboneFacts) -> None:
    if not backbone.trained:
        require_true(
            backbone.checkpoint is None, "backbone: has no trained weights, but a checkpoint"
        )
    _check_name(backbone.checkpoint or "")
    require_true(
        backbone.options.get("checkpoint") is None,
        "backbone.options.checkpoint: a file path, which a bundle must not contain",
    )
    require_true(
        is_probe(backbone.probe),
        "backbone.probe: must have sha256, norm and sample of a test image's features",
    )
    require_true(
        not backbone.takes_vectors or backbone.preprocessing.get(POOL) in (None, "mean", "max"),
        "backbone.preprocessing.pool: must be mean or max",
    )
    sha256 = backbone.weights_sha256
    require_true(sha256 is None or is_hash(sha256), f"weights_sha256 {sha256}: not a SHA-256")


def read_statement(folder: Path, facts: BundleFacts) -> dict[str, Any]:
    """Reads the facts of a privacy.json of any supported version."""
    values = read_json(folder / STATEMENT_FILE)
    return read_statement_facts(values, estimator=facts.is_of_estimator)


def read_bundle(folder: Path) -> Bundle:
    """Reads an untrusted bundle; raises DataError for missing, altered or additional files."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    check_files(folder)
    if damaged := damaged_files(folder):
        raise DataError(
            f"{folder}: {', '.join(damaged)}: missing, or changed after {SUMS_FILE} was written; "
            "fetch the bundle again"
        )
    try:
        facts = read_facts(folder)
        statement = read_statement(folder, facts)
        tensors = load((folder / HEAD_FILE).read_bytes())
        weights = tensors.pop(WEIGHTS)
        facts.head.read_options()
        _read_calibration(statement)
    except (
        ValidationError,
        ConfigError,
        DataError,
        SafetensorError,
        ValueError,
        KeyError,
    ) as error:
        reason = explain_first(error) if isinstance(error, ValidationError) else str(error)
        raise DataError(
            f"{folder}: not a bundle in format {FORMAT} {FORMAT_VERSION} ({reason}); use the "
            "version of dpprobe that made the bundle"
        ) from error
    wanted = (len(facts.class_names), facts.dimension + 1)
    if weights.shape != wanted:
        raise DataError(
            f"{folder / HEAD_FILE}: weights have shape {list(weights.shape)} instead of "
            f"{list(wanted)}; fetch the bundle again"
        )
    for name, values in {WEIGHTS: weights, **tensors}.items():
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise DataError(
                f"{folder / HEAD_FILE}: {name}: not finite float32 numbers; fetch the bundle again"
            )
    return Bundle(folder=folder, facts=facts, weights=weights, arrays=tensors, statement=statement)


def _read_calibration(statement: Mapping[str, Any]) -> Calibration | None:
    if (block := statement.get("calibration")) is None:
        return None
    from dpprobe.release.probabilities import Calibration  # slow to import

    return Calibration.from_block(block)
