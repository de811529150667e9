"""What a study comes down to: the best private result, and how far it is from the ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dpprobe.privacy.limits import epsilon_token, epsilon_value
from dpprobe.results.record import Measure
from dpprobe.results.summary import Entry, Grid


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
    zero_shot: tuple[str, str, float] | None  # backbone, metric, percent: the dataset's best

    @property
    def gap(self) -> float | None:
        """Percentage points below the ceiling."""
        return None if self.ceiling is None else self.ceiling.mean - self.entry.mean


class _Result(Protocol):
    @property
    def mean(self) -> float: ...
    @property
    def ceiling(self) -> bool: ...


_AnyResult = TypeVar("_AnyResult", bound=_Result)


def best_ceiling(results: Iterable[_AnyResult]) -> _AnyResult | None:
    """The best non-private ceiling among the results of one dataset and backbone."""
    ceilings = [result for result in results if result.ceiling]
    return max(ceilings, key=lambda result: result.mean, default=None)


def best_private(grid: Grid, zero_shot: Mapping[tuple[str, str], tuple[str, float]]) -> list[Best]:
    """The best private result of each dataset and finite epsilon, in the order of the grid.

    Args:
      zero_shot: metric and percent of each (dataset, backbone).
    """
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
        found.append(
            Best(
                dataset=dataset,
                epsilon=epsilon_token(epsilon),
                measure=grid.measures[dataset],
                backbone=backbone,
                method=method,
                entry=private[backbone, method],
                ceiling=best_ceiling(
                    entry
                    for (of, _, name, _), entry in grid.entries.items()
                    if (of, name) == (dataset, backbone)
                ),
                zero_shot=_best_zero_shot(dataset, grid.measures[dataset], zero_shot),
            )
        )
    return found


def _best_zero_shot(
    dataset: str, measure: Measure, zero_shot: Mapping[tuple[str, str], tuple[str, float]]
) -> tuple[str, str, float] | None:
    """The best of a dataset in its own metric; in another only where none has its own."""
    own = [(name, *found) for (of, name), found in zero_shot.items() if of == dataset]
    own = [found for found in own if found[1] == measure.headline] or own
    return max(own, key=lambda found: found[2], default=None)


def highlights(bests: Sequence[Best]) -> list[Best]:
    """The results at the top of the page: of one dataset all, of several each at one epsilon.

    That is 1, or the nearest to it.
    """
    if len({best.dataset for best in bests}) == 1:
        return list(bests)
    chosen: dict[str, Best] = {}
    for best in bests:
        other = chosen.get(best.dataset)
        if other is None or from_one(best.epsilon) < from_one(other.epsilon):
            chosen[best.dataset] = best
    return list(chosen.values())


def from_one(epsilon: str) -> float:
    """How far an epsilon, as cells are named by it, is from 1 on a logarithmic scale."""
    return abs(math.log(epsilon_value(epsilon)))
