"""A study's methods and networks are checked against the number of features before extraction."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants

from dpprobe.backbones.feature_dimensions import Dimensions
from dpprobe.backbones.hub_files import HubFile
from dpprobe.errors import ConfigError
from dpprobe.study.dimension_checks import check_dimensions
from dpprobe.study.few_rows import few_rows_warnings
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

COLOUR: dict[str, Any] = {"family": "scattering", "color": "rgb"}


def study_of(tmp_path: Path, backbones: dict[str, Any], methods: dict[str, Any]) -> Study:
    results = {"results_dir": str(tmp_path / "results")}
    return load_study({**STUDY, **results, "backbones": backbones, "methods": methods})


def test_a_method_that_cannot_take_so_many_features_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"dpfc": {"head": "feature_covariance"}, "plain": {"head": "momentum"}}
    backbones = {"colour": COLOUR, "grey": {"family": "scattering"}}
    with pytest.raises(
        ConfigError, match=r"^config: methods\.dpfc on backbones\.colour: .*15552.*project: 512.*$"
    ):
        check_dimensions(study_of(tmp_path, backbones, methods))
    backbones["colour"] = COLOUR | {"project": 512}
    assert check_dimensions(study_of(tmp_path, backbones, methods)) == []
    backbones["colour"] = COLOUR
    del methods["dpfc"]
    assert check_dimensions(study_of(tmp_path, backbones, methods)) == []
    few = {"source": "sklearn", "subsample": {"per_class": 6}}
    study = load_study({**STUDY, "datasets": {"few": few}, "backbones": {"colour": COLOUR}})
    (warning,) = check_dimensions(study)
    assert "too few for epsilon 0.5 " in warning
    assert "epsilon 1 " in warning, "more features need more images"
    told = Dimensions(known={"colour": 15552, "unknown": None})
    monkeypatch.setattr("dpprobe.study.dimension_checks.read_dimensions", lambda *_: told)
    assert check_dimensions(study) == few_rows_warnings(study, [None]) != [warning]


@pytest.mark.parametrize("shown", [12, 0])
def test_blocks_that_a_network_does_not_have_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int
) -> None:
    """Other tests cover the process that describes networks, which takes seconds."""
    tune = {"head": "fine_tune", "tune": {"blocks": 13}, "steps": 2}
    methods: dict[str, Any] = {
        "tune": tune,
        "whole": {"head": "fine_tune", "tune": "all", "steps": 2},
    }
    network = {"family": "timm", "model": "test_vit", "pretrained": False}
    told = Dimensions(known={"vit": 64}, blocks={"vit": shown})
    monkeypatch.setattr("dpprobe.study.dimension_checks.read_dimensions", lambda *_: told)
    with pytest.raises(ConfigError) as error:
        check_dimensions(study_of(tmp_path, {"vit": network}, methods))
    (line,) = str(error.value).splitlines()
    assert line.startswith("config: methods.tune on backbones.vit: tune: ")
    assert ("13: test_vit has 12" if shown else "`tune: all`") in line
    tune["tune"] = "all" if not shown else {"blocks": 12}
    check_dimensions(study_of(tmp_path, {"vit": network}, methods))


def test_a_study_without_networks_starts_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    study = study_of(tmp_path, {"colour": COLOUR}, {"plain": {"head": "momentum"}})
    assert check_dimensions(study) == []
    assert not (tmp_path / "results").exists()


def test_weights_that_cannot_be_fetched_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan uses no network connection; `dpprobe check` sends one request."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    head = Mock(side_effect=httpx2.ConnectError("no route"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://nowhere")
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=head))
    files = {"vit": [HubFile("weights", "timm/test_vit.r160_in1k", ("model.safetensors",))]}
    told = Dimensions(known={"vit": 64}, blocks={"vit": 6}, hub_files=files)
    monkeypatch.setattr("dpprobe.study.dimension_checks.read_dimensions", lambda *_: told)
    network = {"family": "timm", "model": "test_vit"}
    study = study_of(tmp_path, {"vit": network}, {"plain": {"head": "momentum"}})
    assert check_dimensions(study) == []
    head.assert_not_called()
    (warning,) = check_dimensions(study, network=True)
    start = "backbones.vit: model: timm/test_vit.r160_in1k (weights: model.safetensors) is not in"
    assert warning.startswith(start)
    assert head.call_args.args == (constants.ENDPOINT,)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (warning,) = check_dimensions(study)
    assert "HF_HUB_OFFLINE is set; unset it" in warning
    head.assert_called_once()
