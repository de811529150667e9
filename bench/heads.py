"""Time of a DP-SGD step on a linear head: the closed form against Opacus, in one run.

The foundation-features recipe on n = 50,000 rows of d = 768 features, K = 10 classes: Poisson
batches of 32 expected rows, clipping norm 1.2. Both engines run through `dpprobe.heads.fit` on one
thread, with sampling, noise and bookkeeping; processor time, interleaved rounds, medians. Only
ratios within one run mean anything on another machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from dpprobe import artifacts, heads
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed

ROWS, DIMENSION, CLASSES = 50_000, 768, 10
# PLD's answer at epsilon 1 and delta 1e-5 for this cell's 31,250 steps.
NOISE_MULTIPLIER = 0.7524
RESULTS = Path(__file__).resolve().parent / "results" / "heads.md"

Case = tuple[str, int, int]  # engine, seeds, steps timed
CASES: tuple[Case, ...] = (
    ("closed_form", 1, 2000),
    ("closed_form", 5, 600),
    ("opacus", 1, 200),
    ("opacus", 5, 40),
)


def main() -> None:
    """Prints the table and writes it to bench/results/heads.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    data = random_data()
    for case in CASES:
        seconds_a_step(data, case)  # warm up: norms, buffers, code
    times: dict[Case, list[float]] = {case: [] for case in CASES}
    for number in range(rounds):
        for case in CASES:
            times[case].append(seconds_a_step(data, case))
        print(f"round {number + 1}/{rounds}", flush=True)
    text = table(times, rounds)
    print(text)
    artifacts.write_text(RESULTS, text)


def random_data() -> TrainingSet:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, DIMENSION, generator=generator)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    return TrainingSet(features, labels, CLASSES)


def seconds_a_step(data: TrainingSet, case: Case) -> float:
    """Processor time of one step of all the case's seeds."""
    engine, seeds, steps = case
    options = Options(engine=engine, steps=steps)
    mechanisms = tuple(item.scaled(NOISE_MULTIPLIER) for item in options.mechanisms(data.rows))
    plan = Plan(
        mechanisms=mechanisms,
        n=data.rows,
        epsilon=1.0,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=1.0,
    )
    chosen = [cell_seed("bench", index) for index in range(seeds)]
    started = time.process_time()
    heads.fit(options, data, plan, chosen)
    return (time.process_time() - started) / steps


def table(times: dict[Case, list[float]], rounds: int) -> str:
    """Markdown: each case relative to one step of one seed in closed form."""
    by_case = {case[:2]: values for case, values in times.items()}
    medians = {case: statistics.median(values) for case, values in by_case.items()}
    unit = medians["closed_form", 1]
    lines = [
        f"# DP-SGD steps at batch 32, n = {ROWS:,}, d = {DIMENSION}, K = {CLASSES}",
        "",
        "One thread, processor time, median of "
        f"{rounds} interleaved rounds; 1 is a step of one seed in closed form.",
        "",
        "| seeds | closed form | Opacus (hooks) | ratio (lowest to highest round) |",
        "|---|---|---|---|",
    ]
    for seeds in (1, 5):
        fast, slow = medians["closed_form", seeds], medians["opacus", seeds]
        both = zip(by_case["closed_form", seeds], by_case["opacus", seeds], strict=True)
        ratios = [high / low for low, high in both]
        lines.append(
            f"| {seeds} | {fast / unit:.2f} | {slow / unit:.2f} | "
            f"**{slow / fast:.1f}x** ({min(ratios):.1f} to {max(ratios):.1f}) |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
