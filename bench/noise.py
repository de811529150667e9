"""Time of a draw of exact noise beside other noise, and its law over 1e8 draws, in one run.

One thread, processor time, interleaved rounds. bench/README.md describes the measurements.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from clock import Clock, Engine, Ratio, Work, number
from dpprobe import artifacts
from dpprobe.privacy.gradient_noise import GaussianNoise
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.rounded_gaussian import BLOCK, RoundedGaussian
from report import processor

RESULTS = Path(__file__).resolve().parent / "results" / "noise.md"
NUMBERS = 1 << 20
STEPS = 16
SECONDS = 0.25
DRAWS = 100_000_000
DEVIATIONS = {"1": 1.0, "7.5": 7.5, "2^20": 2.0**20, "2^40": 2.0**40, "2^48": 2.0**48}
USUAL = "2^20"
INTERVALS = 4096
THRESHOLDS = (3.0, 4.0, 4.5, 5.0, 5.5)
LAGS = (1, 2, 3, 8, 16, 32, 1024, BLOCK)
NUMPY = "NumPy's normal, float64 (SFC64)"
KEYSTREAM = "the keystream alone (AES-256 in counter mode, a word a draw)"
WANTED_NS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the tests of the law")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    engines = measured(options.rounds)
    text = markdown(engines, options.rounds, options.draws)
    print(text)
    if not options.no_write:
        artifacts.write_text(RESULTS, text)


def measured(rounds: int) -> dict[str, Engine]:
    clock = Clock("cpu")
    engines = {name: Engine(clock.repeated(work)) for name, work in works().items()}
    for engine in engines.values():
        engine.calibrate(SECONDS)
    for turn in range(rounds):
        for engine in engines.values():
            engine.measure(turn, rounds)
    return engines


def works() -> dict[str, Work]:
    """Work of `NUMBERS` draws each."""
    result: dict[str, Work] = {}
    keystream, words = Keystream.from_seed(1, "bench"), np.empty(BLOCK, dtype=np.uint64)

    def fill() -> None:
        for _ in range(NUMBERS // BLOCK):
            keystream.fill_words(words)

    result[KEYSTREAM] = fill
    integers, floats = np.zeros(NUMBERS, dtype=np.int64), np.zeros(NUMBERS)
    for name, deviation in DEVIATIONS.items():
        sampler = RoundedGaussian(Keystream.from_seed(1, name))
        result[into(name, "int64")] = partial(sampler.add_to, integers, deviation)
    sampler = RoundedGaussian(Keystream.from_seed(2, USUAL))
    result[into(USUAL, "float64")] = lambda: sampler.add_to(floats, DEVIATIONS[USUAL])
    generator = np.random.Generator(np.random.SFC64(0))
    result[NUMPY] = lambda: generator.standard_normal(out=floats)
    single = np.empty(NUMBERS, dtype=np.float32)
    result["NumPy's normal, float32 (SFC64)"] = lambda: generator.standard_normal(
        dtype=np.float32, out=single
    )
    noise = GaussianNoise([1], NUMBERS // STEPS, torch.device("cpu"))
    result["dpprobe's `GaussianNoise`, float32 (SFC64)"] = lambda: noise.draw_steps(STEPS, 1.0)
    normals = torch.empty(NUMBERS)
    result["torch's normal, float32"] = lambda: normals.normal_()
    return result


def into(deviation: str, kind: str) -> str:
    return f"rounded Gaussian, deviation {deviation}, added to {kind} in place"


def markdown(engines: Mapping[str, Engine], rounds: int, draws: int) -> str:
    usual = engines[into(USUAL, "int64")]
    each = 1e9 * usual.median / NUMBERS
    met = "met" if each < WANTED_NS else "missed"
    parts = [
        "# Exact noise: the time of a draw, and the law",
        f"{processor()}; Python {platform.python_version()}, NumPy {np.__version__}, "
        f"torch {torch.__version__.partition('+')[0]}.",
        f"One thread, processor time, {NUMBERS:,} draws a call, medians of {rounds} interleaved "
        "rounds, in brackets the lowest and the highest round. Ratios of one run; times mean "
        "nothing elsewhere. How it is measured: [bench/README.md](../README.md).",
        f"Wanted: under {WANTED_NS:.0f} ns a draw with its keystream. Measured at deviation "
        f"{USUAL}: **{number(each)} ns**, {met}.",
        "\n".join(times(engines, usual)),
        "A discrete Gaussian of a peer took 52 to 115 ns a draw in measurements of its own, not in "
        "this run.",
        f"## The law, over {draws:,} draws",
        "Against the exact probabilities of the rounded normal: a chi-square test of the integers "
        f"themselves, at {USUAL} of {INTERVALS:,} intervals of about equal probability; those of "
        "an expected count below 10 are one.",
        "\n".join(law(draws)),
    ]
    return "\n\n".join(parts) + "\n"


def times(engines: Mapping[str, Engine], usual: Engine) -> Iterator[str]:
    yield f"| | ns a draw | over the rounded Gaussian at {USUAL}, int64 |"
    yield "|---|---|---|"
    for name, engine in engines.items():
        ratio = "1" if engine is usual else str(Ratio.of(engine, usual))
        yield f"| {name} | {number(1e9 * engine.median / NUMBERS)} | {ratio} |"


def law(draws: int) -> Iterator[str]:
    yield "| deviation | chi-square | degrees of freedom | p |"
    yield "|---|---|---|---|"
    for name in ("1", "7.5", USUAL):
        statistic, freedom = chi_square(DEVIATIONS[name], draws)
        p = stats.chi2.sf(statistic, freedom)
        yield f"| {name} | {statistic:.1f} | {freedom} | {p:.3f} |"
    counts, products, squares, total = dependence(draws)
    yield ""
    yield f"At {USUAL}, draws beyond so many standard deviations, on either side:"
    yield ""
    yield "| beyond | above | below | expected on each side |"
    yield "|---|---|---|---|"
    for threshold, (above, below) in zip(THRESHOLDS, counts, strict=True):
        expected = stats.norm.sf(threshold) * total
        yield f"| {threshold:g} | {above:,} | {below:,} | {expected:,.1f} +- {expected**0.5:.1f} |"
    yield ""
    yield "Serial correlation, in its standard errors, of draws and of their squares:"
    yield ""
    yield "| draws apart | " + " | ".join(map(str, LAGS)) + " |"
    yield "|---|" + "---|" * len(LAGS)
    yield "| draws | " + " | ".join(f"{value:.2f}" for value in products) + " |"
    yield "| squares | " + " | ".join(f"{value:.2f}" for value in squares) + " |"


def chunks(deviation: float, draws: int, seed: int) -> Iterator[np.ndarray]:
    sampler = RoundedGaussian(Keystream.from_seed(seed, "law"))
    for start in range(0, draws, 4 * NUMBERS):
        yield sampler.draw_numbers(min(4 * NUMBERS, draws - start), deviation)


def chi_square(deviation: float, draws: int) -> tuple[float, int]:
    if deviation < 100:
        bound = math.ceil(6 * deviation)
        inner = np.arange(-bound + 1, bound + 1)
    else:
        quantiles = stats.norm.ppf(np.arange(1, INTERVALS) / INTERVALS)
        inner = np.ceil(deviation * quantiles).astype(np.int64)
    counts = np.zeros(len(inner) + 1)
    for numbers in chunks(deviation, draws, 1):
        counts += np.bincount(np.searchsorted(inner, numbers, "right"), minlength=len(counts))
    below = stats.norm.cdf((inner - 0.5) / deviation)
    beyond = stats.norm.sf((inner - 0.5) / deviation)
    middle = np.where(inner[1:] > 0, beyond[:-1] - beyond[1:], below[1:] - below[:-1])
    expected = np.concatenate([below[:1], middle, beyond[-1:]]) * draws
    few = expected < 10
    if few.any():
        counts = np.append(counts[~few], counts[few].sum())
        expected = np.append(expected[~few], expected[few].sum())
    return float(np.sum((counts - expected) ** 2 / expected)), len(expected) - 1


def dependence(draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Counts of the tails, correlations of draws and of squares within chunks, and draws."""
    counts = np.zeros((len(THRESHOLDS), 2), dtype=np.int64)
    products, squares, pairs = (np.zeros(len(LAGS)) for _ in range(3))
    total = 0
    for numbers in chunks(DEVIATIONS[USUAL], draws, 2):
        x = numbers / DEVIATIONS[USUAL]
        y = (x * x - 1) / 2**0.5
        total += x.size
        counts += [[(x > t).sum(), (x < -t).sum()] for t in THRESHOLDS]
        for place, lag in enumerate(LAGS):
            products[place] += x[:-lag] @ x[lag:]
            squares[place] += y[:-lag] @ y[lag:]
            pairs[place] += x.size - lag
    return counts, products / np.sqrt(pairs), squares / np.sqrt(pairs), total


if __name__ == "__main__":
    main()
