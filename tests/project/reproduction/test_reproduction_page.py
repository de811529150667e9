"""bench/reproduction_page.py writes the record and the page from results folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from dpprobe.results.summary import summarise_cells
from reproduction.record import FILE, read_reproduced
from reproduction_page import main
from tests.support.paper_tables import paper_cell
from tests.support.small_study import STUDY


def run(*arguments: str | Path) -> str:
    """Runs the script; returns its error message, or "" if it succeeds."""
    try:
        main([*map(str, arguments)])
    except SystemExit as stop:
        return str(stop.code)
    return ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a results folder of a study whose file is next to it, not under config/."""
    path = tmp_path / "results"
    cells = [paper_cell(path, dataset="cifar10", epsilon="0.5")]
    summarise_cells(cells, path / "summary" / "cifar10.parquet", study="mine")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(STUDY | {"study": "mine"}), encoding="utf-8")
    shutil.copy(FILE, tmp_path / "record.json")
    return path


def test_results_are_added_to_the_record_and_the_page(folder: Path, tmp_path: Path) -> None:
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    before = set(read_reproduced(record).studies)
    given = ("--output", page, "--record", record, "--study", tmp_path / "mine.yaml")
    assert run(folder, *given) == ""
    studies = read_reproduced(record).studies
    assert set(studies) == before | {"mine"}
    assert studies["mine"]["file"] is None
    first = page.read_text(encoding="utf-8")
    assert "| mine | CIFAR-10 | pixels | 1 |" in first
    assert run("--output", page, "--record", record) == ""
    assert page.read_text(encoding="utf-8") == first


def test_a_study_without_a_file_is_named(folder: Path, tmp_path: Path) -> None:
    given = ("--output", tmp_path / "page.md", "--record", tmp_path / "record.json")
    error = run(folder, *given)
    assert "no file of study 'mine'" in error
    assert "--study" in error
    assert not (tmp_path / "page.md").exists()


def test_a_folder_without_results_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--output", tmp_path / "page.md", "--record", tmp_path / "record.json")
    found = run(tmp_path, *given)
    assert "no finished dataset; run `snakemake --cores all` first" in found
    monkeypatch.chdir(tmp_path)  # not the root of a clone
    assert "run `dpprobe run --cores all` first" in run(tmp_path, *given)
