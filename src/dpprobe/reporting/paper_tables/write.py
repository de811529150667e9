"""Makes and writes the tables of the papers."""

from __future__ import annotations

from pathlib import Path

from dpprobe.exhibits.make import find_function
from dpprobe.exhibits.published import Published, write_bibliography
from dpprobe.exhibits.tables import Table, save_table
from dpprobe.files.atomic_writes import write_text
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES, list_paper_tables
from dpprobe.study.study import Study


def write_study_tables(*, study: Study, results: Path, published: Published, folder: Path) -> None:
    """Writes the papers' tables of a study, with published next to measured numbers.

    Each table is written as Markdown, CSV and LaTeX; a bibliography is written for LaTeX.
    """
    run = Run.of_study(study, results)
    for name in list_paper_tables(study):
        table = make_paper_table(name, run, published)
        for ending in ("md", "csv", "tex"):
            save_table(table, folder / f"{name}.{ending}")
    write_text(folder / "references.bib", write_bibliography(published))


def make_paper_table(name: str, run: Run, published: Published) -> Table:
    declared = PAPER_TABLES[name]
    make = find_function(f"{__package__}.{declared.make}")
    table: Table = make(run, published, **declared.options)
    return table
