"""Percentile bootstraps of test metrics, which resample rows, or units with all their rows.

A unit's rows, such as the images of a patient, resemble each other and are drawn together.
Each of a unit's m rows has weight 1 / m, so that each drawn unit counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from scipy.sparse import csr_array

CONFIDENCE = 0.95
RESAMPLES = 2000
BLOCK_BYTES = 8 * 2**20  # a block of resamples fits into the processor's cache


def _percentile_ends(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))


class Drawable(Protocol):
    """A metric that can be computed on resampled units."""

    def draw_metric(self, counts: np.ndarray) -> np.ndarray:
        """Computes the metric per resample, NaN if undefined; `counts` is [units, resamples]."""
        ...


def bootstrap_intervals(
    drawable: Mapping[str, Drawable], units: int, *, seed: int
) -> dict[str, tuple[float, float]]:
    """Computes percentile intervals over resamples of the original size.

    All metrics share the resamples. A resample counts how often each unit was drawn.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in drawable}
    block = max(1, BLOCK_BYTES // (4 * units))
    for start in range(0, RESAMPLES, block):
        counts = np.empty((units, min(block, RESAMPLES - start)), dtype=np.float32)
        for column in range(counts.shape[1]):
            counts[:, column] = np.bincount(generator.integers(units, size=units), minlength=units)
        for name, metric in drawable.items():
            drawn[name].append(metric.draw_metric(counts))
    joined = {name: np.concatenate(parts) for name, parts in drawn.items()}
    defined = {name: values[np.isfinite(values)] for name, values in joined.items()}
    return {name: _percentile_ends(values) for name, values in defined.items() if len(values)}


class Share:
    """The share of right predictions per unit, averaged over units."""

    def __init__(self, right: np.ndarray, units: np.ndarray, weights: np.ndarray) -> None:
        shares = right.mean(axis=1) if right.ndim == 2 else right
        self._means = np.bincount(units, weights=weights * shares)

    def draw_metric(self, counts: np.ndarray) -> np.ndarray:
        return np.asarray(self._means @ counts / len(self._means))


class Recalls:
    """The mean recall of the classes that occur in a resample."""

    def __init__(
        self, labels: np.ndarray, correct: np.ndarray, units: np.ndarray, weights: np.ndarray
    ) -> None:
        shape = int(labels.max()) + 1, int(units.max()) + 1
        self._rows = csr_array((weights, (labels, units)), shape=shape)
        self._right = csr_array((weights * correct, (labels, units)), shape=shape)

    def draw_metric(self, counts: np.ndarray) -> np.ndarray:
        rows, right = self._rows @ counts, self._right @ counts
        recall = np.divide(right, rows, out=np.full(rows.shape, np.nan), where=rows > 0)
        return _mean_defined(recall)


class Areas:
    """The mean AUC of the labels that occur with both values in a resample."""

    def __init__(self, runs: Sequence[Runs]) -> None:
        self._runs = runs

    def draw_metric(self, counts: np.ndarray) -> np.ndarray:
        return _mean_defined([run.compute_areas(counts) for run in self._runs])


def _mean_defined(areas: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Returns the mean over labels or classes, ignoring NaN: [resamples]."""
    total = np.sum([np.nan_to_num(area) for area in areas], axis=0)
    count = np.sum([np.isfinite(area) for area in areas], axis=0)
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


class Runs:
    """Computes one label's AUC for many resamples, from test examples sorted by score.

    Neighbouring rows that all have the label form one run. An AUC needs only the number of rows per
    run, and the number of rows without the label that score below the run. A run also ends at a tie
    with a row without the label, because a tie counts half. Each row counts with its weight, times
    how often its unit was drawn.
    """

    def __init__(
        self, scores: np.ndarray, positive: np.ndarray, units: np.ndarray, weights: np.ndarray
    ) -> None:
        order = np.lexsort((positive, scores))  # of equal scores, rows without the label first
        ranked, present = scores[order], positive[order]
        steps = ranked[1:] != ranked[:-1]
        group = np.append(0, np.cumsum(steps))
        share = np.bincount(group, weights=present) / np.bincount(group)
        mixed = ((share > 0) & (share < 1))[group]
        cut = (present[1:] != present[:-1]) | (steps & (mixed[1:] | mixed[:-1]))
        starts = np.append(True, cut) & present
        run = np.cumsum(starts)  # the run of a row with the label, counted from 1
        count = int(run[-1])
        shape = count, int(units.max()) + 1
        unit, weight = units[order], weights[order]
        self._gained = _sparse_matrix(run[present] - 1, unit[present], weight[present], shape)
        # A row without the label is between two runs; its score is below the second run's scores.
        between = ~present & (run < count)
        self._below = _sparse_matrix(run[between], unit[between], weight[between], shape)
        tied = between & mixed
        self._tied = (
            _sparse_matrix(run[tied], unit[tied], weight[tied], shape) if tied.any() else None
        )
        self._misses = np.bincount(units, weights=weights * ~positive)

    def compute_areas(self, counts: np.ndarray) -> np.ndarray:
        """Computes the AUC of each resample, [resamples]; see `Drawable.draw_metric`.

        The AUC is NaN if all rows of a resample have the label, or no row has the label.
        """
        gained = self._gained @ counts
        beaten = np.cumsum(self._below @ counts, axis=0, dtype=np.float64)
        if self._tied is not None:
            beaten -= (self._tied @ counts) / 2
        wins = np.einsum("ij,ij->j", gained, beaten)
        hits = gained.sum(axis=0, dtype=np.float64)
        pairs = hits * (self._misses @ counts)
        return np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _sparse_matrix(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]
) -> csr_array:
    """Makes a sparse matrix; rows must be sorted."""
    starts = np.searchsorted(rows, np.arange(shape[0] + 1))
    return csr_array((values, columns, starts), shape=shape)
