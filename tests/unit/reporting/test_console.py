"""The end of a study on a terminal: short, with a verdict and what to do next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.privacy.limits import ABOVE_NOTE
from dpprobe.reporting import console
from dpprobe.reporting.accuracy_table import LEFT_OUT
from dpprobe.reporting.console import LINES, WIDTH, describe_study
from dpprobe.reporting.headline import verdict
from dpprobe.results.best_private import best_private
from dpprobe.results.summary import read_grid, summarise_cells
from tests.support.cell_files import write_cell, write_study

LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}


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


def test_an_auc_is_called_one_and_its_table_is_named(tmp_path: Path) -> None:
    text = describe(tmp_path, [write_cell(tmp_path, **LESIONS, rows=600)])
    assert text.startswith("digits: test AUC in percent")
    assert "% AUC (95% CI" in text
    assert "above the majority-class baseline (50.0%)" in " ".join(text.split())


@pytest.mark.parametrize("n", [1_000, 200_000])
def test_many_cells_are_cut_and_the_best_stay(tmp_path: Path, n: int) -> None:
    cells = [
        write_cell(tmp_path, method=f"m{i:02}", epsilon=epsilon, quality=0.1 * i)
        for i in range(40)
        for epsilon in ("1", "inf")
    ]
    for path in cells:
        write_json(path, read_json(path) | {"n": n})
    lines = describe(tmp_path, cells).splitlines()
    assert len(lines) == LINES
    assert any(line.startswith("Attention: ") for line in lines) is (n > 100_000)  # 1 / delta
    means = [float(line.split()[2]) for line in lines[2:] if line.startswith("pixels")]
    every = [100 * read_json(path)["summary"]["accuracy"]["mean"] for path in cells[::2]]
    assert means == [round(value, 1) for value in sorted(every, reverse=True)[: len(means)]]
    (more,) = [line for line in lines if "more rows" in line]
    assert int(more.split()[0]) == 40 - len(means)


@pytest.mark.parametrize("count", [2, 12])
def test_several_datasets_have_a_row_and_a_verdict_each(tmp_path: Path, count: int) -> None:
    cells = [
        write_cell(tmp_path, dataset=f"d{i}", epsilon=epsilon, rows=400)
        for i in range(count)
        for epsilon in ("0.5", "1")
    ]
    lines = describe(tmp_path, cells).splitlines()
    assert len(lines) <= LINES
    told = [line for line in lines if line.startswith("d") and "best private head" in line]
    assert told
    assert told[0].startswith("d0: At ε = 1 the best private head reaches ")
    assert ("more: " in "".join(lines)) == (count == 12)
    assert len(told) == count or count == 12


def test_a_note_is_of_the_datasets_that_it_holds_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_NOTE_LINES", 99)
    few: dict[str, Any] = {"multi_label": True, "class_names": ("round", "even", "absent")}
    traits: dict[str, dict[str, Any]] = {"plain": {}, "large": {}, "labels": few}
    cells = [write_cell(tmp_path, dataset=name, **more) for name, more in traits.items()]
    write_json(cells[1], read_json(cells[1]) | {"n": 200_000})
    text = " ".join(describe(tmp_path, cells).split())
    assert re.findall(rf"(\w+): {ABOVE_NOTE}", text) == ["large"]
    assert re.findall(rf"(\w+): {LEFT_OUT}", text) == ["labels"]


def test_what_would_mislead_is_told_in_few_lines(tmp_path: Path) -> None:
    cells = [
        write_cell(tmp_path, method="a" * 30, epsilon=epsilon, rows=600)
        for epsilon in ("0.5", "1", "2", "4", "8")
    ]
    for path in cells:
        values = read_json(path)
        for index, seed in enumerate(values["seeds"]):
            seed["never_predicted"] = list(range(index + 1))
        write_json(path, values | {"n": 200_000})
    lines = describe(tmp_path, cells).splitlines()
    assert len(lines) <= LINES
    assert "this study may be released" in " ".join(lines)
    assert "with head: auto can help (docs/imbalance.md)." in " ".join(lines), "the remedy"
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("  python"))
    with_options = read_json(cells[0]) | {"head": "fine_tune"}
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    write_json(cells[0], with_options | {"options": {"search": search}})
    assert "†" in describe(tmp_path, cells)


def test_a_study_without_a_private_head_says_so(tmp_path: Path) -> None:
    text = describe(tmp_path, [write_cell(tmp_path, epsilon="inf")])
    assert "No head of this study is private" in text
