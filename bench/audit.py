"""Bounds on epsilon beside jax-privacy's on the same scores: numbers, power, time.

Processor time of one thread, in turns. bench/README.md describes the measurements.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe import artifacts
from dpprobe.analyses.audit.bounds import METHODS, epsilon_lower_bound, one_run_lower_bound
from dpprobe.privacy.accountants import gaussian_epsilon

Scores = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

RESULTS = Path(__file__).resolve().parent / "results" / "audit.md"
PEER = Path(__file__).resolve().parent / "peers" / "jaxprivacy_auditing.py"
DELTA, ERROR, RUNS, COVERED_RUNS = 1e-5, 0.05, 2000, 1000
MUS = (0.25, 0.5, 1.0, 2.0)
FAMILIES = {"one_run": "approximate_dp", "one_run_gaussian": "gaussian"}
SHARED = ("clopper_pearson", "gdp", *FAMILIES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="of an environment with jax-privacy")
    parser.add_argument("--draws", type=int, default=10, help="of scores, for each epsilon")
    parser.add_argument("--repeats", type=int, default=500, help="of the coverage")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    lines = [
        "# Bounds on epsilon from scores",
        "",
        f"Python {platform.python_version()}, NumPy {np.__version__}. Ideal scores of a Gaussian "
        f"mechanism, a fair coin for each run, delta {DELTA:g}. How it is measured: "
        "[bench/README.md](../README.md).",
    ]
    draws = {mu: [coin_flips(mu, RUNS, seed) for seed in range(options.draws)] for mu in MUS}
    lines += power(draws)
    if options.peer_python:
        lines += beside(draws, options.peer_python)
    lines += coverage(options.repeats)
    text = "\n".join(lines) + "\n"
    print(text)
    if not options.no_write:
        artifacts.write_text(RESULTS, text)


def coin_flips(mu: float, runs: int, seed: int) -> Scores:
    generator = np.random.default_rng([seed, round(1000 * mu), runs])
    member = generator.random(runs) < 0.5
    scores = generator.normal(size=runs) + mu * member
    return scores[member], scores[~member]


def power(draws: dict[float, list[Scores]]) -> list[str]:
    rows = []
    for mu, scores in draws.items():
        means = [
            statistics.mean(epsilon_lower_bound(*pair, DELTA, method=method) for pair in scores)
            for method in METHODS
        ]
        rows.append([f"{gaussian_epsilon(mu, DELTA):.2f}", *(f"{mean:.2f}" for mean in means)])
    title = f"## Power: {RUNS:,} scores, confidence 95 %, means of {len(scores)} draws"
    return ["", title, "", *table(["true epsilon", *METHODS], rows)]


def beside(draws: dict[float, list[Scores]], python: str) -> list[str]:
    """The tables of what jax-privacy says of the same scores, and of its time."""
    numbers, times, version = [], [], ""
    with Peer(python) as peer, tempfile.TemporaryDirectory() as folder:
        for mu, scores in draws.items():
            answers = []
            for place, pair in enumerate(scores):
                path = Path(folder) / f"{mu}-{place}.npz"
                np.savez(path, scores_in=pair[0], scores_out=pair[1])
                answers.append(peer.ask(path, mu / 2))
            version = answers[0]["version"]
            numbers.append(
                [f"{gaussian_epsilon(mu, DELTA):.2f}", *differences(mu, scores, answers)]
            )
            times.append([f"{gaussian_epsilon(mu, DELTA):.2f}", *ratios(scores, answers)])
    compared = [*SHARED, *(f"{name}, one threshold" for name in SHARED if name != "gdp")]
    return [
        "",
        f"## The same numbers as jax-privacy {version}",
        "",
        "Its formulas are ours: with its thresholds and its correction (Bonferroni over the "
        "corners of the hull of the ROC curve), and at one threshold fixed beforehand, the largest "
        "difference of the bounds over all draws is as follows. `gdp` differs at small epsilons: "
        "`epsilon_from_gdp` takes the absolute value of mu, which turns two upper bounds on rates "
        "that add up to more than 1 into a lower bound; at a threshold near the end of the scores "
        "that exceeds the truth, as the second table shows.",
        "",
        *table(["true epsilon", *compared], numbers),
        "",
        "The corners of the hull are chosen by the scores, and so is their number; ours are fixed "
        "beforehand. Its bounds with that correction, our default beside them, and the time of its "
        "call over ours:",
        "",
        *table(["true epsilon", *SHARED], times),
    ]


def differences(mu: float, scores: list[Scores], answers: list[dict[str, Any]]) -> list[str]:
    largest: dict[str, float] = {}
    for pair, answer in zip(scores, answers, strict=True):
        error = ERROR / len(answer["thresholds"])
        ours = {
            name: max(bound_at(name, pair, threshold, error) for threshold in answer["thresholds"])
            for name in SHARED
        } | {
            f"{name}, one threshold": bound_at(name, pair, mu / 2, ERROR)
            for name in SHARED
            if name != "gdp"
        }
        for name, bound in ours.items():
            gap = abs(bound - answer["bounds"][name])
            largest[name] = max(largest.get(name, 0.0), gap)
    return [f"{gap:.1e}" for gap in largest.values()]


def bound_at(name: str, pair: Scores, threshold: float, error: float) -> float:
    if name not in FAMILIES:
        return epsilon_lower_bound(*pair, DELTA, 1 - error, name, threshold=threshold)
    right, wrong = (int(np.count_nonzero(scores >= threshold)) for scores in pair)
    if not right + wrong:
        return 0.0
    runs = sum(len(scores) for scores in pair)
    return one_run_lower_bound(right, right + wrong, runs, DELTA, 1 - error, FAMILIES[name])


def ratios(scores: list[Scores], answers: list[dict[str, Any]]) -> list[str]:
    cells = []
    for name in SHARED:
        ours = [timed(partial(epsilon_lower_bound, *pair, DELTA, method=name)) for pair in scores]
        theirs = statistics.mean(answer["bounds"][name] for answer in answers)
        ratio = statistics.median(answer["seconds"][name] for answer in answers) / (
            statistics.median(seconds for _, seconds in ours)
        )
        bound = statistics.mean(bound for bound, _ in ours)
        cells.append(f"{theirs:.2f}, ours {bound:.2f}; {ratio:.1f} times")
    return cells


def timed(call: Callable[[], float], calls: int = 3) -> tuple[float, float]:
    """Returns the answer and the median processor time of a call."""
    times = []
    for _ in range(calls):
        started = time.process_time()
        answer = call()
        times.append(time.process_time() - started)
    return answer, statistics.median(times)


def coverage(repeats: int) -> list[str]:
    rows = []
    for mu in (0.0, *MUS):
        truth = gaussian_epsilon(mu, DELTA) if mu else 0.0
        draws = [coin_flips(mu, COVERED_RUNS, 10_000 + seed) for seed in range(repeats)]
        shares = []
        for method in METHODS:
            above = [epsilon_lower_bound(*pair, DELTA, method=method) > truth for pair in draws]
            shares.append(f"{100 * statistics.mean(above):.1f} %")
            print(f"coverage: {method} at epsilon {truth:.2f}", file=sys.stderr, flush=True)
        rows.append([f"{truth:.2f}", *shares])
    return [
        "",
        f"## Coverage: bounds above the truth, {repeats} draws of {COVERED_RUNS:,} scores",
        "",
        f"At a confidence of 95 % at most 5 %, of so many draws +- "
        f"{100 * (0.05 * 0.95 / repeats) ** 0.5:.1f}.",
        "",
        *table(["true epsilon", *METHODS], rows),
    ]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


class Peer:
    """jax-privacy in an environment of its own."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(PEER)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, scores: Path, threshold: float) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        request = {"scores": str(scores), "threshold": threshold, "delta": DELTA, "calls": 3}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    main()
