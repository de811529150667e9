"""Tables 2 and 3 of the foundation-features paper."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpprobe.exhibits.published import Number, PrintedTable, Published, Row
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table
from dpprobe.reporting.paper_tables.common import (
    FOUNDATION,
    INTERVALS,
    TITLES,
    Run,
    deltas_text,
    epsilon_cell,
    measured_cell,
    metric_name,
    printed_cell,
    source_cell,
    study_command,
    summary_cell,
)
from dpprobe.results.best_private import best_of_each
from dpprobe.results.cell_results import CellResult
from dpprobe.study.ablations import keep_unique

DEFAULT_SHOTS = (1, 2, 4, 8, 16, 32, None)
INFERRED_MARK = "‡"
_Place = tuple[str, float, str]  # dataset, epsilon, and the metric as in the row


def private_results(run: Run, published: Published) -> Table:
    """Makes table 2: one row per dataset, epsilon and source, one column per backbone + method."""
    printed = published.of_table(FOUNDATION, "2")
    table = _PrivateResults(run, published, printed)
    rows = []
    names = [row.dataset for row in printed.rows if row.dataset]
    for name in keep_unique([*names, *map(run.published_name, run.datasets)]):
        rows += table.make_rows(name, [row for row in printed.rows if row.dataset == name])
    titles = [column.title for column in printed.columns.values()]
    measured = [f"±{' + '.join(column)}" for column in table.columns]
    cited = {key: citation.short for key, citation in published.citations.items()}
    notes = [
        "Accuracy in percent, AUC as a fraction. Published columns as printed: CNN is the row's "
        f"source, SN+LC and SN+CNN are {cited['tramer_boneh_2021']}, the next three the "
        f"{cited[FOUNDATION]}, which prints them once per dataset. {INFERRED_MARK} The paper "
        "states no ε for this number. The row's ε comes from another source and is inferred. "
        f"Measured: {INTERVALS}{deltas_text(table.cells)}, in the published row of the same "
        "epsilon and metric, otherwise in a separate row.",
        f"Blank measured cells: not run. {study_command(FOUNDATION)} runs the paper's datasets; "
        "add a missing epsilon under `epsilons:` of the study.",
    ]
    return make_table(
        "foundation_features_table2",
        "Private accuracy or AUC beside published results (table 2 of the foundation-features "
        "paper)",
        ("<Data", "<Metric", "ε", "<Source", *titles, *measured),
        rows,
        notes,
    )


class _PrivateResults:
    """Rows of table 2, with a measured column for each (backbone, method)."""

    def __init__(self, run: Run, published: Published, printed: PrintedTable) -> None:
        self._run, self._published, self._printed = run, published, printed
        self.cells = [
            cell
            for cell in run.cells
            if cell.private and (not run.methods or cell.method in run.methods)
        ]
        self.columns = keep_unique((cell.backbone, cell.method) for cell in self.cells)
        self._results = {(*_cell_place(c), c.backbone, c.method): c for c in self.cells}

    def make_rows(self, name: str, printed: Sequence[Row]) -> list[tuple[TableCell, ...]]:
        """Makes a dataset's published rows, then rows for other measured results.

        A measured result is shown in the first published row with its epsilon and metric.
        """
        datasets = _datasets_of(self._run, name)
        rows = []
        taken: set[_Place] = set()
        for row in printed:
            numbers = self._numbers_by_column(row)
            first = next(iter(numbers.values()))
            place = self._place_of(datasets, first)
            cells = [BLANK] * len(self.columns) if place in taken else self._measured_cells(place)
            taken.add(place)
            source = source_cell(self._published, row.citation or self._printed.paper)
            rows.append(
                make_row(
                    TITLES.get(name, name),
                    metric_name(first.metric),
                    epsilon_cell(first.epsilon),
                    source,
                    *(_marked_cell(numbers.get(key)) for key in self._printed.columns),
                    *cells,
                )
            )
        return rows + [row for dataset in datasets for row in self._study_rows(dataset, taken)]

    def _place_of(self, datasets: Sequence[str], number: Number) -> _Place:
        """Finds the first dataset with a result at a number's epsilon and metric."""
        rest = number.single_epsilon or 0.0, metric_name(number.metric)
        measured = (
            d for d in datasets if any((d, *rest, *c) in self._results for c in self.columns)
        )
        return next(measured, datasets[0] if datasets else ""), *rest

    def _study_rows(self, dataset: str, taken: Container[_Place]) -> list[tuple[TableCell, ...]]:
        places = {_cell_place(cell) for cell in self.cells if cell.dataset == dataset}
        return [
            make_row(
                self._run.dataset_title(dataset),
                place[2],
                epsilon_cell(place[1]),
                self._run.source,
                *[BLANK] * len(self._printed.columns),
                *self._measured_cells(place),
            )
            for place in sorted(places)
            if place not in taken
        ]

    def _numbers_by_column(self, row: Row) -> dict[str, Number]:
        table = self._printed
        numbers = self._published.select_numbers(paper=table.paper, table=table.table, row=row.row)
        return {number.column: number for number in numbers}

    def _measured_cells(self, place: _Place) -> list[TableCell]:
        return [measured_cell(self._results.get((*place, *column))) for column in self.columns]


def _marked_cell(number: Number | None) -> TableCell:
    cell = printed_cell(number)
    inferred = number is not None and "epsilon" in number.inferred
    return replace(cell, text=f"{cell.text} {INFERRED_MARK}") if inferred else cell


def _cell_place(cell: CellResult) -> _Place:
    return cell.dataset, cell.epsilon, metric_name(cell.measure.headline)


def _datasets_of(run: Run, name: str) -> list[str]:
    """Lists the study's datasets with a given published name, first any dataset of that name."""
    datasets = [dataset for dataset in run.datasets if run.published_name(dataset) == name]
    return sorted(datasets, key=lambda dataset: dataset != name)


def few_shot_results(run: Run, published: Published) -> Table:
    """Makes table 3: non-private few-shot probes and zero-shot, next to private heads."""
    counts = {probe["shots"] for record in run.few_shot for probe in record["results"]}
    shots = sorted(counts or DEFAULT_SHOTS, key=lambda count: count or math.inf)
    budgets = sorted({cell.epsilon for cell in run.cells if cell.private})
    budgets = keep_unique([budgets[0], budgets[-1]]) if budgets else []
    best = best_of_each((cell for cell in run.cells if cell.private), lambda cell: cell.place)
    zero = {(r["dataset"], r["backbone"]): r for r in run.zero_shot}
    few = {(r["dataset"], r["backbone"]): r for r in run.few_shot}
    rows = []
    for dataset, backbone in keep_unique([*zero, *few]):
        cells = [c for c in run.cells if (c.dataset, c.backbone) == (dataset, backbone)]
        private = [best.get((dataset, backbone, budget)) for budget in budgets]
        zero_shot, few_shot = zero.get((dataset, backbone)), few.get((dataset, backbone))
        metrics = keep_unique(
            [
                *(cell.measure.headline for cell in cells),
                *(record["headline"] for record in (few_shot, zero_shot) if record),
            ]
        )
        rows.append(
            make_row(
                run.dataset_title(dataset),
                " or ".join(map(metric_name, metrics)),
                backbone,
                summary_cell(zero_shot, zero_shot["headline"]) if zero_shot else BLANK,
                *_probe_cells(few_shot, shots),
                *(measured_cell(cell) for cell in private),
                ", ".join(keep_unique(cell.method for cell in private if cell)),
                _published_private(published, run.published_name(dataset)),
            )
        )
    notes = [
        "Zero-shot and N examples per class (a linear probe on the same features) are not "
        "private. DP: the best method of the study at that epsilon, chosen by its test result. "
        "The paper's N-shot numbers were not legible and are left out. Its private numbers are "
        "for CLIP+LC. Accuracy is in percent, AUC a fraction. Zero-shot is AUC if rows have "
        "several labels, because the model then has no threshold."
    ]
    if any(BLANK in row[3:-2] for row in rows):
        notes.append(
            "Blank: not run. N-shot probes come with a `few_shot:` block in the study, zero-shot "
            "with a backbone that reads text, DP with a private method; "
            f"{study_command(FOUNDATION)} runs all three."
        )
    return make_table(
        "foundation_features_table3",
        "N-shot classifiers against private ones (table 3 of the foundation-features paper)",
        (
            "<Data",
            "<Metric",
            "<Backbone",
            "±Zero-shot",
            *(f"±{'Full' if count is None else f'{count}-shot'}" for count in shots),
            *(f"±DP, ε {value:g}" for value in budgets),
            "<DP method",
            "DP, published (ε)",
        ),
        rows,
        notes,
    )


def _probe_cells(
    few_shot: Mapping[str, Any] | None, shots: Sequence[int | None]
) -> list[TableCell]:
    if few_shot is None:
        return [BLANK] * len(shots)
    probes = {probe["shots"]: probe for probe in few_shot["results"]}
    return [summary_cell(probes.get(count), few_shot["headline"]) for count in shots]


def _published_private(published: Published, name: str) -> TableCell:
    """Makes a cell of the paper's private result with CLIP+LC, with its epsilon."""
    numbers = published.select_numbers(table="2", column="clip_lc", dataset=name)
    if not numbers:
        return BLANK
    epsilon = epsilon_cell(numbers[0].epsilon).text
    if "epsilon" in numbers[0].inferred:
        epsilon += ", inferred"
    return TableCell(text=f"{numbers[0].text} ({epsilon})")
