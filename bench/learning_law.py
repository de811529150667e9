"""Fits the law of learning curves: one signal, the share kept by it, and a range.

Every source of images is left out in turn: exponents and the expected share are fitted to the
others, and the left-out source's distances from it, every seed by itself, make the range.
Sources count alike, and so do a source's curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from dpprobe.planner.gaussian import gaussian_mu

Array = npt.NDArray[np.float64]

BAND = (0.1, 0.9)
# A lead of less says nothing about the share that is kept of it.
LEAST_LEAD = 0.1
KNOTS = 40
WIDTH = 0.12  # of the weight of all points, that a knot's range is read from
EXPONENTS = {
    "mu": (0.8, 1.0, 1.2, 1.4, 1.6),
    "dimension": (0.0, 0.125, 0.25, 0.375, 0.5),
    "classes": (0.5, 0.75, 1.0, 1.25, 1.5, 1.75),
}


class Points(NamedTuple):
    """Arrays of one entry a fit."""

    source: npt.NDArray[np.str_]
    log_n: Array
    log_mu: Array
    log_dimension: Array
    log_classes: Array
    kept: Array
    weight: Array

    def signal(self, exponents: Sequence[float]) -> Array:
        mu, dimension, classes = exponents
        return (
            self.log_n
            + mu * self.log_mu
            - dimension * self.log_dimension
            - classes * self.log_classes
        )

    def where(self, kept: npt.NDArray[np.bool_]) -> Points:
        return Points(*(column[kept] for column in self))


def law_of(curves: Sequence[dict[str, Any]], delta: float) -> dict[str, Any]:
    """Fits the law, and what a source left out of it found.

    Leaving one out of three leaves two, each of which is left out in turn for the range.
    """
    points = points_of(curves, delta)
    law = fit(points)
    coverage = {}
    for source in np.unique(points.source):
        others, mine = points.where(points.source != source), points.where(points.source == source)
        coverage[str(source)] = round(covered(fit(others), mine), 3)
    smallest = min(curve["dimension"] for curve in curves)
    return law | {"coverage": coverage, "smallest": smallest}


def points_of(curves: Sequence[dict[str, Any]], delta: float) -> Points:
    of_source: dict[str, int] = {}
    for curve in curves:
        of_source[curve["source"]] = of_source.get(curve["source"], 0) + 1
    rows = []
    for curve in curves:
        mine = []
        for point in curve["points"]:
            lead = point["ceiling"] - curve["chance"]
            if lead < LEAST_LEAD:
                continue
            mine += [
                (
                    np.log(point["n"]),
                    np.log(gaussian_mu(float(epsilon), delta)),
                    np.log(curve["dimension"]),
                    np.log(curve["classes"]),
                    (accuracy - curve["chance"]) / lead,
                )
                for epsilon, accuracies in point["accuracy"].items()
                for accuracy in accuracies
            ]
        weight = 1 / (max(len(mine), 1) * of_source[curve["source"]])
        rows += [(curve["source"], *values, weight) for values in mine]
    names, *columns = zip(*rows, strict=True)
    return Points(np.array(names), *(np.array(column) for column in columns))


def fit(points: Points) -> dict[str, Any]:
    """Chooses exponents by the error on left-out sources, whose distances make the range."""
    choices = list(itertools.product(*EXPONENTS.values()))
    errors = [
        np.average(np.abs(left_out(points, choice)), weights=points.weight) for choice in choices
    ]
    chosen = choices[int(np.argmin(errors))]
    signal, distances = points.signal(chosen), left_out(points, chosen)
    knots = np.quantile(signal, np.linspace(0.005, 0.995, KNOTS))
    expected = shape(signal, points).predict(knots)
    low, high = np.transpose([near(knot, signal, distances, points.weight) for knot in knots])
    # A range that narrows and rises with the signal: only ever widened to be monotone.
    low = np.minimum.accumulate((expected + low)[::-1])[::-1]
    high = np.maximum.accumulate(expected + high)
    return {
        **dict(zip(EXPONENTS, chosen, strict=True)),
        "signals": rounded(knots),
        "low": rounded(low),
        "expected": rounded(expected),
        "high": rounded(high),
        "band": BAND,
        "error": round(float(min(errors)), 4),
    }


def left_out(points: Points, exponents: Sequence[float]) -> Array:
    """Returns each fit's distance from the share expected by the other sources."""
    signal = points.signal(exponents)
    distances = np.empty_like(signal)
    for source in np.unique(points.source):
        mine = points.source == source
        expected = shape(signal[~mine], points.where(~mine)).predict(signal[mine])
        distances[mine] = points.kept[mine] - expected
    return distances


def shape(signal: Array, points: Points) -> IsotonicRegression:
    """Fits the rising share by signal."""
    regression = IsotonicRegression(out_of_bounds="clip")
    return regression.fit(signal, points.kept, sample_weight=points.weight)


def near(knot: float, signal: Array, distances: Array, weight: Array) -> tuple[float, float]:
    """Returns the quantiles of the distances of the points nearest to a signal."""
    order = np.argsort(np.abs(signal - knot))
    nearest = order[: np.searchsorted(np.cumsum(weight[order]), WIDTH * weight.sum()) + 1]
    ranked = nearest[np.argsort(distances[nearest])]
    cumulated = np.cumsum(weight[ranked]) / weight[ranked].sum()
    low, high = (distances[ranked[np.searchsorted(cumulated, part)]] for part in BAND)
    return min(low, 0.0), max(high, 0.0)


def covered(law: dict[str, Any], points: Points) -> float:
    """Returns the part of fits, by weight, that lies within a law's range."""
    signal = points.signal([law[name] for name in EXPONENTS])
    low, high = (np.interp(signal, law["signals"], law[name]) for name in ("low", "high"))
    within = (points.kept >= low) & (points.kept <= high)
    return float(np.average(within, weights=points.weight))


def rounded(values: Array) -> list[float]:
    return [round(float(value), 4) for value in values]
