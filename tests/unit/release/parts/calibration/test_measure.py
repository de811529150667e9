"""Noisy counts of a calibration: sensitivity, releases, epsilon, and whole bundles."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import softmax

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.privacy.unit_words import unit_words
from dpprobe.release.parts.calibration import measure as calibration
from dpprobe.release.parts.calibration import noisy_counts
from dpprobe.release.parts.calibration.measure import TEMPERATURE, calibration_mechanisms
from dpprobe.release.parts.calibration.operating_point import (
    POINT_COUNTS,
    WantedPoint,
    fewest_of_class,
)
from dpprobe.release.parts.evaluation import measure as results
from dpprobe.release.probabilities import TOP_EDGES
from dpprobe.results.unit_counts import row_weights
from tests.support.mechanisms import made_plan
from tests.support.refusals import refuses
from tests.support.shown_scores import draw_of, head, of_test_rows

CLASSES = 3
POINT = WantedPoint(positive_class="b", position=1, sensitivity=0.8)


def planned(
    folder: Path, n: int, epsilon: float, classes: int = CLASSES, *, with_point: bool = False
) -> Plan:
    wanted = calibration_mechanisms(classes=classes, multi_label=False, with_point=with_point)
    target = Target(n=n, epsilon=epsilon, delta=1e-5)
    return calibrate(wanted, target, cache=folder / "calibration")


class Sums:
    """Collects the sums of a release before noise is added; temperatures follow given answers."""

    def __init__(self, plan: Plan, answers: list[float] | None = None) -> None:
        self.plan, self.given = plan, answers
        self.sums: list[tuple[str, npt.NDArray[np.float64]]] = []

    def release_gaussian(self, name: str, total: GridSum) -> torch.Tensor:
        values = total.values
        assert self.plan.n / total.step <= 2**53, "float64 adds all units, also of other sites"
        self.sums.append((name, values.numpy().ravel()))
        if name == TEMPERATURE and self.given is not None:
            place = sum(each == TEMPERATURE for each, _ in self.sums) - 1
            return torch.full_like(values, self.given[place])
        return values


def sums_of(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    plan: Plan,
    answers: list[float],
    point: WantedPoint | None = None,
) -> Sums:
    sums: Any = Sums(plan, answers)
    calibration.release_tables(scores, labels, weights, sums, point)
    return sums


@pytest.mark.parametrize("units", [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0] * 6])
@pytest.mark.parametrize(("classes", "point"), [(2, None), (CLASSES, None), (CLASSES, POINT)])
def test_no_unit_moves_a_sum_by_more_than_its_sensitivity(
    tmp_path: Path, units: list[int], classes: int, point: WantedPoint | None
) -> None:
    """The temperatures are fixed: they were released earlier, and composition is adaptive."""
    generator, whose = np.random.default_rng(1), np.array(units)
    shares = row_weights(whose)
    weights = np.ones(6) if shares is None else shares
    n = len(np.unique(whose)) + 1000
    plan = planned(tmp_path, n, 1.0, classes, with_point=point is not None)
    stated = {item.name: item.sensitivity for item in plan.mechanisms}
    worst = dict.fromkeys(stated, 0.0)
    for _ in range(60):
        scores = generator.normal(size=(6, classes)) * generator.choice([0.01, 1, 1e6])
        labels = generator.integers(0, classes, 6)
        if generator.random() < 0.3:  # equal rows give the longest sum
            scores[:], labels[:] = scores[0], labels[0]
        answers = list(generator.normal(size=6))
        whole = sums_of(scores, labels, weights, plan, answers, point)
        for unit in np.unique(whose):
            without = np.where((whose != unit)[:, None], scores, math.nan)
            less = sums_of(without, labels, weights, plan, answers, point)
            for (name, values), (same, others) in zip(whole.sums, less.sums, strict=True):
                assert name == same
                worst[name] = max(worst[name], float(np.linalg.norm(values - others)))
    for name, change in worst.items():
        assert change <= stated[name]
        assert change > (0.5 if name == TEMPERATURE else 1 - 1e-6), "the bound is tight"


def test_a_row_without_finite_scores_adds_zero_to_the_calibration_sums(tmp_path: Path) -> None:
    plan = replace(planned(tmp_path, n=1000, epsilon=1.0), n=2**30)
    labels = np.zeros(4, np.int64)
    for bad in (math.nan, math.inf, -math.inf):
        scores = np.full((4, CLASSES), bad)
        for name, values in sums_of(scores, labels, np.ones(4), plan, [0.0] * 6).sums:
            assert not values.any(), name


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize(("classes", "offset"), [(2, 0.0), (2, 0.6), (CLASSES, 0.0)])
def test_a_head_s_planted_error_is_described(
    tmp_path: Path, classes: int, offset: float, scale: float
) -> None:
    """Without noise, `scale` times the scores plus the offset must be the true logits."""
    generator, n = np.random.default_rng(5), 20_000
    logits = 2.0 * generator.normal(size=(n, classes))
    truth = softmax(logits + offset * np.eye(classes)[1], axis=1)
    labels = (truth.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    plan = planned(tmp_path, n=n, epsilon=8.0, classes=classes)
    sums: Any = Sums(plan)
    noisy = calibration.release_tables(logits / scale, labels, np.ones(n), sums)
    described = calibration.describe_calibration(noisy, plan.mechanisms, n)
    assert described["scale"] == pytest.approx(scale, rel=0.1)
    assert described["offset"] == pytest.approx(offset, abs=0.05)


# The block of a calibration: content, the release that books it, and too few units.


LITTLE = 1e-3


def draw_rows(classes: int, n: int) -> tuple[Any, Any]:
    """Returns scores, and labels drawn from their softmax."""
    generator = np.random.default_rng(classes)
    scores = 2 * generator.normal(size=(n, classes))
    chances = softmax(scores, axis=1)
    return scores, (chances.cumsum(1) > generator.random((n, 1))).argmax(1)


def calibrate_rows(scores: Any, labels: Any, point: WantedPoint | None = None) -> dict[str, Any]:
    wanted = calibration.calibration_mechanisms(
        classes=(classes := scores.shape[1]), multi_label=False, with_point=point is not None
    )
    plan = made_plan(wanted, len(labels), noise=LITTLE)
    rows = of_test_rows(scores, labels)
    draw = draw_of(head(classes), rows)
    return calibration.calibrate_head(draw, plan, together=1.5, point=point)


def test_several_labels_have_no_calibration() -> None:
    with refuses(ConfigError, "calibrate", "label"):
        calibration.calibration_mechanisms(classes=2, multi_label=True)


@pytest.mark.parametrize(
    ("classes", "with_point", "tables"),
    [
        (2, False, {"probability_counts": 0.8}),
        (2, True, {"probability_counts": 0.8}),
        (4, False, {"top_counts": 0.4, "label_counts": 0.4}),
        (4, True, dict.fromkeys(("top_counts", "label_counts", POINT_COUNTS), 0.8 / 3)),
    ],
)
def test_tables_share_the_budget(classes: int, with_point: bool, tables: dict[str, float]) -> None:
    """Of mu squared, the six temperature sums have one fifth, and the tables the rest."""
    wanted = calibration.calibration_mechanisms(
        classes=classes, multi_label=False, with_point=with_point
    )
    squares = {item.name: item.count / item.noise_multiplier**2 for item in wanted}
    total = sum(squares.values())
    shares = {name: square / total for name, square in squares.items()}
    assert shares == pytest.approx({"temperature": 0.2, **tables})
    assert {item.sensitivity for item in wanted} == {1.0}
    assert wanted[0].count == noisy_counts.QUERIES


def test_counts_of_four_classes_equal_a_plain_count() -> None:
    scores, labels = draw_rows(4, 3000)
    made = calibrate_rows(scores, labels)
    assert made["scale"] == pytest.approx(1, rel=0.1)
    assert made["offset"] == 0
    chances = softmax(made["scale"] * scores, axis=1)
    top, own = chances.max(axis=1), chances[np.arange(3000), labels]
    right = chances.argmax(axis=1) == labels
    for column, rows in ((0, right), (1, ~right)):  # correct predictions first
        expected, _ = np.histogram(top[rows], TOP_EDGES)
        np.testing.assert_allclose(np.array(made["top_counts"])[:, column], expected, atol=1.5)
    expected, _ = np.histogram(own, noisy_counts.LABEL_EDGES)
    np.testing.assert_allclose(made["label_counts"], expected, atol=1.5)
    assert len(made["temperature"]) == 6
    assert (made["n"], made["together"]) == (3000, 1.5)


@pytest.mark.parametrize(
    ("epsilon", "together", "said"),
    [
        (None, None, "Calibration uses the counts of the AUC, so it costs nothing more."),
        (0.7, None, "Calibration costs test patients epsilon 0.7 and training patients nothing."),
        (
            0.7,
            1.5,
            "Calibration costs test patients epsilon 0.7 and training patients nothing. Together "
            "with the test result it costs a test patient epsilon 1.5.",
        ),
    ],
)
def test_documents_state_what_a_calibration_costs(
    epsilon: float | None, together: float | None, said: str
) -> None:
    block = {"epsilon": epsilon, "together": together}
    assert calibration.show_calibration(block, unit_words("patient"), {})["sure"] == said


def test_an_operating_point_is_of_the_class_that_it_names() -> None:
    release = SimpleNamespace(stores=(None, SimpleNamespace(class_names=("a", "b", "c"))))
    planned: Any = SimpleNamespace(release=release)
    for position, name in enumerate("abc"):
        asked = SimpleNamespace(positive_class=name, sensitivity=0.8)
        steps = calibration.Steps(planned, SimpleNamespace(operating_point=asked))
        assert steps.point == replace(POINT, positive_class=name, position=position)


@pytest.mark.parametrize(("classes", "position"), [(2, 0), (2, 1), (4, 2)])
def test_an_operating_point_has_the_rates_of_its_rows(classes: int, position: int) -> None:
    """Rates apply at the stated threshold on the stated probability, as in predictions."""
    scores, labels = draw_rows(classes, 5000)
    point = WantedPoint(positive_class="x", position=position, sensitivity=0.8)
    made = calibrate_rows(scores, labels, point)
    assert (POINT_COUNTS in made) == (classes > 2)
    stated = made["operating_point"]
    chances = softmax(made["scale"] * scores + made["offset"] * np.eye(classes)[1], axis=1)[
        :, position
    ]
    named, own = chances >= stated["threshold"], labels == position
    assert stated["sensitivity"][0] == pytest.approx(named[own].mean(), abs=2e-3)
    assert stated["specificity"][0] == pytest.approx((~named)[~own].mean(), abs=2e-3)
    assert named[own].mean() > stated["sensitivity"][1] > 0.8


def test_an_operating_point_needs_units_of_its_class() -> None:
    wanted = calibration.calibration_mechanisms(classes=2, multi_label=False)
    fewest = fewest_of_class(0.9, made_plan(wanted, 9).mechanisms[-1].noise_scale)
    point = replace(POINT, sensitivity=0.9)
    assert calibration.check_point_size(made_plan(wanted, fewest), point) == fewest
    with refuses(PrivacyError, "operating_point", 0.9, fewest, fewest - 1, "b"):
        calibration.check_point_size(made_plan(wanted, fewest - 1), point)


def test_counts_of_two_classes_equal_a_plain_count() -> None:
    scores, labels = draw_rows(2, 3000)
    made = calibrate_rows(scores, labels)
    temperature = 2.0 ** noisy_counts.search_temperature(made["temperature"])
    chances = softmax(scores / temperature, axis=1)[:, 1]
    for row, kind in enumerate((1, 0)):  # rows of the second class first
        expected, _ = np.histogram(chances[labels == kind], noisy_counts.PROBABILITY_EDGES)
        np.testing.assert_allclose(made["probability_counts"][row], expected, atol=1.5)
    assert made["scale"] == pytest.approx(1, rel=0.1)
    assert made["offset"] == pytest.approx(0, abs=0.1)


def test_the_counts_of_an_area_calibrate_at_no_price() -> None:
    """Scores are scaled and shifted here; the calibration recovers both."""
    scores, labels = draw_rows(2, 20_000)
    scores[:, 1] = 3 * (scores[:, 1] - scores[:, 0]) + 2
    scores[:, 0] = 0
    wanted = results.evaluation_mechanisms("auc", classes=2, multi_label=False)
    plan = made_plan(wanted, len(labels), noise=LITTLE)
    measured = results.evaluate_heads(
        draw_of(head(2), of_test_rows(scores, labels)),
        plan,
        metric="auc",
        link="softmax",
        keep_counts=True,
    )
    made = calibration.calibrate_from_counts(measured, plan)
    assert made["scale"] == pytest.approx(1 / 3, rel=0.05)
    assert made["offset"] == pytest.approx(-2 / 3, abs=0.05)
    assert (made["epsilon"], made["n"]) == (None, 20_000)
    assert "together" not in made
    assert {"sets", "reliability", "abstention", "cut_offs", "net_benefit"} < set(made)
    pointed = calibration.calibrate_from_counts(measured, plan, point=POINT)
    stated = pointed.pop("operating_point")
    assert pointed == made
    margins = scores[:, 1] * made["scale"] + made["offset"]
    named = 1 / (1 + np.exp(-margins)) >= stated["threshold"]
    assert stated["sensitivity"][0] == pytest.approx(named[labels == 1].mean(), abs=2e-3)
    assert stated["specificity"][0] == pytest.approx((~named)[labels == 0].mean(), abs=2e-3)


def test_a_calibration_needs_the_units_of_a_useful_set() -> None:
    wanted = calibration.calibration_mechanisms(classes=2, multi_label=False)
    deviation = made_plan(wanted, 9).mechanisms[-1].noise_scale
    fewest = noisy_counts.fewest_units(deviation)
    calibration.check_calibration_size(made_plan(wanted, fewest))
    with refuses(PrivacyError, "calibrate", fewest - 1, fewest):
        calibration.check_calibration_size(made_plan(wanted, fewest - 1))


def test_the_counts_of_an_area_need_a_hundred_deviations() -> None:
    wanted = results.evaluation_mechanisms("auc", classes=2, multi_label=False)
    deviation = made_plan(wanted, 9, 3.0).mechanisms[-1].noise_scale
    fewest = max(noisy_counts.fewest_units(deviation), int(np.ceil(100 * deviation)))
    assert fewest > noisy_counts.fewest_units(deviation)
    calibration.check_calibration_size(made_plan(wanted, fewest, 3.0))
    with refuses(PrivacyError, "calibrate", fewest, "epsilon 1"):
        calibration.check_calibration_size(made_plan(wanted, fewest - 1, 3.0))
