"""Describes a finished study on a terminal: table, verdicts, warnings, next commands."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from dpprobe.files.json_files import read_json
from dpprobe.privacy.limits import ABOVE_NOTE
from dpprobe.privacy.risk import explain_risks, row_words
from dpprobe.reporting.accuracy_table import LEFT_OUT, UNPRICED, format_mean
from dpprobe.reporting.headline import list_doubts, verdict
from dpprobe.results.best_private import (
    Best,
    best_ceiling,
    best_private,
    choose_highlights,
    list_best_columns,
)
from dpprobe.results.cautions import list_cautions
from dpprobe.results.summary import Grid, read_grid
from dpprobe.shown_text import join_lines
from dpprobe.study.run_command import command_line

LINES = 25
WIDTH = 100
_NOTE_LINES = 6
_FEWEST_ROWS = 3


def describe_study(folder: Path, summaries: Sequence[Path]) -> str:
    """Describes a study's results in at most `LINES` lines."""
    grid = read_grid(summaries)
    bests = best_private(grid, {})
    chosen = choose_highlights(bests)
    blocks = [
        _wrap(f"{_name(grid, best.dataset)}{' '.join([verdict(best), *list_doubts(best)])}")
        for best in chosen
    ] or [["No head of this study is private: add a private method and a finite epsilon."]]
    notes = _list_notes(grid, bests, folder)
    commands = ["Next:", *(f"  {command}" for command in list_commands(folder))]
    room = LINES - len(notes) - len(commands) - 2 - bool(notes)  # blank lines between blocks
    verdicts = _keep_blocks(blocks, room - 2 - _FEWEST_ROWS, folder)
    table = _make_table(grid, bests, chosen, room - len(verdicts), folder)
    parts = [table, verdicts, *([notes] if notes else []), commands]
    return "\n\n".join(map(join_lines, parts))


def _name(grid: Grid, dataset: str) -> str:
    return f"{dataset}: " if len(grid.measures) > 1 else ""


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _keep_blocks(blocks: Sequence[Sequence[str]], room: int, folder: Path) -> list[str]:
    """Joins the blocks that fit into `room` lines, and counts the blocks that do not fit."""
    lines: list[str] = []
    for index, block in enumerate(blocks):
        if lines and len(lines) + len(block) + (index + 1 < len(blocks)) > room:
            return [*lines, f"{len(blocks) - index} more: {folder / 'report.html'}"]
        lines += block
    return lines


def _list_notes(grid: Grid, bests: Sequence[Best], folder: Path) -> list[str]:
    """Lists warnings that readers need to understand the table of results correctly."""
    notes = [
        f"{_name(grid, dataset)}{text}".replace("`", "")
        for dataset, measure in grid.measures.items()
        for text in (
            *([f"{ABOVE_NOTE}."] if dataset in grid.above else []),
            *([f"{LEFT_OUT}."] if measure.is_partial else []),
            *list_cautions(grid, dataset, columns=list_best_columns(bests, dataset)),
        )
    ]
    notes += [f"{UNPRICED}."] if grid.unpriced else []
    # notes are never shortened, because the remedy is at their end
    return _keep_blocks([_wrap(f"Attention: {text}") for text in notes], _NOTE_LINES, folder)


def _make_table(
    grid: Grid, bests: Sequence[Best], chosen: Sequence[Best], room: int, folder: Path
) -> list[str]:
    """Returns lines with the means of one dataset's cells, or of several datasets' best heads."""
    several = len(grid.measures) > 1
    epsilons = sorted({epsilon for _, epsilon in grid.rows if math.isfinite(epsilon)})
    columns = [row_words(epsilon, "ε = ") for epsilon in epsilons] + ["no privacy"]
    if several:
        title = "Best private head of each dataset: test result in percent"
        heads = ["dataset", "metric", *columns, "majority class"]
        rows = [_dataset_row(grid, bests, dataset, epsilons) for dataset in grid.measures]
    else:
        ((dataset, measure),) = grid.measures.items()
        delta = f", δ = {text}" if (text := grid.delta_text(dataset)) else ""
        title = f"{dataset}: test {measure.title} in percent{delta}"
        heads = ["backbone", "method", *columns]
        rows = _cell_rows(grid, dataset, epsilons, chosen)
    left_out = max(0, len(rows) - max(room - 2, _FEWEST_ROWS))
    if left_out:
        left_out += 1  # one more row makes room for the line on omitted rows
        rows = rows[:-left_out]
    table = [heads, *rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(heads))]
    lines = [_join_row(line, widths) for line in table]
    more = [f"{left_out} more rows: {folder / 'tables/accuracy.md'}"] if left_out else []
    return [title, *_wrap(explain_risks(grid.risks)), *lines, *more]


def _cell_rows(
    grid: Grid, dataset: str, epsilons: Sequence[float], chosen: Sequence[Best]
) -> list[list[str]]:
    """Makes one row per backbone and method, sorted by results at the verdict's epsilon."""
    at = chosen[0].at if chosen else math.inf

    def result(column: tuple[str, str]) -> tuple[bool, float]:
        entry = grid.get((dataset, at), column)
        return entry is None, -entry.mean if entry else 0.0

    return [
        [*column, *(format_mean(grid.get((dataset, e), column)) for e in (*epsilons, math.inf))]
        for column in sorted(grid.columns, key=result)
    ]


def _dataset_row(
    grid: Grid, bests: Sequence[Best], dataset: str, epsilons: Sequence[float]
) -> list[str]:
    by_epsilon = {best.at: best for best in bests if best.dataset == dataset}
    private = [by_epsilon.get(epsilon) for epsilon in epsilons]
    entries = [entry for key, entry in grid.entries.items() if key[0] == dataset]
    ceiling = best_ceiling(entries)
    constant = next((entry.constant for entry in entries if entry.constant is not None), None)
    return [
        dataset,
        grid.measures[dataset].title,
        *("" if best is None else f"{best.entry.mean:.1f}" for best in private),
        format_mean(ceiling),
        "" if constant is None else f"{constant:.1f}",
    ]


def _join_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = [
        cell.ljust(width) if index < 2 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(texts).rstrip()


def list_commands(folder: Path) -> list[str]:
    page = folder / "report.html"
    made = [(_browser_command(str(page)), "report")] if page.is_file() else []
    receipts = sorted(
        folder.glob("tracking/*.json"), key=lambda path: (path.stem == "_study", path)
    )
    made += [_tracking_command(path) for path in receipts[:1]]
    if (table := folder / "tables/accuracy.md").is_file():
        made.append((f"less {shlex.quote(str(table))}", "all results with their 95% CIs"))
    return [f"{command}  # {words}" for command, words in made]


# Without these variables, MLflow's server would send telemetry and start a dozen processes.
SERVER_VARIABLES = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"


def _tracking_command(receipt: Path) -> tuple[str, str]:
    record = read_json(receipt)
    uri, pages = str(record["uri"]), record["pages"]
    place = next(pages[name] for name in ("cells", "summary", "studies") if name in pages)
    if uri.startswith("http"):
        return _browser_command(f"{uri.rstrip('/')}/{place}"), "runs"
    command = command_line("mlflow", "server", "--backend-store-uri", uri, "--workers", "1")
    return f"{SERVER_VARIABLES} {command}", f"runs: http://127.0.0.1:5000/{place}"


def _browser_command(address: str) -> str:
    return command_line("python", "-m", "webbrowser", address)
