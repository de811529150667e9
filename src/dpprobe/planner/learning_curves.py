"""Reads learning_curves.json: learning curves on public datasets, and the law fitted to them.

The lead of a head is its accuracy minus chance, which is 1 / K for K classes. A private head keeps
a share of the non-private head's lead. The expected share rises with the signal

    log n + a log mu - b log d - c log K,

for n units, d features, and the mu of the Gaussian mechanism at (epsilon, delta). Snakemake imports
this module when it starts, so this module imports only fast, pure-Python modules.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError

FILE = Path(__file__).with_name("learning_curves.json")
FORMAT = "dpprobe learning curves"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Law:
    """The share of the non-private lead that a private head keeps, with a range, at rising signals.

    Attributes:
      mu, dimension, classes: exponents a, b, c of the signal.
      band: quantiles of the residuals of the law, on sources left out of the fit.
      widening: the factor on the range's width with which the range has its stated coverage.
      coverage: the share of results inside the range, with each source left out in turn.
      error: mean absolute residual on sources left out of the fit.
      smallest: the smallest feature dimension in public data, assumed if unknown.
    """

    mu: float
    dimension: float
    classes: float
    signals: tuple[float, ...]
    low: tuple[float, ...]
    expected: tuple[float, ...]
    high: tuple[float, ...]
    band: tuple[float, float]
    widening: float
    coverage: Mapping[str, float]
    error: float
    smallest: int

    def shares_at(self, signal: float) -> tuple[float, float, float]:
        """Returns low, expected and high share at a signal; constant outside measured signals."""
        place = bisect_right(self.signals, signal)
        if place == 0:
            return self.low[0], self.expected[0], self.high[0]
        if place == len(self.signals):
            return self.low[-1], self.expected[-1], self.high[-1]
        left, right = self.signals[place - 1], self.signals[place]
        part = (signal - left) / (right - left)

        low, expected, high = (
            values[place - 1] + part * (values[place] - values[place - 1])
            for values in (self.low, self.expected, self.high)
        )
        return low, expected, high

    def signal_of(self, values: Sequence[float], least: float) -> float | None:
        """Interpolates the signal at which `values` first exceed `least`; None if none does."""
        for place, value in enumerate(values):
            if value > least:
                if place == 0:
                    return self.signals[0]
                before = values[place - 1]
                part = (least - before) / (value - before)
                left = self.signals[place - 1]
                return left + part * (self.signals[place] - left)
        return None


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The learning curves, and the law fitted to them."""

    law: Law
    curves: tuple[Mapping[str, Any], ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted({str(curve["source"]) for curve in self.curves}))

    @property
    def most_classes(self) -> int:
        return max(int(curve["classes"]) for curve in self.curves)

    def choose_ceilings(self, classes: int) -> tuple[float, float, float]:
        """Returns lowest, median and highest non-private accuracy on full public datasets.

        Only datasets whose number of classes is nearest to `classes`, by ratio, are used.
        """

        def distance_ratio(curve: Mapping[str, Any]) -> float:
            ratio = int(curve["classes"]) / classes
            return max(ratio, 1 / ratio)

        nearest = min(map(distance_ratio, self.curves))
        values = sorted(
            {
                round(float(curve["points"][-1]["ceiling"]), 2)
                for curve in self.curves
                if distance_ratio(curve) == nearest
            }
        )
        return values[0], values[len(values) // 2], values[-1]


@lru_cache
def read_curves() -> Curves:
    """Reads the file of learning curves once per process.

    Raises DataError if the file is missing or has another format.
    """
    try:
        record = json.loads(FILE.read_text(encoding="utf-8"))
        if (record["format"], record["format_version"]) != (FORMAT, VERSION):
            raise ValueError(f"{record['format']} {record['format_version']}")
        values = dict(record["law"])
        tuples = ("signals", "low", "expected", "high", "band")
        values |= {name: tuple(values[name]) for name in tuples}
        return Curves(law=Law(**values), curves=tuple(record["curves"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{FILE}: unreadable ({error}); restore it from the checkout") from error
