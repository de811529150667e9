"""Regret of `head: auto` against the best head in hindsight, and what it is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple


class Regret(NamedTuple):
    """Points of accuracy that the best head in hindsight has over another one.

    Attributes:
      best: its name.
      points: the difference of the means over seeds.
      error: its standard error over seeds; 0 where both are the same fits.
      unbiased: the same with the best head chosen on some seeds and compared on the others, the
        mean over all ways to halve the seeds: the largest of noisy means is no longer flattered by
        the noise that made it the largest.
    """

    best: str
    points: float
    error: float
    unbiased: float


def regret(chosen: Sequence[float], heads: Mapping[str, Sequence[float]]) -> Regret:
    """Computes the regret of accuracies, seed by seed, of what was chosen.

    Args:
      chosen: accuracies in per cent, one a seed.
      heads: the same of each head, with the same seeds.
    """
    best = max(heads, key=lambda name: statistics.mean(heads[name]))
    points = statistics.mean(heads[best]) - statistics.mean(chosen)
    same = list(heads[best]) == list(chosen)
    error = 0.0 if same else math.hypot(_error(heads[best]), _error(chosen))
    return Regret(best, points, error, _on_other_seeds(chosen, heads))


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _on_other_seeds(chosen: Sequence[float], heads: Mapping[str, Sequence[float]]) -> float:
    seeds = range(len(chosen))
    sizes = {len(chosen) // 2, -(-len(chosen) // 2)} - {0, len(chosen)}
    differences = []
    for size in sizes:
        for picked in combinations(seeds, size):
            best = max(heads, key=lambda name: sum(heads[name][seed] for seed in picked))
            others = [seed for seed in seeds if seed not in picked]
            differences.append(statistics.mean(heads[best][seed] - chosen[seed] for seed in others))
    return statistics.mean(differences) if differences else math.nan
