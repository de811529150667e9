"""A working directory with images, in which tests run `init` like on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings

from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.command_line import run_main
from tests.support.sources import write_table

STUDY = "study.yaml"
COUNTED = re.compile(r"(?m)^  (.+?) +([\d,]+) images: +([\d,]+) train, ([\d,]+) test")
slowly = settings(
    max_examples=12,
    phases=[Phase.generate],  # a draft takes 0.1 s, so shrinking would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Drafted:
    """The output and the study of `init`, parsed."""

    said: str
    text: str
    study: Study

    @property
    def keys(self) -> dict[str, Any]:
        """The options of the only dataset, as YAML reads them."""
        (keys,) = yaml.safe_load(self.text)["datasets"].values()
        return dict(keys)

    @property
    def backbones(self) -> dict[str, Any]:
        return dict(yaml.safe_load(self.text)["backbones"])

    @property
    def dataset(self) -> Any:
        (dataset,) = self.study.datasets.values()
        return dataset

    @property
    def counted(self) -> dict[str, tuple[int, int, int]]:
        """Printed counts for each class: images, training units and test units."""
        return {
            name: (int(all_.replace(",", "")), int(train), int(test))
            for name, all_, train, test in COUNTED.findall(self.said)
        }

    def notes(self, kind: str = "note") -> list[str]:
        """Returns the lines of a kind: `note`, `warning`, `refused` or `names`."""
        lines = [line.partition(":") for line in self.said.splitlines()]
        return [text.strip() for start, _, text in lines if start == kind]


@dataclass
class Desk:
    """The working directory in which `dpprobe init` is run."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def images(self, *paths: str, count: int = 12) -> None:
        """Writes files into folders; their content is arbitrary, because `init` opens no image."""
        for path in paths:
            for number in range(count):
                self.file(f"{path}/{number}.jpg")

    def file(self, path: str, text: str = "x") -> Path:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def table(self, path: str, rows: Sequence[Mapping[Any, Any]], delimiter: str = ",") -> None:
        write_table(self.folder / path, rows, delimiter)

    def init(self, *arguments: str) -> str:
        """Runs `init` and returns its output, or its error."""
        return self.run("init", *arguments)

    def run(self, *arguments: str) -> str:
        code = run_main(self.monkeypatch, *arguments)
        printed = self.capsys.readouterr().out
        return printed if code == 0 else str(code)

    def draft(self, *arguments: str) -> Drafted:
        """Runs `init`; checks that `check` refuses its study only if `init` announced that."""
        said = self.init(*arguments, "--output", STUDY, "--force")
        assert not said.startswith("dpprobe: "), said
        text = (self.folder / STUDY).read_text(encoding="utf-8")
        drafted = Drafted(said, text, self.study(STUDY, check_classes=False))
        checked = self.run("check", STUDY)
        told = drafted.notes("refused") or any("a run refuses th" in one for one in drafted.notes())
        assert checked.startswith("dpprobe: ") == bool(told), checked + said
        return drafted

    def refuse(self, *arguments: str) -> str:
        """Runs `init`, which must fail with one line and write nothing; returns the line."""
        before = {*self.folder.rglob("*")}
        said = self.init(*arguments)
        assert said.startswith("dpprobe: "), said
        assert "\n" not in said
        assert {*self.folder.rglob("*")} == before
        return said.removeprefix("dpprobe: ")

    def study(self, file: str, *, check_classes: bool = True) -> Study:
        """Reads a study as Snakemake does at its start; `init` does so without checking classes."""
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
    """Returns table rows with two images per patient; every eleventh image is malignant."""
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
