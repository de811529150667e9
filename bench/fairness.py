"""The comparison of groups: time and memory of a large job, speed of its areas, coverage.

Made-up scores. What is measured and how: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.fairness_cells import write_grouped_cell

from dpprobe import artifacts
from dpprobe.analyses.fairness.comparison import comparisons
from dpprobe.analyses.fairness.fairness_record import Minimum
from dpprobe.analyses.fairness.gaps import Groups, difference, interval
from dpprobe.analyses.fairness.group_metrics import Head, Resamples
from dpprobe.analyses.fairness.groupings import TestRows, groupings
from dpprobe.analyses.fairness.measure import fairness_job
from dpprobe.study.options import FairnessOptions

RESULTS = Path(__file__).resolve().parent / "results" / "fairness.md"
ROWS, GROUPS, LABELS, EPSILONS, RESAMPLES, THREADS = 25_000, 200, 14, 8, 2000, 2
NAMES = [f"label {index}" for index in range(LABELS)]
CELLS = [("nonprivate", "inf"), *(("sgd", str(2**power)) for power in range(EPSILONS))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--trials", type=int, default=1000, help="of the coverage")
    parser.add_argument("--job", type=Path, help="run the job of these cells, and nothing else")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    if options.job:
        job(options.job)
        return
    lines = [
        "# The comparison of groups",
        "",
        f"Python {platform.python_version()}, NumPy {np.__version__}. How it is measured: "
        "[bench/README.md](../README.md).",
        *size(options.seeds),
        *speed(),
        *coverage(options.trials),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if not options.no_write:
        artifacts.write_text(RESULTS, text)


def made_up(seeds: int) -> tuple[np.ndarray, list[str], dict[tuple[str, str], np.ndarray]]:
    """Labels of 5 to 40 % of the rows, groups of equal chance, and scores of each cell."""
    generator = np.random.default_rng(0)
    labels = generator.random((ROWS, LABELS)) < np.linspace(0.05, 0.4, LABELS)
    groups = [f"site {site:03d}" for site in generator.integers(GROUPS, size=ROWS)]
    scores = {}
    for method, epsilon in CELLS:
        quality = 1.5 / (1 + 1 / float(epsilon))
        noise = generator.normal(size=(seeds, ROWS, LABELS))
        scores[method, epsilon] = noise + quality * labels - 1
    return labels.astype(np.int64), groups, scores


def size(seeds: list[int]) -> list[str]:
    """Times the job of all cells in a process of its own."""
    rows = []
    for count in seeds:
        with tempfile.TemporaryDirectory() as folder:
            labels, groups, scores = made_up(count)
            for (method, epsilon), values in scores.items():
                write_grouped_cell(
                    Path(folder), method=method, epsilon=epsilon, scores=values, labels=labels,
                    groups={"site": groups}, class_names=NAMES,
                )  # fmt: skip
            del scores
            command = [sys.executable, str(Path(__file__).resolve()), "--job", folder]
            started = time.perf_counter()
            child = subprocess.Popen(command)
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - started
            if status:
                raise SystemExit(f"the job of {count} seeds failed")
            rows.append(
                [count, f"{wall:.0f}", f"{usage.ru_utime + usage.ru_stime:.0f}",
                 f"{usage.ru_maxrss / 1e3:.0f}"]
            )  # fmt: skip
    title = (
        f"## One job: {GROUPS} groups, {LABELS} labels, {EPSILONS} epsilons and their reference, "
        f"{ROWS:,} rows, {RESAMPLES:,} resamples, {THREADS} threads"
    )
    return ["", title, "", *table(["seeds", "seconds", "processor seconds", "MB"], rows)]


def job(folder: Path) -> None:
    paths = [next(folder.glob(f"cells/*/*/{m}/eps-{e}/metrics.json")) for m, e in CELLS]
    fairness_job(
        paths, FairnessOptions(resamples=RESAMPLES), dict.fromkeys(CELLS[1:], CELLS[0]),
        table=folder / "groups.parquet", record=folder / "groups.json", seed=0, threads=THREADS,
    )  # fmt: skip


def speed() -> list[str]:
    """Times the areas of all groups and labels in a resample, beside scikit-learn's."""
    labels, groups, scores = made_up(1)
    rows = TestRows(
        labels=labels.astype(bool), class_names=tuple(NAMES), units=np.arange(ROWS),
        named_units=False, groups={"group_site": groups},
    )  # fmt: skip
    few = Minimum(units=2, positives=1, negatives=1)
    (site,) = groupings(rows, groups=None, pairs=(), minimum=few)
    comparison = next(item for item in comparisons(rows, site, few, seed=0) if item.metric == "auc")
    head = Head(rows=rows, scores=scores["sgd", "8"][0], link="sigmoid")
    resamples = Resamples(ROWS, 319, seed=0)
    comparison.drawn(head, Resamples(ROWS, 0, seed=0))
    started = time.process_time()
    drawn = comparison.drawn(head, resamples)[1]
    ours = (time.process_time() - started) / 320
    often, codes = resamples.blocks[0][:, 1], site.codes
    worst, started = 0.0, time.process_time()
    for place, group in enumerate(comparison.kept):
        part = (codes == group) & (often > 0)
        for column, label in enumerate(comparison.labels):
            if len(np.unique(rows.has(label)[part])) < 2:
                continue
            area = roc_auc_score(
                rows.has(label)[part], head.scores[part, NAMES.index(label)],
                sample_weight=often[part],
            )  # fmt: skip
            worst = max(worst, abs(area - float(drawn[place, column, 0])))
    peer = time.process_time() - started
    areas = len(comparison.kept) * len(comparison.labels)
    return [
        "",
        f"## The areas of a resample: {len(comparison.kept)} groups, "
        f"{len(comparison.labels)} labels, one thread",
        "",
        f"scikit-learn's `roc_auc_score` takes {peer / ours:.0f} times as long as ours, which "
        f"computes {areas / ours / 1e6:.1f} million areas a second; the largest difference is "
        f"{worst:.0e} (ours are kept as float32).",
    ]


def coverage(trials: int) -> list[str]:
    """Counts how often intervals of 95 % hold the truth, of groups with normal values."""
    cases: list[tuple[str, list[float], list[float], float]] = []
    for groups in (2, 5, 20):
        none, one = [0.0] * groups, [-4.0] + [0.0] * (groups - 1)
        cases += [
            (f"{groups}, all alike", none, none, 1.0),
            (f"{groups}, all alike, the private cell twice as noisy", none, none, 2.0),
            (f"{groups}, one of them 4 below in the private cell", one, none, 1.0),
            (f"{groups}, one of them 4 below in both", one, one, 1.0),
        ]
    rows = []
    for name, private, public, noise in cases:
        generator = np.random.default_rng(0)
        seen = np.mean(
            [_trial(generator, np.array(private), np.array(public), noise) for _ in range(trials)],
            axis=0,
        )
        rows.append([name, *(f"{100 * share:.1f} %" for share in seen)])
    columns = [
        "groups", "gap covered", "gap seen", "by percentiles: covered", "difference covered",
        "difference seen", "by percentiles: covered",
    ]  # fmt: skip
    error = 100 * (0.95 * 0.05 / trials) ** 0.5
    return [
        "",
        f"## Coverage of 95 % intervals, {trials:,} trials (+- {error:.1f})",
        "",
        "Values in units of their standard deviation; those of the two cells have a correlation of "
        "0.7. Seen: the interval lies above 0.",
        "",
        *table(columns, rows),
    ]


def _trial(
    generator: np.random.Generator, private: np.ndarray, public: np.ndarray, noise: float
) -> list[bool]:
    count, resamples = len(private), 400

    def draw(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        first, second = generator.normal(size=(2, *shape))
        return noise * first, 0.7 * first + 0.51**0.5 * second

    values = [truth + part for truth, part in zip((private, public), draw(count), strict=True)]
    drawn = [of[:, None] + part for of, part in zip(values, draw(count, resamples), strict=True)]
    zero = np.zeros(count)
    first, second = (
        Groups.of(of, part, least=zero, excess=zero) for of, part in zip(values, drawn, strict=True)
    )
    gap, between = np.ptp(private), np.ptp(private) - np.ptp(public)
    low, high = interval([first], 0.95)
    _, less, more = difference([first], [second], 0.95)
    gaps = [np.ptp(part, axis=0) for part in drawn]
    naive = np.quantile(gaps[0], [0.025, 0.975])
    paired = np.quantile(gaps[0] - gaps[1], [0.025, 0.975])
    return [
        low <= gap <= high, low > 0, naive[0] <= gap <= naive[1],
        less <= between <= more, less > 0, paired[0] <= between <= paired[1],
    ]  # fmt: skip


def table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    lines: list[list[Any]] = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


if __name__ == "__main__":
    main()
