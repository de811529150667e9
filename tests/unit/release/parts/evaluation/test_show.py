"""How a test result is stated and rounded, and which impossible results are refused."""

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
from tests.support.mechanisms import made_plan
from tests.support.refusals import check_tokens, refuses

WORST = {"name": "nevus", "recall": 0.3, "interval": [0.2, 0.35]}


def block(metric: str, value: float, low: float, high: float, worst: Any = None) -> dict[str, Any]:
    return {"metric": metric, "value": value, "interval": [low, high], "worst_class": worst}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (block("accuracy", 0.812, 0.772, 0.852), ("Accuracy 81.2%", "77.2 to 85.2%")),
        (block("auc", 0.9128, 0.89, 0.93), ("AUC 0.913", "0.890 to 0.930")),
        (block("macro_accuracy", 0.5, 0.46, 0.54), ("Macro accuracy 50.0%", "46.0 to 54.0%")),
        (
            block("auc", 0.5, 0.3, 0.7),
            ("AUC between 0.300 and 0.700", "0.500"),
        ),
        (
            block("accuracy", 0.4, 0.0, 0.8),
            ("Accuracy between 0.0 and 80.0%", "40.0%"),
        ),
        (block("accuracy", 0.4, 0.0, 0.81), ("Accuracy", "0.00 to 0.81")),
        (
            block("macro_accuracy", 0.5, 0.46, 0.54, WORST),
            ("50.0%", "46.0 to 54.0%", "20.0 and 35.0%", "30.0%", "class nevus"),
        ),
        (
            block("macro_accuracy", 0.35, 0.3, 0.38, WORST),
            ("35.0%", "30.0 to 38.0%", "20.0 to 35.0%"),
        ),
    ],
    ids=str,
)
def test_a_result_is_stated_with_its_interval(
    given: dict[str, Any], said: tuple[object, ...]
) -> None:
    check_tokens(show.state_measured(given), *said)


def test_no_worst_class_is_named_within_noise() -> None:
    assert "nevus" in show.state_measured(block("macro_accuracy", 0.5, 0.46, 0.54, WORST))
    assert "nevus" not in show.state_measured(block("macro_accuracy", 0.35, 0.3, 0.38, WORST))
    assert "40" not in show.state_measured(block("accuracy", 0.4, 0.0, 0.81))


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
    given = block("accuracy", value, low, high) | {"standard_error": error}
    with refuses(DataError, f"{value:g}", f"{low:g}"):
        show.check_result(given, made_plan(HITS, 9), ["a", "b"])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_an_interval_follows_from_value_and_noise(value: float) -> None:
    plan = made_plan(HITS, 40)
    estimate = results.accuracy_estimate(value, 40, plan.mechanisms[0].noise_scale)
    given = block("accuracy", *estimate[:3]) | {"standard_error": estimate.standard_error}
    show.check_result(given, plan, ["a", "b"])
    for edit in (
        {"standard_error": estimate.standard_error * 1.01},
        {"interval": [estimate.low, estimate.high - 0.01]}
        if value < 1
        else {"interval": [estimate.low + 0.01, estimate.high]},
    ):
        with refuses(DataError, "value", "interval", "standard error", f"{estimate.value:g}"):
            show.check_result(given | edit, plan, ["a", "b"])


@pytest.mark.parametrize(("left", "right"), [(0, True), (3, True), (4, False), (-1, False)])
def test_an_area_leaves_out_labels_that_it_has(left: int, right: bool) -> None:
    areas = results.evaluation_mechanisms("auc", classes=3, multi_label=True)
    given = block("auc", 0.8, 0.7, 0.85) | {"standard_error": 0.02, "labels_left_out": left}
    if right:
        show.check_result(given, made_plan(areas, 90), ["a", "b", "c"])
        return
    with refuses(DataError, "labels_left_out", left + 1):
        show.check_result(given, made_plan(areas, 90), ["a", "b", "c"])


# Test results and calibrations that a study may ask for.


def wanted(
    block: Any,
    *,
    classes: int = 3,
    several: bool = False,
    shown: Any = None,
    tested: Any = None,
    names: Any = None,
) -> Any:
    release = SimpleNamespace(block=lambda _: block, dataset="new", test_metric=tested)
    return SimpleNamespace(
        release=release,
        multi_label=several,
        classes=classes,
        class_names=names,
        study=SimpleNamespace(datasets={"new": SimpleNamespace(metric=shown)}),
    )


@pytest.mark.parametrize(
    ("metric", "facts", "fault"),
    [
        (None, {}, None),
        (None, {"shown": "accuracy"}, None),
        (None, {"shown": "auc"}, ("evaluate", "auc", "new")),
        ("accuracy", {"shown": "auc"}, None),
        ("auc", {"classes": 2, "shown": "auc"}, None),
        ("auc", {"several": True}, None),
        ("auc", {"classes": 3}, ("evaluate", "metric", "auc", "3 classes")),
        ("macro_accuracy", {}, None),
        ("macro_accuracy", {"several": True}, ("evaluate", "metric")),
    ],
)
def test_a_metric_fits_the_labels(
    metric: Any, facts: dict[str, Any], fault: tuple[object, ...] | None
) -> None:
    block = SimpleNamespace(metric=metric, epsilon=1.0)
    said = list(list_faults(wanted(block, **facts)))
    assert len(said) == (fault is not None)
    for each in said:
        check_tokens(each, *fault or ())
    assert list(list_faults(wanted(None, **facts))) == []


def test_accuracy_is_measured_and_hashed_by_default() -> None:
    """Writing the default metric explicitly does not change the hash of a release."""
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
        (1.0, {"tested": "auc"}, ("calibrate.epsilon", "`evaluate`")),
        (None, {}, ("calibrate", "`calibrate: {epsilon: 1}`")),
        (None, {"tested": "accuracy"}, ("calibrate", "epsilon")),
        (1.0, {"several": True}, ("calibrate", "label")),
        (None, {"several": True, "tested": "auc"}, ("calibrate", "label")),
    ],
)
def test_one_part_pays_for_a_calibration(
    epsilon: float | None, facts: dict[str, Any], fault: tuple[object, ...] | None
) -> None:
    said = list(calibration_faults(wanted(CalibrateOptions(epsilon=epsilon), **facts)))
    assert len(said) == (fault is not None)
    for each in said:
        check_tokens(each, *fault or ())
    assert list(calibration_faults(wanted(None, **facts))) == []


def test_an_operating_point_is_of_a_class_of_the_dataset() -> None:
    point = {"positive_class": "melanom", "sensitivity": 0.9}
    block = CalibrateOptions.model_validate({"epsilon": 1, "operating_point": point})
    for names, words in (
        (None, None),
        (["melanom", "naevus"], None),
        (["melanoma", "naevus"], ("operating_point", "write melanoma", "naevus")),
    ):
        said = list(calibration_faults(wanted(block, names=names)))
        assert len(said) == (words is not None)
        for each in said:
            check_tokens(each, "melanom", *words or ())
    assert "operating_point" not in CalibrateOptions(epsilon=1).model_dump(), "one hash as before"
    for wrong in (0, 1, 1.5):
        with pytest.raises(ValidationError):
            CalibrateOptions.model_validate({"operating_point": point | {"sensitivity": wrong}})
