"""`dpprobe results` finds the latest results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dpprobe.reporting import console
from dpprobe.study.snapshot import FOLDER, RUN_KEY
from tests.support.command_line import run_main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "describe_study", lambda folder, paths: f"{folder}: {paths[0]}")


def finish(folder: str, seconds: int) -> None:
    """Writes summaries of two datasets, the second with the modification time `seconds`."""
    for number, name in enumerate(("scans", "lesions")):
        summary = Path(folder, f"summary/{name}.parquet")
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.touch()
        os.utime(summary, (seconds * number,) * 2)


def test_the_only_results_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finish("results/own_images", 1000)
    assert run_main(monkeypatch, "results") == 0
    printed = capsys.readouterr().out
    assert printed == "results/own_images: results/own_images/summary/lesions.parquet\n"


def test_the_latest_of_several_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    finish("results", 2000)
    finish("results/own images", 3000)
    finish("elsewhere/deep/down", 9000)
    FOLDER.mkdir(parents=True)
    for name, folder in {"a": "elsewhere/deep/down", "b": str(tmp_path / "results")}.items():
        run = {"study": {"results_dir": folder, "data_dir": "data"}, "call": []}
        (FOLDER / f"{name}.json").write_text(json.dumps({RUN_KEY: run}))
    (FOLDER / "c.json").write_text("{half")
    assert run_main(monkeypatch, "results") == 0
    assert capsys.readouterr().out.splitlines() == [
        "elsewhere/deep/down, the latest of 3",
        "",
        "elsewhere/deep/down: elsewhere/deep/down/summary/lesions.parquet",
    ]


def test_without_results_the_command_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "run `dpprobe run --cores all`" in str(run_main(monkeypatch, "results"))
    finish("results/own_images", 1000)
    assert run_main(monkeypatch, "results", "results/own_image") == (
        "dpprobe: results/own_image: no finished dataset; finished are results/own_images"
    )
