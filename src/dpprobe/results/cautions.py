"""Sentences that keep a headline from misleading: classes never predicted, results that fall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from dpprobe.privacy.limits import epsilon_token
from dpprobe.results.best_private import Best
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.paired_difference import compare_entries
from dpprobe.results.summary import Entry, Grid

CLASSES_NAMED = 5
SENTENCES = 12  # on one dataset; the others are counted


def never_predicted(entry: Entry) -> str:
    """Writes which classes a cell never predicts; empty where it predicts all."""
    always = [name for name, seeds in entry.never.items() if seeds == entry.seeds]
    sometimes = {name: seeds for name, seeds in entry.never.items() if seeds < entry.seeds}
    parts = []
    if always:
        parts.append(f"{_join_names(always)} in {_say_seeds(entry.seeds)}")
    if sometimes:
        most = max(sometimes.values())
        bound = "" if most == min(sometimes.values()) else "up to "
        parts.append(f"{_join_names(list(sometimes))} in {bound}{most} of {entry.seeds} seeds")
    return ", and ".join(parts)


def never_predicted_lines(grid: Grid, dataset: str) -> list[str]:
    """Writes a sentence for each (backbone, method) that leaves classes out, with its epsilons."""
    lines = []
    for column in grid.columns:
        told: dict[str, list[str]] = {}
        for row in grid.rows:
            entry = grid.get(row, column)
            if row[0] == dataset and entry is not None and entry.never:
                told.setdefault(never_predicted(entry), []).append(epsilon_token(row[1]))
        lines += [
            f"{column[1]} on {column[0]} never predicts {what} (epsilon {', '.join(epsilons)})"
            for what, epsilons in told.items()
        ]
    return _limit_lines(lines)


def describe_falls(grid: Grid, bests: Sequence[Best], dataset: str) -> list[str]:
    """Writes where results fall, by more than noise, as epsilon grows.

    Of the best private results and of each (backbone, method), all pairs of epsilons are compared;
    the confidence is such that one of twenty curves without a fall is said to have one. The pair
    that lies farthest apart is told. Cells of one seed are left out: how far the noise of training
    moves them is not known.
    """
    of_dataset = [best for best in bests if best.dataset == dataset]
    lines = []
    if (
        pair := _describe_steepest([(each.epsilon, each.entry, each.luck) for each in of_dataset])
    ) and (len({(best.backbone, best.method) for best in of_dataset}) > 1):
        lines.append(f"The best private result falls {pair}")
    for backbone, method in grid.columns:
        curve = [
            (epsilon_token(row[1]), entry, 0.0)
            for row in grid.rows
            if row[0] == dataset
            and (entry := grid.get(row, (backbone, method))) is not None
            and entry.private
        ]
        if pair := _describe_steepest(curve):
            lines.append(f"{method} on {backbone} falls {pair}")
    return _limit_lines(lines)


NEVER_REMEDY = (
    "Where a rare class must be named, `balanced: true` of `head: auto` counts classes alike "
    "(docs/imbalance.md)"
)
FALL_REMEDY = (
    "More budget should not cost quality, so the smaller epsilon is not the better one: look at "
    "the recall of each class and at the method's options"
)


def _describe_steepest(curve: Sequence[tuple[str, Entry, float]]) -> str:
    """Describes the pair of epsilons between which a curve falls most; empty where it does not."""
    pairs = list(combinations([each for each in curve if each[1].seeds > 1], 2))
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(pairs))
    drops = []
    for (low, first, luck), (high, second, other_luck) in pairs:
        points = (
            compare_entries(first, second, confidence=confidence).move_by(-luck).move_by(other_luck)
        )
        if points.apart and points.difference > 0:
            means = first.mean - luck, second.mean - other_luck
            drops.append((points.difference, low, high, means))
    if not drops:
        return ""
    drop, low, high, means = max(drops)
    return (
        f"by {drop:.1f} points from epsilon {low} ({means[0]:.1f} %) to {high} ({means[1]:.1f} %), "
        "more than noise"
    )


def _limit_lines(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - SENTENCES
    return [*lines[:SENTENCES], *([f"{rest} more of this kind"] if rest > 0 else [])]


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:CLASSES_NAMED])
    return (
        shown if len(names) <= CLASSES_NAMED else f"{shown} and {len(names) - CLASSES_NAMED} more"
    )


def _say_seeds(seeds: int) -> str:
    return f"all {seeds} seeds" if seeds > 1 else "its one seed"


def list_cautions(grid: Grid, bests: Sequence[Best], dataset: str) -> Iterator[str]:
    """Yields what would mislead a reader of a dataset's results, whole sentences."""
    if lines := never_predicted_lines(grid, dataset):
        yield f"Never predicted: {'; '.join(lines)}. {NEVER_REMEDY}."
    if lines := describe_falls(grid, bests, dataset):
        yield f"Falling: {'; '.join(lines)}. {FALL_REMEDY}."
