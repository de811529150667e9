"""The study of fine-tuning on chest radiographs: read and checked whole, without the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.finetune.options import Options
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.medical_tables import FINDINGS, write_chexpert, write_mimic

# All training images, as the datasets' authors count them, and the batch of the paper that fits.
STUDIES = {
    "medical_fine_tuning": ("chexpert", 223_414, 223_414),
    "medical_fine_tuning_mimic": ("mimic_cxr", 368_960, 262_144),
}


@pytest.fixture(params=STUDIES)
def values(request: pytest.FixtureRequest, repository: Path) -> dict[str, Any]:
    text = (repository / f"config/{request.param}.yaml").read_text(encoding="utf-8")
    read: dict[str, Any] = yaml.safe_load(text)
    return read


@pytest.fixture
def study(values: dict[str, Any]) -> Study:
    return load_study(values)


def networks(study: Study) -> dict[str, Options]:
    return {name: m for name, m in study.methods.items() if isinstance(m, Options)}


def test_it_has_what_the_paper_fixes(study: Study) -> None:
    assert study.epsilons == ("0.5", "1", "2", "4", "8", "inf")
    assert study.accountant == "rdp"
    assert set(study.backbones) == {"nfnet_f0"}
    dataset, rows, _ = STUDIES[study.study]
    assert set(study.datasets) == {dataset}
    assert study.dataset_unit(dataset) == "image"
    # 1/N of the images that train, which are all: the authors' own images are tested on
    assert 0.97 / rows < study.dataset_delta(dataset) < 1 / rows
    assert study.datasets[dataset].has_test()
    for name, method in networks(study).items():
        assert method.max_grad_norm == 0.001
        assert method.average == ("last" if name == "whole_last" else "ema")
        assert method.link == "sigmoid"
        # rates are those of gradients of norm 1
        assert method.learning_rate * method.max_grad_norm == pytest.approx(1)
        # without privacy all images pull one way: a step of length 1 destroys a network
        assert method.max_batch_grad_norm is not None
        assert method.learning_rate * method.max_batch_grad_norm == pytest.approx(0.1)


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
