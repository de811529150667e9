"""Power and coverage of the bounds on epsilon, on ideal scores; and all controls of the audit."""

from __future__ import annotations

import argparse
import importlib
import platform
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe import artifacts
from dpprobe.analyses.audit.bounds import epsilon_lower_bound
from dpprobe.analyses.audit.white_box import audit_plan
from dpprobe.heads.registry import HEADS
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.plan import Plan

Scores = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

RESULTS = Path(__file__).resolve().parent / "results" / "audit.md"
DELTA, RUNS, COVERED_RUNS = 1e-5, 2000, 1000
MUS = (0.25, 0.5, 1.0, 2.0)
UNITS, NOISE = 300, 3.0
STEPS: dict[str, Any] = {
    "batch_size": "full", "steps": 3, "max_grad_norm": 1.0, "init": "zero", "engine": "exact",
    "learning_rate": 0.1, "normalize": "l2",
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("sgd", "momentum", "adam", "lamb"), STEPS),
    "sgd": STEPS | {"batch_size": 60, "steps": 12},
    "least_squares": {"normalize": "l2"},
    "newton": {"normalize": "l2", "steps": 2},
    "feature_covariance": {"normalize": "l2", "steps": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
    lines += coverage(options.repeats)
    lines += controls()
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
        mean = statistics.mean(epsilon_lower_bound(*pair, DELTA) for pair in scores)
        rows.append([f"{gaussian_epsilon(mu, DELTA):.2f}", f"{mean:.2f}"])
    title = f"## Power: {RUNS:,} scores, confidence 95 %, means of {len(scores)} draws"
    return ["", title, "", *table(["true epsilon", "bound"], rows)]


def coverage(repeats: int) -> list[str]:
    rows = []
    for mu in (0.0, *MUS):
        truth = gaussian_epsilon(mu, DELTA) if mu else 0.0
        draws = [coin_flips(mu, COVERED_RUNS, 10_000 + seed) for seed in range(repeats)]
        above = [epsilon_lower_bound(*pair, DELTA) > truth for pair in draws]
        print(f"coverage at epsilon {truth:.2f}", file=sys.stderr, flush=True)
        rows.append([f"{truth:.2f}", f"{100 * statistics.mean(above):.1f} %"])
    return [
        "",
        f"## Coverage: bounds above the truth, {repeats} draws of {COVERED_RUNS:,} scores",
        "",
        f"At a confidence of 95 % at most 5 %, of so many draws +- "
        f"{100 * (0.05 * 0.95 / repeats) ** 0.5:.1f}.",
        "",
        *table(["true epsilon", "bound above it"], rows),
    ]


def controls() -> list[str]:
    """Audits seven methods with all controls: the test that refutes each, and the runs it took."""
    audits = {}
    for name, options in METHODS.items():
        print(f"controls of {name}", file=sys.stderr, flush=True)
        method = importlib.import_module(HEADS[name]).Options(head=name, **options)
        plan = Plan(
            mechanisms=tuple(item.scale_noise(NOISE) for item in method.list_mechanisms(UNITS)),
            n=UNITS, epsilon=1.0, delta=DELTA, accountant="pld", realised_epsilon=1.0,
        )  # fmt: skip
        audits[name] = audit_plan(
            method, plan, dimension=8, num_classes=3, multi_label=False, runs=40, confidence=0.95,
            seed=5, controls=True, progress_label=name,
        )  # fmt: skip
    rows = [["none", *(holds(audit.white_box) for audit in audits.values())]]
    for cells in zip(*(audit.controls for audit in audits.values()), strict=True):
        rows.append([f"`{cells[0]['name']}`", *map(refuting, cells)])
    return [
        "",
        "## Controls: the first test that refutes each broken mechanism",
        "",
        f"{UNITS} units, noise of {NOISE:g} times the sensitivity, and exact sums; sgd takes "
        "Poisson batches. Each control has ten runs, or 40 if the cell names them.",
        "",
        *table(["control", *audits], rows),
    ]


def holds(white_box: Mapping[str, Any]) -> str:
    return "holds" if white_box["holds"] else "REFUTED"


def refuting(control: Mapping[str, Any]) -> str:
    if "not_applicable" in control:
        return "does not apply"
    runs = "" if control["runs"] == 10 else f" ({control['runs']} runs)"
    return f"{control['refuted_by'][0]}{runs}" if control["caught"] else "MISSED"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


if __name__ == "__main__":
    main()
