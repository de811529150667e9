"""Measures what one job on a cluster costs beside its work: `bench/results/job_start.md`.

A small study of the digits is run up to one job of training, then that job again, as Slurm starts
it: a Snakemake of its own, which starts the script. All heads are there by then, so that the job
finds nothing to train; what is left is its start. Seconds are the processor's, the fewest of some
rounds, with compiled bytecode.

    python bench/job_start.py [--rounds 5] [--before CHECKOUT]...

With `--before` the same job is measured with earlier checkouts too, in turn, and in the reverse
order in every other round.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/job_start.md"
STUDY = {
    "study": "start",
    "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"sgd": {"head": "sgd", "batch_size": 64, "epochs": 2}},
    "epsilons": [2],
    "seeds": 2,
}
CELL = "results/cells/digits/pixels/sgd/eps-2/metrics.json"
# Every Python notes its processor's seconds when it ends, and what they went into. Only the source
# measured is on its path: Snakemake would load the plugins of an editable installation too.
NOTE = """
import atexit, os, sys, time

sys.path[:] = [path for path in sys.path
               if path == os.environ["SOURCE"] or not os.path.isfile(f"{path}/dpprobe/__init__.py")]

def note():
    heavy = [name for name in ("torch", "numba", "pandas", "pyarrow", "dp_accounting", "mlflow")
             if name in sys.modules]
    with open(os.environ["NOTES"], "a") as stream:
        name = os.path.basename(sys.argv[0] if sys.argv else "")
        print(name, time.process_time(), len(sys.modules), " ".join(heavy), sep="|", file=stream)

atexit.register(note)
"""
SUBMIT = '#!/bin/sh\ncp "$1" job.sh\nsh "$1" >job.log 2>&1 || exit 1\necho 1\n'
STATUS = "#!/bin/sh\necho success\n"
PARTS = {"__main__.py": "Snakemake in the job", "train_heads.py": "the job's script"}
Part = tuple[float, int, str]  # seconds, modules, heavy libraries


def prepare_job(folder: Path, checkout: Path) -> str:
    """Runs the study up to its heads as on a cluster; returns the command of the last job."""
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    for name, text in (("submit", SUBMIT), ("status", STATUS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    words = [
        sys.executable, "-m", "snakemake", "--snakefile", str(checkout / "Snakefile"),
        "--profile", "none", "--workflow-profile", "none", "--executor", "cluster-generic",
        "--jobs", "1", "--cluster-generic-submit-cmd", "./submit",
        "--cluster-generic-status-cmd", "./status", "--seconds-between-status-checks", "1",
        CELL, "--configfile", "study.yaml",
    ]  # fmt: skip
    subprocess.run(words, cwd=folder, env=describe_environment(checkout, folder), check=True)
    lines = (folder / "job.sh").read_text().splitlines()
    command = next(line for line in lines if "--target-jobs" in line)
    # files that Snakemake removed when the run ended
    return re.sub(r"'\S*/\.snakemake/tmp\.\S+' |--runtime-source-cache-path '\S+' ", "", command)


def describe_environment(checkout: Path, folder: Path) -> dict[str, str]:
    """Returns the environment of a job that takes dpprobe from a checkout."""
    values = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return values | {
        "PYTHONPATH": f"{folder.parent}{os.pathsep}{checkout / 'src'}",
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
        "NOTES": str(folder / "notes"),
        "SOURCE": str(checkout / "src"),
    }


def measure_job(command: str, folder: Path, checkout: Path) -> dict[str, Part]:
    """Runs a job and returns what each of its processes took."""
    notes = folder / "notes"
    notes.unlink(missing_ok=True)
    result = subprocess.run(
        ["sh", "-c", command], env=describe_environment(checkout, folder), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    if result.returncode:
        sys.exit(result.stderr[-3000:])
    parts = {}
    for line in notes.read_text().splitlines():
        name, seconds, modules, heavy = line.split("|")
        for end, part in PARTS.items():
            if name.endswith(end):
                parts[part] = float(seconds), int(modules), heavy
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    checkouts = {name_commit(path): path.resolve() for path in arguments.before} | {"now": ROOT}
    rounds: dict[tuple[str, str], list[Part]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sitecustomize.py").write_text(NOTE)
        folders = {which: Path(name) / which for which in checkouts}
        jobs = {which: prepare_job(folders[which], path) for which, path in checkouts.items()}
        for number in range(arguments.rounds):
            for which in list(checkouts)[:: -1 if number % 2 else 1]:
                path = checkouts[which]
                for part, taken in measure_job(jobs[which], folders[which], path).items():
                    rounds[which, part].append(taken)
    write_results(checkouts, rounds)


def name_commit(checkout: Path) -> str:
    """Returns the short name of a checkout's commit."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def write_results(checkouts: dict[str, Path], rounds: dict[tuple[str, str], list[Part]]) -> None:
    """Writes the table of all parts, and prints it."""
    seconds = {key: [part[0] for part in parts] for key, parts in rounds.items()}
    for which in checkouts:
        each = zip(*(seconds[which, part] for part in PARTS.values()), strict=True)
        seconds[which, "both"] = [sum(parts) for parts in each]
    count = len(seconds["now", "both"])
    befores = [which for which in checkouts if which != "now"]
    options = ["--rounds", str(count), *(word for each in befores for word in ("--before", each))]
    words = shlex.join(["python", "bench/job_start.py", *options])
    lines = [
        "# What a job costs before it works",
        "",
        f"Measured by `{words}`, Python {platform.python_version()}: a training job of the digits "
        "that finds all heads trained, started as Slurm starts it. Processor seconds, the fewest "
        f"of {count} rounds; ratios are medians over rounds, with the lowest and the highest. "
        "Ratios travel, seconds do not.",
        "",
        "| | part | seconds | modules | heavy libraries |",
        "|---|---|---|---|---|",
    ]
    for which in checkouts:
        for part in PARTS.values():
            _, modules, heavy = rounds[which, part][0]
            lines.append(
                f"| {which} | {part} | {min(seconds[which, part]):.2f} | {modules} | {heavy} |"
            )
        lines.append(f"| {which} | both | {min(seconds[which, 'both']):.2f} | | |")
    for which in befores:
        for part in (*PARTS.values(), "both"):
            pairs = zip(seconds["now", part], seconds[which, part], strict=True)
            ratios = [now / before for now, before in pairs]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| now / {which} | {part} | {spread} | | |")
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
