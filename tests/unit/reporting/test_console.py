"""The end of a study in the terminal: short, with a verdict and the next steps."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.json_files import write_json
from dpprobe.reporting import console
from dpprobe.reporting.console import LINES, describe_study, list_commands
from dpprobe.reporting.headline import verdict
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import Grid
from tests.support.cell_files import summarise, write_cell
from tests.support.made_grids import made_entry, made_grid

FREE: dict[str, Any] = {"private": False, "ceiling": True}


def _describe(monkeypatch: pytest.MonkeyPatch, grid: Grid, folder: Path = Path("r")) -> list[str]:
    monkeypatch.setattr(console, "read_grid", lambda _summaries: grid)
    lines = describe_study(folder, []).splitlines()
    assert len(lines) <= LINES
    return lines


def _rows(lines: list[str], first: int = 1) -> list[list[str]]:
    """Returns the cells of the table, starting with its titles."""
    table = lines[first : lines.index("")]
    return [re.split("  +", line) for line in table]


def test_one_dataset_has_its_cells_the_best_first_and_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = made_grid(
        {
            ("digits", 0.5, "x", "a"): made_entry(50.0),
            ("digits", 1.0, "x", "a"): made_entry(60.0),
            ("digits", 1.0, "y", "b"): made_entry(70.04, low=65.0, high=75.0),
            ("digits", 8.0, "x", "a"): made_entry(75.0),
            ("digits", math.inf, "y", "free"): made_entry(90.0, **FREE),
        }
    )
    lines = _describe(monkeypatch, grid)
    assert lines[0] == "digits: test accuracy in percent, δ = 1e-05"
    assert _rows(lines) == [
        ["backbone", "method", "ε = 0.5", "ε = 1", "ε = 8", "no privacy"],
        ["y", "b", "70.0"],
        ["x", "a", "50.0", "60.0", "75.0"],
        ["y", "free", "90.0"],
    ]
    titles = lines[1]
    assert lines[2].index("70.0") + 4 == titles.index("ε = 1") + 5, "numbers are below their title"
    (best,) = [each for each in best_private(grid, {}) if each.at == 1.0]
    text = " ".join(" ".join(lines).split())
    assert verdict(best) in text
    assert "No interval shows whether it differs from the non-private baseline." in text
    assert "Attention" not in text
    assert lines[-1] == "Next:"
    marked = made_grid(grid.entries, above=frozenset({"digits"}))
    lines = _describe(monkeypatch, marked)
    assert lines[0].endswith("δ = 1e-05 (above 1/n)")
    assert any(line.startswith("Attention: A delta above 1/n") for line in lines)


def test_several_datasets_have_a_row_and_a_verdict_each(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        ("a", 0.5, "x", "m"): made_entry(50.0, constant=25.04),
        ("a", 0.5, "y", "m"): made_entry(55.0, constant=25.04),
        ("a", 2.0, "x", "m"): made_entry(60.0),
        ("a", math.inf, "x", "free"): made_entry(80.0, **FREE),
        ("a", math.inf, "y", "free"): made_entry(85.0, **FREE),
        ("b", 2.0, "x", "m"): made_entry(70.0),
        ("b", 2.0, "y", "m"): made_entry(60.0, never={"rare": 3}),
    }
    auc = Measure(headline="auc", multi_label=True, labels=2, num_classes=3)
    grid = made_grid(entries, measures={"b": auc}, above=frozenset({"b"}))
    lines = _describe(monkeypatch, grid)
    assert lines[0] == "Best private head of each dataset: test result in percent"
    assert _rows(lines) == [
        ["dataset", "metric", "ε = 0.5", "ε = 2", "no privacy", "majority class"],
        ["a", "accuracy", "55.0", "60.0", "85.0", "25.0"],
        ["b", "mean AUC over 2 of 3 labels", "70.0"],
    ]
    notes = [line[:30] for line in lines if line.startswith("Attention")]
    assert notes == ["Attention: b: A delta above 1/", "Attention: b: The mean leaves "]
    told = [line for line in lines if "best private head reaches" in line]
    assert [line[:12] for line in told] == ["a: At ε = 0.", "b: At ε = 2 "]


def test_a_study_without_a_private_head_says_what_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = made_grid({("d", math.inf, "x", "a"): made_entry(50.0, private=False)}, deltas={})
    lines = _describe(monkeypatch, grid)
    assert "No head of this study is private: add a private method and a finite epsilon." in lines
    assert lines[0] == "d: test accuracy in percent"
    assert _rows(lines)[1] == ["x", "a", "50.0"]


def test_commands_are_of_files_that_exist(tmp_path: Path) -> None:
    folder = tmp_path / "a study"
    summary = summarise(folder / "summary/digits.parquet", write_cell(folder))
    assert describe_study(folder, [summary]).splitlines()[-1] == "Next:"
    for name in ("report.html", "tables/accuracy.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    pages = {"summary": "#/b"}
    write_json(folder / "tracking/digits.json", {"uri": "http://host/", "pages": pages})
    page, runs, table = list_commands(folder)
    browser = "python -m webbrowser"
    report = shlex.quote(str(folder / "report.html"))
    assert page.endswith(f"{browser} {report}  # report")
    assert runs.endswith(f"{browser} 'http://host/#/b'  # runs"), "a server runs already"
    shown = shlex.quote(str(folder / "tables/accuracy.md"))
    assert table == f"less {shown}  # all results with their 95% CIs"
