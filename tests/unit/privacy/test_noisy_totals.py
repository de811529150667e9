"""How many units a result needs, by simulating the noise and by SciPy's distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.privacy.gaussian_mu import gaussian_mu
from dpprobe.privacy.noisy_totals import COUNTED, RESULT_CHANCE, least_total, units_for_result

deviations = st.floats(0.3, 200)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_with_enough_units_95_percent_of_releases_have_a_result(
    epsilon: float, classes: int
) -> None:
    deviation = math.sqrt(2) / gaussian_mu(epsilon, 1e-5)
    enough = units_for_result(deviation, classes)
    generator = np.random.default_rng(0)
    for units, most, least in ((enough, 0.953, 0.947), (least_total(deviation), 0.27, 0.0)):
        noisy = units + generator.normal(0, deviation, (200_000, classes))
        share = (noisy > COUNTED * deviation).all(axis=1).mean()
        assert least <= share <= most  # 0.005 is ten standard errors of 200,000 draws


@given(deviation=deviations, classes=st.integers(1, 1000))
def test_the_stated_number_has_the_stated_chance(deviation: float, classes: int) -> None:
    units = units_for_result(deviation, classes)
    chance = norm.cdf((units - least_total(deviation)) / deviation) ** classes
    assert chance == pytest.approx(RESULT_CHANCE, abs=1e-6)


@given(
    deviation=deviations,
    shares=st.lists(st.floats(0.01, 1), min_size=2, max_size=9),
    lack=st.floats(0.5, 1),
)
def test_no_split_of_too_few_units_over_classes_reaches_the_chance(
    deviation: float, shares: list[float], lack: float
) -> None:
    total = lack * len(shares) * units_for_result(deviation, len(shares))
    units = total * np.array(shares) / sum(shares)
    chance = norm.cdf((units - least_total(deviation)) / deviation).prod()
    assert chance <= RESULT_CHANCE + 1e-9


def test_more_classes_and_more_noise_need_more_units() -> None:
    needs = [[units_for_result(noise, count) for count in (1, 2, 7, 50)] for noise in (1, 5, 9)]
    assert needs == sorted(needs)
    assert all(each == sorted(each) for each in needs)
