"""Shared parts of the papers' tables: the study's results, names, table cells and notes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpprobe.analyses.baseline_record import read_few_shot, read_zero_shot
from dpprobe.exhibits.published import Number, Published
from dpprobe.exhibits.tables import BLANK, TableCell, mean_cell
from dpprobe.privacy.limits import ABOVE_MARK
from dpprobe.privacy.risk import budget_words, explain_risks
from dpprobe.results.best_private import best_result
from dpprobe.results.cell_record import HEADLINES, record_paths
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.ablations import keep_unique
from dpprobe.study.comparisons import describe_backbones
from dpprobe.study.published_names import published_names, unpublished_name
from dpprobe.study.run_command import run_words
from dpprobe.study.study import Study

# The papers' keys in `resources/published.yaml`.
FOUNDATION, TRANSFER, FEATURES = "foundation_features", "mehta_2022", "mehta_2023"
MEDICAL = "berrada_2023"
STUDY_FILES = {
    FOUNDATION: "config/foundation_features.yaml",
    TRANSFER: "config/large_scale_transfer.yaml",
    FEATURES: "config/features_second_order.yaml",
}
TITLES = {
    "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100", "plantdisease": "PlantDisease", "eurosat": "EuroSAT",
    "chest_xray": "Chest X-Ray", "imagenet": "ImageNet",
    "chexpert": "CheXpert", "mimic_cxr": "MIMIC-CXR", "eyepacs": "EyePACS",
}  # fmt: skip
OURS = "dpprobe"
INFINITY = "∞"
CHOICE_NOTE = (
    "(of 8), or another number: the best of this many methods that differ only in the learning "
    "rate. As in the paper, it was chosen at each ε by test results. ε does not cover this "
    "choice."
)
INTERVALS = (
    "mean over seeds with its 95% interval: ± half of its width, or its ends. Intervals are "
    "Student's t over seeds, cut at 0 and 100%. If all seeds agree, they are Wilson or a "
    "bootstrap over test rows. If the dataset names patients, each patient counts once and "
    "intervals are over patients"
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A study's results for the papers' tables.

    Attributes:
      names: the name of each dataset in `resources/published.yaml`.
      methods: methods in table 2 of the foundation-features paper; empty for all private methods.
      base: the method from which the ablation starts; if None, the ablation chooses a method.
    """

    study: str
    cells: Sequence[CellResult]
    names: Mapping[str, str]
    backbones: Mapping[str, Mapping[str, Any]]
    methods: Sequence[str] = ()
    base: str | None = None
    zero_shot: Sequence[Mapping[str, Any]] = ()
    few_shot: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of_study(cls, study: Study, results: Path) -> Run:
        files = StudyFiles(study, results=str(results))
        return cls(
            study=study.study,
            cells=read_cell_results(record_paths(results, study.list_cells())),
            names=published_names(study),
            backbones=describe_backbones(study),
            methods=study.papers.methods,
            base=study.papers.base,
            zero_shot=[read_zero_shot(Path(path)) for path in files.list_zero_shot_records()],
            few_shot=[read_few_shot(Path(path)) for path in files.list_few_shot_records()],
        )

    @property
    def source(self) -> str:
        return f"{OURS}, {self.study}"

    @property
    def datasets(self) -> list[str]:
        return keep_unique(cell.dataset for cell in self.cells)

    def published_name(self, dataset: str) -> str:
        return self.names.get(dataset, dataset)

    def dataset_title(self, dataset: str) -> str:
        """Formats a dataset's title, with its name in the study if different."""
        name = self.published_name(dataset)
        if name == unpublished_name(dataset):
            return dataset
        title = TITLES.get(name, name)
        return title if dataset == name else f"{title} ({dataset})"


def study_command(paper: str) -> str:
    return f"`{shlex.join(run_words('paper_tables', call=['--configfile', STUDY_FILES[paper]]))}`"


def source_cell(published: Published, citation: str) -> TableCell:
    return TableCell(text=published.citations[citation].short, citation=citation)


def printed_cell(number: Number | None) -> TableCell:
    if number is None:
        return BLANK
    value = None if math.isnan(number.value) else number.value
    return TableCell(text=number.text, value=value)


def measured_cell(cell: CellResult | None) -> TableCell:
    if cell is None:
        return BLANK
    return scaled_cell(cell.mean, cell.low, cell.high, cell.measure.headline)


def row_numbers(published: Published, table: str, row: str) -> dict[str, Number]:
    numbers = published.select_numbers(paper=TRANSFER, table=table, row=row)
    return {number.column: number for number in numbers}


def best_of_cell(cells: Sequence[CellResult]) -> TableCell:
    """Makes a table cell with the best of several results, and the number of results."""
    cell = measured_cell(best_result(cells))
    return replace(cell, text=f"{cell.text} (of {len(cells)})") if len(cells) > 1 else cell


def result_title(cells: Iterable[CellResult]) -> str:
    """Returns the header of a column of results; names AUC too if it is a dataset's metric."""
    return "±Accuracy or AUC" if any(c.measure.headline == "auc" for c in cells) else "±Accuracy"


def summary_cell(record: Mapping[str, Any] | None, metric: str) -> TableCell:
    """Makes a table cell from a zero-shot record, or from one few-shot probe."""
    if record is None:
        return BLANK
    entry = record["summary"][metric]
    return scaled_cell(entry["mean"], entry["low"], entry["high"], metric)


def scaled_cell(mean: float, low: float | None, high: float | None, metric: str) -> TableCell:
    """Makes a cell with an accuracy in percent, or with an AUC as a fraction, as in papers."""
    if metric == "auc":
        return mean_cell(mean, low, high, scale=1.0, digits=3)
    return mean_cell(mean, low, high)


def metric_name(name: str) -> str:
    return HEADLINES.get(name, HEADLINES["accuracy"])


def epsilon_cell(value: Any) -> TableCell:
    if isinstance(value, tuple):
        return TableCell(text=f"[{value[0]:g}, {value[1]:g}]")
    if math.isinf(value):
        return TableCell(text=INFINITY)
    return TableCell(text=budget_words(value), value=value)


def deltas_text(cells: Collection[CellResult]) -> str:
    """Formats deltas for a note, such as ", δ 1e-05", with a mark if a delta is above 1/n."""
    deltas = keep_unique(
        f"{cell.delta:g}{ABOVE_MARK if cell.delta_above else ''}"
        for cell in cells
        if cell.delta is not None
    )
    risks = explain_risks(cell.epsilon for cell in cells)
    return f", δ {' or '.join(deltas)}{risks and f'; {risks}'}" if deltas else ""
