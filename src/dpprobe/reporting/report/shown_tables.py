"""The tables of the report, computed from the study's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.analysis_registry import load_analyses
from dpprobe.errors import DataError
from dpprobe.exhibits import published
from dpprobe.exhibits.tables import Table
from dpprobe.reporting.accuracy_table import NAME, accuracy_table
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES
from dpprobe.reporting.paper_tables.write import make_paper_table
from dpprobe.results.summary import read_grid


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table of the report, with its files; `dataset` is None for a table of all datasets."""

    table: Table
    files: Sequence[Path]
    dataset: str | None = None

    @property
    def folder(self) -> str:
        """The name of the folder with the table's files: "papers" for the papers' tables."""
        return self.files[0].parent.name


def study_tables(
    files: Sequence[Path], summaries: Sequence[Path], run: Run | None
) -> list[ReportTable]:
    """Makes the report's tables that `files` show, in the order of the Markdown files.

    Omits tables that belong to sections. `run` is None if no file is a paper's table.
    Raises DataError if a Markdown file is not a known table.
    """
    results: dict[str, tuple[Table, str | None]] = {
        NAME: (accuracy_table(read_grid(summaries)), None)
    }
    for summary in summaries:
        grid = read_grid([summary])
        results |= {f"{name}_{NAME}": (accuracy_table(grid), name) for name in grid.measures}
    papers: dict[str, tuple[Table, str | None]] = {}
    if run is not None:
        wanted = {path.stem for path in files if path.parent.name == "papers"}
        papers = {
            name: (make_paper_table(name, run, published.read_published()), None)
            for name in wanted & PAPER_TABLES.keys()
        }
    sections = [analysis.section for analysis in load_analyses() if analysis.section]
    apart = tuple(ending for section in sections for ending in section.tables)
    made = []
    for path in files:
        if path.suffix != ".md" or path.stem.endswith(apart):
            continue
        known = papers if path.parent.name == "papers" else results
        if path.stem not in known:
            raise DataError(f"{path}: not a table of these results")
        table, dataset = known[path.stem]
        beside = [file for file in files if file.with_suffix(".md") == path]
        made.append(ReportTable(table=table, files=beside, dataset=dataset))
    return made
