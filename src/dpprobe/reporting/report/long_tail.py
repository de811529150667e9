"""The report's section on long tails: sub-classes, memorised rows, the price of privacy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
from dpprobe.exhibits.tables import html
from dpprobe.reporting.long_tail_tables import long_tail_tables
from dpprobe.results.summary import Grid


def long_tail_section(paths: Sequence[Path], grid: Grid) -> tuple[list[Markup], list[str]]:
    """Reads records, and makes the tables and the notes of the section; none without records."""
    records = read_long_tails(paths)
    if not records:
        return [], []
    tables = [
        html(table, caption=table.title) for table in long_tail_tables(records, grid).values()
    ]
    notes = [f"{r.dataset}, {r.backbone}: {note}" for r in records for note in r.notes]
    return tables, notes
