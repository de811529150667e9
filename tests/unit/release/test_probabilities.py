"""Prediction sets, abstention, and the values of a stated calibration that are accepted."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError
from dpprobe.release.probabilities import Calibration, SetRule
from tests.support.refusals import refuses

PROBABILITIES = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.7, 1.0]), min_size=1, max_size=6)


def offering(*coverages: float) -> Calibration:
    """Returns a calibration whose threshold for each coverage is 1 - coverage."""
    return Calibration(scale=1.0, offset=0.0, thresholds={each: 1 - each for each in coverages})


@given(PROBABILITIES, st.sampled_from([None, 0.0, 0.2, 0.3, 0.7, 1.0]))
def test_a_set_has_all_classes_from_the_threshold_and_the_most_probable_one(
    drawn: list[float], threshold: float | None
) -> None:
    """A probability that prints like the threshold reaches it, despite float32 rounding."""
    values = np.array(drawn, np.float32)
    rule = SetRule(threshold=threshold, abstain_below=None)
    held, abstain = rule.apply_to(values)
    best = max(drawn)
    wanted = {place for place, value in enumerate(drawn) if value >= (threshold or 0.0)}
    if not wanted:
        wanted = {drawn.index(best)}
    assert set(held.tolist()) == wanted
    shown = [drawn[place] for place in held]
    assert shown == sorted(shown, reverse=True), "most probable first"
    for before, after in pairwise(held):
        assert drawn[before] > drawn[after] or before < after, "equal ones in the classes' order"
    assert abstain == (len(held) != 1)


@given(PROBABILITIES, st.sampled_from([0.0, 0.2, 0.3, 0.7, 1.0]))
def test_with_a_limit_only_less_probable_predictions_abstain(
    drawn: list[float], limit: float
) -> None:
    rule = SetRule(threshold=0.2, abstain_below=limit)
    held, abstain = rule.apply_to(np.array(drawn, np.float32))
    assert abstain == (max(drawn) < limit)
    without, _ = SetRule(threshold=0.2, abstain_below=None).apply_to(np.array(drawn, np.float32))
    assert held.tolist() == without.tolist(), "the set is the same"


@pytest.mark.parametrize(
    ("offered", "asked", "chosen"),
    [
        ((0.8, 0.95, 0.99), None, 0.95),  # the smallest of at least 90%
        ((0.99, 0.95, 0.8), None, 0.95),  # in any order
        ((0.8, 0.9), None, 0.9),
        ((0.8, 0.85), None, 0.85),  # the largest if none is at least 90%
        ((0.8, 0.95, 0.99), 0.8, 0.8),
        ((0.8, 0.95, 0.99), 0.99, 0.99),
        ((), None, None),
    ],
)
def test_a_coverage_is_one_that_was_published(
    offered: tuple[float, ...], asked: float | None, chosen: float | None
) -> None:
    rule = SetRule.choose_rule(offering(*offered), coverage=asked, abstain_below=0.5)
    wanted = None if chosen is None else 1 - chosen
    assert rule == SetRule(threshold=wanted, abstain_below=0.5)


def test_unsupported_requests_are_refused() -> None:
    some, none = offering(0.8, 0.95), offering()
    for calibration, said in ((some, "0.8, 0.95"), (none, "none")):
        with refuses(ConfigError, "coverage 0.9", said):
            SetRule.choose_rule(calibration, coverage=0.9)
    for limit in (-0.1, 1.1, math.nan):
        with refuses(ConfigError, f"abstain_below {limit:g}"):
            SetRule.choose_rule(some, abstain_below=limit)
    for limit in (0.0, 1.0):
        assert SetRule.choose_rule(some, abstain_below=limit)
    assert SetRule.choose_rule(None) is None
    for given_options in ({"coverage": 0.9}, {"abstain_below": 0.0}):
        with refuses(ConfigError, "coverage", "abstain_below", "`calibrate`"):
            SetRule.choose_rule(None, **given_options)


@given(st.floats(0, 5), st.sampled_from([0.0, -1.5, 2.0]))
def test_scores_become_logits_by_scale_and_the_offset_of_the_second_class(
    scale: float, offset: float
) -> None:
    made = Calibration.from_block({"scale": scale, "offset": offset, "sets": []})
    scores = np.array([[0.5, -2.0], [1.0, 3.0]])
    wanted = [[scale * first, scale * second + offset] for first, second in scores]
    np.testing.assert_allclose(made.rescale(scores), wanted)
    np.testing.assert_allclose(made.rescale(torch.from_numpy(scores)[None])[0].numpy(), wanted)
    assert scores.tolist() == [[0.5, -2.0], [1.0, 3.0]], "the scores stay"


def test_a_block_is_read_with_its_thresholds() -> None:
    sets = [{"coverage": 0.9, "threshold": 0.2}, {"coverage": 0.99, "threshold": 0}]
    made = Calibration.from_block({"scale": 2, "offset": 1, "sets": sets})
    assert made == Calibration(scale=2.0, offset=1.0, thresholds={0.9: 0.2, 0.99: 0.0})


@pytest.mark.parametrize(
    "change",
    [
        {"scale": -1.0},
        {"scale": math.inf},
        {"scale": math.nan},
        {"scale": "x"},
        {"scale": None},
        {"offset": math.inf},
        {"offset": math.nan},
        {"offset": None},
        {"sets": [{}]},
        {"sets": 3},
        {"sets": [{"coverage": 0.9}]},
        {"sets": [{"coverage": 0.9, "threshold": "x"}]},
    ],
)
def test_a_stranger_s_block_of_impossible_values_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="^calibration: "):
        Calibration.from_block({"scale": 1.0, "offset": 0.0, "sets": []} | change)
    missing = {"scale": 1.0, "offset": 0.0, "sets": []}
    del missing[next(iter(change))]
    with pytest.raises(DataError, match="calibration: cannot be read"):
        Calibration.from_block(missing)
