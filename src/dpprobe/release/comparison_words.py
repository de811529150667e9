"""Describes a comparison of two heads in words: cost and power before, the verdict after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpprobe.data.options import IMBALANCED
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement_words import format_epsilon, format_small
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.comparison import POWER, Difference, Metric, Noise, least_difference

_SHARES = (0.05, 0.1, 0.3)  # shares of disagreement of similar, typical and different heads
_METRICS = {"accuracy": "accuracy", "macro_accuracy": "macro accuracy"}


def describe_plan(
    plan: Plan, metric: Metric, names: Sequence[str], dataset: str, unit: UnitWords
) -> list[str]:
    """Describes cost, noise and power of a comparison; all numbers are public."""
    a, b = names
    noise, words = Noise.of_plan(plan), _METRICS[metric.name]
    points = 100 * metric.scale * noise.difference / noise.n
    lines = [
        f"Is B ({b}) better than A ({a}) on the {plan.n:,} test {unit.many} of {dataset}, by "
        f"{words}?",
        f"Cost: epsilon {format_epsilon(plan.realised_epsilon)} at delta "
        f"{format_small(plan.delta)} for each test {unit.one}; training {unit.many} pay nothing.",
        f"Noise: standard deviation {noise.difference:.3g} test {unit.many}, {points:.2g} points "
        f"of {words}.",
        f"Smallest difference that is found with probability {POWER:.0%} (two-sided, 5%):",
    ]
    of_each = " of each class" if metric.frequencies else ""
    for share in _SHARES:
        least = least_difference(noise, metric, disagreement=share)
        beyond = ", so none is found" if least > share else ""
        lines.append(
            f"  {round_up(100 * least):.1f} points if A and B disagree on {100 * share:g}% of the "
            f"test {unit.many}{of_each}{beyond}"
        )
    return lines


def describe_imbalance(stated: Sequence[Sequence[float]]) -> list[str]:
    """Recommends macro accuracy if the heads state unequal class frequencies."""
    ratio = max((max(each) / min(each) for each in stated), default=1.0)
    if ratio <= IMBALANCED:
        return []
    return [
        f"The bundles state a class that is {ratio:.1f} times as frequent as another: accuracy "
        "hardly counts rare classes. Pass --metric macro_accuracy to count all classes equally."
    ]


def describe_result(record: Mapping[str, Any], unit: UnitWords) -> list[str]:
    """States which head is better, with the interval and what it covers."""
    a, b = (head["name"] for head in record["heads"])
    low, high = record["interval"]
    better = Difference(record["difference"], low, high).better
    ends = f"{math.floor(1000 * low) / 10:+.1f} to {math.ceil(1000 * high) / 10:+.1f}"
    verdict = {
        1: f"B ({b}) is better than A ({a})",
        0: f"A ({a}) is better than B ({b})",
        None: f"No difference was found between A ({a}) and B ({b})",
    }[better]
    lines = [
        f"{verdict}: {_METRICS[record['metric']]} of B minus A {100 * record['difference']:+.1f} "
        f"points (95% CI {ends}).",
        f"The interval covers the noise and the choice of the {record['n']:,} test {unit.many}.",
    ]
    if "class_frequencies" in record:
        lines.append(
            "Classes are weighted by the frequencies that the bundles state; the interval does not "
            "cover errors of these frequencies."
        )
    if better is None:
        lines.append("This does not show that A and B are equally good.")
    return lines


def round_up(points: float) -> float:
    """Rounds percentage points up to one decimal."""
    return math.ceil(10 * points - 1e-9) / 10
