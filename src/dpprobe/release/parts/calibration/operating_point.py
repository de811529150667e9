"""Finds the threshold from which a class is predicted, so that few of its units are missed.

An operating point is the highest threshold of a class's probability whose sensitivity is, with high
confidence, at least the wanted sensitivity. Sensitivity is the share of the class's rows whose
probability reaches the threshold, specificity the share of other rows whose probability does not.

**Privacy.** For two classes, the calibration (`measure`) releases noisy counts per class and range
of the probability anyway, so the operating point costs nothing. For more classes, another table is
released, `class_counts_by_probability`: the weight of rows of the class and of other rows, per
fixed range of the class's probability. A row adds its weight to one number of the table, and the
weights of a unit's rows sum to at most 1, so the sensitivity is 1.

**Threshold.** Thresholds are edges of the ranges, tried from the lowest on. An edge passes if the
hypothesis "the sensitivity is at most the wanted one" is rejected at 2.5%, with the variance of the
class's rows and of the noise (Fieller 1954). The first edge that fails ends the search. The
probability of publishing a threshold with too small a sensitivity is therefore at most the error
probability of one test (fixed sequence testing; Angelopoulos et al. 2021, arXiv 2110.01052).

**Intervals.** The sensitivity's interval begins above the wanted value, as the threshold passed the
test. Counts of other rows do not choose the threshold, so the specificity has a usual interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.release.parts.calibration.noisy_counts import Z, estimate_rate
from dpprobe.release.stated_values import read_block, read_real, require_true

Floats = npt.NDArray[np.float64]

POINT_COUNTS = "class_counts_by_probability"
POINT_KEYS = {"positive_class", "wanted", "threshold", "sensitivity", "specificity"}
# Ranges below the threshold of a good head; their noise decides the fewest units of a class.
_RANGES_BELOW = 4


@dataclass(frozen=True, kw_only=True)
class WantedPoint:
    """The class of an operating point, its position in the head, and the wanted sensitivity."""

    positive_class: str
    position: int
    sensitivity: float

    @classmethod
    def from_block(cls, block: Any, class_names: Sequence[str]) -> WantedPoint:
        """Reads class and sensitivity from a statement; raises DataError for wrong values."""
        stated = read_block("operating_point", block, POINT_KEYS)
        name, wanted = stated["positive_class"], read_real("wanted", stated["wanted"])
        require_true(name in class_names, f"positive_class {name!r}: the head has no such class")
        require_true(0 < wanted < 1, f"wanted {wanted:g}: a sensitivity is between 0 and 1")
        return cls(positive_class=name, position=class_names.index(name), sensitivity=wanted)


def fewest_of_class(sensitivity: float, deviation: float) -> int:
    """Returns the fewest test units of a class for which a head without misses has a threshold.

    `deviation` is the standard deviation of each count's noise. Assumes that the counts of four
    ranges are below the threshold, and that their noise is one standard deviation.
    """
    missed, noise = 1 - sensitivity, sensitivity * deviation * math.sqrt(_RANGES_BELOW)
    # (missed m)^2 = Z^2 (m sensitivity missed + noise^2), the test at m units with none missed
    half = Z * Z * sensitivity * missed / 2
    return math.ceil((half + math.sqrt(half * half + (missed * Z * noise) ** 2)) / missed**2)


def find_operating_point(
    ends: Floats,
    of_class: Floats,
    others: Floats,
    *,
    wanted: WantedPoint,
    deviation: float,
    ranked: bool = True,
) -> dict[str, Any]:
    """Finds the operating point of a class; its numbers are None if no threshold passes the test.

    Args:
      ends: [ranges + 1], increasing, the class's probability at the edges of the ranges.
      of_class, others: noisy counts [ranges] of rows of the class and of all other rows.
      deviation: the standard deviation of each count's noise.
      ranked: False if all rows have one probability, which no threshold divides.
    """
    chosen = None
    for place in range(1, len(of_class)) if ranked else ():
        if not _surely_reaches(of_class, place, wanted.sensitivity, deviation):
            break
        # predictions are float32: edges that float32 cannot tell apart divide no rows
        if np.float32(_below(ends[place])) > np.float32(ends[place - 1]):
            chosen = place
    point: dict[str, Any] = {
        "positive_class": wanted.positive_class,
        "wanted": wanted.sensitivity,
        "threshold": None,
        "sensitivity": None,
        "specificity": None,
    }
    if chosen is not None:
        point["threshold"] = _below(ends[chosen])
        point["sensitivity"] = list(estimate_rate(of_class, slice(chosen, None), deviation))
        point["specificity"] = list(estimate_rate(others, slice(0, chosen), deviation))
    return point


def _below(edge: float) -> float:
    """Returns a number slightly below an edge, because software may round down probabilities."""
    return float(edge) * (1 - 1e-6)


def _surely_reaches(counts: Floats, place: int, wanted: float, deviation: float) -> bool:
    """Tests at 2.5% if the share of rows in this and all higher ranges exceeds `wanted`."""
    whole = max(float(counts.sum()), 0.0)
    part = min(float(counts[place:].sum()), whole)
    above, below = math.sqrt(len(counts) - place), math.sqrt(place)
    noise = deviation * math.hypot((1 - wanted) * above, wanted * below)
    return part - wanted * whole > Z * math.hypot(math.sqrt(whole * wanted * (1 - wanted)), noise)


def orient_table(
    ends: Floats, positives: Floats, negatives: Floats, position: int
) -> tuple[Floats, Floats, Floats]:
    """Returns ranges of the probability of class `position` (of two), with both counts.

    `ends` and the counts are given for the second class; `positives` are its rows.
    """
    if position == 1:
        return ends, positives, negatives
    return 1 - ends[::-1], negatives[::-1], positives[::-1]
