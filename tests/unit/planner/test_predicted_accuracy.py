"""Predictions increase with images and budget; impossible values are refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.heads.auto_rule import choose_head
from dpprobe.heads.facts import DataFacts
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.predicted_accuracy import (
    Kept,
    Setting,
    Start,
    n_that_would_do,
    n_to_keep,
    predict,
    public_images_help,
)

SETTING = Setting(n=3000, classes=4, epsilon=1.0, dimension=1280)


def _rises(results: list[Kept]) -> bool:
    return all(
        left.low <= right.low and left.expected <= right.expected and left.high <= right.high
        for left, right in pairwise(results)
    )


def test_more_images_and_more_budget_never_hurt() -> None:
    by_n = [predict(SETTING.with_n(round(20 * 1.5**step))) for step in range(30)]
    assert _rises(by_n)
    assert by_n[0].expected < 0.3 < by_n[-1].expected
    by_epsilon = [predict(SETTING.with_epsilon(0.01 * 1.4**step)) for step in range(27)]
    assert _rises(by_epsilon)
    assert by_epsilon[0].expected < 0.3 < by_epsilon[-1].expected


def test_the_dimension_may_be_unknown_and_is_then_the_most_favourable() -> None:
    unknown = predict(replace(SETTING, dimension=None))
    assert unknown == predict(replace(SETTING, dimension=read_curves().law.smallest))
    assert unknown.expected >= predict(SETTING).expected


@pytest.mark.parametrize("place", [-1.0, -0.3, 0.0, 0.6, 1.0])
def test_predictions_start_from_a_measured_share(place: float) -> None:
    kept = predict(SETTING)
    share = kept.expected + place * abs((kept.high if place > 0 else kept.low) - kept.expected)
    start = Start.of_measured(SETTING, share)
    assert start is not None
    assert predict(SETTING, start=start).expected == pytest.approx(share)
    numbers = sorted({SETTING.n, *(round(100 * 1.5**step) for step in range(20))})
    steps = list(map(SETTING.with_n, numbers))
    results = [predict(at, start=start) for at in steps]
    assert _rises(results)
    assert all(each.low <= each.expected <= each.high for each in results)
    better = [each.low for at, each in zip(steps, results, strict=True) if at.n >= SETTING.n]
    assert min(better) >= share - 1e-9
    assert (n_to_keep(SETTING, share + 0.01, start=start) or 10**9) > SETTING.n


def test_a_share_outside_the_predicted_range_is_not_used_as_start() -> None:
    kept = predict(SETTING)
    assert Start.of_measured(SETTING, kept.low - 0.01) is None
    assert Start.of_measured(SETTING, kept.high + 0.01) is None


def test_n_to_keep_keeps_it() -> None:
    n = n_to_keep(SETTING, 0.5)
    assert n is not None
    assert predict(SETTING.with_n(n)).expected >= 0.5 - 1e-6
    assert predict(SETTING.with_n(round(0.9 * n))).expected < 0.5
    assert n_that_would_do(SETTING) == n
    assert n_to_keep(SETTING, 1.5) is None


@pytest.mark.parametrize("ceiling", [0.5, 0.9, 0.985, 1.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_an_accuracy_is_one_and_lies_in_its_own_range(ceiling: float, classes: int) -> None:
    """For the easiest settings the law expects more than the non-private accuracy."""
    for step in range(30):
        kept = predict(replace(SETTING, n=round(20 * 1.5**step), classes=classes))
        low, expected, high = kept.predict_accuracy(chance=1 / classes, ceiling=ceiling)
        assert 0 <= low <= expected <= high <= 1
    assert kept.expected > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 1, "n": 1}, "classes 1: one class needs no classifier; use 2 or more"),
        ({"n": 3}, "n 3: fewer than the 4 classes; use at least one per class"),
        ({"classes": 0, "n": 0}, "n 0: fewer than the 0 classes"),
        ({"dimension": 0}, "d 0: no features; use 1 or more"),
        ({"epsilon": 0.0}, "epsilon 0: outside 0.01 to 100"),
        ({"epsilon": -1.0}, "epsilon -1: outside 0.01 to 100"),
        ({"epsilon": math.nan}, "epsilon nan: outside"),
        ({"epsilon": 0.0099}, "epsilon 0.0099: outside"),
        ({"epsilon": 100.1}, "epsilon 100.1: outside"),
        ({"delta": 0.0}, "delta 0: outside 1e-10 to 1; choose a delta below 1 / n"),
        ({"delta": 1.0}, "delta 1: outside"),
        ({"delta": 9e-11}, "delta 9e-11: outside"),
    ],
)
def test_a_setting_out_of_range_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        replace(SETTING, **changes).check_ranges()


def test_settings_at_the_ends_of_their_ranges_are_allowed() -> None:
    for changes in (
        {"n": 4},
        {"classes": 2, "n": 2},
        {"dimension": 1},
        {"epsilon": 0.01},
        {"epsilon": 100.0},
        {"delta": 1e-10},
        {"delta": 0.999},
    ):
        replace(SETTING, **changes).check_ranges()


def test_all_values_out_of_range_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        replace(SETTING, n=1, epsilon=0.0, delta=2.0).check_ranges()
    assert [line.split()[0] for line in str(error.value).splitlines()] == ["n", "epsilon", "delta"]


def test_accuracies_are_cut_to_what_an_accuracy_can_be() -> None:
    kept = Kept(low=-3.0, expected=0.5, high=3.0, beyond=0)
    assert kept.predict_accuracy(chance=0.25, ceiling=0.75) == (0.0, 0.5, 1.0)


def test_settings_beyond_the_measured_signals_are_reported() -> None:
    law = read_curves().law
    tiny, huge = replace(SETTING, n=4, epsilon=0.01), replace(SETTING, n=10**9, epsilon=100.0)
    assert [predict(each).beyond for each in (tiny, SETTING, huge)] == [-1, 0, 1]
    assert predict(tiny).expected == law.expected[0]
    assert predict(huge).expected == law.expected[-1]


@pytest.mark.parametrize("n", [100, 1000, 10_000])
def test_more_noise_is_as_a_smaller_mu(n: int) -> None:
    """The signal depends on log n + a log mu: 2^a times the units compensate twice the noise."""
    law = read_curves().law
    doubled = predict(SETTING.with_n(round(n * 2**law.mu)), noise=2.0)
    assert doubled.expected == pytest.approx(predict(SETTING.with_n(n)).expected, abs=2e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("dimension", [64, 512, 1280])
def test_public_images_help_where_auto_gives_the_centre_a_larger_share(
    dimension: int, epsilon: float
) -> None:
    helped = []
    for n in (round(20 * 1.3**step) for step in range(30)):
        setting = Setting(n=n, classes=2, epsilon=epsilon, dimension=dimension)
        facts = DataFacts(
            n=n,
            dimension=dimension,
            classes=2,
            multi_label=False,
            epsilon=epsilon,
            delta=setting.delta,
            unit="image",
        )
        larger = choose_head(facts)["normalize"] == {"kind": "centred", "share": 0.2}
        assert public_images_help(setting) == larger
        helped.append(larger)
    assert helped[0]
    assert not helped[-1]
    unknown = Setting(n=300, classes=2, epsilon=epsilon)
    assert public_images_help(unknown) == public_images_help(replace(unknown, dimension=64))
