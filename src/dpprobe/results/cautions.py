"""Warnings about classes that are never predicted, and about weak non-private baselines.

A non-private baseline is weak if another head trained without noise is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from dpprobe.privacy.risk import budget_words
from dpprobe.results.best_private import best_ceiling, best_result
from dpprobe.results.summary import Entry, Grid

CLASSES_NAMED = 5
WEAK_BASELINE = 1.0  # percentage points
SENTENCES = 12  # the largest number of clauses per dataset; further clauses are only counted


def never_predicted(entry: Entry) -> str:
    always = [name for name, seeds in entry.never.items() if seeds == entry.seeds]
    sometimes = {name: seeds for name, seeds in entry.never.items() if seeds < entry.seeds}
    parts = []
    if always:
        seeds = f"all {entry.seeds} seeds" if entry.seeds > 1 else "its one seed"
        parts.append(f"{_join_names(always)} in {seeds}")
    if sometimes:
        most = max(sometimes.values())
        bound = "" if most == min(sometimes.values()) else "up to "
        parts.append(f"{_join_names(list(sometimes))} in {bound}{most} of {entry.seeds} seeds")
    return ", and ".join(parts)


def never_predicted_lines(
    grid: Grid, dataset: str, columns: Iterable[tuple[str, str]], *, balanced: bool
) -> list[str]:
    """Writes one clause per (backbone, method) and set of classes that are never predicted.

    `balanced` selects heads that balance class frequencies, or all other heads.
    """
    lines = []
    for column in columns:
        told: dict[str, list[str]] = {}
        for row in grid.rows:
            entry = grid.get(row, column)
            if row[0] != dataset or entry is None or entry.balanced != balanced:
                continue
            if entry.never:
                told.setdefault(never_predicted(entry), []).append(
                    budget_words(entry.epsilon or row[1])
                )
        lines += [
            f"{what} by {column[1]} on {column[0]} (ε = {', '.join(epsilons)})"
            for what, epsilons in told.items()
        ]
    rest = len(lines) - SENTENCES
    return [*lines[:SENTENCES], *([f"{rest} more of this kind"] if rest > 0 else [])]


def never_remedy(*, balanced: bool) -> str:
    if balanced:
        return (
            "This head is class-balanced already: only more images of the class or a larger ε can "
            "help (docs/imbalance.md)"
        )
    return "If the class is rare, `balanced: true` with `head: auto` can help (docs/imbalance.md)"


def weak_baseline_lines(grid: Grid, dataset: str) -> list[str]:
    """Lists backbones whose non-private baseline is below another head trained without noise."""
    lines = []
    for backbone in dict.fromkeys(name for name, _ in grid.columns):
        at_inf = {
            method: entry
            for (of, epsilon, name, method), entry in grid.entries.items()
            if (of, name) == (dataset, backbone) and math.isinf(epsilon) and not entry.network
        }
        ceiling = best_ceiling(at_inf.values())
        best = best_result(at_inf.values())
        if ceiling is None or best is None or best.mean - ceiling.mean < WEAK_BASELINE:
            continue
        method = next(name for name, entry in at_inf.items() if entry is best)
        lines.append(
            f"On {backbone} the non-private baseline ({ceiling.mean:.1f}%) is below {method} "
            f"without noise ({best.mean:.1f}%): it is a reference, not an upper bound"
        )
    return lines


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:CLASSES_NAMED])
    return (
        shown if len(names) <= CLASSES_NAMED else f"{shown} and {len(names) - CLASSES_NAMED} more"
    )


def list_cautions(
    grid: Grid, dataset: str, *, columns: Iterable[tuple[str, str]] | None = None
) -> Iterator[str]:
    """Yields warnings about a dataset's results, for some (backbone, method) pairs or for all."""
    columns = list(grid.columns if columns is None else columns)
    for balanced in (False, True):
        if lines := never_predicted_lines(grid, dataset, columns, balanced=balanced):
            yield f"Never predicted: {'; '.join(lines)}. {never_remedy(balanced=balanced)}."
    if lines := weak_baseline_lines(grid, dataset):
        yield f"{'; '.join(lines)}."
