"""The networks whose laws a study measures, and studies that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.analyses.representation_law import (
    ANALYSIS,
    describe_tuning,
    law_backbones,
    law_datasets,
    list_law_networks,
)
from dpprobe.heads.registry import method_options
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

METHODS = {
    "sgd": {"head": "sgd", "batch_size": 8, "epochs": 1},
    "one": {"head": "fine_tune", "tune": {"blocks": 1}},
    "two": {"head": "fine_tune", "tune": {"blocks": 2}},
}
BACKBONES = {
    "pixels": {"family": "pixels"},
    "net": {"family": "timm", "model": "vit_tiny_patch16_224", "pretrained": False},
}


def _study(law: dict[str, Any] | None, **values: Any) -> Study:
    given = {"methods": METHODS, "backbones": BACKBONES, "epsilons": [1, "inf"], "delta": 1e-5}
    return load_study({**STUDY, **given, **values, "representation_law": law})


def test_all_methods_that_tune_networks_are_measured() -> None:
    study = _study({})
    assert list_law_networks(study) == [("one", "1"), ("one", "inf"), ("two", "1"), ("two", "inf")]
    assert law_backbones(study) == ["net"]
    assert law_datasets(study) == ["digits"]
    assert ANALYSIS.list_faults(study) == []


@pytest.mark.parametrize(
    ("values", "setting", "tuned", "blocks"),
    [
        ({"tune": "head"}, "constant", "head", 0),
        ({"tune": {"blocks": 1}}, "constant", "last 1 block", 1),
        ({"tune": {"blocks": 4}}, "constant", "last 4 blocks", 4),
        ({"tune": "all"}, "constant", "all", None),
        ({"tune": {"lora": {"rank": 8}}}, "constant", "lora 8", None),
        (
            {"tune": {"blocks": 4}, "search": {"space": {"learning_rate": [0.1, 1.0]}}},
            "searched",
            "last 4 blocks",
            4,
        ),
    ],
)
def test_a_method_says_how_it_tunes(
    values: dict[str, Any], setting: str, tuned: str, blocks: int | None
) -> None:
    described = describe_tuning(method_options({"head": "fine_tune", **values}))
    assert described is not None
    assert (described.setting, described.tuned, described.blocks) == (setting, tuned, blocks)
