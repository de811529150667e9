"""Writes the reproduction page: every published number once, with our result or a command."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpprobe.artifacts import canonical_json
from dpprobe.exhibits.published import Number, PrintedTable, Published
from dpprobe.exhibits.tables import TableCell, make_row, make_table, mean_cell, write_markdown
from dpprobe.reporting.paper_tables.common import epsilon_cell
from dpprobe.study import catalog
from dpprobe.study.ablations import keep_unique
from dpprobe.study.run_command import run_words
from reproduction.compare import CHANGE, Comparison, compare_all, title
from reproduction.facts import Entry, Facts, Weights
from reproduction.record import Record, all_results

WIDTH = 118
COMMAND = "python bench/reproduction_page.py RESULTS_DIR..."
LIKE, STAND_IN, NOT_RUN = "like for like", "stand-in", "not run"
INTRODUCTION = (
    "Reference: which published numbers were run here, and with which result? The page lists every "
    "number of [resources/published.yaml](../resources/published.yaml) once, in one of three "
    "states. "
    f"*{LIKE.capitalize()}*: dataset, weights, ε, δ and method are as published, as far as the "
    f"paper says. *{STAND_IN.capitalize()}*: another setting, which the row names; its difference "
    f"says nothing about reproduction. *{NOT_RUN.capitalize()}*: the note has the command and its "
    "needs.",
    "Accuracy is in percent, AUC a fraction, throughput in images per second and core, epochs in "
    "passes over the data. The difference is ours minus the published value. The interval (95%) "
    "covers seeds (Student's t), with one seed test images; for a change it is Welch's. With a "
    "sweep of learning rates, a change compares the best of both sweeps by test result; epsilon "
    "does not cover that choice.",
)
WRITTEN = (
    "A command writes this page, down to [Hours](#hours). It keeps the results of studies in "
    "[reproduced.json](../bench/reproduction/reproduced.json), and reads the needs of each number "
    "in [reproduction.yaml](../bench/reproduction/reproduction.yaml). Without a folder it uses "
    "what it kept:"
)
NOTES = (
    "Each note has the count of its numbers, the weights, the data and the command. For its hours "
    "see [Hours](#hours), for downloads and disk [Files and disk](#files-and-disk)."
)


@dataclass(frozen=True, kw_only=True)
class _Note:
    """Entries with equal text, with the note's number on the page and the comparisons."""

    label: int
    entry: Entry
    comparisons: tuple[Comparison, ...]

    @property
    def link(self) -> str:
        """The note's number, as a link to the note."""
        return f"[{self.label}](#note-{self.label})"


def reproduction_page(published: Published, facts: Facts, record: Record) -> str:
    """Returns the page; raises ConfigError unless each published number is in exactly one entry."""
    results = all_results(record, facts.kept)
    comparisons = compare_all(published, facts, results, record.throughput)
    notes = _notes(comparisons)
    parts = [
        "# Reproduction: the published numbers and ours",
        _paragraph(INTRODUCTION[0]),
        _counts(published, comparisons),
        _paragraph(INTRODUCTION[1]),
        _paragraph(WRITTEN),
        f"    {COMMAND}",
        "## What was run here",
        _runs(facts, record),
    ]
    for paper in keep_unique(table.paper for table in published.tables):
        parts.append(f"## {_upper(published.citations[paper].short)}")
        for printed in published.tables:
            if printed.paper == paper:
                parts += _section(printed, facts, comparisons, notes)
    parts += ["## Notes", _paragraph(NOTES)]
    parts += [part for note in notes for part in _note_parts(note, facts)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def state(comparison: Comparison) -> str:
    if not comparison.run:
        return NOT_RUN
    return LIKE if comparison.like_for_like else STAND_IN


def _notes(comparisons: Iterable[Comparison]) -> list[_Note]:
    """Numbers the notes in the order of their first published number; merges equal entries."""
    notes: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        notes.setdefault(_said(comparison.entry), []).append(comparison)
    return [
        _Note(label=label, entry=group[0].entry, comparisons=tuple(group))
        for label, group in enumerate(notes.values(), start=1)
    ]


def _said(entry: Entry) -> str:
    """Returns an entry's text for its note, without places of numbers, recipe and our cells."""
    return canonical_json(
        entry.model_dump(
            mode="json", exclude={"paper", "table", "rows", "columns", "recipe", "ours"}
        )
    )


def _counts(published: Published, comparisons: Sequence[Comparison]) -> str:
    """Makes the table with the counts of each paper's numbers by state."""
    states = (LIKE, STAND_IN, NOT_RUN)
    rows = []
    for paper in keep_unique(comparison.number.paper for comparison in comparisons):
        of = [state(c) for c in comparisons if c.number.paper == paper]
        counts = (str(of.count(name)) for name in states)
        rows.append(make_row(_upper(published.citations[paper].short), str(len(of)), *counts))
    total = [state(comparison) for comparison in comparisons]
    rows.append(make_row("All", str(len(total)), *(str(total.count(name)) for name in states)))
    columns = ("<Paper", "Numbers", *map(_upper, states))
    return write_markdown(make_table("counts", "", columns, rows, []))


def _runs(facts: Facts, record: Record) -> str:
    """Makes the table of the studies that were run, and of results that only pages have."""
    rows = [
        make_row(
            name,
            f"`{study['file']}`" if study["file"] else "not under config/",
            ", ".join(
                _data_title(name, facts)
                for name in keep_unique(c["dataset"] for c in study["cells"])
            ),
            ", ".join(keep_unique(cell["backbone"] for cell in study["cells"])),
            str(len(study["cells"])),
            facts.notes.get(name, ""),
        )
        for name, study in record.studies.items()
    ]
    rows += [
        make_row(
            kept.study, f"`config/{kept.study}.yaml`", title(kept.dataset), kept.backbone, "1",
            f"[{kept.page}](../{kept.page}) keeps it. {facts.notes.get(kept.study, '')}".strip(),
        )
        for kept in facts.kept
    ]  # fmt: skip
    columns = ("<Study", "<File", "<Data", "<Backbone", "Cells", "<Not as published")
    return write_markdown(make_table("runs", "", columns, rows, []))


def _data_title(name: str, facts: Facts) -> str:
    """Returns a dataset's title; for a part of a dataset, also its name in the study."""
    whole = facts.parts.get(name)
    return title(name) if whole is None else f"{title(whole)} ({name})"


def _section(
    printed: PrintedTable,
    facts: Facts,
    comparisons: Sequence[Comparison],
    notes: Sequence[_Note],
) -> list[str]:
    """Writes a printed table: one row per number that was run; other numbers share a row."""
    place = (printed.paper, printed.table)
    of = [c for c in comparisons if (c.number.paper, c.number.table) == place]
    rows = []
    for row in keep_unique(comparison.number.row for comparison in of):
        for note in notes:
            group = [c for c in note.comparisons if c in of and c.number.row == row]
            rows += [_run_row(c, printed, facts, note) for c in group if c.run]
            if left := [c.number for c in group if not c.run]:
                names = "; ".join(f"{_column(number, printed)} {number.text}" for number in left)
                words = f"{NOT_RUN}{_stands_in(note.entry, facts)}"
                rows.append(make_row(row, *_privacy(left), names, "", "", words, note.link))
    columns = ("<Row", "ε", "δ", "<Published", "<Ours", "Difference", "<State", "Note")
    number = f"Table {printed.table}" if printed.table.isdecimal() else _upper(printed.table)
    return [
        f"### {number}: {printed.title}",
        write_markdown(make_table("section", "", columns, rows, [])),
    ]


def _stands_in(entry: Entry, facts: Facts) -> str:
    """Tells which part of the entry's study replaces a published part; empty without one."""
    weights = facts.weights[entry.weights] if entry.weights else None
    words = entry.stands_in
    if not words and weights is not None and weights.nearest:
        words = f"`{weights.nearest}` of the catalog stands for {weights.title}"
    return f"; in the study {words}" if words else ""


def _privacy(numbers: Sequence[Number]) -> tuple[str, str]:
    """Returns the epsilons and the deltas of numbers; empty if the paper states none."""
    epsilons = keep_unique(
        epsilon_cell(n.epsilon).text + (" (inferred)" if "epsilon" in n.inferred else "")
        for n in numbers
        if n.epsilon is not None
    )
    deltas = keep_unique(
        f"{n.delta:g}" + (" (inferred)" if "delta" in n.inferred else "")
        for n in numbers
        if n.delta is not None
    )
    return ", ".join(epsilons), ", ".join(deltas)


def _column(number: Number, printed: PrintedTable) -> str:
    """Returns a column's title, with epsilon if the table's columns have different epsilons."""
    if any(column.epsilon is not None for column in printed.columns.values()):
        return f"{number.column_title}, ε {epsilon_cell(number.epsilon).text}:"
    return number.column_title


def _run_row(
    comparison: Comparison, printed: PrintedTable, facts: Facts, note: _Note
) -> tuple[TableCell, ...]:
    """Makes the row of a number that has a result of ours."""
    number, result = comparison.number, comparison.result
    ran = "bench/throughput.py" if result is None else f"{result.study}, {result.method}"
    words = [f"{state(comparison)} ({ran})"]
    if comparison.unlike:
        words[0] += f": {'; '.join(comparison.unlike)}"
    elif result is not None and result.study in facts.notes:
        words[0] += ", except for [the study's differences](#what-was-run-here)"
    if comparison.silent:
        words.append(f"The paper does not state {' and '.join(comparison.silent)}")
    if number.metric == CHANGE:
        words.append(_direction(comparison))
    return make_row(
        number.row, *_privacy([number]), f"{_column(number, printed)} {number.text}",
        _ours(comparison), _gap(comparison), ". ".join(words), note.link,
    )  # fmt: skip


def _ours(comparison: Comparison) -> str:
    """Returns our value, interval and seeds, and PLD's epsilon of another accountant's noise."""
    number, result = comparison.number, comparison.result
    assert comparison.value is not None
    if comparison.measured is not None:
        return f"{comparison.value:.3g}"
    assert result is not None
    seeds = f"{result.seeds} seeds" if result.seeds > 1 else "one seed"
    if result.text is not None:
        return f"{result.text}, {seeds}"
    digits = 3 if number.metric == "auc" else 1
    low, high = comparison.ends or (None, None)
    text = mean_cell(comparison.value, low, high, scale=1.0, digits=digits).text
    sign = "+" if number.metric == CHANGE and comparison.value > 0 else ""
    price = ""
    if result.noise is not None and result.pld_epsilon is not None:
        price = f"; noise {result.noise:.2f}, ε {result.pld_epsilon:.2f} by PLD"
    return f"{sign}{text}, {seeds}{price}"


def _gap(comparison: Comparison) -> str:
    """Returns our value minus the published value; empty if the paper writes words."""
    if comparison.gap is None:
        return ""
    text = f"{comparison.gap:+.{3 if comparison.number.metric == 'auc' else 1}f}"
    return text if float(text) else text[1:]  # zero has no sign


def _direction(comparison: Comparison) -> str:
    """Tells if our change has the direction of the paper's change."""
    published = comparison.number.value
    low, high = comparison.ends or (-math.inf, math.inf)
    if low <= 0 <= high:
        return "Its interval holds 0" + (", as published" if published == 0 else "")
    if published == 0 or comparison.value is None:
        return "The paper has no change"
    same = (published > 0) == (comparison.value > 0)
    return "In the published direction" if same else "Against the published direction"


def _note_parts(note: _Note, facts: Facts) -> list[str]:
    """Writes a note: the needs of an entry's numbers, and the reasons for differences."""
    entry, count = note.entry, len(note.comparisons)
    sentences = [f"{count} {'numbers' if count > 1 else 'number'}."]
    if entry.reasons and any(c.run for c in note.comparisons):
        sentences.append(f"Why ours differs: {' '.join(entry.reasons)}")
    if entry.missing:
        sentences.append(entry.missing)
    if entry.weights:
        sentences.append(_weights_text(facts.weights[entry.weights]))
    if entry.study:
        sentences += _data(note)
    settings = keep_unique(c.measured["settings"] for c in note.comparisons if c.measured)
    sentences += [f"Measured with {each}." for each in settings]
    parts = [f"### Note {note.label}", _paragraph(" ".join(sentences))]
    if entry.study:
        targets = [entry.target] if entry.target else []
        command = shlex.join(run_words(*targets, call=["--configfile", entry.study]))
        parts.append(f"    {command}")
    if entry.command:
        parts.append(f"    {entry.command}")
    return parts


def _weights_text(weights: Weights) -> str:
    text = f"Weights: {weights.title}, {weights.access}"
    if weights.nearest:
        text += f"; the nearest public ones are `{weights.nearest}`"
    if not weights.stated:
        text += "; the paper does not name its weights"
    return f"{text}."


def _data(note: _Note) -> list[str]:
    """Writes the access to each dataset of a note."""
    by_access: dict[str, list[str]] = {}
    for name in keep_unique(c.number.dataset for c in note.comparisons if c.number.dataset):
        known = name in catalog.dataset_names()
        access = catalog.dataset_entry(name).access if known else "not in the catalog"
        by_access.setdefault(access, []).append(title(name))
    parts = [f"{', '.join(names)} ({access})" for access, names in by_access.items()]
    return [f"Data: {'; '.join(parts)}."] if parts else []


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
