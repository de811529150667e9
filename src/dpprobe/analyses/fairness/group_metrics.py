"""Metrics of groups, on the test examples, in bootstrap samples, and for random groups.

Each row of a unit with m rows has weight 1 / m. `dpprobe.results.metrics` defines all metrics:

- AUC: one value per label; with two classes, only for the second class.
- accuracy: the share of right predictions; one value per label if rows have several labels.
- recall: the share of rows with a label for which the label is predicted; with two classes, only
  for the second class.
- calibration error: one value for all labels together; undefined for scores that are no logits.
- selection rate: the share of rows for which a label is predicted.
- true-positive rate, false-positive rate: the selection rate of rows with, or without, the label.

A group's metric is the mean over the compared labels; rates are compared label by label. If a
resample lacks rows that a label needs, the group has no value in the resample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import expit, log_softmax

from dpprobe.analyses.fairness.group_kernels import compute_areas
from dpprobe.analyses.fairness.groupings import Grouping, TestRows, Values
from dpprobe.results.metrics import CALIBRATION_BINS, THRESHOLDS, Link

Drawn = npt.NDArray[np.float32]
Ways = npt.NDArray[np.int16]

_LANES = 64  # number of resamples that are computed together, whose counts fill one cache line
_MOST = 255  # the largest count that uint8 can hold
PERMUTATIONS = 500
_ROUNDING = 1e-9  # far above rounding errors, far below the weight of a row
ROWS_AT_ONCE = 2**14  # rows (of several permutations) that are summed in one call, to fit the cache


class Resamples:
    """Bootstrap samples of all units, in blocks; the first sample has each unit once.

    Each block has its own random stream, so samples do not depend on the number of threads.
    """

    def __init__(self, units: int, resamples: int, *, seed: int, threads: int = 1) -> None:
        self.count = resamples
        self.threads = threads
        starts = range(0, resamples + 1, _LANES)
        self.blocks = [
            _draw_counts(units, min(_LANES, resamples + 1 - start), seed, start) for start in starts
        ]

    def compute_all(
        self, compute: Callable[[npt.NDArray[np.uint8]], Values]
    ) -> tuple[Values, Drawn]:
        """Applies `compute`, from counts [units, samples] to values [..., samples], to all blocks.

        Returns:
          The values for the test examples, [...], and for the resamples, [..., resamples].
        """
        with ThreadPoolExecutor(self.threads) as pool:
            parts = pool.map(compute, self.blocks)
            first = next(parts)
            drawn = np.empty((*first.shape[:-1], self.count), dtype=np.float32)
            place = first.shape[-1] - 1
            drawn[..., :place] = first[..., 1:]
            for part in parts:
                drawn[..., place : place + part.shape[-1]] = part
                place += part.shape[-1]
        return np.ascontiguousarray(first[..., 0]), drawn


def _draw_counts(units: int, lanes: int, seed: int, start: int) -> npt.NDArray[np.uint8]:
    generator = np.random.Generator(np.random.Philox([seed, start]))
    counts = np.empty((units, lanes), dtype=np.uint8)
    for lane in range(lanes):
        drawn = np.bincount(generator.integers(units, size=units), minlength=units)
        counts[:, lane] = np.minimum(drawn, _MOST)
    if start == 0:
        counts[:, 0] = 1
    return counts


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The group of each row, int32 [n], or -1 for a row in no compared group."""

    codes: npt.NDArray[np.int32]
    groups: int

    @classmethod
    def layout_groups(cls, grouping: Grouping, kept: Sequence[int]) -> Layout:
        place = np.full(len(grouping.names) + 1, -1, dtype=np.int32)  # index -1 is the last entry
        place[list(kept)] = np.arange(len(kept), dtype=np.int32)
        return cls(codes=place[grouping.codes], groups=len(kept))

    @classmethod
    def layout_whole(cls, rows: int) -> Layout:
        return cls(codes=np.zeros(rows, dtype=np.int32), groups=1)

    def in_groups(self, order: np.ndarray) -> tuple[np.ndarray, npt.NDArray[np.int64]]:
        """Returns the rows of `order` sorted by group, and the index of each group's first row."""
        codes = self.codes[order].astype(np.int16)  # NumPy sorts int16 in one pass
        sorted_rows = order[np.argsort(codes, kind="stable")]
        starts = np.searchsorted(self.codes[sorted_rows], np.arange(self.groups + 1))
        return sorted_rows[starts[0] :], (starts - starts[0]).astype(np.int64)

    def assign_blocks(self, rows: TestRows) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int16]]:
        """Returns each row's block, [n], and the group of each block.

        A block is the rows of one unit in one group. A unit may have rows in several groups, such
        as frontal and lateral images of a patient. All rows without a group form one more group.
        """
        codes = np.where(self.codes < 0, self.groups, self.codes).astype(np.int64)
        blocks, block = np.unique(rows.units * (self.groups + 1) + codes, return_inverse=True)
        return block.astype(np.int32), (blocks % (self.groups + 1)).astype(np.int16)

    def shuffle_blocks(self, rows: TestRows, seed: int) -> Ways:
        """Permutes the groups of blocks at random, int16 [permutations, blocks]."""
        generator = np.random.Generator(np.random.Philox(seed))
        _, codes = self.assign_blocks(rows)
        return generator.permuted(np.tile(codes, (PERMUTATIONS, 1)), axis=1)


@dataclass(frozen=True, kw_only=True)
class _Sum:
    """The terms of each group's sums: for each term the row, the value, and the sum's index."""

    row: np.ndarray
    place: np.ndarray
    value: np.ndarray
    places: int

    def make_matrix(self, rows: TestRows, layout: Layout) -> csr_array:
        """Makes the matrix [groups x sums, units] whose product with units' counts is the sums."""
        codes = layout.codes[self.row]
        named = codes >= 0
        place = (codes * self.places + self.place)[named]
        unit = rows.units[self.row[named]]
        shape = layout.groups * self.places, rows.count
        return csr_array((self.value[named], (place, unit)), shape=shape)

    def sum_permutations(self, block: npt.NDArray[np.int32], groups: int, ways: Ways) -> Values:
        """Returns the sums [groups, sums, permutations]; `block` has the block of each row."""
        out = np.empty((groups, self.places, len(ways)))
        blocks, width = block[self.row], (groups + 1) * self.places
        step = max(1, ROWS_AT_ONCE // max(1, len(blocks)))
        for start in range(0, len(ways), step):
            group = ways[start : start + step, blocks].astype(np.int64)
            place = group * self.places + self.place + width * np.arange(len(group))[:, None]
            value = np.broadcast_to(self.value, place.shape)
            sums = np.bincount(place.ravel(), value.ravel(), minlength=len(group) * width)
            sums = sums.reshape(-1, groups + 1, self.places)[:, :groups]
            out[:, :, start : start + step] = np.moveaxis(sums, 0, -1)
        return out


@dataclass(frozen=True, kw_only=True)
class Head:
    """The scores of one head on the test examples, [n, K], and their link to probabilities."""

    rows: TestRows
    scores: np.ndarray
    link: Link

    @property
    def metrics(self) -> tuple[str, ...]:
        several, two = self.rows.multi_label, bool(self.rows.ranked_labels)
        wanted = "sigmoid" if several else "softmax"
        names = ["auc"] * two + ["accuracy", "recall", "equalised_odds", "demographic_parity"]
        return (*names, *(["calibration_error"] * (self.link == wanted)))

    @cached_property
    def ranking_scores(self) -> np.ndarray:
        """The scores by which AUC ranks rows, one column per label, float64 [n, labels]."""
        scores = self.scores.astype(np.float64)
        return scores if self.rows.multi_label else scores[:, 1:] - scores[:, :1]

    @cached_property
    def right_predictions(self) -> npt.NDArray[np.bool_]:
        """True for right predictions: [n, K] if rows may have several labels, else [n, 1]."""
        labels = self.rows.labels
        if self.rows.multi_label:
            return np.asarray((self.scores > THRESHOLDS[self.link]) == labels)
        return np.asarray(self._predictions == labels)[:, None]

    def compute_metric(
        self, metric: str, layout: Layout, labels: Sequence[str], resamples: Resamples
    ) -> tuple[Values, Drawn]:
        """Computes a metric or rate of each group and label.

        Args:
          labels: the compared labels; ignored for calibration errors and single-label accuracy.

        Returns:
          Values for the test examples, [groups, labels], and for resamples, [groups, labels,
          resamples]; NaN if undefined.
        """
        if metric == "auc":
            parts = [resamples.compute_all(self._area_function(name, layout)) for name in labels]
            return np.stack([p[0] for p in parts], axis=1), np.stack([p[1] for p in parts], axis=1)
        matrices = [part.make_matrix(self.rows, layout) for part in self._make_sums(metric, labels)]

        def compute_ratio(counts: npt.NDArray[np.uint8]) -> Values:
            sums = (matrix @ counts.astype(np.float64) for matrix in matrices)
            return _divide_sums(
                metric, *(each.reshape(layout.groups, -1, counts.shape[1]) for each in sums)
            )

        return resamples.compute_all(compute_ratio)

    def _area_function(
        self, label: str, layout: Layout
    ) -> Callable[[npt.NDArray[np.uint8]], Values]:
        """Returns a function that computes AUCs [groups, samples] from counts [units, samples]."""
        order, starts = layout.in_groups(self._order_rows(label))
        column = self.ranking_scores[order, self.rows.ranked_labels.index(label)]
        last = np.append(column[1:] != column[:-1], True) if len(column) else np.zeros(0, bool)
        last[starts[1:][starts[1:] > 0] - 1] = True
        unit, weight = self.rows.units[order].astype(np.int32), self.rows.weights[order]
        positive = self.rows.rows_with(label)[order]

        def compute_block(counts: npt.NDArray[np.uint8]) -> Values:
            out = np.empty((layout.groups, counts.shape[1]))
            compute_areas(counts, unit, positive, last, weight, starts, out)
            return out

        return compute_block

    def compute_shuffled(
        self, metric: str, layout: Layout, labels: Sequence[str], ways: Ways
    ) -> Values:
        """Computes a metric or rate for random groups, [groups, labels, permutations].

        AUCs are averaged over labels: [groups, 1, permutations].
        """
        block, _ = layout.assign_blocks(self.rows)
        if metric != "auc":
            sums = self._make_sums(metric, labels)
            parts = (part.sum_permutations(block, layout.groups, ways) for part in sums)
            return _divide_sums(metric, *parts)
        once = np.ones((self.rows.count, 1), dtype=np.uint8)
        out = np.zeros((layout.groups, 1, len(ways)))
        for way, groups in enumerate(ways):
            codes = np.where(groups < layout.groups, groups, -1).astype(np.int32)[block]
            shuffled = Layout(codes=codes, groups=layout.groups)
            for label in labels:
                out[:, 0, way] += self._area_function(label, shuffled)(once)[:, 0] / len(labels)
        return out

    def _order_rows(self, label: str) -> np.ndarray:
        if label not in self._orders:
            column = self.ranking_scores[:, self.rows.ranked_labels.index(label)]
            self._orders[label] = np.argsort(column).astype(np.int32)
        return self._orders[label]

    @cached_property
    def _orders(self) -> dict[str, np.ndarray]:
        return {}

    def _make_sums(self, metric: str, labels: Sequence[str]) -> tuple[_Sum, ...]:
        """Returns the terms of a metric's sums, whose ratio `_divide_sums` computes."""
        rows, weights, count = self.rows, self.rows.weights, len(self.rows.labels)
        everything = np.arange(count, dtype=np.int32)
        total = _Sum(row=everything, place=0 * everything, value=weights, places=1)
        if metric == "accuracy":
            right = self.right_predictions
            if rows.multi_label:
                right = right[:, [rows.class_names.index(name) for name in labels]]
            row, place = np.indices(right.shape, dtype=np.int32).reshape(2, -1)
            value = (weights[:, None] * right).ravel()
            return _Sum(row=row, place=place, value=value, places=right.shape[1]), total
        if metric == "selection_rate":
            return self._sum_weights(map(self._predicted, labels)), total
        if metric == "false_positive_rate":
            wrong = (self._predicted(name) & ~rows.rows_with(name) for name in labels)
            return self._sum_weights(wrong), self._sum_weights(map(rows.rows_with, labels)), total
        if metric in ("recall", "true_positive_rate"):
            hits = (self._predicted(name) & rows.rows_with(name) for name in labels)
            return self._sum_weights(hits), self._sum_weights(map(rows.rows_with, labels))
        probability, outcome = self._calibrated
        edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)[1:-1]
        row = np.indices(probability.shape, dtype=np.int32)[0].ravel()
        above = _Sum(
            row=row,
            place=np.digitize(probability, edges, right=True).ravel().astype(np.int32),
            value=(weights[:, None] * (probability - outcome)).ravel(),
            places=CALIBRATION_BINS,
        )
        return above, replace(total, value=weights * probability.shape[1])

    def _sum_weights(self, masks: Iterable[npt.NDArray[np.bool_]]) -> _Sum:
        """Returns the terms of one sum per mask: the weights of the rows in the mask."""
        rows = [np.flatnonzero(mask).astype(np.int32) for mask in masks]
        row = np.concatenate([np.zeros(0, dtype=np.int32), *rows])
        place = np.repeat(np.arange(len(rows), dtype=np.int32), [len(part) for part in rows])
        return _Sum(row=row, place=place, value=self.rows.weights[row], places=len(rows))

    def _predicted(self, label: str) -> npt.NDArray[np.bool_]:
        """Returns the rows for which a label is predicted, bool [n]."""
        index = self.rows.class_names.index(label)
        if self.rows.multi_label:
            return np.asarray(self.scores[:, index] > THRESHOLDS[self.link])
        return np.asarray(self._predictions == index)

    @cached_property
    def _predictions(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def _calibrated(self) -> tuple[Values, np.ndarray]:
        """Predicted probabilities and outcomes, [n, labels]."""
        scores = self.scores.astype(np.float64)
        if self.rows.multi_label:
            return expit(scores), self.rows.labels
        return np.exp(log_softmax(scores, axis=1).max(axis=1))[:, None], self.right_predictions


def _divide_sums(metric: str, above: Values, below: Values, total: Values | None = None) -> Values:
    """Returns the ratio of sums [groups, labels, ...]; NaN if the denominator is 0.

    With `total`, the denominator is `total` minus `below`, which may be 0 but for rounding.
    """
    if metric == "calibration_error":
        above = np.abs(above).sum(axis=1, keepdims=True)
    below = np.broadcast_to(below if total is None else total - below, above.shape)
    ratio = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > _ROUNDING)
    return np.minimum(ratio, 1.0)
