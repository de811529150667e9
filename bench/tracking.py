"""Measures how long the ingest of 2,000 cells takes: first, unchanged, one dataset changed.

    python bench/tracking.py [--cells 2000] [--output bench/results/tracking.md]

Eight datasets of made-up cells, each with five seeds, 1,000 test rows and ten classes; figures and
tables are small files. Each dataset is ingested by a process of its own, as in the workflow. The
same run also measures the least that MLflow itself needs: `create_run`, one `log_batch` and
`set_terminated` for as many runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.cell_files import write_dataset_info, write_study

DATASETS = 8
BACKBONES = 5
METHODS = 10
EPSILONS = ("0.5", "1", "2", "4", "8")
WANTED_SECONDS = 120.0

WRITER = """
import json, sys
from pathlib import Path
from dpprobe.tracking.ingest import update_dataset
a = json.loads(sys.argv[1])
root, dataset = Path(a["root"]), a["dataset"]
figure = root / "figure.png"
update_dataset(uri=f"sqlite:///{root}/mlflow.db", study="bench", dataset=dataset,
       metrics_files=sorted(root.glob(f"cells/{dataset}/*/*/*/metrics.json")),
       dataset_info=root / "dataset.json", figures=[figure], embeddings={}, tables=[figure],
       artifact_root=root / "mlartifacts", receipt=root / f"{dataset}.json", lock=root / "lock",
       commit="0" * 40)
"""
BARE = """
import sys, time
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
client = MlflowClient(tracking_uri=sys.argv[1])
experiment = client.create_experiment("bare")
for index in range(int(sys.argv[2])):
    run = client.create_run(experiment, run_name=str(index))
    metrics = [Metric(f"m{k}", 0.5, 0, 0) for k in range(27)]
    metrics += [Metric("curve", 0.5, 0, step) for step in range(12)]
    client.log_batch(run.info.run_id, metrics, [Param(f"p{k}", "v") for k in range(12)])
    client.set_terminated(run.info.run_id, "FINISHED")
"""


def make(root: Path, dataset: str, methods: int) -> int:
    return len(
        write_study(
            root, dataset=dataset, backbones=[f"backbone_{b}" for b in range(BACKBONES)],
            methods=[f"method_{m}" for m in range(methods)], epsilons=EPSILONS, seeds=5,
            class_names=[f"class {k}" for k in range(10)],
        )
    )  # fmt: skip


class Spent(NamedTuple):
    """The time of child processes, by the clock and by the processor."""

    seconds: float
    processor: float

    @classmethod
    def now(cls) -> Spent:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime)

    def since(self) -> Spent:
        end = Spent.now()
        return Spent(end.seconds - self.seconds, end.processor - self.processor)


def ingest_all(root: Path, names: list[str]) -> tuple[Spent, dict[str, dict[str, Any]]]:
    """Ingests all datasets, one after the other; returns the time and their receipts."""
    started = Spent.now()
    for name in names:
        arguments = json.dumps({"root": str(root), "dataset": name})
        subprocess.run(
            [sys.executable, "-c", WRITER, arguments], check=True, stderr=subprocess.DEVNULL
        )
    return started.since(), {
        name: json.loads((root / f"{name}.json").read_text()) for name in names
    }


def bare(root: Path, runs: int) -> Spent:
    """Writes as many runs to a new database by MLflow alone; returns the time."""
    store = f"sqlite:///{root}/bare.db"
    started = Spent.now()
    subprocess.run(
        [sys.executable, "-c", BARE, store, str(runs)], check=True, stderr=subprocess.DEVNULL
    )
    return started.since()


def measure(root: Path, cells: int) -> str:
    names = [f"dataset_{index}" for index in range(DATASETS)]
    methods = max(1, round(cells / (DATASETS * BACKBONES * len(EPSILONS))))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        count = sum(pool.map(make, [root] * DATASETS, names, [methods] * DATASETS))
    write_dataset_info(root / "dataset.json")
    (root / "figure.png").write_bytes(np.random.default_rng(0).bytes(100_000))
    rows = []
    for title in ("first", "unchanged"):
        rows.append((title, *ingest_all(root, names)))
    change(root, names[3])
    rows.append(("one dataset of eight changed", *ingest_all(root, names)))
    floor = bare(root, count)
    return table(rows, count, floor, names[3])


def change(root: Path, dataset: str) -> None:
    """Changes the result of each cell of a dataset, as a retrained backbone would."""
    for path in root.glob(f"cells/{dataset}/*/*/*/metrics.json"):
        record = json.loads(path.read_text())
        record["content_hash"] = "changed" + record["content_hash"][7:]
        path.write_text(json.dumps(record))


def table(
    rows: list[tuple[str, Spent, dict[str, dict[str, Any]]]],
    cells: int,
    floor: Spent,
    changed: str,
) -> str:
    lines = [
        "# Ingest into MLflow",
        "",
        f"{cells:,} cells of {DATASETS} datasets, and their summary runs, into SQLite; "
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"MLflow {metadata.version('mlflow')}. Made by `python bench/tracking.py`. Each dataset is "
        "a process of its own, so eight starts of Python and MLflow are in each time.",
        "",
        "| ingest | seconds | processor seconds | created | replaced | kept | datasets written |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for title, spent, receipts in rows:
        counts = [
            sum(receipt[name] for receipt in receipts.values())
            for name in ("created", "replaced", "kept")
        ]
        touched = [n for n, receipt in receipts.items() if receipt["created"] + receipt["replaced"]]
        named = "all" if len(touched) == DATASETS else ", ".join(touched) or "none"
        times = f"{spent.seconds:.1f} | {spent.processor:.1f}"
        lines.append(f"| {title} | {times} | {' | '.join(map(str, counts))} | {named} |")
    first = rows[0][1]
    verdict = "met" if first.seconds < WANTED_SECONDS else "NOT met"
    lines += [
        "",
        f"Wanted: first ingest of 2,000 cells under {WANTED_SECONDS:.0f} s: {verdict}. "
        f"The bare calls of MLflow for {cells:,} runs of the same size took {floor.seconds:.1f} s "
        f"({floor.processor:.1f} of the processor) in the same run: ours is "
        f"{first.processor / floor.processor:.2f} times that in processor time, with learning "
        "curves, inputs and four artifacts a cell.",
        "",
        f"Load average of the machine in the minutes before the end: {os.getloadavg()[2]:.1f} on "
        f"{os.cpu_count()} cores. Above the number of cores the seconds are those of a queue, the "
        "processor seconds nearly what they are on a quiet machine.",
    ]
    assert [n for n, r in rows[2][2].items() if r["created"] + r["replaced"]] == [changed]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="dpprobe-tracking-"))
    try:
        text = measure(root, arguments.cells)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
