"""Holds the price of a search against the best attack on it that we know.

Runs are N(0, 1) and N(mu, 1), what a head of Gaussian releases on all rows costs; scores are any
function of a run's output. In the attack's order the best outputs are those that are likelier on
the second dataset, down to some place: with them there, any other output wins less often on the
second dataset. Next come the outputs that are much likelier on the first, which tell most, then the
others. Both places are searched.

Its delta at an epsilon is that of a finite set of cells, computed exactly: a lower bound on any
price. So the table brackets what a better analysis of arbitrary scores could bring.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dpprobe import artifacts
from dpprobe.privacy import accountants
from dpprobe.privacy.best_of_runs_price import best_bound
from dpprobe.privacy.plan import Mechanism, Selection
from dpprobe.privacy.random_run_count import stopping_probability

RESULTS = Path(__file__).resolve().parent / "results" / "selection_gap.md"
DELTA = 1e-5
KINDS = [(3, 1.0), (10, 0.0), (10, 1.0), (10, math.inf), (30, 1.0)]
TARGETS = (0.1, 1.0, 8.0)

Array = npt.NDArray[np.float64]


def main() -> None:
    """Prints the table and writes it to bench/results/selection_gap.md."""
    lines = [
        "# The price of a search, and the best attack on it",
        "",
        NOTES,
        "",
        "| runs | distribution | epsilon of one run | one point | now | best attack | attack / now "
        "| Renyi |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (mean, shape), target in itertools.product(KINDS, TARGETS):
        kind = Selection(mean=mean, shape=shape, repeated=("runs",))
        mu = mu_of(target)
        runs = [gaussian(mu)]
        profile = accountants.privacy_profile(runs, DELTA)
        bound = best_bound(kind, profile, DELTA)
        point = float(bound.offsets[-1]) + profile.epsilon((DELTA - bound.tail) / mean)
        now = accountants.epsilon(runs, DELTA, "pld", selection=kind)
        renyi = accountants.epsilon(runs, DELTA, "rdp", selection=kind)
        least = attacked(kind, mu)
        lines.append(
            f"| {mean} | {kind.distribution} | {target:g} | {point:.4g} | {now:.4g} | "
            f"{least:.4g} | {least / now:.3f} | {renyi:.4g} |"
        )
        print(lines[-1], flush=True)
    artifacts.write_text(RESULTS, "\n".join([*lines, ""]))


def gaussian(mu: float) -> Mechanism:
    return Mechanism(
        name="runs",
        released="what a run releases",
        sensitivity=1.0,
        noise_multiplier=1 / mu,
        sample_rate=1.0,
        count=1,
    )


def mu_of(epsilon: float) -> float:
    low, high = 1e-4, 20.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if accountants.gaussian_epsilon(middle, DELTA) < epsilon:
            low = middle
        else:
            high = middle
    return low


def attacked(kind: Selection, mu: float) -> float:
    """Returns the largest epsilon at which the attack's delta is above `DELTA`."""
    edges = np.linspace(-8 - mu, 8 + 2 * mu, 2001)
    one, two = np.diff(ndtr(edges)), np.diff(ndtr(edges - mu))
    places = list(itertools.product(np.linspace(-1.0, 4.0 + mu, 26), np.linspace(-5.0, 0.0, 26)))
    orders = [ranked(edges[:-1], first, second) for first, second in places]
    pairs = [(best(kind, one[order]), best(kind, two[order])) for order in orders]
    low, high = 0.0, 1.0
    while any(delta(pair, high) > DELTA for pair in pairs):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if any(delta(pair, middle) > DELTA for pair in pairs):
            low = middle
        else:
            high = middle
    return low


def ranked(x: Array, first: float, second: float) -> npt.NDArray[Any]:
    """Ranks cells, best first: those from `first` on, those below `second`, the others."""
    upper, lower = x >= first, (x < second) & (x < first)
    groups = (np.flatnonzero(upper), np.flatnonzero(lower), np.flatnonzero(~upper & ~lower))
    return np.concatenate([groups[0][::-1], groups[1], groups[2][::-1]])


def best(kind: Selection, probabilities: Array) -> Array:
    """Computes the probability of each cell, best first, to hold the best of all runs."""
    better = np.minimum(np.concatenate([[0.0], np.cumsum(probabilities)]), 1.0)
    return -np.diff(generating(kind, 1 - better))


def generating(kind: Selection, x: Array) -> Array:
    """E[x^K], but for a constant."""
    if math.isinf(kind.shape):
        return np.exp(kind.mean * (x - 1))
    gamma, shape = stopping_probability(kind), kind.shape
    inside = 1 - (1 - gamma) * x
    if shape == 0:
        return np.log(inside) / math.log(gamma)
    return (inside**-shape - 1) / (gamma**-shape - 1)


def delta(pair: tuple[Array, Array], epsilon: float) -> float:
    one, two = pair
    return float(np.maximum(one - math.exp(epsilon) * two, 0.0).sum())


NOTES = """\
Written by bench/selection_gap.py. Epsilon at delta 1e-5 of the best of a random number of runs,
each a Gaussian mechanism. `one point` is the bound E[K] delta(epsilon - c), with one offset c for
all outputs; `now` is the price; the attack is an order of outputs under which no smaller epsilon is
true; `Renyi` is Papernot and Steinke's price, by divergences."""


if __name__ == "__main__":
    main()
