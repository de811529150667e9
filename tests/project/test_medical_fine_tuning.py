"""The study of fine-tuning on chest radiographs: read and checked whole, without the data."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study

FINDINGS = ("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Pleural Effusion")


def _one_finding(number: int) -> str:
    """Returns the five labels of a row, so that consecutive rows have each finding in turn."""
    return ",".join("1.0" if number % len(FINDINGS) == each else "" for each in range(5))


def write_chexpert(root: Path) -> None:
    """Writes 400 training and 80 test rows of as many patients, and their demographic table."""
    folder = root / "CheXpert-v1.0-small"
    folder.mkdir(parents=True)
    header = ",".join(("Path", "Sex", "Age", *FINDINGS))
    for split, patients in (("train", range(400)), ("valid", range(400, 480))):
        rows = [
            f"CheXpert-v1.0-small/{split}/patient{i:05d}/study1/view1_frontal.jpg,Male,50,{_one_finding(i)}"
            for i in patients
        ]
        (folder / f"{split}.csv").write_text("\n".join([header, *rows]) + "\n")
    people = [f"patient{i:05d},A" for i in range(480)]
    (root / "chexpert_demo.csv").write_text("\n".join(["PATIENT,PRIMARY_RACE", *people]) + "\n")


def write_mimic(root: Path) -> None:
    """Writes 400 rows of as many patients, 80 of them for testing, in its four tables."""

    def write(name: str, header: str, row: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            row.format(
                i=10_000_000 + i, split="test" if i < 80 else "train", labels=_one_finding(i)
            )
            for i in range(400)
        ]
        path.write_bytes(gzip.compress("\n".join([header, *rows, ""]).encode()))

    write(
        "mimic-cxr-2.0.0-split.csv.gz", "dicom_id,study_id,subject_id,split", "d{i},{i},{i},{split}"
    )
    write(
        "mimic-cxr-2.0.0-chexpert.csv.gz",
        ",".join(("subject_id", "study_id", *FINDINGS)),
        "{i},{i},{labels}",
    )
    write("hosp/patients.csv.gz", "subject_id,gender,anchor_age", "{i},F,60")
    write("hosp/admissions.csv.gz", "subject_id,race,insurance", "{i},A,Other")


@pytest.fixture(params=["medical_fine_tuning", "medical_fine_tuning_mimic"])
def values(request: pytest.FixtureRequest, repository: Path) -> dict[str, Any]:
    text = (repository / f"config/{request.param}.yaml").read_text(encoding="utf-8")
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def test_it_is_checked_whole(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_chexpert(tmp_path / "data/raw/chexpert")
    write_mimic(tmp_path / "data/raw/mimic_cxr")
    for dataset in values["datasets"].values():
        dataset["expect"] = {"classes": len(FINDINGS)}  # of few rows
        dataset["delta"] = 1e-3
    with pytest.raises(ConfigError, match="batch_size (131072|262144) is above"):
        check_study(load_study(values), check_classes=False)
    for method in values["methods"].values():
        if isinstance(method.get("batch_size"), int):
            method["batch_size"] = 64
    warnings = check_study(load_study(values), check_classes=False)  # few rows, without some labels
    assert any("patient" in warning for warning in warnings), "one image is the unit here"
