"""The activations that a study stores: those that a method starts from, each once."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study.cuts import Cut, study_cuts
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

NETWORK = {"family": "timm", "model": "mobilenetv2_035", "pretrained": False}


def cuts(*methods: dict[str, Any], datasets: tuple[str, ...] = ("digits",)) -> list[Cut]:
    study = load_study(
        {
            **STUDY,
            "datasets": {name: {"source": "sklearn", "name": "digits"} for name in datasets},
            "backbones": {"one": NETWORK, "two": NETWORK},
            "methods": {f"m{number}": method for number, method in enumerate(methods)},
            "epsilons": [1, "inf"],
            "delta": 1e-5,
        }
    )
    return study_cuts(study)


def tuned(tune: Any, **values: Any) -> dict[str, Any]:
    return {"head": "fine_tune", "tune": tune, **values}


def test_blocks_are_stored_once_for_all_methods_and_epsilons() -> None:
    two = {"blocks": 2}
    methods = (tuned(two), tuned(two, learning_rate=0.1), tuned({"blocks": 4}))
    assert cuts(*methods) == [
        Cut("digits", "one", 2),
        Cut("digits", "one", 4),
        Cut("digits", "two", 2),
        Cut("digits", "two", 4),
    ]
    assert [cut.dataset for cut in cuts(tuned(two), datasets=("b", "a"))] == ["b", "b", "a", "a"]


@pytest.mark.parametrize(
    "method",
    [
        {"head": "sgd"},
        tuned("head"),
        tuned("all"),
        tuned({"blocks": 2}, augment={"views": 2}),
    ],
)
def test_methods_that_start_elsewhere_need_none(method: dict[str, Any]) -> None:
    assert cuts(method) == []
