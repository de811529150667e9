"""The end of a study on a terminal: short, with a verdict and what to do next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting.console import LINES, describe_study
from dpprobe.reporting.headline import verdict
from dpprobe.results.best_private import best_private
from dpprobe.results.summary import read_grid, summarise_cells
from tests.support.cell_files import write_study


def finish(folder: Path, cells: list[Path]) -> list[Path]:
    """Writes the summaries of cells, one per dataset."""
    datasets = dict.fromkeys(path.parts[-5] for path in cells)
    for name in datasets:
        own = [path for path in cells if path.parts[-5] == name]
        summarise_cells(own, folder / f"summary/{name}.parquet", study="study")
    return [folder / f"summary/{name}.parquet" for name in datasets]


def describe(folder: Path, cells: list[Path]) -> str:
    return describe_study(folder, finish(folder, cells))


def test_one_dataset_has_its_cells_a_verdict_and_commands(tmp_path: Path) -> None:
    cells = write_study(tmp_path)
    for name in ("report.html", "tables/accuracy.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    receipt = {"uri": "sqlite:///x/mlflow.db", "pages": {"studies": "#/a", "cells": "#/b"}}
    write_json(tmp_path / "tracking/_study.json", receipt)
    write_json(tmp_path / "tracking/digits.json", receipt)
    text = describe(tmp_path, cells)
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert lines[0] == "digits: test accuracy in percent, δ = 1e-05"
    assert re.split("  +", lines[1])[2:] == ["ε = 0.5", "ε = 1", "ε = 2", "no privacy"]
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines[2:8]}
    for path in cells:
        *_, backbone, method, _, _ = path.parts
        mean = 100 * read_json(path)["summary"]["accuracy"]["mean"]
        assert f"{mean:.1f}" in rows[backbone, method]
    best = next(b for b in best_private(read_grid([tmp_path / "summary/digits.parquet"]), {})
                if b.epsilon == "1")  # fmt: skip
    assert verdict(best) in " ".join(text.split())
    following = lines[lines.index("Next:") + 1 :]
    assert len(following) == 3
    assert following[0].split("  # ")[0].strip() == (
        f"python -m webbrowser {shlex.quote(str(tmp_path / 'report.html'))}"
    )
    assert "server --backend-store-uri sqlite:///x/mlflow.db" in following[1]
    assert following[2].strip().startswith(f"less {tmp_path / 'tables/accuracy.md'}  # all results")
    assert "±" not in text, "no legend of what is not there"
