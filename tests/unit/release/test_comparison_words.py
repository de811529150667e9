"""Sentences about a comparison: verdict, coverage, and when macro accuracy is appropriate."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.privacy.unit_words import unit_words
from dpprobe.release.comparison import Metric, Noise, comparison_mechanisms, least_difference
from dpprobe.release.comparison_words import (
    describe_plan,
    describe_result,
    round_up,
)
from tests.support.mechanisms import made_plan
from tests.support.refusals import check_tokens

IMAGES = unit_words("image")


@pytest.mark.parametrize("more", [{}, {"class_frequencies": [0.2, 0.8]}])
@pytest.mark.parametrize(
    ("interval", "tokens"),
    [
        ([0.0104, 0.0896], ("B (second) is better", "+1.0 to +9.0")),
        ([-0.0896, -0.0104], ("A (first) is better", "-9.0 to -1.0")),
        ([-0.0104, 0.0896], ("No difference", "-1.1 to +9.0", "equally good")),
    ],
)
def test_the_verdict_follows_the_interval(
    interval: list[float], tokens: tuple[str, ...], more: dict[str, Any]
) -> None:
    record = {
        "heads": [{"name": name} for name in ("first", "second")],
        "n": 120,
        "metric": "macro_accuracy" if more else "accuracy",
        "difference": sum(interval) / 2,
        "interval": interval,
        **more,
    }
    said = "\n".join(describe_result(record, IMAGES))
    check_tokens(said, *tokens, "120")
    assert ("macro accuracy" in said) == ("frequencies" in said) == bool(more)


def test_a_plan_has_the_smallest_difference_of_its_metric() -> None:
    plan = made_plan(comparison_mechanisms(), 2000, noise=5.0)
    for metric in (Metric(), Metric((0.2, 0.8))):
        said = "\n".join(describe_plan(plan, metric, ("a", "b"), "toy", IMAGES))
        least = least_difference(Noise.of_plan(plan), metric, disagreement=0.1)
        assert f"{round_up(100 * least):.1f} points if A and B disagree on 10%" in said
        assert ("of each class" in said) == bool(metric.frequencies)
