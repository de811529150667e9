"""The study of fine-tuning on chest radiographs passes all checks without the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.study import catalog
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.catalog_fixtures import BUILDERS, Place


@pytest.mark.parametrize("name", ["medical_fine_tuning", "medical_fine_tuning_mimic"])
def test_all_studies_of_medical_fine_tuning_are_valid(
    name: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / f"config/{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    monkeypatch.chdir(tmp_path)
    for dataset in values["datasets"].values():
        place = Place(folder=Path(dataset["root"]), web=Mock(), hub=Mock(), patch=monkeypatch)
        BUILDERS[dataset["catalog"]](catalog.dataset_entry(dataset["catalog"]), place)
        dataset |= {"expect": {"classes": 5}, "delta": 1e-3}  # the test data has few rows
    values["features"]["shards"] = 1
    with pytest.raises(ConfigError, match="batch_size (131072|262144) is above"):
        check_study(load_study(values), check_classes=False)
    for method in values["methods"].values():
        if isinstance(method.get("batch_size"), int):
            method["batch_size"] = 2
    warnings = check_study(load_study(values), check_classes=False)  # the few rows lack some labels
    assert any("patient" in warning for warning in warnings), "one image is the unit here"
