"""What a study comes down to: the best private result, and how far it is from the ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpprobe.config import epsilon_token, epsilon_value
from dpprobe.summary import Entry, Grid, Measure


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best private result of a dataset at one epsilon."""

    dataset: str
    epsilon: str
    measure: Measure
    backbone: str
    method: str
    entry: Entry
    ceiling: Entry | None  # of the same backbone
    zero_shot: tuple[str, float] | None  # backbone, percent: the best of the dataset

    @property
    def gap(self) -> float | None:
        """Percentage points below the ceiling."""
        return None if self.ceiling is None else self.ceiling.mean - self.entry.mean


def best_private(grid: Grid, zero_shot: Mapping[tuple[str, str], float]) -> list[Best]:
    """The best private result of each dataset and finite epsilon, in the order of the grid."""
    found = []
    for dataset, epsilon in grid.rows:
        private = {
            column: entry
            for column in grid.columns
            if (entry := grid.get((dataset, epsilon), column)) is not None and entry.private
        }
        if not private:
            continue
        backbone, method = max(private, key=lambda column: private[column].mean)
        own = {name: value for (of, name), value in zero_shot.items() if of == dataset}
        best = max(own, key=lambda name: own[name]) if own else None
        found.append(
            Best(
                dataset=dataset,
                epsilon=epsilon_token(epsilon),
                measure=grid.measures[dataset],
                backbone=backbone,
                method=method,
                entry=private[backbone, method],
                ceiling=_ceiling(grid, dataset, backbone),
                zero_shot=None if best is None else (best, own[best]),
            )
        )
    return found


def _ceiling(grid: Grid, dataset: str, backbone: str) -> Entry | None:
    """The best non-private ceiling of a backbone."""
    entries = [
        entry
        for column in grid.columns
        if column[0] == backbone
        and (entry := grid.get((dataset, math.inf), column)) is not None
        and entry.ceiling
    ]
    return max(entries, key=lambda entry: entry.mean, default=None)


def highlights(bests: Sequence[Best]) -> list[Best]:
    """The results at the top of the page: of one dataset all, of several each at one epsilon.

    That is 1, or the nearest to it.
    """
    if len({best.dataset for best in bests}) == 1:
        return list(bests)
    chosen: dict[str, Best] = {}
    for best in bests:
        other = chosen.get(best.dataset)
        if other is None or _distance(best) < _distance(other):
            chosen[best.dataset] = best
    return list(chosen.values())


def _distance(best: Best) -> float:
    return abs(math.log(epsilon_value(best.epsilon)))
