"""The table of test results: Markdown for people, CSV for programs, plain text for the console."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.exhibits import tables
from dpprobe.exhibits.tables import (
    BLANK,
    PLUS_MINUS,
    Column,
    Table,
    TableCell,
    interval_text,
    make_row,
)
from dpprobe.privacy.limits import ABOVE_NOTE
from dpprobe.reporting.headline import headline_lines
from dpprobe.results.cell_record import ACCURACY
from dpprobe.results.summary import Entry, Grid, read_grid, rounded_up

NAME = "accuracy"
# Of a cell, in the table for programs.
NUMBERS = ("low", "high", "rows low", "rows high", "both low", "both high", "least of a class")
CHOICE = (
    "The best one was chosen by the test results of all, which its own epsilon does not cover: "
    "publishing it costs at most what publishing all heads of all private cells of its row does."
)
CONSOLE_WIDTH = 100
CONSTANT = "accuracy of the most frequent answer"
CONSTANT_METRIC = "metric of the most frequent answer"
PATIENTS = (
    "Where the dataset names patients each counts once, an image of a patient with m test images "
    "1/m, and intervals are over patients"
)
UNPRICED_MARK = "†"
UNPRICED = (
    f"{UNPRICED_MARK} Not private: a search on the private rows that no epsilon pays for chose the "
    "options; not for release"
)
LEFT_OUT = "Labels that all test rows have, or none has, are left out of the mean"


def write_accuracy_table(summaries: Sequence[Path], *, csv: Path, markdown: Path) -> None:
    """Writes test results in percent as two files.

    Raises:
      DataError: when a file is not a summary.
    """
    grid = read_grid(summaries)
    write_text(csv, tables.comma_separated(numbers_table(grid)))
    write_text(markdown, tables.write_markdown(accuracy_table(grid)))


def accuracy_table(grid: Grid) -> Table:
    """Makes the table for people: a row a (dataset, epsilon), a column a backbone + method.

    A dataset whose headline is another metric than accuracy shows that one; a column `metric` then
    tells. A cell that was not run is blank. Rows at epsilon inf are not private; there are the
    non-private ceilings. The best private entry of a row is bold, and so is every other that prints
    the same mean.
    """
    named = _names_metrics(grid)
    titles = ["dataset", "metric"] if named else ["dataset"]
    rows = []
    for row in grid.rows:
        metric = [grid.measures[row[0]].title] if named else []
        entries = [grid.get(row, column) for column in grid.columns]
        rows.append(make_row(row[0], *metric, f"{row[1]:g}", *_show_cells(entries)))
    several = any(cell.bold for row in rows for cell in row)
    bold = "Bold: the best private result of a row. " if several else ""
    deltas = ", ".join(f"{name} {grid.delta_text(name)}" for name in grid.deltas)
    note = (
        f"Test {_list_metrics(grid)} in percent: the mean over seeds; where seeds vary, the 95 % "
        f"interval over seeds (Student's t, cut at 0 and 100), {PLUS_MINUS} half of it, or (its "
        "ends) where it is not symmetric; in brackets a 95 % interval over seeds and "
        f"{grid.tested} together ({_row_intervals(grid)}). "
        "A difference on the same test rows is surer than the brackets. "
        f"{bold}Rows at inf are not private. delta: {deltas}."
    )
    if grid.above:
        note += f" {ABOVE_NOTE}."
    prices = [
        f"{row[0]} at {row[1]:g}, {choice.candidates} cells, {rounded_up(choice.epsilon):g}"
        for row in grid.rows
        if (choice := grid.choices.get(row)) and choice.epsilon is not None
    ]
    if prices:
        note += f" {CHOICE} That epsilon: {'; '.join(prices)}."
    if grid.patients:
        note += f" {PATIENTS}."
    if any(measure.is_partial for measure in grid.measures.values()):
        note += f" {LEFT_OUT}."
    if grid.unpriced:
        note += f" {UNPRICED}."
    return Table(
        name=NAME,
        columns=(
            *(Column(title=title, align="left") for title in titles),
            *(Column(title=title) for title in ("epsilon", *map(" + ".join, grid.columns))),
        ),
        rows=rows,
        notes=[
            note,
            *(
                f"{dataset}: {' '.join(lines)}"
                for dataset in grid.measures
                if (lines := headline_lines(grid, dataset))
            ),
        ],
    )


def _show_cells(entries: Sequence[Entry | None]) -> list[TableCell]:
    """Makes the cells of one row, the best private ones bold where there are several."""
    private = [f"{entry.mean:.1f}" for entry in entries if entry and entry.private]
    best = max(private, key=float) if len(private) > 1 else None
    return [
        BLANK
        if entry is None
        else TableCell(
            text=" ".join(filter(None, (_format_mean(entry), over_seeds(entry), over_both(entry)))),
            bold=entry.private and f"{entry.mean:.1f}" == best,
        )
        for entry in entries
    ]


def numbers_table(grid: Grid) -> Table:
    """Makes the table for programs: numbers with three decimals, the ends of intervals apart.

    A method whose options a search chose that nothing prices has a further column, "unpriced":
    true at each epsilon that is not kept. A column "delta above 1/n" follows that of delta where a
    dataset has such a one.
    """
    named, unpriced = _names_metrics(grid), grid.unpriced
    marked = ["delta above 1/n"] if grid.above else []
    titles = [
        "dataset",
        "epsilon",
        "delta",
        *marked,
        *(["metric", CONSTANT_METRIC] if named else []),
    ]
    titles += [CONSTANT]
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
        head = [row[0], f"{row[1]:g}", delta_text, *above, *metric]
        head.append(_first_known(entry.constant_accuracy for entry in entries))
        rows.append(make_row(*head, *numbers))
    return Table(name=NAME, columns=tuple(Column(title=title) for title in titles), rows=rows)


def _first_known(values: Iterable[float | None]) -> str:
    """Writes what all cells of a row share; blank where none knows it."""
    return next((f"{value:.3f}" for value in values if value is not None), "")


def _list_numbers(entry: Entry | None) -> list[str]:
    """Returns mean, ends of intervals and the least of a class, blank where there are none."""
    if entry is None:
        return [""] * (1 + len(NUMBERS))
    values = (
        entry.mean, entry.low, entry.high, entry.rows_low, entry.rows_high,
        entry.both_low, entry.both_high, entry.least,
    )  # fmt: skip
    return ["" if value is None else f"{value:.3f}" for value in values]


def _names_metrics(grid: Grid) -> bool:
    """True if a dataset shows another metric than plain accuracy, so that each names its metric."""
    return any(measure.title != ACCURACY.title for measure in grid.measures.values())


def _list_metrics(grid: Grid) -> str:
    """Lists the metrics that a table shows, for its note."""
    titles = list(dict.fromkeys(measure.title for measure in grid.measures.values()))
    return " or ".join(titles) or ACCURACY.title


def format_console(summaries: Sequence[Path]) -> str:
    """Writes the same numbers for a terminal: a block a dataset, a line a backbone + method."""
    grid = read_grid(summaries)
    datasets = dict.fromkeys(row[0] for row in grid.rows)
    return "\n\n".join(_console_block(grid, dataset) for dataset in datasets)


def _console_block(grid: Grid, dataset: str) -> str:
    rows = [row for row in grid.rows if row[0] == dataset]
    columns = [c for c in grid.columns if any(grid.get(row, c) for row in rows)]
    table = [["backbone", "method", *(f"eps {row[1]:g}" for row in rows)]]
    for column in columns:
        entries = [grid.get(row, column) for row in rows]
        table.append([*column, *(_short_text(entry) if entry else "" for entry in entries)])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [_console_row(line, widths) for line in table]
    lines.insert(1, "-" * max(map(len, lines)))
    delta = f"delta {text}, " if (text := grid.delta_text(dataset)) else ""
    measure = grid.measures[dataset]
    title = f"{dataset}: test {measure.title} in percent, {delta}eps inf is not private"
    shown = [e for row in rows for column in columns if (e := grid.get(row, column))]
    tested = "test patients, who count once each" if shown[0].patients else "test rows"
    notes = [f"{PLUS_MINUS} or [ends]: 95 % intervals over seeds and {tested} together"]
    if any(entry.over_seeds for entry in shown):
        notes.append(f"(the {PLUS_MINUS} of tables/accuracy.md is over seeds alone)")
    notes += [ABOVE_NOTE] if dataset in grid.above else []
    notes += [LEFT_OUT] if measure.is_partial else []
    notes += [UNPRICED] if any(entry.unpriced for entry in shown) else []
    told = [textwrap.fill(line, CONSOLE_WIDTH) for line in headline_lines(grid, dataset)]
    return "\n".join([title, *notes, "", *lines, *(["", *told] if told else [])])


def _console_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = [
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def _short_text(entry: Entry) -> str:
    """Writes the mean and the interval over all: a terminal has no room for two."""
    if entry.both_low is None or entry.both_high is None:
        return f"{_format_mean(entry)} {over_seeds(entry)}".rstrip()
    text = interval_text(entry.mean, entry.both_low, entry.both_high)
    return f"{_format_mean(entry)} {text if text.startswith(PLUS_MINUS) else over_both(entry)}"


def _format_mean(entry: Entry) -> str:
    return f"{entry.mean:.1f}{UNPRICED_MARK if entry.unpriced else ''}"


def over_seeds(entry: Entry) -> str:
    """Writes the interval over seeds; nothing where they do not vary."""
    if not entry.over_seeds or entry.low is None or entry.high is None:
        return ""
    return interval_text(entry.mean, entry.low, entry.high)


def over_both(entry: Entry) -> str:
    """Writes the ends of the interval over seeds and test rows; nothing where there is none."""
    if entry.both_low is None or entry.both_high is None:
        return ""
    return f"[{entry.both_low:.1f}, {entry.both_high:.1f}]"


def _row_intervals(grid: Grid) -> str:
    """Names the intervals over test rows that a table shows."""
    kinds = {e.rows_interval for e in grid.entries.values() if e.rows_interval}
    return " or ".join(sorted(kinds)) or "none"
