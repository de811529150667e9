"""Made-up studies for the papers' tables, and functions that return the tables as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.exhibits import published, tables
from dpprobe.files.json_files import read_json, write_json
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES
from dpprobe.reporting.paper_tables.write import make_paper_table
from dpprobe.results.cell_results import read_cell_results
from tests.support.cell_files import TRAIN_ROWS, write_cell

LAMB = {"head": "lamb", "batch_size": "full", "learning_rate": 0.001, "init": "zero", "steps": 1}


def paper_cell(
    root: Path,
    *,
    head: str = "sgd",
    options: dict[str, Any] | None = None,
    n: int = TRAIN_ROWS,
    delta: float | None = None,
    **where: Any,
) -> Path:
    """Writes a made-up cell with the given head, options, n and delta."""
    path = write_cell(root, **where)
    record = read_json(path)
    record["head"], record["n"], record["delta"] = head, n, delta or record["delta"]
    record["options"] = options or {"head": head}
    write_json(path, record)
    return path


def paper_run(paths: list[Path], **changes: Any) -> Run:
    """Returns cells as the results of a study."""
    facts: dict[str, Any] = {
        "study": "mine",
        "cells": read_cell_results(paths),
        "names": {},
        "backbones": {"pixels": {"family": "pixels"}, "clip": {"family": "open_clip"}},
    }
    return Run(**facts | changes)


def table_of(run: Run, name: str) -> tables.Table:
    """Makes the papers' table `name`."""
    return make_paper_table(name, run, published.read_published())


def every_table(run: Run) -> list[tables.Table]:
    """Makes all of the papers' tables."""
    return [table_of(run, name) for name in PAPER_TABLES]


def rows_as_text(table: tables.Table) -> list[dict[str, str]]:
    """Returns each row as a mapping from the columns' titles to texts."""
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]


def batch_cells(tmp_path: Path) -> list[Path]:
    """Writes cells of DP-LAMB at three batch sizes, and their ceiling."""
    return [
        paper_cell(
            tmp_path,
            method=f"lamb_{size}",
            epsilon=epsilon,
            head="lamb",
            options=LAMB | {"batch_size": size, "learning_rate": 0.1 / (1 + index)},
        )
        for index, size in enumerate((64, 256, "full"))
        for epsilon in ("8", "inf")
    ] + [paper_cell(tmp_path, method="nonprivate", epsilon="inf", head="nonprivate")]


def ablation_cells(tmp_path: Path) -> list[Path]:
    """Writes a base cell, cells that differ from it in one option, and one that differs in two."""
    clip = LAMB | {"max_grad_norm": 10.0}
    momentum = {**LAMB, "head": "momentum", "learning_rate": 1.0, "beta": 0.5}
    two = LAMB | {"steps": 9, "init": "torch"}
    return [
        paper_cell(tmp_path, method="base", head="lamb", options=LAMB, quality=2.0),
        paper_cell(tmp_path, method="clip", head="lamb", options=clip, quality=1.0),
        paper_cell(tmp_path, method="other", head="momentum", options=momentum, quality=2.0),
        paper_cell(tmp_path, method="two", head="lamb", options=two),
        paper_cell(tmp_path, method="base", head="lamb", options=LAMB, backbone="clip", quality=3),
    ]
