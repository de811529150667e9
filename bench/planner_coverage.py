"""Holds the planner's range against what bench/accuracy.py measured on a pair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe import artifacts
from dpprobe.planner.predicted_accuracy import Setting, predict
from pairs import PAIRS, Pair
from pairs_rows import CHECKPOINT, CIFAR10, Files
from pairs_scores import DELTA, Fit, Scores, planned

RESULTS = Path(__file__).resolve().parent / "results" / "planner_coverage.md"
HEAD = "auto"
CEILING = "nonprivate"
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Held:
    """A pair and epsilon: the range, and the accuracy of each seed, as fractions."""

    pair: str
    setting: Setting
    range: tuple[float, float, float]
    accuracies: tuple[float, ...]

    @property
    def inside(self) -> float:
        low, _, high = self.range
        return statistics.mean(low <= accuracy <= high for accuracy in self.accuracies)


def report_coverage(cache: Path, pairs: Sequence[str]) -> str:
    """Writes the table of pairs and epsilons, and the part of fits within the range."""
    files = Files(cache=cache, checkpoint=CHECKPOINT, cifar10=CIFAR10, features=None)
    scores = Scores(cache / "scores")
    results = [held for pair in pairs for held in held_results(PAIRS[pair], files, scores)]
    lines = [
        "# The planner's range against what was measured",
        "",
        "Written by bench/learning_curves.py --coverage from the scores of bench/accuracy.py: test "
        f"accuracy in per cent of `{HEAD}`, the mean over seeds, beside the range predicted from "
        f"n, d, K, epsilon and the accuracy of `{CEILING}`.",
        "",
        "| pair | n | d | K | epsilon | predicted | measured | fits within |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for held in results:
        low, expected, high = (100 * value for value in held.range)
        setting = held.setting
        lines.append(
            f"| {held.pair} | {setting.n:,} | {setting.dimension:,} | {setting.classes} | "
            f"{setting.epsilon:g} | {expected:.1f} ({low:.1f} to {high:.1f}) | "
            f"{100 * statistics.mean(held.accuracies):.1f} | {held.inside:.0%} |"
        )
    if results:
        part = statistics.mean(held.inside for held in results)
        errors = [abs(statistics.mean(held.accuracies) - held.range[1]) for held in results]
        lines += [
            "",
            f"Within the range: {part:.0%} of fits, by intent 80 %. Mean distance from what was "
            f"expected: {100 * statistics.mean(errors):.1f} points.",
        ]
    text = "\n".join([*lines, ""])
    artifacts.write_text(RESULTS, text)
    return text


def held_results(pair: Pair, files: Files, scores: Scores) -> list[Held]:
    """Returns the range and the accuracies of each epsilon at which `auto` was run.

    `auto` has the scores of the head that it chose, so they are looked up as bench/accuracy.py
    does, with today's code.
    """
    if not pair.path(files).exists():
        print(f"{pair.path(files)}: not there; write it by bench/pairs.py", flush=True)
        return []
    ceilings = accuracies(scores, planned(pair, CEILING, {"head": CEILING}, math.inf, files))
    results = []
    for epsilon in pair.epsilons:
        measured = accuracies(scores, planned(pair, HEAD, {"head": HEAD}, epsilon, files))
        if not ceilings or not measured:
            print(
                f"{pair.name}, epsilon {epsilon:g}: {HEAD} or {CEILING} was not run with this "
                "code; run bench/accuracy.py",
                flush=True,
            )
            continue
        setting = Setting(
            n=pair.n, dimension=pair.dimension, classes=pair.classes, epsilon=epsilon, delta=DELTA
        )
        expected = predict(setting).accuracy(
            chance=1 / pair.classes, ceiling=statistics.mean(ceilings)
        )
        results.append(
            Held(pair=pair.name, setting=setting, range=expected, accuracies=tuple(measured))
        )
    return results


def accuracies(scores: Scores, fit: Fit) -> list[float]:
    """Returns the accuracies of a fit that are there, as fractions."""
    known = (score.accuracy for score in scores.of(fit, range(SEEDS)))
    return [accuracy / 100 for accuracy in known if accuracy is not None]
