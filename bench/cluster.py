"""Measures what a cluster's time goes into: `bench/results/cluster.md`.

Runs the training jobs of a study on a real Slurm of one node: a job a cell, as a workflow does that
does not batch them (at one epsilon); a job a (dataset, backbone, epsilon), as this one does; and
these in groups of three. It compares the time Slurm gave with the time that heads were trained,
and times the plan of a large grid. Needs root and what `tests/install_system_packages.sh slurm`
installs.

    python bench/cluster.py --directory DIRECTORY [--study STUDY] [--epsilons 0.5 2 8]

DIRECTORY is a working directory of the study. Its features are made first where they are missing.
Its cells are deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "tests/slurm/cluster.py"
RESULTS = ROOT / "bench/results/cluster.md"
GROUPS = ("--groups", "train_heads=train", "train_heads_without_privacy=train")
GRID_HEADS = (
    "sgd", "momentum", "adam", "lamb", "least_squares", "newton", "feature_covariance",
    "prototypes", "nonprivate",
)  # fmt: skip
GRID_EPSILONS = [0.1, 0.25, 0.5, 1, 2, 4, 8, "inf"]


@dataclass(frozen=True)
class Outcome:
    """One way to run the training jobs. Times in seconds; `given` is CPUs times seconds."""

    name: str
    cells: int
    jobs: int
    wall: float
    given: float
    trained: float


def command(*words: str, directory: Path) -> list[str]:
    return [
        sys.executable, "-m", "snakemake",
        "--snakefile", str(ROOT / "Snakefile"),
        "--directory", str(directory),
        *words,
    ]  # fmt: skip


def call(words: list[str], log: Path, environment: dict[str, str]) -> float:
    """Runs a command; wall time."""
    started = time.monotonic()
    with log.open("a") as stream:
        subprocess.run(words, env=environment, stdout=stream, stderr=stream, check=True)
    return time.monotonic() - started


def ended(log: Path) -> list[tuple[str, float]]:
    """Name and CPU-seconds given of every training job that Slurm noted down."""
    jobs = []
    for line in log.read_text().splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if fields["JobState"] != "COMPLETED":
            raise SystemExit(f"a job did not complete: {line}")
        start, end = (datetime.fromisoformat(fields[name]) for name in ("StartTime", "EndTime"))
        if ".calibrate." not in fields["Name"]:
            seconds = (end - start).total_seconds() * int(fields["ProcCnt"])
            jobs.append((fields["Name"], seconds))
    return jobs


def measure(
    name: str, studies: list[dict[str, Any]], directory: Path, options: tuple[str, ...] = ()
) -> Outcome:
    """Trains every cell of some studies from scratch, one study after another."""
    cells = directory / studies[0].get("results_dir", "results") / "cells"
    shutil.rmtree(cells, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    log = directory / f"bench-{name.replace(' ', '-')}.log"
    subprocess.run([sys.executable, CLUSTER, "up", root], check=True, stdout=subprocess.DEVNULL)
    try:
        environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
        wall = 0.0
        for study in studies:
            words = ["heads", "--profile", str(ROOT / "slurm"), *options]
            words += ["--configfile", str(written(study, directory))]
            wall += call(command(*words, directory=directory), log, environment)
        jobs = ended(root / "log/jobs.log")
    finally:
        subprocess.run([sys.executable, CLUSTER, "down", root], check=True)
    records = [json.loads(path.read_text()) for path in cells.rglob("metrics.json")]
    return Outcome(
        name=name,
        cells=len(records),
        jobs=len(jobs),
        wall=wall,
        given=sum(seconds for _, seconds in jobs),
        trained=sum(record["seconds"] for record in records),
    )


def written(study: dict[str, Any], directory: Path) -> Path:
    path = directory / "bench-study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def grid() -> dict[str, Any]:
    """Seven datasets, three backbones, eight epsilons, nine methods."""
    return {
        "study": "grid",
        "datasets": {f"set{index}": {"source": "sklearn", "name": "digits"} for index in range(7)},
        "backbones": {
            f"net{index}": {"family": "scattering", "size": 16 + 8 * index} for index in range(3)
        },
        "methods": {head: {"head": head} for head in GRID_HEADS},
        "epsilons": GRID_EPSILONS,
    }


def plan() -> tuple[int, int, float]:
    """Cells and jobs of the large grid, and the seconds that its dry run takes."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        study = directory / "study.yaml"
        study.write_text(yaml.safe_dump(grid()))
        words = ["--profile", str(ROOT / "slurm"), "--dry-run", "--quiet", "rules"]
        words += ["--configfile", str(study)]
        log = directory / "log"
        seconds = call(command(*words, directory=directory), log, dict(os.environ))
        jobs = re.findall(r"^total +(\d+)$", log.read_text(), re.MULTILINE)
    private = len(GRID_HEADS) - 1
    epsilons = len(GRID_EPSILONS) - 1
    return 7 * 3 * (private * epsilons + len(GRID_HEADS)), int(jobs[0]), seconds


def report(outcomes: list[Outcome], planned: tuple[int, int, float], study: str) -> str:
    rows = "\n".join(
        f"| {each.name} | {each.cells} | {each.jobs} | {each.wall:.0f} s | {each.given:.0f} s | "
        f"{100 * each.trained / each.given:.1f} % | "
        f"{(each.given - each.trained) / each.cells:.2f} s |"
        for each in outcomes
    )
    cells, jobs, seconds = planned
    return f"""# What a cluster's time goes into

`bench/cluster.py` on a real Slurm of one node that declares 4 CPUs on {os.cpu_count()} cores,
Python {platform.python_version()}. The machine is shared: shares travel, absolute times do not.

{study}: features are made before, and calibration is left out, but for the wall time.
*CPU time given* is what Slurm set aside, CPUs times seconds; *in training* is the part of it in
which heads were trained and evaluated. The rest is two starts of Python, imports, reading and
checking features, and in a group CPUs that wait for its longest member.

| | cells | Slurm jobs | wall time | CPU time given | in training | overhead a cell |
|---|---|---|---|---|---|---|
{rows}

A dry run of {cells:,} cells (7 datasets, 3 backbones, 8 epsilons, {len(GRID_HEADS)} methods;
{jobs} jobs) takes {seconds:.0f} s.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--study", type=Path, default=ROOT / "config/cifar10_methods.yaml")
    parser.add_argument("--epsilons", nargs="+", type=float, help="default: those of the study")
    parser.add_argument("--title", help="what the report calls the study")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    study = yaml.safe_load(arguments.study.read_text())
    if arguments.epsilons:
        study["epsilons"] = arguments.epsilons
    one = study | {"epsilons": study["epsilons"][:1]}
    methods = {
        name: each for name, each in study["methods"].items() if each["head"] != "nonprivate"
    }
    alone = [one | {"methods": {name: each}} for name, each in methods.items()]
    words = ["features", "--cores", "all", "--configfile", str(written(study, directory))]
    call(command(*words, directory=directory), directory / "bench-features.log", dict(os.environ))
    outcomes = [
        measure("a job a cell", alone, directory),
        measure("a job all methods of an epsilon", [study], directory),
        measure(
            "in groups of three", [study], directory, (*GROUPS, "--group-components", "train=3")
        ),
    ]
    arguments.output.write_text(report(outcomes, plan(), arguments.title or arguments.study.stem))
    print(arguments.output.read_text())


if __name__ == "__main__":
    main()
