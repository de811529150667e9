"""Writes the reproduction page: every published number once, ours beside it or what it takes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpprobe.reporting.paper_tables.common import TITLES, epsilon_cell, make_table
from dpprobe.reporting.published import Number, PrintedTable, Published
from dpprobe.reporting.reproduction.compare import CHANGE, Comparison, compare_all
from dpprobe.reporting.reproduction.facts import Entry, Facts, Weights
from dpprobe.reporting.reproduction.hours import Estimate, estimate
from dpprobe.reporting.reproduction.record import Record, all_results
from dpprobe.reporting.tables import make_row, markdown, mean_cell
from dpprobe.study import catalog
from dpprobe.study.ablations import unique

WIDTH = 118
COMMAND = "python -m dpprobe reproduction RESULTS_DIR... --output docs/reproduction.md"
LIKE, STAND_IN, NOT_RUN = "like for like", "stand-in", "not run"
INTRODUCTION = (
    "Every number of [resources/published.yaml](../resources/published.yaml) stands here once. "
    f"*{LIKE.capitalize()}*: the dataset, the weights, ε, δ and the method are the published ones, "
    "as far as the paper says. "
    f"*{STAND_IN.capitalize()}*: something else was run beside it, and the row says what; its "
    "difference is no reproduction, neither a good one nor a bad one. "
    f"*{NOT_RUN.capitalize()}*: the note that the row names has the command and what it needs.",
    "Accuracies are in percent and differences in points, ours minus the published one; AUC is a "
    "fraction, throughput is images a second and core, epochs are passes over the data. ± is half "
    "of a 95 % interval, or its ends stand there: Student's t over seeds, over test images where "
    "there is one seed, Welch's for a change. Where rates were swept, a change is from the best of "
    "the base's sweep to the best of the other's, each chosen by its test result at no price.",
)
WRITTEN = (
    "This page is written by a command from results that were run, from "
    "[resources/reproduced.json](../resources/reproduced.json), which it keeps of them, and from "
    "[resources/reproduction.yaml](../resources/reproduction.yaml), which says what each published "
    "number takes. Do not edit it; without a folder it is written anew from the record:"
)
HOURS = (
    "Images by the rate at which they pass: one run of one network on one dataset, training images "
    "as often as the method visits them. Frozen features are extracted once, whatever the number "
    "of heads, seeds and epsilons; the training of heads is not in these hours. No rate is "
    "assumed: each was published or measured, on the device that is named, and no GPU was measured "
    "here. A published rate is of a core among 64 of TPUv4."
)


@dataclass(frozen=True, kw_only=True)
class _Note:
    """An entry with its number on the page, and the comparisons of its numbers."""

    label: int
    entry: Entry
    comparisons: tuple[Comparison, ...]


def reproduction_page(published: Published, facts: Facts, record: Record) -> str:
    """Writes the page.

    Raises:
      ConfigError: when a published number is in no entry, or in several.
      DataError: when a rate was not measured.
    """
    results = all_results(record, facts.kept)
    comparisons = compare_all(published, facts, results)
    notes = _notes(comparisons)
    parts = [
        "# Reproduction: the published numbers and ours",
        *map(_paragraph, INTRODUCTION),
        _paragraph(WRITTEN),
        f"    {COMMAND}",
        _counts(published, comparisons),
        "## What was run here",
        _runs(facts, record),
    ]
    for paper in unique(table.paper for table in published.tables):
        parts.append(f"## {published.citations[paper].short}")
        for printed in published.tables:
            if printed.paper == paper:
                parts += _section(printed, facts, comparisons, notes)
    parts += ["## Hours", _paragraph(HOURS), _hours(published, facts, record, notes)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def state(comparison: Comparison) -> str:
    """Returns the state of a published number."""
    if comparison.result is None:
        return NOT_RUN
    return LIKE if comparison.like_for_like else STAND_IN


def _notes(comparisons: Iterable[Comparison]) -> list[_Note]:
    """Numbers the entries in the order of their first number."""
    entries: dict[int, list[Comparison]] = {}
    for comparison in comparisons:
        entries.setdefault(id(comparison.entry), []).append(comparison)
    return [
        _Note(label=label, entry=group[0].entry, comparisons=tuple(group))
        for label, group in enumerate(entries.values(), start=1)
    ]


def _counts(published: Published, comparisons: Sequence[Comparison]) -> str:
    """Makes the table of how many numbers of each paper were run."""
    states = (LIKE, STAND_IN, NOT_RUN)
    rows = []
    for paper in unique(comparison.number.paper for comparison in comparisons):
        of = [state(c) for c in comparisons if c.number.paper == paper]
        counts = (str(of.count(name)) for name in states)
        rows.append(make_row(published.citations[paper].short, str(len(of)), *counts))
    total = [state(comparison) for comparison in comparisons]
    rows.append(make_row("all", str(len(total)), *(str(total.count(name)) for name in states)))
    return markdown(make_table("counts", "", ("<Paper", "Numbers", *states), rows, []))


def _runs(facts: Facts, record: Record) -> str:
    """Makes the table of the studies that were run, and of what pages keep."""
    rows = [
        make_row(
            name,
            f"`{study['file']}`" if study["file"] else "not under config/",
            ", ".join(unique(cell["dataset"] for cell in study["cells"])),
            ", ".join(unique(cell["backbone"] for cell in study["cells"])),
            str(len(study["cells"])),
            facts.notes.get(name, ""),
        )
        for name, study in record.studies.items()
    ]
    rows += [
        make_row(
            kept.study, f"`config/{kept.study}.yaml`", kept.dataset, kept.backbone, "1",
            f"[{kept.page}](../{kept.page}) keeps it. {facts.notes.get(kept.study, '')}".strip(),
        )
        for kept in facts.kept
    ]  # fmt: skip
    columns = ("<Study", "<File", "<Data", "<Backbone", "Cells", "<Not as published")
    return markdown(make_table("runs", "", columns, rows, []))


def _section(
    printed: PrintedTable,
    facts: Facts,
    comparisons: Sequence[Comparison],
    notes: Sequence[_Note],
) -> list[str]:
    """Writes a printed table: its rows, then the notes that they name."""
    of = [
        comparison
        for comparison in comparisons
        if (comparison.number.paper, comparison.number.table) == (printed.paper, printed.table)
    ]
    labels = {id(note.entry): note.label for note in notes}
    rows = []
    for row in unique(comparison.number.row for comparison in of):
        same = [comparison for comparison in of if comparison.number.row == row]
        for label in unique(labels[id(c.entry)] for c in same):
            group = [c for c in same if labels[id(c.entry)] == label]
            left = [c for c in group if c.result is None]
            rows += [_run_row(c, printed, label) for c in group if c.result is not None]
            if left:
                names = "; ".join(f"{_column(c.number, printed)} {c.number.text}" for c in left)
                rows.append(make_row(row, names, "", "", NOT_RUN, str(label)))
    columns = ("<Row", "<Published", "<Ours", "Difference", "<State", "Note")
    number = f"Table {printed.table}" if printed.table.isdecimal() else printed.table.capitalize()
    mine = [note for note in notes if note.label in {labels[id(c.entry)] for c in of}]
    return [
        f"### {number}: {printed.title}",
        markdown(make_table("section", "", columns, rows, [])),
        *(part for note in mine for part in _note(note, facts)),
    ]


def _column(number: Number, printed: PrintedTable) -> str:
    """Writes a column's title, with epsilon where columns of one title differ in it."""
    if any(column.epsilon is not None for column in printed.columns.values()):
        return f"{number.column_title}, ε {epsilon_cell(number.epsilon).text}:"
    return f"{number.column_title}"


def _run_row(comparison: Comparison, printed: PrintedTable, label: int) -> tuple[object, ...]:
    number, result = comparison.number, comparison.result
    assert result is not None
    words = [state(comparison)]
    words += [f"{result.study}, {result.method}"]
    if comparison.unlike:
        words.append(f"not as published: {'; '.join(comparison.unlike)}")
    if comparison.silent:
        words.append(f"the paper does not state {' and '.join(comparison.silent)}")
    if number.metric == CHANGE:
        words.append(_direction(comparison))
    return make_row(
        number.row,
        f"{_column(number, printed)} {number.text}",
        _ours(comparison),
        _gap(comparison),
        ". ".join(word[0].upper() + word[1:] for word in words if word),
        str(label),
    )


def _ours(comparison: Comparison) -> str:
    number, result = comparison.number, comparison.result
    assert result is not None
    assert comparison.value is not None
    seeds = f"{result.seeds} seeds" if result.seeds > 1 else "one seed"
    if result.text is not None:
        return f"{result.text}, {seeds}"
    digits = 3 if number.metric == "auc" else 1
    ends = comparison.ends or (None, None)
    text = mean_cell(comparison.value, *ends, scale=1.0, digits=digits).text
    sign = "+" if number.metric == CHANGE and comparison.value > 0 else ""
    return f"{sign}{text}, {seeds}"


def _gap(comparison: Comparison) -> str:
    """Writes ours minus the published value; nothing where the paper writes words."""
    if comparison.gap is None:
        return ""
    return f"{comparison.gap:+.{3 if comparison.number.metric == 'auc' else 1}f}"


def _direction(comparison: Comparison) -> str:
    """Says whether a change goes the way that the paper's went."""
    published = comparison.number.value
    low, high = comparison.ends or (-math.inf, math.inf)
    if low <= 0 <= high:
        return "its interval holds 0" + (", as published" if published == 0 else "")
    if published == 0 or comparison.value is None:
        return "the paper has no change"
    same = (published > 0) == (comparison.value > 0)
    return "in the published direction" if same else "against the published direction"


def _note(note: _Note, facts: Facts) -> list[str]:
    """Writes what an entry's numbers take, and why ours differ from them."""
    entry, count = note.entry, len(note.comparisons)
    sentences = [f"**Note {note.label}** ({count} {'numbers' if count > 1 else 'number'})."]
    if entry.reasons and any(c.result is not None for c in note.comparisons):
        sentences.append(f"Why ours differs: {' '.join(entry.reasons)}")
    if entry.missing:
        sentences.append(entry.missing)
    if entry.weights:
        sentences.append(_weights_text(facts.weights[entry.weights]))
    if entry.study or entry.costs:
        sentences += _data(note)
        sentences.append(
            "Hours: [below](#hours)." if entry.costs else "No rate of it was measured: no hours."
        )
    target = f" {entry.target}" if entry.target else ""
    command = f"    snakemake --cores all{target} --configfile {entry.study}"
    return [_paragraph(" ".join(sentences)), *([command] if entry.study else [])]


def _weights_text(weights: Weights) -> str:
    text = f"Weights: {weights.title}, {weights.access}"
    if weights.access == "private":
        text += f"; the study takes the nearest public ones, {weights.nearest}"
    if not weights.stated:
        text += "; the paper does not say which it took"
    return f"{text}."


def _data(note: _Note) -> list[str]:
    """Writes the access to each dataset of an entry."""
    by_access: dict[str, list[str]] = {}
    for name in unique(c.number.dataset for c in note.comparisons if c.number.dataset):
        known = name in catalog.dataset_names()
        access = catalog.dataset_entry(name).access if known else "not in the catalog"
        by_access.setdefault(access, []).append(TITLES.get(name, name))
    parts = [f"{', '.join(names)} ({access})" for access, names in by_access.items()]
    return [f"Data: {'; '.join(parts)}."] if parts else []


def _hours(published: Published, facts: Facts, record: Record, notes: Sequence[_Note]) -> str:
    """Makes the table of hours, a row a note, dataset and network."""
    rows = []
    for note in notes:
        for cost in note.entry.costs:
            datasets: dict[str, Number] = {}
            for comparison in note.comparisons:
                datasets.setdefault(comparison.number.dataset or "", comparison.number)
            for name, number in datasets.items():
                hours = estimate(
                    cost, number, facts=facts, published=published, measured=record.rates
                )
                rows.append(
                    make_row(
                        str(note.label), TITLES.get(name, name), hours.rate.what,
                        f"{hours.images:,.0f}", f"{hours.images_a_second:.3g}",
                        _source(hours, published), f"{hours.hours:.2g}", f"{hours.rate.unit} h",
                        cost.note or "",
                    )
                )  # fmt: skip
    columns = (
        "Note", "<Data", "<What passes", "Images", "Images/s", "<Rate from", "Hours", "<Of",
        "<Remark",
    )  # fmt: skip
    return markdown(make_table("hours", "", columns, rows, []))


def _source(hours: Estimate, published: Published) -> str:
    rate = hours.rate
    if rate.published is None:
        return f"measured here ({rate.measured})"
    short = published.citations[rate.published.paper].short
    return f"{short}, table {rate.published.table}, {rate.published.row}, {rate.published.column}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
