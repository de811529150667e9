"""Tables of results: CSV for programs, Markdown for people, plain text for the console."""

from __future__ import annotations

import csv as csv_module
import io
import math
from collections.abc import Sequence
from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.results.record import ACCURACY
from dpprobe.results.summary import Entry, Grid, read_grid

PLUS_MINUS = "±"
LEFT_OUT = "Labels that all test rows have, or none has, are left out of the mean"


def accuracy_table(summaries: Sequence[Path], *, csv: Path, markdown: Path) -> None:
    """Writes test accuracy in percent: a row a (dataset, epsilon), a column a backbone + method.

    A dataset whose headline is another metric shows that one; a column `metric` then tells. A cell
    that was not run is blank. Rows at epsilon inf are not private; there are the non-private
    ceilings. In Markdown the best private entry of a row is bold, and so is every other that prints
    the same mean.

    Raises:
      DataError: when a file is not a summary.
    """
    grid = read_grid(summaries)
    write_text(csv, _csv(grid))
    write_text(markdown, _markdown(grid))


def format_console(summaries: Sequence[Path]) -> str:
    """The same numbers for a terminal: a block a dataset, a line a backbone + method."""
    grid = read_grid(summaries)
    datasets = dict.fromkeys(row[0] for row in grid.rows)
    return "\n\n".join(_console_block(grid, dataset) for dataset in datasets)


def _csv(grid: Grid) -> str:
    stream = io.StringIO()
    writer = csv_module.writer(stream, lineterminator="\n")
    names = [" + ".join(column) for column in grid.columns]
    named = _names_metrics(grid)
    writer.writerow(
        ["dataset", "epsilon", "delta", *(["metric"] if named else [])]
        + [text for name in names for text in (name, f"{name} {PLUS_MINUS}")]
    )
    for row in grid.rows:
        delta = grid.deltas.get(row[0]) if math.isfinite(row[1]) else None
        values = [row[0], f"{row[1]:g}", "" if delta is None else f"{delta:g}"]
        values += [grid.measures[row[0]].headline] if named else []
        for column in grid.columns:
            entry = grid.get(row, column)
            values.append("" if entry is None else f"{entry.mean:.3f}")
            values.append("" if entry is None or entry.half is None else f"{entry.half:.3f}")
        writer.writerow(values)
    return stream.getvalue()


def _markdown(grid: Grid) -> str:
    named = _names_metrics(grid)
    own = ["dataset", "metric"] if named else ["dataset"]
    header = [*own, "epsilon", *(" + ".join(column) for column in grid.columns)]
    rule = ["---"] * len(own) + ["---:"] * (len(header) - len(own))
    lines = [_markdown_row(header), _markdown_row(rule)]
    for row in grid.rows:
        entries = [grid.get(row, column) for column in grid.columns]
        private = [f"{entry.mean:.1f}" for entry in entries if entry and entry.private]
        best = max(private, key=float) if len(private) > 1 else None
        texts = []
        for entry in entries:
            text = "" if entry is None else _text(entry)
            bold = entry is not None and entry.private and f"{entry.mean:.1f}" == best
            texts.append(f"**{text}**" if bold else text)
        own = [row[0], *([grid.measures[row[0]].title] if named else [])]
        lines.append(_markdown_row([*own, f"{row[1]:g}", *texts]))
    deltas = ", ".join(f"{name} {delta:g}" for name, delta in grid.deltas.items())
    note = (
        f"Test {_metrics(grid)} in percent, mean over seeds {PLUS_MINUS} half of the 95 % interval "
        "(over seeds; over test rows where the seeds do not differ). "
        f"Bold: the best private result of a row. Rows at inf are not private. delta: {deltas}."
    )
    if any(measure.partial for measure in grid.measures.values()):
        note += f" {LEFT_OUT}."
    return "\n".join([*lines, "", note]) + "\n"


def _names_metrics(grid: Grid) -> bool:
    """Whether some dataset shows another metric than plain accuracy, so that each names its own."""
    return any(measure.title != ACCURACY.title for measure in grid.measures.values())


def _metrics(grid: Grid) -> str:
    """The metrics that a table shows, for its note."""
    titles = list(dict.fromkeys(measure.title for measure in grid.measures.values()))
    return " or ".join(titles) or ACCURACY.title


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _console_block(grid: Grid, dataset: str) -> str:
    rows = [row for row in grid.rows if row[0] == dataset]
    columns = [c for c in grid.columns if any(grid.get(row, c) for row in rows)]
    table = [["backbone", "method", *(f"eps {row[1]:g}" for row in rows)]]
    for column in columns:
        entries = [grid.get(row, column) for row in rows]
        table.append([*column, *(_text(entry) if entry else "" for entry in entries)])
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [_console_row(line, widths) for line in table]
    lines.insert(1, "-" * max(map(len, lines)))
    delta = f"delta {grid.deltas[dataset]:g}, " if dataset in grid.deltas else ""
    measure = grid.measures[dataset]
    title = (
        f"{dataset}: test {measure.title} in percent {PLUS_MINUS} half of the 95 % interval, "
        f"{delta}eps inf is not private"
    )
    notes = [LEFT_OUT] if measure.partial else []
    return "\n".join([title, *notes, "", *lines])


def _console_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = [
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def _text(entry: Entry) -> str:
    if entry.half is None:
        return f"{entry.mean:.1f}"
    return f"{entry.mean:.1f} {PLUS_MINUS} {entry.half:.1f}"
