"""Measures what planning a study costs: `bench/results/planning.md`.

Plans studies that grow by datasets and backbones (`snakemake --dry-run`), of nine methods and eight
epsilons each, or of one method, which has a job for each cell. Seconds are the processor's, of the
process that plans. Beside them stands what Snakemake itself needs for as many jobs of one file
each, in a Snakefile that holds nothing else.

    python bench/planning.py [--cells 1000 5000 20000] [--jobs 20000] [--before CHECKOUT]
        [--touch 5000]

With `--before` each study is planned with another checkout too, in turn. `--touch` adds what
`snakemake --touch` reuses a study of so many cells whose files are all there, but empty.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/planning.md"
HEADS = (
    "sgd", "momentum", "adam", "lamb", "least_squares", "newton", "feature_covariance",
    "prototypes", "nonprivate",
)  # fmt: skip
EPSILONS = [0.1, 0.25, 0.5, 1, 2, 4, 8, "inf"]
# a (dataset, backbone) has private methods at every epsilon, the others at inf alone
CELLS_OF_PAIR = (len(HEADS) - 1) * len(EPSILONS) + 1
BARE = """
rule all:
    input:
        [f"made/{{each}}" for each in range({jobs})],

rule make:
    output:
        "made/{{each}}",
    shell:
        "touch {{output}}"
"""


@dataclass(frozen=True)
class Plan:
    """The cost of a call of Snakemake: seconds of the processor and of the clock, memory in MB."""

    jobs: int
    seconds: float
    wall: float
    memory: float


def grid(cells: int) -> dict[str, Any]:
    """A study of about so many cells, with nearly as many backbones as datasets."""
    pairs = max(1, round(cells / CELLS_OF_PAIR))
    datasets = math.ceil(math.sqrt(pairs))
    return study(datasets, round(pairs / datasets), HEADS)


def study(datasets: int, backbones: int, heads: tuple[str, ...]) -> dict[str, Any]:
    """A study of sets and networks that are never made."""
    return {
        "study": "grid",
        "datasets": {
            f"set{index}": {"source": "sklearn", "name": "digits"} for index in range(datasets)
        },
        "backbones": {
            f"net{index}": {"family": "scattering", "size": 16 + 8 * (index % 4)}
            for index in range(backbones)
        },
        "methods": {head: {"head": head} for head in heads},
        "epsilons": EPSILONS,
    }


def count_cells(options: dict[str, Any]) -> int:
    """The cells of a study of `grid`."""
    private = [head for head in options["methods"] if head != "nonprivate"]
    of_pair = len(private) * len(EPSILONS) + ("nonprivate" in options["methods"])
    return len(options["datasets"]) * len(options["backbones"]) * of_pair


def called(words: list[str], *, directory: Path, checkout: Path) -> Plan:
    """Calls Snakemake and waits for its end."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--directory", str(directory)]
    log = directory / "log"
    started = time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, *words], env=environment, cwd=checkout, stdout=stream, stderr=stream
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    if status:
        raise SystemExit(
            f"{' '.join(words)}: ended with status {status}\n{log.read_text()[-4000:]}"
        )
    jobs = re.findall(r"^total +(\d+)$", log.read_text(), re.MULTILINE)
    return Plan(
        jobs=int(jobs[0]) if jobs else 0,
        seconds=usage.ru_utime + usage.ru_stime,
        wall=wall,
        memory=usage.ru_maxrss / 1024,
    )


def words_of(options: dict[str, Any], directory: Path, checkout: Path) -> list[str]:
    """The options that have Snakemake read a study."""
    file = directory / "study.yaml"
    file.write_text(yaml.safe_dump(options, sort_keys=False))
    return ["--snakefile", str(checkout / "Snakefile"), "--configfile", str(file)]


def plan(options: dict[str, Any], checkout: Path) -> Plan:
    """Measures the plan of a study of which nothing is made."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        words = words_of(options, directory, checkout)
        return called(
            ["--dry-run", "--quiet", "rules", *words], directory=directory, checkout=checkout
        )


def bare(jobs: int) -> Plan:
    """Measures Snakemake itself on as many jobs of one file each."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "Snakefile").write_text(BARE.format(jobs=jobs - 1))
        words = ["--dry-run", "--quiet", "rules", "--snakefile", str(directory / "Snakefile")]
        return called(words, directory=directory, checkout=directory)


def bare_touch(jobs: int) -> float:
    """Seconds by the clock that Snakemake itself needs to touch as many files, a job each."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "Snakefile").write_text(BARE.format(jobs=jobs - 1))
        (directory / "made").mkdir()
        for each in range(jobs - 1):
            (directory / "made" / str(each)).touch()
        words = [
            "--touch",
            "--forceall",
            "--quiet",
            "host",
            "--snakefile",
            str(directory / "Snakefile"),
        ]
        return called(words, directory=directory, checkout=directory).wall


def make_files(options: dict[str, Any], directory: Path, checkout: Path) -> None:
    """Writes every file of a study that its plan names, and of cells all, with nothing in them."""
    words = words_of(options, directory, checkout)
    called(["heads", "--summary", *words], directory=directory, checkout=checkout)
    lines = (directory / "log").read_text().splitlines()
    rows = {line.split("\t")[0] for line in lines if line.count("\t") > 3} - {"output_file"}
    for row in rows:
        path = directory / row
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        if path.name == "metrics.json" and "cells" in path.parts:
            for name in ("privacy.json", "heads.safetensors", "predictions.parquet"):
                path.with_name(name).write_text("")
            path.with_name("history.parquet").write_text("")
        if path.name == "dataset.json":
            splits = {name: {"rows": 1000} for name in ("train", "test")}
            path.write_text(json.dumps({"splits": splits}))


def touch(options: dict[str, Any], checkout: Path) -> tuple[Plan, Plan]:
    """Measures `--touch` of a finished study, and the plan after it."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make_files(options, directory, checkout)
        words = words_of(options, directory, checkout)
        touched = called(
            ["heads", "--touch", "--quiet", "host", *words], directory=directory, checkout=checkout
        )
        after = called(["heads", "--dry-run", *words], directory=directory, checkout=checkout)
        if "Nothing to be done" not in (directory / "log").read_text():
            raise SystemExit(
                f"--touch left something to do:\n{(directory / 'log').read_text()[-4000:]}"
            )
        return touched, after


def cost(each: Plan) -> str:
    """Seconds of the processor, and memory."""
    return f"{each.seconds:.1f} s, {each.memory:,.0f} MB"


def share(new: Plan, old: Plan) -> str:
    """Time and memory as parts of another plan's."""
    return f"{new.seconds / old.seconds:.2f}, {new.memory / old.memory:.2f}"


def row(options: dict[str, Any], before: Path | None) -> str:
    """A line of the table: a study's cells and jobs, what it costs, before and now."""
    cells = count_cells(options)
    old = plan(options, before) if before else None
    new = plan(options, ROOT)
    floor = bare(new.jobs)
    parts = [f"{cells:,}", f"{new.jobs:,}"]
    if old:
        parts.append(cost(old))
    parts += [cost(new), f"{1e3 * new.seconds / cells:.2f} ms"]
    if old:
        parts.append(share(new, old))
    line = f"| {' | '.join([*parts, cost(floor)])} |"
    print(line, flush=True)
    return line


def table(rows: list[str], before: Path | None) -> str:
    """The table of plans."""
    names = ["cells", "jobs"]
    if before:
        names.append("before")
    names += ["now", "a cell"]
    if before:
        names.append("parts of before: time, memory")
    names.append("a bare Snakefile of as many jobs")
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *rows])


def report(plans: str, touches: list[str], before: Path | None) -> str:
    """The text of the results."""
    versions = f"Python {platform.python_version()}, Snakemake {version('snakemake')}"
    turns = " *Before*, where it\nstands, was planned in turn with *now*." if before else ""
    parts = [
        f"""# What planning a study costs

`bench/planning.py` on {os.cpu_count()} cores, {versions}.
The machine is shared: parts of *before* travel, seconds do not.

Each study has {len(HEADS)} methods and {len(EPSILONS)} epsilons, and grows by datasets and
backbones; one with more jobs than cells has a single method. Nothing of it is made. Seconds are the
processor's, of `snakemake --dry-run`; memory is the most that was resident.{turns}

{plans}
"""
    ]
    if touches:
        lines = "\n".join(touches)
        parts.append(
            f"""
`snakemake --touch` of a study whose files are all there, and the plan after it, which finds
nothing to do. Snakemake sleeps a moment in each job that it touches, one by one: beside it stands
what a bare Snakefile of as many jobs takes.

| cells | | touched jobs | touch, by the clock | bare | plan after it |
|---|---|---|---|---|---|
{lines}
"""
        )
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="*", type=int, default=[1000, 5000, 20_000])
    parser.add_argument("--jobs", nargs="*", type=int, default=[], help="of one cell each")
    parser.add_argument("--touch", nargs="*", type=int, default=[], help="numbers of cells")
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    before = arguments.before.resolve() if arguments.before else None
    rows = [row(grid(cells), before) for cells in arguments.cells]
    for jobs in arguments.jobs:
        side = math.ceil(math.sqrt(jobs / len(EPSILONS)))
        rows.append(row(study(side, side, ("sgd",)), before))
    lines = []
    for cells in arguments.touch:
        options = grid(cells)
        for name, checkout in (("before", before), ("now", ROOT)):
            if checkout:
                touched, after = touch(options, checkout)
                lines.append(
                    f"| {count_cells(options):,} | {name} | {touched.jobs:,} | "
                    f"{touched.wall:.0f} s, {touched.memory:,.0f} MB | "
                    f"{bare_touch(touched.jobs):.0f} s | {cost(after)} |"
                )
                print(lines[-1], flush=True)
    text = report(table(rows, before), lines, before)
    arguments.output.write_text(text)


if __name__ == "__main__":
    main()
