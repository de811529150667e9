"""Options that every dataset has."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dpprobe.data.option_paths import with_paths
from dpprobe.data.subsample import Subsample
from dpprobe.errors import ConfigError
from dpprobe.options import Name, Options, real_path, resolve_path
from dpprobe.privacy.limits import SMALLEST_DELTA


class Expected(Options):
    """Expected sizes of a dataset, known before its tables are made."""

    train: int | None = Field(None, ge=1, description="Number of training images.")
    test: int | None = Field(None, ge=1, description="Number of test images.")
    classes: int | None = Field(
        None, ge=2, description="Number of classes, or of labels if an image may have several."
    )


class Limit(Options):
    """Use only the first rows of each split."""

    train: int | None = Field(None, ge=1, description="Number of training rows to keep.")
    test: int | None = Field(None, ge=1, description="Number of test rows to keep.")


@dataclass(frozen=True, kw_only=True)
class ClassUnits:
    """Units of privacy per class, or per label, before `subsample`.

    The counts are private: they are shown on the owner's screen, but never written to a file.

    Attributes:
      test_shares: the weight of each class in test results, in which each of a patient's m test
        images has weight 1 / m; empty if equal to `test`.
      test_at: the test units for larger values of `test_fraction`; empty if each class has five
        test units, or if the source has a test split.
    """

    train: Mapping[str, int]
    test: Mapping[str, int]
    test_shares: Mapping[str, float] = field(default_factory=dict)
    test_at: Mapping[float, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NamedPeople:
    """The facts about a dataset's patients that columns determine.

    Attributes:
      column: the column with the patient of each image; None without patients.
      unit: the unit of privacy that the dataset sets; None for the study's unit.
      most_images: the largest number of training images per patient; None for any number.
      groups: the columns of subgroups in the split tables.
    """

    column: str | None = None
    unit: Literal["image", "patient"] | None = None
    most_images: int | None = None
    groups: tuple[str, ...] = ()


Prompts = str | tuple[str, ...]
Headline = Literal["accuracy", "auc", "macro_accuracy"]
# The largest ratio of class sizes in the test split at which accuracy is the headline metric. For
# two classes of sizes 2 to 1, the majority-class baseline has an accuracy of 67%.
IMBALANCED = 2.0
# Options that only affect checks of the tables, not their content.
DATASET_NOTES = frozenset(
    {
        "allow_delta_above_one_over_n", "catalog", "delta", "downloads", "duplicates", "expect",
        "metric", "missing_classes", "other_units_than", "prompts", "prompt_names",
        "same_units_as", "unit", "verify",
    }
)  # fmt: skip
# Options that are omitted from tables' parameters at their defaults, so that old tables stay valid.
_OMITTED_AT_DEFAULT = frozenset(
    {"max_images_per_patient", "pool", "split_by", "subsample", "unit_column", "unreadable"}
)
# Options that split, limit, store or label images, but do not determine the set of images.
_OF_THE_SAME_IMAGES = DATASET_NOTES | {
    "accepted_labels", "class_names", "companions", "embed", "group_columns", "id_column",
    "label_column", "label_columns", "limit", "max_images_per_patient", "missing",
    "pool", "several_labels", "shard_in_id", "split_by", "split_seed", "subsample", "test_fraction",
    "uncertain", "unit_column", "unreadable",
}  # fmt: skip


Pooling = Literal["mean", "max"]  # how several vectors of a row become one
Embed = Annotated[
    bool,
    Field(
        description="Copy the images into the split tables. If false, the tables name the image "
        "files, which must stay in place unchanged.",
    ),
]


Downloads = Annotated[
    str | None,
    Field(
        min_length=1,
        exclude_if=lambda value: value is None,
        description="A folder that already has the files to download, under their own names. "
        "dpprobe checks their checksums and uses them instead of downloading.",
    ),
]


def check_downloads(folder: str | None) -> None:
    if folder is not None and not resolve_path(folder).is_dir():
        raise ConfigError(f"downloads: no folder {folder}; correct the path, or remove it")


@dataclass(frozen=True, kw_only=True)
class PublicSplit:
    """How a dataset is split, as published with releases and recorded in ledgers.

    Attributes:
      rule: a description of the split for a bundle, in public words.
      key: a short text that identifies the split in a ledger, and may contain hashes of private
        files. It depends only on options: `source` if the source has both splits, else for example
          `id, seed 0, fraction 0.2`. New content in the same files does not change the key.
      follows_names: True if only a unit's name decides its split, so that equal keys always mean
        equal splits. False if positions in the files decide, so that equal keys mean equal splits
        only while the files are unchanged.
      fault: why a release cannot use the split, with the remedy. None if no unit decides whether
        another unit is in train, in test or left out.
      images_fault: why a release cannot have images of patients as units. None if removing an image
        never adds another image of the same patient.
    """

    rule: str = "source"
    key: str = "source"
    follows_names: bool = False
    fault: str | None = None
    images_fault: str | None = None


class DatasetOptions(Options, ABC):
    """The options of a dataset; `source` selects the module that reads it."""

    # The options that contain paths, such as "joins.*.file".
    paths: ClassVar[tuple[str, ...]] = ()
    # True for a source of vectors, computed elsewhere, instead of images.
    holds_vectors: ClassVar[bool] = False

    source: str
    delta: float | None = Field(
        None,
        ge=SMALLEST_DELTA,
        lt=1,
        description="Delta of this dataset; if absent, the study's delta.",
    )
    allow_delta_above_one_over_n: bool | None = Field(
        None,
        description="Allow a delta above 1 / (training images) for this dataset, with a warning; "
        "if absent, the study's setting.",
    )
    metric: Headline | None = Field(
        None,
        description="Metric of tables and figures. auc (the mean over labels) needs two classes "
        "or several labels per image; macro_accuracy (the mean over classes) needs one label per "
        "image. Default: auc for several labels per image; accuracy if no class has more than "
        "twice the test images of another; otherwise auc for two classes and macro_accuracy for "
        "more classes.",
    )

    catalog: str | None = Field(
        None,
        description="Entry of resources/catalog that provides the options which the study does "
        "not set.",
    )
    expect: Expected = Field(
        default_factory=lambda: Expected(),
        description="Sizes that the split tables must have, checked when the tables are made; with "
        "`subsample`, the sizes before rows are left out.",
    )
    subsample: Subsample | None = Field(
        None,
        description="Train on a part of the images: a share of all images, a share of some "
        "classes, or a number per class. Default: all images. The number n of training images "
        "counts the chosen images only.",
    )
    duplicates: Literal["error", "warn"] = Field(
        "error",
        description="Treatment of an image that is in both splits, with the same bytes or "
        "the same pixels.",
    )
    missing_classes: Literal["error", "warn"] = Field(
        "error",
        description="Treatment of a class without test images, if the source has a test split or "
        "the metric needs every class. `auc`, `macro_accuracy` and the default metric of two "
        "classes need every class. In other cases a class without test images is a warning. A "
        "class without training images is always an error.",
    )
    verify: Literal["decode", "hash"] = Field(
        "decode",
        description="decode: decode every image once when the split tables are made, to report all "
        "unreadable images together. hash: only read the bytes of the images; a release decodes "
        "them before it is booked, to compare their pixels.",
    )
    unreadable: Literal["error", "drop"] = Field(
        "error",
        description="Treatment of an image or a vector that is missing, damaged or not finite. "
        "error: stop and list all. drop: its row stays in the split tables as a null example, "
        "which adds nothing to any sum or test result. n still counts null examples.",
    )
    same_units_as: Name | None = Field(
        None,
        description="Another dataset under the same data_dir that has some of the same patients "
        "or images: releases of both count against max_epsilon.",
    )
    other_units_than: tuple[Name, ...] = Field(
        (),
        description="Other datasets under the same data_dir whose patients or images are "
        "different, although their names are the same or their pixels cannot be compared.",
    )
    prompts: Prompts = Field(
        "simple",
        description="Prompts that a CLIP text encoder reads for each class: the name of a set in "
        "resources/prompts.yaml, or templates with {c} in place of the class name.",
    )
    prompt_names: Literal["imagenet"] | dict[str, str] = Field(
        {},
        description="Mapping of class names to the words that replace {c} in the prompts; other "
        "classes keep their names. The value imagenet means the thousand names that CLIP's authors "
        "wrote for ImageNet's labels.",
    )

    @model_validator(mode="after")
    def _check_unreadable(self) -> Self:
        if self.unreadable == "drop" and self.verify == "hash":
            raise ValueError(
                "unreadable: drop finds damaged images by decoding them; remove `verify: hash`"
            )
        return self

    @abstractmethod
    def check_files(self) -> None:
        """Raises ConfigError if a file named in the options is missing; reads no image."""

    def list_warnings(self) -> list[str]:
        """Returns warnings about the dataset, one line each; opens no file."""
        return []

    def judge_companions(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the errors and warnings that a run will report about companions.

        Both are empty if names are unknown until the split tables are made.
        """
        return (), ()

    def judges_companions(self) -> bool:
        """Returns True if the source itself checks for companions when split tables are made."""
        return False

    def download_params(self) -> dict[str, Any] | None:
        """Returns the JSON-compatible options that decide the download; None without a download."""
        return None

    def input_files(self) -> tuple[str, ...]:
        """Returns the files and folders whose change makes the split tables stale."""
        return ()

    def image_folders(self) -> tuple[str, ...]:
        """Returns the folders in which every file counts as an image."""
        return ()

    def list_source_files(self) -> Iterator[tuple[str, str | os.PathLike[str]]]:
        """Yields the name and the path of every file that decides the split tables."""
        yield from ((file, file) for file in self.input_files())

    def preparation_params(self) -> dict[str, Any]:
        """Returns the options that decide the split tables, JSON-compatible."""
        written = self.model_dump(include=set(_OMITTED_AT_DEFAULT), exclude_defaults=True)
        omitted = DATASET_NOTES | (_OMITTED_AT_DEFAULT - written.keys())
        return self.model_dump(mode="json", exclude=set(omitted))

    def image_params(self) -> dict[str, Any]:
        """Returns the options that determine the set of images, regardless of the split.

        Different paths to the same file give equal options.
        """
        options = self.model_dump(mode="json")
        values = with_paths(options, self.paths, lambda path, _: str(real_path(resolve_path(path))))
        return _drop_options(values, _OF_THE_SAME_IMAGES)

    def image_files(self) -> tuple[str, ...]:
        """Returns the files whose images all belong to the dataset, unless `limit` leaves some out.

        Two datasets with a common file have common images. Empty before a download, or if columns'
        values choose the rows.
        """
        return ()

    def has_test(self) -> bool:
        """Returns True if the source has a test split; otherwise dpprobe splits the rows."""
        return True

    def has_labels(self) -> bool:
        """Returns False if the images have no classes, which public images do not need."""
        return True

    def public_split(self) -> PublicSplit:
        """Returns the split to be published with releases, before `subsample` leaves rows out."""
        return PublicSplit()

    def explain_labels_used(self) -> str | None:
        """Explains which options leave out rows by their labels, with the remedy; mostly None.

        `Subsample.explain_labels_used` does the same for `subsample`.
        """
        return None

    def expected_counts(self) -> Expected:
        """Returns the sizes in `expect`, reduced by `limit` and `subsample`."""
        limit: Limit = getattr(self, "limit", Limit())
        if not self.has_test() and limit.train is not None:
            return Expected(classes=self.expect.classes)
        most = limit.model_dump(exclude_none=True)
        cut = {"train"} if self.subsample else None
        sizes = self.expect.model_dump(exclude_none=True, exclude=cut)
        return Expected(**{name: min(size, most.get(name, size)) for name, size in sizes.items()})

    def count_rows(self) -> tuple[int, int] | None:
        """Counts, within seconds, the rows of the train and test tables before `subsample`.

        By default, returns the sizes in `expect`. Returns None if counting would need a download or
        reading all files; the number of rows is then checked after the download.
        """
        sizes = self.expected_counts()
        return None if sizes.train is None or sizes.test is None else (sizes.train, sizes.test)

    def class_rows(self) -> Mapping[str, int] | None:
        """Counts the training units of each class, by name, before `subsample`; None if unknown."""
        counts = None if self.multi_label() else self.count_class_units()
        return None if counts is None else counts.train

    def count_class_units(self) -> ClassUnits | None:
        """Counts units per class in both splits before `subsample`, for the owner's screen only.

        Returns None if counting would need a download or all files; then split tables are checked.
        """
        return None

    def multi_label(self) -> bool:
        return False

    def count_classes(self) -> int | None:
        """Counts the classes, or the labels; None if their number is unknown before preparation."""
        return None

    def vector_names(self) -> tuple[str, ...]:
        """Returns the names of a row's vectors; empty for images."""
        return ()

    def named_people(self) -> NamedPeople:
        return NamedPeople()

    def named_ids(self) -> str | None:
        """Returns the column that names each row; None if ids are paths or positions."""
        column: str | None = getattr(self, "id_column", None)
        return column

    def count_units(self) -> int | None:
        """Counts the patients of the train table before `subsample`; None if unknown."""
        return None


def _drop_options(values: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    """Returns options without the keys `names`, at any depth."""
    return {
        name: _drop_options(value, names) if isinstance(value, dict) else value
        for name, value in values.items()
        if name not in names
    }


def headline_metric(
    metric: Headline | None,
    *,
    num_classes: int | None,
    multi_label: bool,
    test_counts: Sequence[int] = (),
) -> Headline:
    """Returns the metric that represents a cell in tables and figures.

    Raises ConfigError for auc with one label per row unless there are two classes, and for
    macro_accuracy with several labels.

    Args:
      metric: the metric set in the dataset's options, or None.
      num_classes: the number of classes; None if unknown, so that `metric` is not checked.
      test_counts: the test rows of each class, if they are known.
    """
    if metric is None:
        if multi_label:
            return "auc"
        if compute_imbalance(test_counts) <= IMBALANCED:
            return "accuracy"
        return "auc" if num_classes == 2 else "macro_accuracy"
    if metric == "auc" and not multi_label and num_classes not in (2, None):
        raise ConfigError(
            f"metric: auc with {num_classes} classes and one label per row is not defined; write "
            "metric: macro_accuracy or accuracy"
        )
    if metric == "macro_accuracy" and multi_label:
        raise ConfigError(
            "metric: macro_accuracy needs one label per row, but rows may have several labels; "
            "use auc or accuracy"
        )
    return metric


def compute_imbalance(counts: Sequence[int]) -> float:
    """Returns the size of the largest class divided by the size of the smallest non-empty class."""
    present = [count for count in counts if count]
    return max(present) / min(present) if present else 1.0
