"""The record of a dataset's rare classes on one backbone: its folder, and its JSON as an object.

This module imports nothing heavy, because each start of Snakemake imports it. A record is not
private: all its numbers come from test labels and training examples, without noise.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer

from dpprobe.files.records import Record, RecordPart

IMBALANCE = "imbalance"  # the folder of all records, <folder>/<dataset>/<backbone>.json


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


OptionalNumber = Annotated[
    float | None, BeforeValidator(_finite_or_none), PlainSerializer(_finite_or_none)
]


class Estimate(RecordPart):
    """A mean over seeds with its 95% interval; `std` is None for one seed.

    The interval is the union of Student's t interval over seeds and Wilson's over test examples.
    """

    mean: float
    std: OptionalNumber
    low: float
    high: float


class TrainingSet(RecordPart):
    """A dataset of the study: the complete dataset, or a copy in which one class is rare.

    Attributes:
      class_name: the rare class; None for the complete dataset.
      fraction: the share of the rare class's examples in the copy; 1 for the complete dataset.
      per_class: number of training examples of each class.
    """

    name: str
    class_name: str | None
    fraction: float
    rows: int
    per_class: tuple[int, ...]


class RareCell(RecordPart):
    """A cell's results on the class that is rare in its training examples.

    Attributes:
      class_rows, rows: numbers of training examples of the class (n_c), and of all classes.
      private: True if the cell has a privacy guarantee.
      auc: AUC of the class against all others; None if no or every test example has the class.
      never_predicted: the number of seeds whose head never predicts the class.
      macro_accuracy: mean over seeds of the mean recall over classes.
      reference: the method and epsilon of the non-private cell on equal training examples; None if
        the study has no reference.
      reference_learnt: True if the reference's recall exceeds 10% and twice the recall of guessing.
      drop: the reference's recall minus this cell's recall.
      drop_low, drop_high: the 95% interval of `drop` (Welch); None if no recall varies over seeds.
    """

    training_set: str
    class_name: str
    fraction: float
    class_rows: int
    rows: int
    method: str
    epsilon: str
    private: bool
    seeds: int
    recall: Estimate
    auc: Estimate | None
    never_predicted: int
    macro_accuracy: float
    reference: tuple[str, str] | None
    reference_recall: OptionalNumber
    reference_learnt: bool
    drop: OptionalNumber
    drop_low: OptionalNumber
    drop_high: OptionalNumber


class BreakDown(RecordPart):
    """The product n_c * epsilon at which a method learns a class half as well as without privacy.

    A cell's product is the number of training examples of the class, n_c, times epsilon.

    Attributes:
      reached: the smallest product at which a cell has at least half of the reference's recall.
      lasting: the smallest product such that all cells with at least this product have at least
        half of the reference's recall.
      cells: number of compared cells.
      left_out: number of cells that are not compared, as their reference has not learnt the class.
      smallest, largest: the smallest and largest product of the compared cells.
      note: why the study's epsilons leave `reached` or `lasting` uncertain; empty if certain.
    """

    class_name: str
    method: str
    reached: OptionalNumber
    lasting: OptionalNumber
    cells: int
    left_out: int
    smallest: OptionalNumber
    largest: OptionalNumber
    note: str


class ImbalanceRecord(Record):
    """Rare classes of a dataset on one backbone. Not private."""

    format: Literal["dpprobe-imbalance"] = "dpprobe-imbalance"
    format_version: Literal[2] = 2
    dataset: str
    backbone: str
    class_names: tuple[str, ...]
    classes: tuple[str, ...]
    training_sets: tuple[TrainingSet, ...]
    cells: tuple[RareCell, ...]
    break_downs: tuple[BreakDown, ...]
