"""The table of test results: Markdown for people, CSV for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits.tables import (
    BLANK,
    PLUS_MINUS,
    Table,
    TableCell,
    interval_text,
    make_row,
    make_table,
)
from dpprobe.privacy.limits import ABOVE_NOTE, rounded_up
from dpprobe.privacy.risk import RiskEpsilon, explain_risks, row_words
from dpprobe.reporting.headline import headline_lines
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import ACCURACY
from dpprobe.results.summary import Entry, Grid, read_grid

NAME = "accuracy"
# The CSV table's columns for each backbone and method.
NUMBERS = ("low", "high", "rows low", "rows high", "both low", "both high", "least of a class")
CHOICE = (
    "The best head was selected by test results, and its own epsilon does not cover the "
    "selection. Publishing the selection costs at most as much as publishing all private heads of "
    "the row"
)
CONSTANT = "accuracy of the most frequent answer"
CONSTANT_METRIC = "metric of the most frequent answer"
PATIENTS = (
    "Where the dataset names patients, each patient counts once (an image of a patient with m test "
    "images counts 1/m) and intervals are over patients"
)
UNPRICED_MARK = "†"
UNPRICED = (
    f"{UNPRICED_MARK} Not private and not for release: its options were searched on the private "
    "images without a privacy budget"
)
RISK_COLUMN = "risk"
RISKS = "At a permitted risk heads differ in epsilon, and a row names the largest"
LEFT_OUT = (
    "The mean leaves out labels that all test examples have, and labels that no test example has"
)


def make_accuracy_table(summaries: Sequence[Path]) -> Table:
    """Makes the table of test results in percent, for people and for programs."""
    grid = read_grid(summaries)
    return replace(accuracy_table(grid), numbers=numbers_table(grid))


def accuracy_table(grid: Grid) -> Table:
    """Makes the table for people: one row per (dataset, epsilon), one column per backbone + method.

    A column `metric` names the metrics unless all metrics are accuracy. Cells that were not run are
    blank. Rows at epsilon inf show non-private results. Each row's best private result is bold, and
    so are private results with an equal printed mean.
    """
    named = _names_metrics(grid)
    titles = ["<dataset", "<metric"] if named else ["<dataset"]
    rows = []
    for row in grid.rows:
        metric = [grid.measures[row[0]].title] if named else []
        entries = [grid.get(row, column) for column in grid.columns]
        rows.append(make_row(row[0], *metric, row_words(row[1]), *_show_cells(entries)))
    bests = best_private(grid, {})
    notes = [
        _write_note(grid, [cell for row in rows for cell in row]),
        *(
            f"{dataset}: {' '.join(lines)}"
            for dataset in grid.measures
            if (lines := headline_lines(grid, bests, dataset))
        ),
    ]
    return make_table(NAME, "", [*titles, "epsilon", *map(" + ".join, grid.columns)], rows, notes)


def _write_note(grid: Grid, cells: Sequence[TableCell]) -> str:
    """Explains a table's cells: intervals, deltas, and the privacy cost of selecting the best."""
    kinds = [
        "[low, high]: 95% CI over seeds and "
        f"{grid.tested.replace('rows', 'examples')} ({_row_intervals(grid)})."
    ]
    if any(PLUS_MINUS in cell.text for cell in cells):
        kinds.append(f"{PLUS_MINUS}: half of the 95% CI over seeds (Student's t).")
    if any(" to " in cell.text for cell in cells):
        kinds.append("(low to high): 95% CI over seeds, where it is asymmetric (cut at 0 or 100).")
    if any(cell.bold for cell in cells):
        kinds.append("Bold: best private result of a row.")
    deltas = ", ".join(f"{name} {text}" for name in grid.deltas if (text := grid.delta_text(name)))
    note = (
        f"Test {_list_metrics(grid)} in percent, mean over seeds. {' '.join(kinds)} Paired "
        "differences are more precise than these intervals suggest. Rows at inf are not private. "
        f"delta: {deltas or 'none'}."
    )
    if grid.above:
        note += f" {ABOVE_NOTE}."
    prices = [
        f"{row[0]} at {row_words(row[1])}, {count_noun(choice.candidates, 'cell')}, "
        f"{rounded_up(choice.epsilon):g}"
        for row in grid.rows
        if (choice := grid.choices.get(row)) and choice.epsilon is not None
    ]
    if prices:
        note += f" {CHOICE}. That epsilon: {'; '.join(prices)}."
    if grid.risks:
        note += f" {RISKS}: {explain_risks(grid.risks)}."
    if grid.patients:
        note += f" {PATIENTS}."
    if any(measure.is_partial for measure in grid.measures.values()):
        note += f" {LEFT_OUT}."
    return f"{note} {UNPRICED}." if grid.unpriced else note


def _show_cells(entries: Sequence[Entry | None]) -> list[TableCell]:
    """Makes one row of table cells; if there are several private results, the best is bold."""
    private = [f"{entry.mean:.1f}" for entry in entries if entry and entry.private]
    best = max(private, key=float) if len(private) > 1 else None
    return [
        BLANK
        if entry is None
        else TableCell(
            text=" ".join(filter(None, (format_mean(entry), over_seeds(entry), over_both(entry)))),
            bold=entry.private and f"{entry.mean:.1f}" == best,
        )
        for entry in entries
    ]


def numbers_table(grid: Grid) -> Table:
    """Makes the table for programs: numbers with three decimals, interval ends in separate columns.

    For methods with options from an unpriced search, a column "unpriced" is true where epsilon does
    not hold. If a delta is above 1/n, a column "delta above 1/n" follows the column of deltas.
    """
    named, unpriced = _names_metrics(grid), grid.unpriced
    marked = ["delta above 1/n"] if grid.above else []
    risky = [RISK_COLUMN] if grid.risks else []
    titles = ["dataset", "epsilon", *risky, "delta", *marked]
    titles += ["metric", CONSTANT_METRIC, CONSTANT] if named else [CONSTANT]
    for column in grid.columns:
        name = " + ".join(column)
        titles += [name, *(f"{name} {part}" for part in NUMBERS)]
        titles += [f"{name} unpriced"] if column[1] in unpriced else []
    rows = []
    for row in grid.rows:
        delta = grid.deltas.get(row[0]) if math.isfinite(row[1]) else None
        entries = [entry for column in grid.columns if (entry := grid.get(row, column))]
        constant = _first_known(entry.constant for entry in entries)
        metric = [grid.measures[row[0]].headline, constant] if named else []
        numbers = []
        for column in grid.columns:
            entry = grid.get(row, column)
            numbers += _list_numbers(entry)
            if column[1] in unpriced:
                numbers.append("" if entry is None else str(entry.unpriced).lower())
        delta_text = "" if delta is None else f"{delta:g}"
        above = [str(delta is not None and row[0] in grid.above).lower()] if marked else []
        risk = [row[1].token if isinstance(row[1], RiskEpsilon) else ""] if risky else []
        head = [row[0], f"{row[1]:g}", *risk, delta_text, *above, *metric]
        head.append(_first_known(entry.constant_accuracy for entry in entries))
        rows.append(make_row(*head, *numbers))
    return make_table(NAME, "", titles, rows)


def _first_known(values: Iterable[float | None]) -> str:
    return next((f"{value:.3f}" for value in values if value is not None), "")


def _list_numbers(entry: Entry | None) -> list[str]:
    if entry is None:
        return [""] * (1 + len(NUMBERS))
    values = (
        entry.mean,
        entry.low,
        entry.high,
        entry.rows_low,
        entry.rows_high,
        entry.both_low,
        entry.both_high,
        entry.least,
    )
    return ["" if value is None else f"{value:.3f}" for value in values]


def _names_metrics(grid: Grid) -> bool:
    """True if a dataset's metric is not plain accuracy, so that the table names each metric."""
    return any(measure.title != ACCURACY.title for measure in grid.measures.values())


def _list_metrics(grid: Grid) -> str:
    titles = list(dict.fromkeys(measure.title for measure in grid.measures.values()))
    return " or ".join(titles) or ACCURACY.title


def format_mean(entry: Entry | None) -> str:
    """Formats a result in percent, marked if its options were searched without a budget."""
    return "" if entry is None else f"{entry.mean:.1f}{UNPRICED_MARK if entry.unpriced else ''}"


def over_seeds(entry: Entry) -> str:
    """Formats the interval over seeds; empty if all seeds have equal results."""
    if not entry.over_seeds or entry.low is None or entry.high is None:
        return ""
    return interval_text(entry.mean, entry.low, entry.high)


def over_both(entry: Entry) -> str:
    """Formats the interval over seeds and test examples; empty if the interval is unknown."""
    if entry.both_low is None or entry.both_high is None:
        return ""
    return f"[{entry.both_low:.1f}, {entry.both_high:.1f}]"


def _row_intervals(grid: Grid) -> str:
    kinds = {e.rows_interval for e in grid.entries.values() if e.rows_interval}
    return " or ".join(sorted(kinds)) or "none"
