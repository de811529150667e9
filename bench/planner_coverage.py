"""Holds the planner's range against what bench/accuracy.py measured on a pair."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from dpprobe import artifacts
from dpprobe.planner.predict import Setting, predict

RESULTS = Path(__file__).resolve().parent / "results" / "planner_coverage.md"
HEAD = "auto"
CEILING = "nonprivate"


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


def report_coverage(cache: Path, pairs: Sequence[str], delta: float) -> str:
    """Writes the table of pairs and epsilons, and the part of fits within the range."""
    results = [held for pair in pairs for held in held_results(cache, pair, delta)]
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


def held_results(cache: Path, pair: str, delta: float) -> list[Held]:
    """Reads a pair's scores; none where `auto` or the ceiling was not run."""
    path = cache / "scores" / f"{pair}.jsonl"
    if not path.exists():
        print(f"{path}: not there; write it by bench/accuracy.py", flush=True)
        return []
    scores = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    scores = [score for score in scores if score["accuracy"] is not None]
    with safe_open(cache / f"{pair}.safetensors", framework="pt") as opened:
        n, dimension = opened.get_slice("train").get_shape()
        labels = opened.get_tensor("test_labels")
    classes = int(labels.max()) + 1
    ceilings = [score["accuracy"] / 100 for score in scores if score["head"] == CEILING]
    measured: dict[float, list[float]] = {}
    for score in scores:
        if score["head"] == HEAD and score["epsilon"] != "inf":
            measured.setdefault(float(score["epsilon"]), []).append(score["accuracy"] / 100)
    if not ceilings or not measured:
        print(f"{pair}: {HEAD} or {CEILING} was not run; run bench/accuracy.py", flush=True)
        return []
    results = []
    for epsilon, accuracies in sorted(measured.items()):
        setting = Setting(n=n, dimension=dimension, classes=classes, epsilon=epsilon, delta=delta)
        kept = predict(setting)
        results.append(
            Held(
                pair=pair,
                setting=setting,
                range=kept.accuracy(chance=1 / classes, ceiling=statistics.mean(ceilings)),
                accuracies=tuple(accuracies),
            )
        )
    return results
