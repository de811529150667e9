"""All the papers' tables of made-up studies, against stored answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.errors import DpprobeError
from dpprobe.exhibits.tables import write_markdown
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES
from tests.support.comparison_cells import compared_cells
from tests.support.paper_tables import ablation_cells, batch_cells, paper_run, table_of
from tests.support.stored_records import check_values


def _describe(run: Any, name: str) -> Any:
    try:
        table = table_of(run, name)
    except DpprobeError as error:
        return error
    lines = write_markdown(table).splitlines()
    return [table.name, table.title, *map(str.strip, lines[:4]), *map(str.strip, lines[-9:])]


def test_the_papers_tables_are_as_stored(tmp_path: Path) -> None:
    compared = compared_cells(tmp_path / "c", datasets=("imagenet", "cifar10"), backbones=["clip"])
    names = {"imagenet": "imagenet", "cifar10": "cifar10", "digits": "imagenet"}
    studies: dict[str, Any] = {
        "batches": paper_run(batch_cells(tmp_path / "b"), names=names),
        "ablations": paper_run(ablation_cells(tmp_path / "a"), names=names),
        "compared": paper_run([], names=names, cells=compared),
    }
    answers = {
        title: {name: _describe(run, name) for name in PAPER_TABLES}
        for title, run in studies.items()
    }
    check_values("tables_of_papers", answers)
