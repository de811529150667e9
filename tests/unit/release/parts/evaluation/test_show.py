"""How a test result is stated and rounded, and which impossible ones are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpprobe.errors import DataError
from dpprobe.release.parts.calibration import CalibrateOptions
from dpprobe.release.parts.calibration import list_faults as calibration_faults
from dpprobe.release.parts.evaluation import EvaluateOptions, find_test_metric, list_faults, show
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.parts.evaluation.class_recalls import Estimate
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses

WORST = {"name": "nevus", "recall": 0.3, "interval": [0.2, 0.35]}


def block(metric: str, value: float, low: float, high: float, worst: Any = None) -> dict[str, Any]:
    return {"metric": metric, "value": value, "interval": [low, high], "worst_class": worst}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (block("accuracy", 0.812, 0.772, 0.852), "Accuracy 81.2% (95% CI 77.2 to 85.2%)"),
        (block("auc", 0.9128, 0.89, 0.93), "AUC 0.913 (95% CI 0.890 to 0.930)"),
        (block("macro_accuracy", 0.5, 0.46, 0.54), "Macro accuracy 50.0% (95% CI 46.0 to 54.0%)"),
        (
            block("auc", 0.5, 0.3, 0.7),
            "AUC between 0.300 and 0.700 (95% CI; measured with noise: 0.500)",
        ),
        (
            block("accuracy", 0.4, 0.0, 0.8),
            "Accuracy between 0.0 and 80.0% (95% CI; measured with noise: 40.0%)",
        ),
        (block("accuracy", 0.4, 0.0, 0.81), "Accuracy not measurable: its 95% CI is 0.00 to 0.81"),
        (
            block("macro_accuracy", 0.5, 0.46, 0.54, WORST),
            "Macro accuracy 50.0% (95% CI 46.0 to 54.0%); worst-class recall between "
            "20.0 and 35.0% (95% CI; measured with noise: 30.0%), class nevus",
        ),
        (
            block("macro_accuracy", 0.35, 0.3, 0.38, WORST),
            "Macro accuracy 35.0% (95% CI 30.0 to 38.0%); too few test units to tell which "
            "class is worst (95% CI of worst-class recall: 20.0 to 35.0%)",
        ),
    ],
    ids=str,
)
def test_a_result_is_stated_with_its_interval(given: dict[str, Any], said: str) -> None:
    assert show.state_measured(given) == said


@given(value=st.floats(0, 1), below=st.floats(0, 0.5), above=st.floats(1e-9, 0.5))
def test_a_result_is_rounded_to_a_tenth_of_its_interval(
    value: float, below: float, above: float
) -> None:
    low, high = max(0.0, value - below), min(1.0, value + above)
    rounded = show.round_result(block("accuracy", value, low, high))
    width = max(high - low, 1e-4)
    assert abs(rounded - value) <= width / 20 + 1e-12
    assert len(f"{rounded:.12f}".rstrip("0").partition(".")[2]) <= 5


def test_a_telling_result_leaves_a_fifth_out() -> None:
    assert show.is_telling(block("auc", 0.5, 0.1, 0.9))
    assert not show.is_telling(block("auc", 0.5, 0.1, 0.91))


HITS = results.evaluation_mechanisms("accuracy", classes=2, multi_label=False)


@pytest.mark.parametrize(
    ("value", "low", "high", "error"),
    [
        (0.5, 0.6, 0.7, 0.1),
        (0.5, 0.3, 0.4, 0.1),
        (0.5, -0.1, 0.6, 0.1),
        (0.5, 0.4, 1.1, 0.1),
        (0.5, 0.5, 0.5, 0.1),
        (0.5, 0.4, 0.6, 0.0),
        (0.5, 0.4, 0.6, -0.1),
    ],
)
def test_an_impossible_interval_is_named(
    value: float, low: float, high: float, error: float
) -> None:
    given = block("accuracy", value, low, high) | {"standard_error": error, "released": ""}
    with refuses(DataError, f"{value:g}", f"{low:g}"):
        show._check_result(given, made_plan(HITS, 9), ["a", "b"])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_an_interval_follows_from_value_and_noise(value: float) -> None:
    plan = made_plan(HITS, 40)
    estimate = results.accuracy_estimate(value, 40, plan.mechanisms[0].noise_scale)
    given = block("accuracy", *estimate[:3]) | {
        "standard_error": estimate.standard_error,
        "released": results.released_words("accuracy", estimate, plan),
    }
    show._check_result(given, plan, ["a", "b"])
    with pytest.raises(DataError, match="^released: "):
        show._check_result(given | {"released": "All is well."}, plan, ["a", "b"])
    for edit in (
        {"standard_error": estimate.standard_error * 1.01},
        {"interval": [estimate.low, estimate.high - 0.01]}
        if value < 1
        else {"interval": [estimate.low + 0.01, estimate.high]},
    ):
        with refuses(DataError, "TODO"):
            show._check_result(given | edit, plan, ["a", "b"])


AREAS = results.evaluation_mechanisms("auc", classes=3, multi_label=True)


@pytest.mark.parametrize(
    ("remark", "right"),
    [
        ("", True),
        (" Left out of 3 labels, because they are too rare to measure at this epsilon: 1.", True),
        (" Left out, because they are too rare to measure at this epsilon: 1.", True),
        (" One of the two kinds has too few rows for any measurement.", True),
        (" The agency has approved this head.", False),
        (
            " Left out of 3 labels, because they are too rare to measure at this epsilon: 1. No.",
            False,
        ),
    ],
)
def test_an_area_has_no_other_words_than_its_remark(remark: str, right: bool) -> None:
    plan, estimate = made_plan(AREAS, 90), Estimate(0.8, 0.7, 0.85, 0.02)
    words = results.released_words("auc", estimate, plan, remark)
    given = block("auc", *estimate[:3]) | {"standard_error": 0.02, "released": words}
    if right:
        show._check_result(given, plan, ["a", "b", "c"])
    else:
        with pytest.raises(DataError, match="released: differs"):
            show._check_result(given, plan, ["a", "b", "c"])


# Which test result and calibration a study may ask for.


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
