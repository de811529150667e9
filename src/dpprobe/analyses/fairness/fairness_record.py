"""The record of a job's subgroups: the names of its files, and its JSON as a typed object.

Everything that writes or reads the gaps between subgroups takes names and formats from here: the
job, tables, figures, the report, MLflow and the rules. Imports nothing heavy, since every start of
Snakemake reads it.

All numbers come from the labels, groups and scores of test examples, without noise: not private.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from dpprobe.data.group_columns import CLASSES as CLASSES
from dpprobe.data.options import Headline
from dpprobe.records import Part, Record

FAIRNESS_FORMAT: Final = "dpprobe-fairness"
FAIRNESS_FORMAT_VERSION: Final = 2
# The folder of all records; a job's files are <folder>/<dataset>/<backbone><suffix>.
FAIRNESS = "fairness"
RECORD_SUFFIX, TABLE_SUFFIX = ".json", ".parquet"
# The record is the commit mark: it is written last.
FAIRNESS_SUFFIXES = (RECORD_SUFFIX, TABLE_SUFFIX)

# Metrics of a group, and whether a large value is a good one.
GROUP_METRICS = {"auc": True, "accuracy": True, "recall": True, "calibration_error": False}
# The columns of the long table, one row for each metric of each group, by cell.
COLUMNS = (
    "method", "epsilon", "attribute", "group", "label", "metric", "value", "low", "high",
    "difference", "rows", "units", "positives", "left_out",
)  # fmt: skip
ALL_LABELS = ""  # in the column `label`: the mean over labels, or one number of all of them


def fairness_path(folder: Path | str, dataset: str, backbone: str, suffix: str) -> Path:
    """Returns a file of a job below the folder of all."""
    return Path(folder, dataset, f"{backbone}{suffix}")


class Minimum(Part):
    """The test units that a group needs, in all and of each value of a label."""

    units: int
    positives: int
    negatives: int


class Group(Part):
    """A group of the test examples.

    Attributes:
      units: patients, or rows where none are named.
      left_out: the reason why the group is compared by no metric; None where it is compared.
    """

    group: str
    rows: int
    units: int
    left_out: str | None


class Compared(Part):
    """The labels and groups that a metric of an attribute compares.

    Attributes:
      labels: whose mean the metric is, the same ones in every group; all of them where empty.
      left_out: further groups that are left out of this metric alone, each with its reason.
    """

    labels: tuple[str, ...]
    left_out: dict[str, str]


class Attribute(Part):
    """The groups of one column, of a pair of columns ("sex x age"), or the classes."""

    attribute: str
    groups: tuple[Group, ...]
    compared: dict[str, Compared]


class Reference(Part):
    """The cell that a cell's gaps are compared with."""

    method: str
    epsilon: str


class Gap(Part):
    """The distance between the best and the worst group by one metric, for one cell.

    Values are means over seeds. The gap is that of each seed's head, then the mean over seeds, so
    that it may lie above the distance between `best` and `worst`.

    Attributes:
      overall: the metric of all rows, over the same labels.
      worst, best: of the groups with the worst and the best value.
      low, high: the interval of the gap, over test units, for these heads. A `low` of 0 says that
        the groups may be alike.
      std: of the seeds' gaps, with ddof = 1; None for one seed.
      chance_gap: the gap that one in twenty splits into groups of these sizes exceeds when the
        units are given to groups at random, for the first head; None where groups are labels.
      difference: the gap minus that of the reference. difference_low, difference_high: its
        interval, both on the same resamples.
      groups: that are compared.
      resamples: those that drew every compared group with both values of every label; a group that
        one does not draw is left out of it.
    """

    overall: float | None
    worst_group: str | None
    worst: float | None
    best_group: str | None
    best: float | None
    gap: float | None
    low: float | None
    high: float | None
    std: float | None
    chance_gap: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    groups: int
    resamples: int

    @property
    def is_apart(self) -> bool:
        """True if the interval shows the groups to differ."""
        return self.low is not None and self.low > 0


class CellAttribute(Part):
    """The gaps of one cell by metric."""

    attribute: str
    gaps: dict[str, Gap]


class FairnessCell(Part):
    """One cell.

    Attributes:
      private: True if the cell carries a guarantee.
      reference: None where the study has no cell to compare with, and for that cell itself.
      overall: each metric of all test examples; absent where it is not defined.
    """

    method: str
    epsilon: str
    private: bool
    seeds: int
    reference: Reference | None
    overall: dict[str, float]
    attributes: tuple[CellAttribute, ...]

    def find_gap(self, attribute: str, metric: str) -> Gap | None:
        """Returns the gap of an attribute by a metric; None where there is none."""
        named = (item for item in self.attributes if item.attribute == attribute)
        return next((item.gaps[metric] for item in named if metric in item.gaps), None)


class FairnessRecord(Record):
    """The subgroups of all cells of a (dataset, backbone).

    Attributes:
      headline: the metric that groups are compared by, "accuracy" or "auc".
      cell_headline: the metric that represents a cell, which may be macro accuracy too.
      rows, units: of the test split; units None where the dataset names no patients.
    """

    format: Literal["dpprobe-fairness"] = FAIRNESS_FORMAT
    format_version: Literal[2] = FAIRNESS_FORMAT_VERSION
    dataset: str
    backbone: str
    class_names: tuple[str, ...]
    multi_label: bool
    headline: Literal["accuracy", "auc"]
    cell_headline: Headline
    rows: int
    units: int | None
    resamples: int
    confidence: float
    minimum: Minimum
    attributes: tuple[Attribute, ...]
    cells: tuple[FairnessCell, ...]

    def find_attribute(self, name: str) -> Attribute:
        """Returns an attribute by its name; KeyError where there is none."""
        return {item.attribute: item for item in self.attributes}[name]

    def find_cell(self, method: str, epsilon: str) -> FairnessCell | None:
        """Returns a cell; None where there is none."""
        key = (method, epsilon)
        return next((cell for cell in self.cells if (cell.method, cell.epsilon) == key), None)


def left_out_in_words(groups: Iterable[Group]) -> str | None:
    """Returns the groups that are left out, with their reasons, in a line; None for none."""
    named = [f"{group.group} ({group.left_out})" for group in groups if group.left_out]
    return ", ".join(named) or None
