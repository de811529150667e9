"""Measures heads of growing data: `bench/results/cohorts.md` and `docs/images/cohorts.png`.

    python bench/cohorts.py [--seeds 5] [--epsilon 2]

MNIST pixels arrive in twelve months of 1,000 images. Each month's head is tested on the same 10,000
images. Every image has one total epsilon for all twelve heads. Four ways to spend it:

- train again on all images so far, with a twelfth of the budget (mu^2);
- add each month's released sums (`cohort`);
- a binary tree of months, which dpprobe does not offer. Trained here is the head of all images so
  far, with the noise of the tree's total;
- a square-root factorisation (`cohort` with `horizon: 12`).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt

from calibration import read_mnist_rows
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.running_sums import Cohort, Factorisation, RunningSums
from dpprobe.privacy.target import Target

ROOT = Path(__file__).resolve().parents[1]
RESULTS, FIGURE = ROOT / "bench/results/cohorts.md", ROOT / "docs/images/cohorts.png"
MONTHS, PER_MONTH, CLASSES, DELTA = 12, 1000, 10, 1e-5
WAYS = ("train again", "binary tree", "add sums", "horizon")
HEADS = ("least_squares", "feature_covariance")
OF_SUMS = ("least_squares",)  # gradients, which follow from weights, have no tree
SHOWN = (1, 2, 3, 6, 9, 12)

Array = npt.NDArray[Any]


def plan_of(options: MethodOptions, n: int, epsilon: float, noise: float = 1.0) -> Plan:
    """Plans a head at a total epsilon, with its noise multiplied."""
    with tempfile.TemporaryDirectory() as cache:
        plan = calibrate(
            options.list_mechanisms(n), Target(n=n, epsilon=epsilon, delta=DELTA), cache=Path(cache)
        )
    return replace(plan, mechanisms=tuple(each.scale_noise(noise) for each in plan.mechanisms))


def fit(
    options: MethodOptions, rows: tuple[Array, Array], plan: Plan, seed: int,
    running: RunningSums | None = None,
) -> Any:  # fmt: skip
    data = TrainingSet(torch.from_numpy(rows[0]), torch.from_numpy(rows[1]), CLASSES)
    return fit_heads(options, data, plan, [seed], running=running)


def noise_of(way: str, month: int) -> float:
    """Returns the noise of a month's total, over one release with the whole budget."""
    if way == "train again":
        return math.sqrt(MONTHS)
    levels = MONTHS.bit_length()  # nodes above a month
    return math.sqrt(levels * month.bit_count())


def run_chain(
    options: MethodOptions, rows: tuple[Array, Array], horizon: int | None, epsilon: float,
    seed: int,
) -> list[Any]:  # fmt: skip
    kept: list[Cohort] = []
    heads = []
    plan = plan_of(options, PER_MONTH, epsilon)
    for month in range(MONTHS):
        part = slice(month * PER_MONTH, (month + 1) * PER_MONTH)
        running = RunningSums(
            Factorisation.make(horizon), kept, names=options.running_sums or (), n=PER_MONTH
        )
        new = rows[0][part].copy(), rows[1][part].copy()
        heads.append(fit(options, new, plan, 100 * seed + month, running))
        kept.append(running.make_cohort(heads[-1].weights[0]))
    return heads


def run_again(
    options: MethodOptions, rows: tuple[Array, Array], way: str, epsilon: float, seed: int
) -> list[Any]:
    heads = []
    for month in range(1, MONTHS + 1):
        n = month * PER_MONTH
        plan = plan_of(options, n, epsilon, noise_of(way, month))
        heads.append(fit(options, (rows[0][:n].copy(), rows[1][:n].copy()), plan, seed))
    return heads


def measure(head: str, data: Sequence[Array], epsilon: float, seeds: int) -> dict[str, Array]:
    """Returns accuracies in percent by way, [seeds, months]."""
    options = method_options({"head": head, "normalize": "l2"})
    features, labels, tests, wanted = data
    ways = [way for way in WAYS if head in OF_SUMS or way != "binary tree"]
    out: dict[str, list[list[float]]] = {way: [] for way in ways}
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(labels))[: MONTHS * PER_MONTH]
        rows = features[chosen], labels[chosen]
        for way in ways:
            if way in ("add sums", "horizon"):
                horizon = MONTHS if way == "horizon" else None
                heads = run_chain(options, rows, horizon, epsilon, seed)
            else:
                heads = run_again(options, rows, way, epsilon, seed)
            scores = [score_rows(each, tests)[0].argmax(1) for each in heads]
            out[way].append([100 * float((each == wanted).mean()) for each in scores])
        print(f"{head}: seed {seed + 1} of {seeds}", flush=True)
    return {way: np.array(values) for way, values in out.items()}


def write_results(measured: dict[str, dict[str, Array]], epsilon: float, seeds: int) -> None:
    factorisation = Factorisation.make(MONTHS)
    lines = [
        "# Heads of growing data", "",
        f"`python bench/cohorts.py --epsilon {epsilon:g} --seeds {seeds}`: MNIST pixels, "
        f"{MONTHS} months of {PER_MONTH:,} images, total epsilon {epsilon:g} at delta {DELTA:g} "
        f"for every image, mean accuracy (%) of {seeds} seeds ± standard deviation on 10,000 test "
        "images.", "",
    ]  # fmt: skip
    for head, ways in measured.items():
        lines += [f"## {head}", "", "| way | " + " | ".join(f"month {m}" for m in SHOWN) + " |"]
        lines += ["|---|" + "---:|" * len(SHOWN)]
        for way, values in ways.items():
            cells = [
                f"{values[:, m - 1].mean():.1f} ± {values[:, m - 1].std(ddof=1):.1f}" for m in SHOWN
            ]
            lines.append(f"| {way} | {' | '.join(cells)} |")
        lines.append("")
    lines += [
        "## Noise of the running total", "",
        "Standard deviation, over one release with the whole budget.", "",
        "| way | " + " | ".join(f"month {m}" for m in SHOWN) + " |",
        "|---|" + "---:|" * len(SHOWN),
    ]  # fmt: skip
    rows = {way: [noise_of(way, m) for m in SHOWN] for way in WAYS[:2]}
    rows["add sums"] = [Factorisation.make(None).noise_growth(m) for m in SHOWN]
    rows["horizon"] = [factorisation.noise_growth(m) for m in SHOWN]
    lines += [f"| {way} | {' | '.join(f'{v:.2f}' for v in row)} |" for way, row in rows.items()]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_figure(measured: dict[str, dict[str, Array]], epsilon: float) -> None:
    figure, axes = plt.subplots(
        1, len(measured), figsize=(9, 3.4), sharey=True, layout="constrained"
    )
    months = np.arange(1, MONTHS + 1)
    for axis, (head, ways) in zip(axes, measured.items(), strict=True):
        for number, way in enumerate(WAYS):
            if way in ways:
                axis.plot(
                    months,
                    ways[way].mean(0),
                    f"C{number}{'o^sD'[number]}-",
                    label=way,
                    markersize=4,
                )
        axis.set(title=head, xlabel="month", xticks=months)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"test accuracy (%), total ε = {epsilon:g}")
    axes[0].legend(loc="lower right")
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=2.0)
    arguments = parser.parse_args()
    data = [*read_mnist_rows("train"), *read_mnist_rows("test")]
    measured = {head: measure(head, data, arguments.epsilon, arguments.seeds) for head in HEADS}
    write_results(measured, arguments.epsilon, arguments.seeds)
    draw_figure(measured, arguments.epsilon)


if __name__ == "__main__":
    main()
