"""Which test result and calibration a study may ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dpprobe.release.parts.calibration import CalibrateOptions
from dpprobe.release.parts.calibration import list_faults as calibration_faults
from dpprobe.release.parts.evaluation import (
    EvaluateOptions,
    find_test_metric,
    list_faults,
)


def wanted(
    block: Any, *, classes: int = 3, several: bool = False, shown: Any = None, tested: Any = None
) -> Any:
    release = SimpleNamespace(block=lambda _: block, dataset="new", test_metric=tested)
    return SimpleNamespace(
        release=release,
        multi_label=several,
        classes=classes,
        study=SimpleNamespace(datasets={"new": SimpleNamespace(metric=shown)}),
    )


@pytest.mark.parametrize(
    ("metric", "facts", "fault"),
    [
        (None, {}, None),
        (None, {"shown": "accuracy"}, None),
        (None, {"shown": "auc"}, "evaluate: tables show auc of new, but the release would measure"),
        ("accuracy", {"shown": "auc"}, None),
        ("auc", {"classes": 2, "shown": "auc"}, None),
        ("auc", {"several": True}, None),
        ("auc", {"classes": 3}, "evaluate: metric: auc with 3 classes"),
        ("macro_accuracy", {}, None),
        ("macro_accuracy", {"several": True}, "evaluate: metric"),
    ],
)
def test_a_metric_fits_the_labels(metric: Any, facts: dict[str, Any], fault: str | None) -> None:
    block = SimpleNamespace(metric=metric, epsilon=1.0)
    said = list(list_faults(wanted(block, **facts)))
    assert len(said) == (fault is not None)
    assert all(str(fault) in each for each in said)
    assert list(list_faults(wanted(None, **facts))) == []


def test_accuracy_is_measured_and_hashed_by_default() -> None:
    """A release with the default metric has one hash, whether or not it is written."""
    default, written = EvaluateOptions(epsilon=1), EvaluateOptions(epsilon=1, metric="accuracy")
    assert default.model_dump() == written.model_dump()
    assert default.published == written.published == "accuracy"
    area = EvaluateOptions(epsilon=1, metric="auc")
    assert area.model_dump()["metric"] == area.published == "auc"
    for block, metric in ((area, "auc"), (default, "accuracy"), (None, None)):
        release: Any = SimpleNamespace(block=lambda _, block=block: block)
        assert find_test_metric(release) == metric


@pytest.mark.parametrize("epsilon", [0, 0.009, 101, float("inf"), "x"])
def test_a_test_result_has_an_epsilon_that_can_be_calibrated(epsilon: Any) -> None:
    with pytest.raises(ValidationError):
        EvaluateOptions(epsilon=epsilon)


@pytest.mark.parametrize(
    ("epsilon", "facts", "fault"),
    [
        (1.0, {}, None),
        (1.0, {"tested": "accuracy"}, None),
        (None, {"tested": "auc"}, None),
        (1.0, {"tested": "auc"}, "calibrate.epsilon: `evaluate` pays"),
        (None, {}, "calibrate: has no epsilon; write `calibrate: {epsilon: 1}`"),
        (None, {"tested": "accuracy"}, "calibrate: has no epsilon"),
        (1.0, {"several": True}, "calibrate: needs one label per row"),
        (None, {"several": True, "tested": "auc"}, "calibrate: needs one label per row"),
    ],
)
def test_one_part_pays_for_a_calibration(
    epsilon: float | None, facts: dict[str, Any], fault: str | None
) -> None:
    said = list(calibration_faults(wanted(CalibrateOptions(epsilon=epsilon), **facts)))
    assert len(said) == (fault is not None)
    assert all(str(fault) in each for each in said)
    assert list(calibration_faults(wanted(None, **facts))) == []
