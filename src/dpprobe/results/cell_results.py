"""Results of a study's cells, with the options of each cell, and differences of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.registry import method_options
from dpprobe.privacy.limits import delta_above
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.cell_record import REAL_ACCURACY, CellRecord, Measure, MetricSummary, read_cell
from dpprobe.results.metrics import SAME
from dpprobe.results.summary import number_budgets


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell's headline metric as a fraction, with its options and number of training units.

    Attributes:
      values: the metric of each seed.
      low, high: ends of the metric's 95% interval; None without an interval.
      real: the accuracy against the reassessed labels of ImageNet (ReaL, Beyer et al. 2020), or
        None.
      network: True if a part of the backbone was trained.
      unpriced: True at a finite epsilon if a search not covered by epsilon chose the options.
      seconds: the time to train all seeds; None if it would reveal a random number of trials.
    """

    dataset: str
    backbone: str
    method: str
    epsilon: float
    head: str
    private: bool
    ceiling: bool
    measure: Measure
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    delta: float | None
    options: Mapping[str, Any]
    train_rows: int
    n: int
    dimension: int
    seconds: float | None
    real: MetricSummary | None = None
    network: bool = False
    unpriced: bool = False

    @property
    def place(self) -> tuple[str, str, float]:
        return self.dataset, self.backbone, self.epsilon

    @property
    def percent(self) -> tuple[float, float | None, float | None]:
        """The mean, and the ends of its 95% interval, in percent."""
        low, high = (None if end is None else 100 * end for end in (self.low, self.high))
        return 100 * self.mean, low, high

    @property
    def base_options(self) -> Mapping[str, Any]:
        """The options of the trained head, also if a search or `auto` chose them."""
        named = self.options.get("base") or self.options.get("chosen")
        trained: Mapping[str, Any] = named or self.options
        return trained

    @property
    def delta_above(self) -> bool:
        return self.delta is not None and delta_above(self.delta, self.n)

    @property
    def batch_size(self) -> int | None:
        """Expected units per gradient step; None for a head without steps."""
        size = self.base_options.get("batch_size")
        return self.n if size == "full" else size

    @property
    def epochs(self) -> float | None:
        """Expected passes over the data; None for networks, or without steps."""
        visited = self.visited_rows
        return None if visited is None else visited / (len(self.values) * self.train_rows)

    @property
    def visited_rows(self) -> float | None:
        """Expected number of rows in all gradient steps; None for networks, or without steps."""
        options = method_options(self.options).trained_head
        if not isinstance(options, GradientOptions) or options.tunes_network:
            return None
        units = len(self.values) * options.step_count(self.n) * options.expected_batch_size(self.n)
        return float(units) * (self.train_rows / self.n)


def read_cell_results(paths: Iterable[Path]) -> list[CellResult]:
    """Reads results of cells; raises DataError if a `metrics.json` is missing or invalid."""
    records = [read_cell(path) for path in paths]
    epsilons = number_budgets(records)
    return [
        _cell_result(record, epsilons[record.cell.dataset, record.cell.epsilon])
        for record in records
    ]


def _cell_result(record: CellRecord, epsilon: float) -> CellResult:
    cell, summary = record.cell, record.summary[record.headline]
    return CellResult(
        dataset=cell.dataset,
        backbone=cell.backbone,
        method=cell.method,
        epsilon=epsilon,
        head=record.head,
        private=record.guaranteed,
        ceiling=record.is_ceiling,
        measure=record.measure,
        values=tuple(seed[record.headline] for seed in record.seeds),
        mean=summary.mean,
        low=summary.low,
        high=summary.high,
        delta=record.delta,
        options=record.options,
        train_rows=record.rows.train,
        n=record.n,
        dimension=record.dimension,
        seconds=record.seconds,
        real=record.summary.get(REAL_ACCURACY),
        network=record.tunes_network,
        unpriced=record.private and cell.promises and not record.guaranteed,
    )


def compare_means(base: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Computes mean(other) - mean(base), and half the width of its 95% interval (Welch's t).

    The half width is None if `base` or `other` has one value, or neither varies beyond rounding.
    """
    first, second = np.asarray(base, dtype=np.float64), np.asarray(other, dtype=np.float64)
    gap = float(second.mean() - first.mean())
    if len(first) < 2 or len(second) < 2 or max(np.ptp(first), np.ptp(second)) <= SAME:
        return gap, None
    parts = [values.var(ddof=1) / len(values) for values in (first, second)]
    spread = sum(parts)
    freedom = spread**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    return gap, float(stdtrit(freedom, (1 + CONFIDENCE) / 2) * spread**0.5)
