"""The record of compared subgroups: the names of a job's files, and its JSON as a typed object.

This module imports nothing heavy, because each start of Snakemake imports it. A record is not
private: all numbers come from labels, groups and scores of test examples, without noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from dpprobe.data.options import Headline
from dpprobe.data.people.group_columns import CLASSES as CLASSES
from dpprobe.files.records import Record, RecordPart
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.risk import RiskEpsilon

# The folder of all records; a job's files are <folder>/<dataset>/<backbone><suffix>.
FAIRNESS = "fairness"
RECORD_SUFFIX, TABLE_SUFFIX = ".json", ".parquet"
# A job writes its record last, so a record marks complete results.
FAIRNESS_SUFFIXES = (RECORD_SUFFIX, TABLE_SUFFIX)

# Metrics of a group: True if larger values are better.
GROUP_METRICS = {"auc": True, "accuracy": True, "recall": True, "calibration_error": False}
# Metrics that compare rates label by label, with their rates. The gap is the largest over rates and
# labels, because differences may cancel in a mean over labels (selection rates of classes do).
PARITY_RATES = {
    "equalised_odds": ("true_positive_rate", "false_positive_rate"),
    "demographic_parity": ("selection_rate",),
}
# The columns of the parquet table, which has one row for each cell, group and metric.
COLUMNS = (
    "method", "epsilon", "attribute", "group", "label", "metric", "value", "low", "high",
    "difference", "rows", "units", "positives", "left_out",
)  # fmt: skip
ALL_LABELS = ""  # `label` of a row with the mean over labels, or with one number for all labels


class Minimum(RecordPart):
    """The fewest test units of a compared group: in total, with a label, and without the label."""

    units: int
    positives: int
    negatives: int


class Group(RecordPart):
    """A group of the test examples.

    Attributes:
      units: the number of patients, or of rows if the dataset names no patients.
      left_out: the reason why no metric compares the group; None for a compared group.
    """

    group: str
    rows: int
    units: int
    left_out: str | None


class Compared(RecordPart):
    """The labels and groups that a metric of an attribute compares.

    Attributes:
      labels: the labels in the metric's mean, which all groups share; empty for all labels.
      left_out: groups that only this metric leaves out, with reasons.
    """

    labels: tuple[str, ...]
    left_out: dict[str, str]


class Attribute(RecordPart):
    """An attribute whose groups are compared: a column, a pair ("sex x age"), or the classes."""

    attribute: str
    groups: tuple[Group, ...]
    compared: dict[str, Compared]


class Reference(RecordPart):
    method: str
    epsilon: str


class Gap(RecordPart):
    """The distance between the best and the worst group by one metric, for one cell.

    Values are means over seeds. A gap is computed for each seed's head and then averaged, so the
    gap may be larger than the distance between `best` and `worst`.

    Attributes:
      overall: the metric over all rows, for the labels that are compared.
      low, high: the gap's interval over test units; `low` is 0 if groups may be equal.
      std: standard deviation of the seeds' gaps, with ddof = 1; None for one seed.
      chance_gap: the 95% quantile of the first head's gaps between random groups, which are as
        large as the real groups; None if groups are labels.
      difference: the gap minus the reference's gap; both gaps use equal resamples.
      difference_low, difference_high: the interval of `difference`.
      groups: the number of compared groups.
      resamples: the number of resamples in which the metric is defined for each compared group.
      label, rate: the label and rate with the largest gap, for a metric of `PARITY_RATES`. Other
        fields describe this gap: `worst` is the highest false-positive rate or lowest other rate.
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
    label: str | None = Field(None, exclude_if=lambda label: label is None)
    rate: str | None = Field(None, exclude_if=lambda rate: rate is None)

    @property
    def is_apart(self) -> bool:
        return self.low is not None and self.low > 0


class CellAttribute(RecordPart):
    """The gaps between groups of one cell, by metric."""

    attribute: str
    gaps: dict[str, Gap]


class FairnessCell(RecordPart):
    """One cell.

    Attributes:
      private: True if the cell carries a guarantee.
      reference: the non-private cell to compare with; None without a reference, and for references.
      overall: each defined metric, over all test examples.
      epsilon_at_delta: the epsilon implied by a budget given as a risk; absent for other budgets.
    """

    method: str
    epsilon: str
    private: bool
    seeds: int
    reference: Reference | None
    overall: dict[str, float]
    attributes: tuple[CellAttribute, ...]
    epsilon_at_delta: float | None = Field(None, exclude_if=lambda epsilon: epsilon is None)

    @property
    def place(self) -> float:
        """The epsilon at which figures draw the cell."""
        if self.epsilon_at_delta is not None:
            return RiskEpsilon(self.epsilon_at_delta, self.epsilon)
        return epsilon_value(self.epsilon)

    def find_gap(self, attribute: str, metric: str) -> Gap | None:
        named = (item for item in self.attributes if item.attribute == attribute)
        return next((item.gaps[metric] for item in named if metric in item.gaps), None)


class FairnessRecord(Record):
    """The subgroups of all cells of a (dataset, backbone).

    Attributes:
      headline: the metric by which groups are compared, "accuracy" or "auc".
      cell_headline: the cells' headline metric, which may also be macro accuracy.
      rows: the number of test examples.
      units: the number of test patients; None if the dataset names no patients.
    """

    format: Literal["dpprobe-fairness"] = "dpprobe-fairness"
    format_version: Literal[2] = 2
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

    def find_cell(self, method: str, epsilon: str) -> FairnessCell | None:
        key = (method, epsilon)
        return next((cell for cell in self.cells if (cell.method, cell.epsilon) == key), None)


def left_out_in_words(groups: Iterable[Group]) -> str | None:
    """Lists omitted groups with reasons in one line; None if no group is omitted."""
    named = [f"{group.group} ({group.left_out})" for group in groups if group.left_out]
    return ", ".join(named) or None
