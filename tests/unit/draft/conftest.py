"""A working directory with images, in which `init` is run as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.__main__ import main
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.sources import write_table


@dataclass
class Desk:
    """A person's working directory."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def images(self, *paths: str, count: int = 12) -> None:
        """Puts images into folders; `init` opens none, so their content does not matter."""
        for path in paths:
            for number in range(count):
                self.file(f"{path}/{number}.jpg")

    def file(self, path: str, text: str = "x") -> Path:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def table(self, path: str, rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> None:
        write_table(self.folder / path, rows, delimiter)

    def init(self, *arguments: str) -> str:
        """Runs `init` and returns what it prints; its error where it ends with one."""
        self.monkeypatch.setattr(sys, "argv", ["dpprobe", "init", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self.capsys.readouterr().out
        return printed if ended.value.code == 0 else str(ended.value.code)

    def study(self, file: str, *, check_classes: bool = True) -> Study:
        """Reads a study as a start of Snakemake does; as `init` does without its classes."""
        study = load_study(yaml.safe_load((self.folder / file).read_text(encoding="utf-8")))
        check_study(study, check_classes=check_classes)
        return study


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return Desk(tmp_path, monkeypatch, capsys)


def lesions(count: int = 60, **more: Any) -> list[dict[str, Any]]:
    """Rows of a table: a malignant one in eleven, two images a patient."""
    return [
        {
            "file": f"files/{number}.jpg",
            "diagnosis": "benign" if number % 11 else "malignant",
            "PatientID": f"p{number // 2}",
            "sex": "fm"[number // 2 % 2],
            "age": 20 + number % 50,
        }
        | more
        for number in range(count)
    ]
