"""Operating points: the threshold reaches the sensitivity, and rates are those of the rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from dpprobe.errors import DataError
from dpprobe.release.parts.calibration.noisy_counts import PROBABILITY_EDGES
from dpprobe.release.parts.calibration.operating_point import (
    WantedPoint,
    fewest_of_class,
    find_operating_point,
    orient_table,
)
from tests.support.refusals import refuses

Floats = npt.NDArray[np.float64]
Z = norm.ppf(0.975)
ENDS = np.array([0.0, 0.1, 0.2, 0.4, 0.7, 1.0])


def wanted(sensitivity: float) -> WantedPoint:
    return WantedPoint(positive_class="b", position=1, sensitivity=sensitivity)


def find(of_class: Any, others: Any, sensitivity: float, deviation: float, **more: Any) -> Any:
    tables = (np.array(each, float) for each in (of_class, others))
    return find_operating_point(
        ENDS, *tables, wanted=wanted(sensitivity), deviation=deviation, **more
    )


def test_thresholds_of_ten_thousand_releases_have_the_sensitivity() -> None:
    """Each release draws test units and noise; one edge has a sensitivity just below the target."""
    generator, deviation, releases = np.random.default_rng(0), 4.0, 10_000
    of_class, others = np.array([2, 3, 6, 20, 69]) / 100, np.array([40, 30, 15, 10, 5]) / 100
    sensitivities = 1 - np.concatenate([[0], np.cumsum(of_class)])  # 98, 95, 89 and 69%
    specificities = np.concatenate([[0], np.cumsum(others)])
    wrong = found = outside = 0
    for _ in range(releases):
        counts = generator.multinomial(2000, np.concatenate([0.4 * of_class, 0.6 * others]))
        noisy = counts + generator.normal(0, deviation, 10)
        point = find(noisy[:5], noisy[5:], 0.9, deviation)
        if point["threshold"] is None:
            continue
        place = int(np.abs(ENDS - point["threshold"]).argmin())
        found += 1
        wrong += sensitivities[place] < 0.9
        low, high = point["specificity"][1:]
        outside += not low <= specificities[place] <= high
    # binomial bounds with an error rate of 0.001
    assert wrong <= 0.025 * releases + 3.1 * math.sqrt(0.025 * releases)
    assert wrong > 0, "the edge at 89% is tried"
    assert found > 0.99 * releases
    assert outside <= 0.055 * found + 3.1 * math.sqrt(0.055 * found)


@pytest.mark.parametrize("sensitivity", [0.5, 0.8, 0.9, 0.97])
def test_the_threshold_is_the_last_edge_before_the_first_that_may_be_too_high(
    sensitivity: float,
) -> None:
    """The loop stops at the first edge that may be too high; later edges are ignored."""
    of_class, others = [10.0, 25, 60, 300, 605], [900.0, 500, 200, 80, 20]
    for deviation in (0.0, 3.0, 15.0):
        chosen = 0
        for place in (1, 2, 3, 4):
            rows = sum(of_class)
            noise = (1 - sensitivity) ** 2 * (5 - place) + sensitivity**2 * place
            spread = rows * sensitivity * (1 - sensitivity) + deviation**2 * noise
            if sum(of_class[place:]) - sensitivity * rows <= Z * math.sqrt(spread):
                break
            chosen = place
        point = find(of_class, others, sensitivity, deviation)
        assert (point["positive_class"], point["wanted"]) == ("b", sensitivity)
        if not chosen:
            assert [point[key] for key in ("threshold", "sensitivity", "specificity")] == [None] * 3
            continue
        assert point["threshold"] == pytest.approx(ENDS[chosen], rel=2e-6)
        assert point["threshold"] < ENDS[chosen], "a probability that is rounded down reaches it"
        assert point["sensitivity"][0] == pytest.approx(sum(of_class[chosen:]) / 1000)
        assert point["specificity"][0] == pytest.approx(sum(others[:chosen]) / 1700)
        assert sensitivity < point["sensitivity"][1] < point["sensitivity"][0]
    # 40% are below the second edge, but by noise the count below the third is 0
    assert find([10.0, 390, -390, 500, 490], others, 0.9, 1.0)["threshold"] < 0.1


def test_rows_that_no_threshold_divides_have_no_operating_point() -> None:
    table = [1.0, 2, 3, 4, 900], [900.0, 4, 3, 2, 1]
    assert find(*table, 0.5, 1.0)["threshold"] is not None
    assert find(*table, 0.5, 1.0, ranked=False)["threshold"] is None
    assert find([0.0] * 5, table[1], 0.5, 1.0)["threshold"] is None
    # in float32, as in predictions, the upper three edges are equal
    ends = np.array([0.0, 0.5, 1 - 1e-8, 1 - 1e-9, 1 - 1e-10, 1.0])
    tables = (np.array(each) for each in table)
    point = find_operating_point(ends, *tables, wanted=wanted(0.5), deviation=1.0)
    assert point["threshold"] == pytest.approx(1 - 1e-6, abs=1e-7)
    assert point["specificity"][0] == pytest.approx(904 / 910)


def test_the_first_of_two_classes_has_the_point_of_the_mirrored_table() -> None:
    generator = np.random.default_rng(1)
    chances, labels = generator.random(3000), generator.random(3000)
    edges = np.array(PROBABILITY_EDGES)
    kinds = labels < chances  # rows of the second class
    second, first = (
        np.histogram(chances[each], edges)[0].astype(float) for each in (kinds, ~kinds)
    )
    for given, same in zip(
        orient_table(edges, second, first, 1), (edges, second, first), strict=True
    ):
        assert given is same
    ends, of_class, others = orient_table(edges, second, first, 0)
    np.testing.assert_allclose(of_class, np.histogram(1 - chances[~kinds], ends)[0])
    np.testing.assert_allclose(others, np.histogram(1 - chances[kinds], ends)[0])


@pytest.mark.parametrize("sensitivity", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("deviation", [0.5, 4.2])
def test_the_fewest_units_pass_with_the_noise_of_four_counts(
    sensitivity: float, deviation: float
) -> None:
    units = 1
    while (1 - sensitivity) * units < Z * math.sqrt(
        units * sensitivity * (1 - sensitivity) + 4 * (sensitivity * deviation) ** 2
    ):
        units += 1
    assert fewest_of_class(sensitivity, deviation) == units


STATED = {
    "positive_class": "b",
    "wanted": 0.9,
    "threshold": None,
    "sensitivity": None,
    "specificity": None,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positive_class": "z"}, ("positive_class", "'z'")),
        ({"positive_class": ["b"]}, ("positive_class",)),
        ({"wanted": 1.0}, ("wanted", 1)),
        ({"wanted": True}, ("wanted",)),
        ({"more": 1}, ("operating_point", "keys")),
    ],
)
def test_a_stated_point_names_a_class_and_a_sensitivity(
    changes: dict[str, Any], words: tuple[object, ...]
) -> None:
    assert WantedPoint.from_block(STATED, ("a", "b")) == wanted(0.9)
    with refuses(DataError, *words):
        WantedPoint.from_block(STATED | changes, ("a", "b"))
