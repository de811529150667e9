"""Tables 1, 2, 3 and 9 of Mehta et al. 2022: batch sizes and models of one optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpprobe.exhibits.published import Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table
from dpprobe.reporting.paper_tables.common import (
    CHOICE_NOTE,
    INTERVALS,
    OURS,
    TITLES,
    TRANSFER,
    Run,
    best_of_cell,
    deltas_text,
    epsilon_cell,
    measured_cell,
    printed_cell,
    row_numbers,
    source_cell,
    study_command,
)
from dpprobe.reporting.paper_tables.registry import SMALL_BATCH
from dpprobe.results.best_private import best_ceiling
from dpprobe.results.cell_results import CellResult
from dpprobe.study.ablations import LEARNING_RATE, find_families

_VARYING = ("batch_size", LEARNING_RATE)
PRICED = "tuned"  # the head whose epsilon covers a search over options


@dataclass(kw_only=True)
class _BatchRow:
    """One model at one epsilon.

    Attributes:
      best: the result of the non-private baseline; blank at a finite epsilon.
      dimension: the dimension of the features; None for published rows.
      chosen: True if a table cell shows the best of several results.
    """

    dataset: str
    model: str
    tuning: str
    source: TableCell
    epsilon: Any
    best: TableCell = BLANK
    cells: dict[int, TableCell] = field(default_factory=dict)
    dimension: int | None = None
    chosen: bool = False


def batch_sizes(run: Run, published: Published, table: str) -> Table:
    """Makes one optimiser's table: one row per model and epsilon, one column per batch size."""
    printed = published.of_table(TRANSFER, table)
    assert printed.optimiser is not None
    rows = [*_printed_batches(published, table), *_measured_batches(run, printed.optimiser)]
    if table == "9":
        for row in rows:
            row.cells = {size: cell for size, cell in row.cells.items() if size < SMALL_BATCH}
        rows = [row for row in rows if row.cells]
    sizes = sorted({size for row in rows for size in row.cells})
    best = any(row.best.text for row in rows)
    body = [
        make_row(
            row.dataset,
            row.model,
            row.tuning,
            row.source,
            epsilon_cell(row.epsilon),
            *([row.best] if best else []),
            *(row.cells.get(size, BLANK) for size in sizes),
        )
        for row in rows
    ]
    return make_table(
        f"large_scale_transfer_table{table}",
        f"{printed.title} (table {table} of Mehta et al. 2022)",
        (
            "<Data",
            "<Model",
            "<Tuning",
            "<Source",
            "ε",
            *(["±Best"] if best else []),
            *(f"±{_format_size(size)}" for size in sizes),
        ),
        body,
        _batch_notes(run, rows, sizes),
    )


def _batch_notes(run: Run, rows: Sequence[_BatchRow], sizes: Sequence[int]) -> list[str]:
    notes = [
        "Test accuracy in percent by expected batch size; AUC as a fraction if AUC is the "
        "dataset's metric. ∞ is without privacy. Published: δ 1e-6, fixed-size batches, top-1. "
        f"Measured: Poisson batches, frozen features, {INTERVALS}{deltas_text(run.cells)}. Blank: "
        "not run at that batch size."
    ]
    measured_rows = [row for row in rows if not row.source.citation]
    if any(size not in row.cells for row in measured_rows for size in sizes):
        notes.append(
            "The measured batch sizes come from `batch_size:` of the methods; "
            f"{study_command(TRANSFER)} runs a sweep."
        )
    if any(row.best.text for row in rows):
        notes[0] += (
            " Best, published: momentum, batch size 512, without privacy; measured: logistic "
            "regression to convergence."
        )
    notes += _note_choices(rows)
    return notes


def _printed_batches(published: Published, table: str) -> list[_BatchRow]:
    rows: dict[tuple[str, Any], _BatchRow] = {}
    for number in published.select_numbers(paper=TRANSFER, table=table):
        row = rows.setdefault(
            (number.row, number.epsilon),
            _BatchRow(
                dataset=TITLES[number.dataset or ""],
                model=number.model or "",
                tuning=number.tuning or "",
                source=source_cell(published, number.citation),
                epsilon=number.epsilon,
            ),
        )
        if number.column == "best":
            row.best = printed_cell(number)
        elif number.batch_size is not None:
            row.cells[number.batch_size] = printed_cell(number)
    return list(rows.values())


def _measured_batches(run: Run, head: str) -> list[_BatchRow]:
    """Makes the measured rows; methods that differ in batch size and learning rate share a row.

    If some methods differ in batch size, other methods have no rows. Each group's rows are followed
    by rows for `tuned` heads (whose epsilon covers the search) on the group's methods.
    """
    options = {cell.method: cell.options for cell in run.cells if cell.head == head}
    sizes = {cell.method: cell.batch_size for cell in run.cells if cell.head == head}
    groups = find_families(options, _VARYING)
    groups = [group for group in groups if len({sizes[m] for m in group}) > 1] or groups
    rows = []
    for group in groups:
        rows += _group_rows(run, group)
        rows += [
            replace(row, source=TableCell(text=f"{row.source.text}, priced choice"))
            for priced in _priced_groups(run, options[group[0]])
            for row in _group_rows(run, priced)
        ]
    return rows


def _group_rows(run: Run, group: Sequence[str]) -> list[_BatchRow]:
    rows = []
    cells = [cell for cell in run.cells if cell.method in group]
    places = {cell.place for cell in cells}
    for place in sorted(places, key=lambda place: (place[0], place[1], -place[2])):
        dataset, backbone, epsilon = place
        same = [cell for cell in cells if cell.place == place]
        sizes: dict[int, list[CellResult]] = {}
        for cell in same:
            if cell.batch_size:
                sizes.setdefault(cell.batch_size, []).append(cell)
        here = (c for c in run.cells if (c.dataset, c.backbone) == (dataset, backbone))
        rows.append(
            _BatchRow(
                dataset=run.dataset_title(dataset),
                model=backbone,
                tuning="last layer",
                source=TableCell(text=f"{OURS}, {_group_name(group)}"),
                epsilon=epsilon,
                best=measured_cell(best_ceiling(here)) if math.isinf(epsilon) else BLANK,
                cells={size: best_of_cell(of) for size, of in sizes.items()},
                dimension=same[0].dimension,
                chosen=any(len(of) > 1 for of in sizes.values()),
            )
        )
    return rows


def _priced_groups(run: Run, options: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Groups `tuned` methods whose base has `options`, ignoring the options that vary."""
    like = {}
    for cell in run.cells:
        if cell.head != PRICED:
            continue
        varying = {*_VARYING, *cell.options.get("search", {})}
        if _drop_options(cell.base_options, varying) == _drop_options(options, varying):
            like[cell.method] = _drop_options(cell.options, {"base"})
    return find_families(like, ())


def _drop_options(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in set(names)}


def _note_choices(rows: Sequence[_BatchRow]) -> list[str]:
    notes = []
    if any(row.chosen for row in rows):
        notes.append(CHOICE_NOTE)
    if any(row.source.text.endswith("priced choice") for row in rows):
        notes.append(
            "Priced choice: the head `tuned` searches the learning rate without the test rows, "
            "and its ε covers the search."
        )
    return notes


def _group_name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}"


def _format_size(size: int) -> str:
    exponent = round(math.log2(size))
    return f"2^{exponent}" if 2**exponent == size else f"{size:,}"


def model_sizes(run: Run, published: Published) -> Table:
    """Makes table 3: DP-LAMB's largest batch, one row per model, with and without privacy."""
    rows = []
    for row in published.of_table(TRANSFER, "3").rows:
        numbers = row_numbers(published, "3", row.row)
        private = numbers["dp_20"]
        rows.append(
            make_row(
                TITLES["imagenet"],
                private.model or "",
                BLANK,
                private.tuning or "",
                source_cell(published, private.citation),
                printed_cell(numbers["best"]),
                _format_size(2**20),
                printed_cell(numbers["inf_20"]),
                epsilon_cell(private.epsilon),
                printed_cell(private),
            )
        )
    measured_rows = _measured_batches(run, "lamb")
    ours = _largest_batches(measured_rows)
    notes = [
        "Test accuracy in percent (AUC as a fraction) at the largest batch of DP-LAMB; Best is "
        "defined as in table 2. The published models were trained on JFT, which is not public."
    ]
    notes += _note_choices(measured_rows)
    return make_table(
        "large_scale_transfer_table3",
        "DP-LAMB by model size (table 3 of Mehta et al. 2022)",
        (
            "<Data",
            "<Model",
            "Features",
            "<Tuning",
            "<Source",
            "±Best, ε ∞",
            "Batch",
            "±ε ∞",
            "ε",
            "±Private",
        ),
        [*rows, *ours],
        notes,
    )


def _largest_batches(batches: Sequence[_BatchRow]) -> list[tuple[TableCell, ...]]:
    groups: dict[tuple[str, str, str], list[_BatchRow]] = {}
    for batch in batches:
        groups.setdefault((batch.dataset, batch.model, batch.source.text), []).append(batch)
    rows = []
    for (dataset, model, source), group in groups.items():
        size = max(size for batch in group for size in batch.cells)
        largest = {batch.epsilon: batch for batch in group if size in batch.cells}
        free = largest.pop(math.inf, None)
        for epsilon, batch in sorted(largest.items()):
            rows.append(
                make_row(
                    dataset,
                    model,
                    TableCell(text=str(batch.dimension), value=batch.dimension),
                    "last layer",
                    source,
                    free.best if free else BLANK,
                    _format_size(size),
                    free.cells[size] if free else BLANK,
                    epsilon_cell(epsilon),
                    batch.cells[size],
                )
            )
    return rows
