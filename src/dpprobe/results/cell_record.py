"""The record of a cell: the names of its metrics, and `metrics.json` as a typed object.

All code that writes or reads a cell uses this module's names and formats. Snakemake imports this
module whenever it starts, so this module imports no slow package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, ValidationError

from dpprobe.data.options import Headline
from dpprobe.errors import DataError
from dpprobe.files.json_files import check_not_newer, parse_values, read_json
from dpprobe.files.plain_files import read_bounded, sha256_file
from dpprobe.files.records import Record, RecordPart
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.registry import NETWORKS
from dpprobe.json_values import Difference, first_difference
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order
from dpprobe.results.cell_files import METRICS_FILE
from dpprobe.wrong_keys_and_values import explain_first

CELL_FORMAT: Final = "dpprobe-cell"
CELL_FORMAT_VERSION: Final = 4

DAMAGED_REMEDY = "delete it and run the cell again; `dpprobe doctor --fix` deletes what is damaged"

REAL_ACCURACY: Final = "real_accuracy"  # accuracy by the accepted labels of ReaL
# The names of the metrics that represent cells in tables and figures.
HEADLINES = {"accuracy": "accuracy", "auc": "AUC", "macro_accuracy": "macro accuracy"}
CEILING_HEAD = "nonprivate"  # the head whose result is a backbone's non-private baseline


class _StrictPart(RecordPart):
    model_config = ConfigDict(strict=True)


class CellName(_StrictPart):
    """The four names of a cell; epsilon is a token such as "0.5", "inf" or "advantage-0.1"."""

    dataset: str
    backbone: str
    method: str
    epsilon: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.dataset, self.backbone, self.method, self.epsilon

    @property
    def order(self) -> float:
        return budget_order(self.epsilon)

    @property
    def promises(self) -> bool:
        """True if the cell has a privacy guarantee: its epsilon is finite."""
        return self.epsilon != INFINITE

    def folder(self, cells: Path | str) -> Path:
        return Path(cells, self.dataset, self.backbone, self.method, f"eps-{self.epsilon}")


def record_paths(results: Path, cells: Iterable[Sequence[str]]) -> list[Path]:
    """Returns the record paths of cells, which are (dataset, backbone, method, epsilon token)."""
    names = (dict(zip(CellName.model_fields, cell, strict=True)) for cell in cells)
    return [CellName(**name).folder(results / "cells") / METRICS_FILE for name in names]


class SplitCounts(_StrictPart):
    train: int
    test: int


class MetricSummary(_StrictPart):
    """One metric over a cell's seeds, as fractions; without a 95% interval its ends are None.

    Attributes:
      std: standard deviation over seeds, with ddof = 1; None for one seed.
      low, high: ends of the interval over seeds, or over test examples if all seeds are equal.
      rows_low, rows_high: ends of the interval over test examples.
      both_low, both_high: ends of the interval over seeds and test examples together.
      interval, rows_interval, both_interval: how each interval was computed.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    count: int
    interval: str | None
    rows_low: float | None
    rows_high: float | None
    rows_interval: str | None
    both_low: float | None
    both_high: float | None
    both_interval: str | None


class CellRecord(Record):
    """A cell's `metrics.json`.

    Attributes:
      private: True for a private method, at any epsilon; see `guaranteed`.
      fingerprint: hash of all inputs of the cell.
      content_hash: hash of the fingerprint and the cell's files.
      noise_multiplier: None unless the plan is private and has exactly one mechanism.
      options: the method's options, as written in the study file.
      units: the numbers of training and test patients; None if the dataset does not name patients.
      unit: the unit of privacy, "image" or "patient".
      n: the number of training units of privacy.
      accountant: the accountant's name in the study; None without a guarantee.
      headline: the cell's metric in tables and figures.
      metric_named: True if the study sets the headline metric.
      test_counts: test rows of each class, or of each label if rows have several labels.
      constant_accuracy: the accuracy of the majority-class baseline.
      auc_labels: the labels that some test examples have and others lack.
      seeds: per seed, its `index`, metrics, the headline's `halves` (`halves.py`) and the classes
        `never_predicted`; also the values `chosen` by a search, released `class_priors`, and
        whether a `student` replaced the head.
      files: SHA-256 of each other file of the cell.
      seconds: the time to train all seeds; None if it would reveal a random number of trials.
    """

    model_config = ConfigDict(strict=True)

    format: Literal["dpprobe-cell"] = CELL_FORMAT
    format_version: Literal[4] = CELL_FORMAT_VERSION
    cell: CellName
    head: str
    private: bool
    fingerprint: str
    content_hash: str
    delta: float | None
    noise_multiplier: float | None
    realised_epsilon: float | None
    options: dict[str, Any]
    rows: SplitCounts
    units: SplitCounts | None
    unit: str
    n: int
    accountant: str | None
    study_seed: int
    dimension: int
    class_names: list[str]
    multi_label: bool
    headline: Headline
    metric_named: bool
    test_counts: list[int]
    constant_accuracy: float
    auc_labels: int
    seeds: list[dict[str, Any]]
    summary: dict[str, MetricSummary]
    files: dict[str, str]
    seconds: float | None

    @property
    def guaranteed(self) -> bool:
        """True for a private method at a finite epsilon without an unpriced search of options."""
        searched = self.head in NETWORKS and self.options.get("search") is not None
        return self.private and self.cell.promises and not searched

    @property
    def tunes_network(self) -> bool:
        """True if a part of the backbone was trained."""
        return self.head in NETWORKS or self.options.get("base", {}).get("head") in NETWORKS

    @property
    def balanced(self) -> bool:
        """True if the head's options compensate for unequal class frequencies."""
        options = self.options.get("chosen") or self.options.get("base") or self.options
        return bool(options.get("class_priors") or options.get("class_weights"))

    @property
    def is_ceiling(self) -> bool:
        return self.head == CEILING_HEAD

    @property
    def mean(self) -> float:
        """The headline metric's mean over seeds, as a fraction."""
        return self.summary[self.headline].mean

    @property
    def measure(self) -> Measure:
        return Measure(
            headline=self.headline,
            multi_label=self.multi_label,
            labels=self.auc_labels,
            num_classes=len(self.class_names),
        )


class Measure(_StrictPart):
    """The headline metric of a dataset, and the labels in its mean."""

    headline: Headline
    multi_label: bool = False
    labels: int = 0  # number of labels in the mean; `num_classes` counts all labels
    num_classes: int = 0

    @property
    def is_partial(self) -> bool:
        """True if the mean AUC leaves out labels that all or no test examples have."""
        return self.multi_label and self.headline == "auc" and self.labels < self.num_classes

    @property
    def is_accuracy(self) -> bool:
        """True for accuracy with one label per image, the only metric with learning curves."""
        return self.headline == "accuracy" and not self.multi_label

    @property
    def least_title(self) -> str:
        return "worst-label AUC" if self.multi_label else "worst-class recall"

    @property
    def title(self) -> str:
        """The metric's name in sentences and on axes, such as "mean AUC over 13 of 14 labels"."""
        name = HEADLINES[self.headline]
        if not self.multi_label:
            return name
        labels = f"{self.labels} of {self.num_classes} labels" if self.is_partial else "labels"
        return f"mean {name} over {labels}"


ACCURACY = Measure(headline="accuracy")


def read_cell(path: Path) -> CellRecord:
    """Reads a cell's `metrics.json`.

    Raises DataError if the file is missing, is not JSON or is not a record of this format version.
    """
    try:
        return parse_cell(read_bounded(path))
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; run the cell with this path as the target of `dpprobe run`"
        ) from None
    except DataError as error:
        raise DataError(f"{path.parent}: {error}") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}; {DAMAGED_REMEDY}") from None


def check_file(path: Path) -> Path:
    """Returns `path`, a cell's file, after checking its hash if the record has one.

    Raises DataError if the file is missing or was changed, or if the record is damaged.
    """
    named = record = path.with_name(METRICS_FILE)
    try:
        recorded = read_json(record)["files"].get(path.name) if record.is_file() else None
        named = path
        if recorded is None or sha256_file(path) == recorded:
            return path
        fault = f"does not have the hash that {METRICS_FILE} records"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"cannot be read ({error})"
    raise DataError(f"{named}: {fault}; {DAMAGED_REMEDY}")


def read_statement(path: Path) -> dict[str, Any]:
    """Reads a cell's `privacy.json`; raises DataError if the file is missing or damaged."""
    try:
        return dict(read_json(check_file(path)))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete the file and run the study again"
        ) from None


def parse_cell(text: bytes) -> CellRecord:
    """Parses a `metrics.json`.

    Raises ValueError with a message of one line, or DataError if a newer dpprobe wrote the record.
    """
    values = parse_values(text)
    named = values if isinstance(values, Mapping) else {}
    if named.get("format") != CELL_FORMAT or named.get("format_version") != CELL_FORMAT_VERSION:
        check_not_newer(METRICS_FILE, named, kind=CELL_FORMAT, version=CELL_FORMAT_VERSION)
        raise ValueError(f"its format is not {CELL_FORMAT} {CELL_FORMAT_VERSION}")
    try:
        return CellRecord.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain_first(error)) from None


def recorded_facts(
    record: Mapping[str, Any], *, epsilon: float, delta: float, metric: Headline | None = None
) -> DataFacts:
    """Returns the public facts from which `auto` chooses a cell's head.

    `delta` is the dataset's delta, needed because a record at epsilon inf has no delta. Raises
    KeyError if the record lacks a fact.
    """
    return DataFacts(
        n=record["n"],
        dimension=record["dimension"],
        classes=len(record["class_names"]),
        multi_label=record["multi_label"],
        epsilon=epsilon,
        delta=delta,
        unit=record["unit"],
        metric=metric,
    )


def find_disagreement(
    record: Mapping[str, Any],
    *,
    options: Mapping[str, Any],
    seeds: int,
    study_seed: int,
    delta: float | None,
    accountant: str | None,
    unit: str,
) -> Difference | None:
    """Describes the first difference between a cell's record and the study; None if they agree.

    In paths of `options`, placeholders must already be replaced by dataset and backbone. Delta and
    accountant are None for a cell without a guarantee.
    """
    wanted = {
        "format_version": CELL_FORMAT_VERSION,
        "options": options,
        "delta": delta,
        "seeds": seeds,
        "study_seed": study_seed,
        "accountant": accountant,
        "unit": unit,
    }
    written = {name: record.get(name) for name in wanted}
    written["seeds"] = len(record.get("seeds") or ())
    return first_difference(written, wanted)


def read_measures(cells: Iterable[tuple[Path, CellRecord]]) -> dict[str, Measure]:
    """Returns the headline metric of each dataset.

    Raises DataError if a dataset's cells differ in headline metric, for example after a killed run.
    """
    first: dict[str, tuple[Path, Measure]] = {}
    for path, record in cells:
        measure = record.measure
        other_path, other = first.setdefault(record.cell.dataset, (path, measure))
        if other != measure:
            raise DataError(
                f"{path}: its metric is {measure.headline} but {other_path} has {other.headline}, "
                "or their test rows differ; run the study again"
            )
    return {dataset: measure for dataset, (_, measure) in first.items()}
