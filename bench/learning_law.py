"""Fits the law of learning curves: one signal, the share kept by it, and a range.

Every source of images is left out in turn: exponents and the expected share are fitted to the
others, and the left-out source's distances from it, every seed by itself, make the range, which is
widened until it holds for sources that took no part in making it.
Sources count alike, and so do a source's curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from dpprobe.privacy.gaussian_mu import gaussian_mu

Array = npt.NDArray[np.float64]

BAND = (0.1, 0.9)
# A lead of less says nothing about the share that is kept of it.
LEAST_LEAD = 0.1
KNOTS = 30
WIDENINGS = np.arange(1.0, 4.0, 0.05).round(2)
SHIFTS = np.linspace(-0.6, 0.6, 7)  # of the signal, whose unit is a factor e of the images
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
        return Points(self.source[kept], *(column[kept] for column in self[1:]))


def law_of(curves: Sequence[Mapping[str, Any]], delta: float) -> dict[str, Any]:
    """Fits the law; its range is as wide as sources need that took no part in anything.

    Each source is left out of everything: exponents, expected share and range are made of the
    others. The range is then widened alike everywhere until it holds what it means to, on average
    over these sources.
    """
    points = points_of(curves, delta)
    parts = split(points)
    fits = {source: fit(others) for source, (others, _) in parts.items()}
    widening, coverage = widening_of(fits, parts)
    smallest = min(curve["dimension"] for curve in curves)
    rounded_coverage = {source: round(value, 3) for source, value in coverage.items()}
    return fit(points).law(widening) | {"coverage": rounded_coverage, "smallest": smallest}


def split(points: Points) -> dict[str, tuple[Points, Points]]:
    """Returns, by source, the points of the others and its own."""
    return {
        str(source): (points.where(points.source != source), points.where(points.source == source))
        for source in np.unique(points.source)
    }


def widening_of(
    fits: Mapping[str, Fit], parts: Mapping[str, tuple[Points, Points]]
) -> tuple[float, dict[str, float]]:
    """Returns the least widening at which left-out sources are covered, and their coverage."""
    for widening in WIDENINGS:
        coverage = {
            source: covered(law.law(widening), parts[source][1]) for source, law in fits.items()
        }
        if np.mean(list(coverage.values())) >= BAND[1] - BAND[0]:
            break
    return float(widening), coverage


def points_of(curves: Sequence[Mapping[str, Any]], delta: float) -> Points:
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


class Fit(NamedTuple):
    """The expected share at knots, and the quantiles of distances from it."""

    exponents: tuple[float, ...]
    error: float
    knots: Array
    expected: Array
    low: Array
    high: Array

    def law(self, widening: float) -> dict[str, Any]:
        """Returns what is stored: a range that rises, only ever widened to do so."""
        knots = self.knots
        low = np.minimum.accumulate((self.expected + widening * self.low)[::-1])[::-1]
        high = np.maximum.accumulate(self.expected + widening * self.high)
        return {
            **dict(zip(EXPONENTS, self.exponents, strict=True)),
            "signals": rounded(knots),
            "low": rounded(smoothed(lambda at: np.interp(at, knots, low))(knots)),
            "expected": rounded(self.expected),
            "high": rounded(smoothed(lambda at: np.interp(at, knots, high))(knots)),
            "band": list(BAND),
            "widening": widening,
            "error": round(self.error, 4),
        }


def fit(points: Points, exponents: tuple[float, ...] | None = None) -> Fit:
    """Chooses exponents by the error on left-out sources, whose distances make the range."""
    choices = [exponents] if exponents else list(itertools.product(*EXPONENTS.values()))
    errors = [
        np.average(np.abs(left_out(points, choice)), weights=points.weight) for choice in choices
    ]
    chosen = choices[int(np.argmin(errors))]
    signal, distances = points.signal(chosen), left_out(points, chosen)
    knots = np.quantile(signal, np.linspace(0.005, 0.995, KNOTS))
    low, high = np.transpose([near(knot, signal, distances, points.weight) for knot in knots])
    return Fit(
        exponents=chosen,
        error=float(min(errors)),
        knots=knots,
        expected=shape(signal, points)(knots),
        low=low,
        high=high,
    )


def left_out(points: Points, exponents: Sequence[float]) -> Array:
    """Returns each fit's distance from the share expected by the other sources."""
    signal = points.signal(exponents)
    distances = np.empty_like(signal)
    for source in np.unique(points.source):
        mine = points.source == source
        expected = shape(signal[~mine], points.where(~mine))(signal[mine])
        distances[mine] = points.kept[mine] - expected
    return distances


def shape(signal: Array, points: Points) -> Callable[[Array], Array]:
    """Fits the rising share by signal, its steps smoothed: a mean of rising functions rises."""
    regression = IsotonicRegression(out_of_bounds="clip")
    regression.fit(signal, points.kept, sample_weight=points.weight)
    return smoothed(regression.predict)


def smoothed(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns the mean of a function over a neighbourhood of each signal."""
    return lambda signal: np.mean([function(signal + shift) for shift in SHIFTS], axis=0)


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
