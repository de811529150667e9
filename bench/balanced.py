"""Balanced accuracy of `head: auto` with and without `balanced`, on public long-tailed rows.

Rows of the chosen-on pairs of bench/pairs.py are thinned: of K classes in an order drawn by a seed
the i-th keeps ratio^(-i / (K - 1)) of the rows of the smallest (Cui et al. 2019). Tests stay whole,
and accuracies are means of the classes' recalls. Goes on from what is kept beside the features:

    .venv/bin/python bench/balanced.py --minutes 3
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dpprobe import artifacts
from dpprobe.heads.balance_options import released_priors
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.gaussian_mu import gaussian_mu
from pairs import PAIRS, Pair, add_files, chosen, of_classes
from pairs_rows import Features, Files
from pairs_scores import DELTA, Fit, Scores, macro, planned, run

RESULTS = Path(__file__).resolve().parent / "results" / "balanced.md"
EPSILONS = (0.5, 1.0, 2.0, 8.0)
SEEDS = range(5)
# What is tried of the counts' part of the budget, and of the floor in deviations of their noise.
SHARES, FLOORS = (0.005, 0.01, 0.02, 0.05), (0.5, 1.0, 2.0, 3.0, 5.0)
DRAWS = 4
PLAIN, KNOWN, RELEASED, PROTOTYPES = "auto", "counts known", "balanced", "prototypes"


@dataclass(frozen=True)
class Tail:
    """A pair with its classes' rows thinned.

    Attributes:
      ratio: rows of the largest class over those of the smallest; 1 leaves all rows.
      classes: those that are kept; all where empty.
    """

    pair: str
    ratio: float
    classes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        kept = "".join(f"_{label}" for label in self.classes)
        return f"{self.pair}{kept}_tail_{self.ratio:g}"


TAILS = (
    Tail("crops_two_classes", 1),
    Tail("crops_mobilenet", 10, classes=(3, 5)),
    Tail("digits_pixels", 10),
    Tail("digits_mobilenet", 10),
    Tail("digits_mobilenet", 100),
    Tail("crops_mobilenet", 10),
    Tail("crops_mobilenet", 100),
    Tail("glyphs_stage", 10),
    Tail("glyphs_stage", 100),
    Tail("gauss100", 10),
    Tail("digits_mobilenet", 1),
)


def thinned(tail: Tail, files: Files, seed: int = 0) -> Features:
    """Returns a pair's rows without most of those of most classes."""
    data = PAIRS[tail.pair].features(files)
    if tail.classes:
        data = of_classes(data, tail.classes)
    if tail.ratio == 1:
        return data
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=generator)
    classes = torch.randperm(data.classes, generator=generator).tolist()
    of_class = [order[data.train_labels[order] == label] for label in classes]
    most = min(len(rows) for rows in of_class)
    kept = [
        rows[: max(1, round(most * tail.ratio ** (-place / (data.classes - 1))))]
        for place, rows in enumerate(of_class)
    ]
    rows = torch.cat(kept).sort().values
    return data._replace(train=data.train[rows], train_labels=data.train_labels[rows])


def pair_of(tail: Tail, files: Files) -> tuple[Pair, list[int]]:
    """Returns the pair of thinned rows, and how many rows each class has."""
    data = thinned(tail, files)
    counts = torch.bincount(data.train_labels).tolist()
    base = PAIRS[tail.pair]
    pair = replace(
        base,
        name=tail.name,
        title=base.title if len(counts) == base.classes else f"{base.title}, {len(counts)} classes",
        n=len(data.train),
        classes=len(counts),
        build=lambda files, _: thinned(tail, files),
    )
    pair.features(files)  # which are kept
    return pair, counts


def fits_of(pair: Pair, counts: Sequence[int], epsilon: float, files: Files) -> list[Fit]:
    fit = partial(planned, pair, epsilon=epsilon, files=files)
    plain = fit(PLAIN, {"head": "auto"})
    known = {**plain.options.model_dump(mode="json"), "class_priors": counts}
    return [
        plain,
        fit(KNOWN, known),
        fit(RELEASED, {"head": "auto", "balanced": True}),
        fit(PROTOTYPES, {"head": "prototypes"}),
    ]


def main() -> None:
    """Trains what is missing; with all of it, writes bench/results/balanced.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_files(parser)
    parser.add_argument("--minutes", type=float, default=math.inf, help="then stop, keeping that")
    parser.add_argument("--grid", action="store_true", help="of shares and floors, not kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stop = time.monotonic() + 60 * arguments.minutes
    files, _ = chosen(arguments)
    pairs = [pair_of(tail, files) for tail in TAILS]
    fits = {
        (pair.name, epsilon): fits_of(pair, counts, epsilon, files)
        for pair, counts in pairs
        for epsilon in EPSILONS
    }
    scores = Scores(files.cache / "balanced_scores")
    every = [fit for group in fits.values() for fit in group]
    if left := run(every, files, scores, SEEDS, stop=stop):
        print(f"{left} fits are missing: run again")
        return
    grid = grid_lines(pairs, fits, files) if arguments.grid else None
    text = "\n".join([*accuracy_lines(pairs, fits, scores), *kept_grid(grid)]) + "\n"
    print(text)
    artifacts.write_text(RESULTS, text)


def accuracy_lines(
    pairs: Sequence[tuple[Pair, list[int]]],
    fits: dict[tuple[str, float], list[Fit]],
    scores: Scores,
) -> list[str]:
    names = [PLAIN, KNOWN, RELEASED, PROTOTYPES]
    lines = [
        "# Balanced accuracy where classes are rare",
        "",
        "Written by bench/balanced.py. Means of the classes' recalls in per cent, of",
        f"{len(SEEDS)} seeds, delta {DELTA:g}, on public rows thinned to long tails; tests are",
        "whole. `counts known` takes off the classes' true frequencies, for which nothing is",
        "paid; `balanced` is what `head: auto` with `balanced: true` does: it releases them.",
        "",
        f"| rows | n | largest, smallest class | epsilon | {' | '.join(names)} |",
        f"|---|---:|---:|---:|{'---:|' * len(names)}",
    ]
    means: dict[float, list[list[float]]] = {epsilon: [] for epsilon in EPSILONS}
    for pair, counts in pairs:
        for epsilon in EPSILONS:
            of = [mean_macro(scores, fit) for fit in fits[pair.name, epsilon]]
            means[epsilon].append(of)
            sizes = f"{pair.n:,} | {max(counts):,}, {min(counts):,}"
            shown = " | ".join(f"{value:.1f}" for value in of)
            lines.append(f"| {pair.title} | {sizes} | {epsilon:g} | {shown} |")
    for epsilon, rows in means.items():
        shown = " | ".join(f"{statistics.fmean(column):.1f}" for column in zip(*rows, strict=True))
        lines.append(f"| mean of all | | | {epsilon:g} | {shown} |")
    return lines


def mean_macro(scores: Scores, fit: Fit) -> float:
    values = [score.macro for score in scores.of(fit, SEEDS)]
    return statistics.fmean(value for value in values if value is not None)


def grid_lines(
    pairs: Sequence[tuple[Pair, list[int]]],
    fits: dict[tuple[str, float], list[Fit]],
    files: Files,
) -> list[str]:
    """Tries shares and floors on the plain heads, whose gradients do not pay for the share."""
    gains: dict[tuple[float, float], list[float]] = {
        (share, floor): [] for share in SHARES for floor in FLOORS
    }
    for pair, counts in pairs:
        data = pair.features(files)
        training = TrainingSet(data.train, data.train_labels, pair.classes)
        for epsilon in EPSILONS:
            plain = fits[pair.name, epsilon][0]
            heads = fit_heads(plain.options, training, plain.plan, list(SEEDS))
            scores = torch.from_numpy(score_rows(heads, data.test)).double()
            before = balanced_accuracy(scores, data.test_labels)
            for key, gain in tried(scores, data.test_labels, counts, epsilon):
                gains[key].append(gain - before)
    lines = [
        "## The counts' share of the budget, and their floor",
        "",
        "Points of balanced accuracy over the plain head's, mean (and least) of all rows of the",
        "table, by the counts' share of the budget and by the floor in standard deviations of",
        "their noise: counts below it count as it. The share's price in noise on the gradients,",
        "1 % for a share of 0.02, is left out.",
        "",
        f"| share | {' | '.join(f'floor {floor:g}' for floor in FLOORS)} |",
        f"|---|{'---|' * len(FLOORS)}",
    ]
    for share in SHARES:
        of = [gains[share, floor] for floor in FLOORS]
        shown = " | ".join(f"{statistics.fmean(each):.2f} ({min(each):.2f})" for each in of)
        lines.append(f"| {share:g} | {shown} |")
    return lines


def tried(
    scores: torch.Tensor, labels: torch.Tensor, counts: Sequence[int], epsilon: float
) -> Iterator[tuple[tuple[float, float], float]]:
    """Yields the balanced accuracy for each share and floor, mean over draws of noise."""
    generator = torch.Generator().manual_seed(1)
    shape = (DRAWS, len(scores), len(counts))
    normals = torch.randn(shape, generator=generator, dtype=torch.float64)
    for share in SHARES:
        deviation = 1 / (math.sqrt(share) * gaussian_mu(epsilon, DELTA))
        noisy = torch.tensor(counts) + deviation * normals
        for floor in FLOORS:
            logs = torch.tensor(
                [
                    [released_priors(seed, deviation, floor=floor) for seed in draw]
                    for draw in noisy.tolist()
                ],
                dtype=torch.float64,
            ).log()
            after = [balanced_accuracy(scores - each[:, None], labels) for each in logs]
            yield (share, floor), statistics.fmean(after)


def balanced_accuracy(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return 100 * statistics.fmean(macro(seed.argmax(1), labels) for seed in scores)


def kept_grid(grid: list[str] | None) -> list[str]:
    """Returns the lines of the grid, new or as they stand in the results."""
    if grid is None:
        text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        grid = text[text.index("## ") :].splitlines() if "## " in text else []
    return ["", *grid] if grid else []


if __name__ == "__main__":
    main()
