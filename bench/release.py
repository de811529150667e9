"""Release mode beside benchmark mode: the time of a fit, and whether the heads are alike.

Interleaved rounds, one thread, processor time. bench/README.md describes the measurements.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_digits

from clock import Clock, Engine, Ratio, Work
from dpprobe import artifacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SEEDED, Entropy, SystemEntropy
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from report import processor

RESULTS = Path(__file__).resolve().parent / "results" / "release.md"
ROWS, DIMENSION, CLASSES = 50_000, 768, 10
STEPS = 2000
EPSILON, DELTA = 1.0, 1e-5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method as a benchmark trains it, the same as a release does, and what is wanted."""

    name: str
    benchmark: MethodOptions
    release: MethodOptions
    wanted: float


def sgd_case(name: str, wanted: float, **values: object) -> Case:
    options = {"head": "sgd", "normalize": "l2", **values}
    benchmark, release = (
        method_options({**options, "engine": engine}) for engine in ("closed_form", "exact")
    )
    return Case(name=name, benchmark=benchmark, release=release, wanted=wanted)


CASES = (
    Case(
        name="`feature_covariance`",
        benchmark=method_options({"head": "feature_covariance", "normalize": "l2"}),
        release=method_options({"head": "feature_covariance", "normalize": "l2"}),
        wanted=2.0,
    ),
    sgd_case(f"`sgd`, batch 32, {STEPS} steps", 4.0, batch_size=32, steps=STEPS),
)
# These are timed only: the digits are too few for such batches.
LARGE = (
    sgd_case("`sgd`, batch 4096, 20 steps", 2.0, batch_size=4096, steps=20),
    sgd_case("`sgd`, full batch, 5 steps", 2.0, batch_size="full", steps=5),
)


BOUND = """A step of batch 32 reads about 13,500 random words: 5,700 for the sample and 7,800 for the noise.
[The sgd page](../../docs/methods/sgd.md#engines) says what that costs."""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--heads", type=int, default=20, help="of each kind, to compare accuracies")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        text = markdown(options.rounds, options.heads, Path(folder))
    print(text)
    if not options.no_write:
        artifacts.write_text(RESULTS, text)


def planned(method: MethodOptions, n: int, cache: Path) -> Plan:
    return calibrate(
        method.list_mechanisms(n), Target(n=n, epsilon=EPSILON, delta=DELTA), cache=cache
    )


def random_rows() -> TrainingSet:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, DIMENSION, generator=generator)
    labels = torch.randint(CLASSES, (ROWS,), generator=generator)
    return TrainingSet(features, labels, num_classes=CLASSES, device="cpu")


def markdown(rounds: int, heads: int, cache: Path) -> str:
    parts = [
        "# Release mode beside benchmark mode",
        f"{processor()}; Python {platform.python_version()}, torch "
        f"{torch.__version__.partition('+')[0]}.",
        f"## The time of a fit, {ROWS:,} x {DIMENSION}, {CLASSES} classes, one head",
        f"One thread, processor time, medians of {rounds} interleaved rounds, in brackets the "
        "lowest and the highest. Ratios of one run; times mean nothing elsewhere.",
        "\n".join(cost(rounds, cache)),
        BOUND,
        f"## Accuracies of {heads} released and {heads} benchmark heads of one plan",
        f"The digits that come with scikit-learn, 1,437 rows to train on and 360 to test, epsilon "
        f"{EPSILON:g}. Two-sample tests of the accuracies: a small p would say that the two kinds "
        "differ.",
        "\n".join(alike(heads, cache)),
    ]
    return "\n\n".join(parts) + "\n"


def cost(rounds: int, cache: Path) -> Iterator[str]:
    data, clock = random_rows(), Clock("cpu")
    yield "| | release over benchmark | wanted | the same engine, fresh words over seeded |"
    yield "|---|---|---|---|"
    for case in (*CASES, *LARGE):
        plan = planned(case.benchmark, ROWS, cache)
        kinds: tuple[tuple[MethodOptions, type[SystemEntropy] | None], ...] = (
            (case.benchmark, None),
            (case.release, SystemEntropy),
            (case.release, None),
        )
        engines = [Engine(clock.repeated(work(data, plan, *kind)), most=1) for kind in kinds]
        for engine in engines:
            engine.run(1)
        for turn in range(rounds):
            for engine in engines:
                engine.measure(turn, rounds)
        benchmark, release, seeded = engines
        ratio = Ratio.of(release, benchmark)
        met = "met" if release.median <= case.wanted * benchmark.median else "missed"
        yield (f"| {case.name} | {ratio} | {case.wanted:g}, {met} | {Ratio.of(release, seeded)} |")


def work(
    data: TrainingSet, plan: Plan, method: MethodOptions, system: type[SystemEntropy] | None
) -> Work:
    """Returns the work of one fit."""

    def fit() -> None:
        entropy: Entropy = SEEDED if system is None else system()
        fit_heads(method, data, plan, [0], entropy=entropy)

    return fit


def alike(heads: int, cache: Path) -> Iterator[str]:
    digits = load_digits()
    features = torch.from_numpy((digits.data / 16).astype(np.float32))
    labels = torch.from_numpy(digits.target.astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 0
    data = TrainingSet(features[~test], labels[~test], num_classes=10, device="cpu")
    yield "| | benchmark, mean (deviation) | release, mean (deviation) | Kolmogorov-Smirnov p | Mann-Whitney p |"  # noqa: E501
    yield "|---|---|---|---|---|"
    for case in CASES:
        plan = planned(case.benchmark, data.n, cache)
        accuracies = []
        for method, system in ((case.benchmark, False), (case.release, True)):
            values = []
            for index in range(heads):
                entropy: Entropy = SystemEntropy() if system else SEEDED
                fitted = fit_heads(
                    method, data, plan, [0 if system else index + 1], entropy=entropy
                )
                right = score_rows(fitted, features[test])[0].argmax(1) == labels[test].numpy()
                values.append(100 * float(right.mean()))
            accuracies.append(np.array(values))
        first, second = accuracies
        told = [f"{each.mean():.1f} ({each.std(ddof=1):.1f})" for each in accuracies]
        smirnov = stats.ks_2samp(first, second).pvalue
        whitney = stats.mannwhitneyu(first, second).pvalue
        yield f"| {case.name} | {told[0]} | {told[1]} | {smirnov:.2f} | {whitney:.2f} |"


if __name__ == "__main__":
    main()
