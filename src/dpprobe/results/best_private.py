"""The best private result of a dataset at each epsilon, and its gap to the non-private baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dpprobe.privacy.risk import budget_token, budget_words
from dpprobe.results.cell_record import Measure
from dpprobe.results.cell_results import CellResult
from dpprobe.results.paired_difference import Comparison, compare_entries
from dpprobe.results.summary import Choice, Entry, Grid


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best private result of a dataset at one budget, selected by its test result.

    The head's epsilon does not cover the selection; `choice` has the epsilon that does. The mean of
    the best head tends to be too high (selection bias).
    """

    dataset: str
    epsilon: str  # the budget's token
    at: float  # the epsilon of the result's row in tables
    measure: Measure
    backbone: str
    method: str
    entry: Entry
    ceiling: Entry | None  # the non-private baseline on the backbone
    highest_ceiling: Entry | None  # the dataset's best non-private baseline on any backbone
    zero_shot: tuple[str, str, float] | None  # the dataset's best: backbone, metric, percent
    choice: Choice

    @property
    def budget(self) -> str:
        """The head's epsilon in words, with the permitted risk that determines it, if any."""
        return budget_words(self.head_epsilon)

    @property
    def head_epsilon(self) -> float:
        """The head's own epsilon, which may differ between heads with the same permitted risk."""
        return self.at if self.entry.epsilon is None else self.entry.epsilon

    @property
    def gap(self) -> float | None:
        return None if self.ceiling is None else self.ceiling.mean - self.entry.mean

    @property
    def beside_ceiling(self) -> Comparison | None:
        """The best private result minus the result of the non-private baseline."""
        return None if self.ceiling is None else compare_entries(self.entry, self.ceiling)


_Key = TypeVar("_Key", bound=Hashable)
_AnyResult = TypeVar("_AnyResult", Entry, CellResult)


def best_result(results: Iterable[_AnyResult]) -> _AnyResult | None:
    """Returns the result with the highest mean, the first of equal results."""
    return max(results, key=lambda result: result.mean, default=None)


def best_of_each(
    results: Iterable[_AnyResult], key: Callable[[_AnyResult], _Key]
) -> dict[_Key, _AnyResult]:
    """Maps each key to its best result (the first of equal results), in order of appearance."""
    best: dict[_Key, _AnyResult] = {}
    for result in results:
        of = key(result)
        if of not in best or result.mean > best[of].mean:
            best[of] = result
    return best


def best_ceiling(results: Iterable[_AnyResult]) -> _AnyResult | None:
    """Returns the best non-private ceiling among the results of one dataset and backbone."""
    return best_result(result for result in results if result.ceiling)


def best_private(grid: Grid, zero_shot: Mapping[tuple[str, str], tuple[str, float]]) -> list[Best]:
    """Returns the best private result of each dataset and finite epsilon, in the grid's order.

    Args:
      zero_shot: maps (dataset, backbone) to metric and percent.
    """
    private = [
        (row, column, entry)
        for row in grid.rows
        for column in grid.columns
        if (entry := grid.get(row, column)) is not None and entry.private
    ]
    best: dict[tuple[str, float], Entry] = {}
    for row, _, entry in private:
        best[row] = max(best.get(row, entry), entry, key=lambda result: result.mean)
    return [
        Best(
            dataset=dataset,
            epsilon=budget_token(epsilon),
            at=epsilon,
            measure=grid.measures[dataset],
            backbone=backbone,
            method=method,
            entry=entry,
            ceiling=best_ceiling(
                other
                for (of, _, name, _), other in grid.entries.items()
                if (of, name) == (dataset, backbone)
            ),
            highest_ceiling=best_ceiling(
                other for (of, *_), other in grid.entries.items() if of == dataset
            ),
            zero_shot=_best_zero_shot(dataset, grid.measures[dataset], zero_shot),
            choice=grid.choices[dataset, epsilon],
        )
        for (dataset, epsilon), (backbone, method), entry in private
        if entry is best[dataset, epsilon]
    ]


def _best_zero_shot(
    dataset: str, measure: Measure, zero_shot: Mapping[tuple[str, str], tuple[str, float]]
) -> tuple[str, str, float] | None:
    """Finds a dataset's best zero-shot result in the dataset's metric, otherwise in any metric."""
    results = [
        (backbone, metric, percent)
        for (of, backbone), (metric, percent) in zero_shot.items()
        if of == dataset
    ]
    comparable = [result for result in results if result[1] == measure.headline]
    return max(comparable or results, key=lambda result: result[2], default=None)


def list_best_columns(bests: Iterable[Best], dataset: str) -> list[tuple[str, str]]:
    """Lists each (backbone, method) that has the best result of a dataset at some epsilon."""
    columns = [(best.backbone, best.method) for best in bests if best.dataset == dataset]
    return list(dict.fromkeys(columns))


def choose_highlights(bests: Sequence[Best]) -> list[Best]:
    """Returns each dataset's best result at epsilon 1, or at the epsilon nearest to 1."""
    chosen: dict[str, Best] = {}
    for best in bests:
        other = chosen.get(best.dataset)
        if other is None or from_one(best.at) < from_one(other.at):
            chosen[best.dataset] = best
    return list(chosen.values())


def from_one(epsilon: float) -> float:
    """Returns the distance of an epsilon from 1 on a log scale."""
    return abs(math.log(epsilon))
