"""The study of fine-tuning on chest radiographs: read and checked whole, without the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.medical_tables import FINDINGS, write_chexpert, write_mimic


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
