"""Prints the costs of jobs: in the demo, before and now, and in studies of 104 and 1,000 cells.

    python bench/job_start.py BEFORE

Costs are processor seconds of whole processes. BEFORE is a commit; "before" runs this commit, and
"now" runs HEAD.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import yaml

Seconds = dict[str, list[float]]  # maps a script to its processes' seconds
SNAKEMAKE = ("-m", "snakemake", "--cores", "2")
HOOK = """import atexit, json, os, sys
line = lambda: json.dumps([sys.orig_argv, sum(os.times()[:2])]) + "\\n"
atexit.register(lambda: open(os.environ["JOB_START_NOTES"], "a").write(line()))"""
GROWN = {"backbones": {"pixels": {"family": "pixels"}}, "seeds": 1, "epsilons": [*range(1, 9)]}


def unpack(commit: str, folder: Path) -> Path:
    """Writes a commit's files, and compiles its Python and machine code, as `make demo` does."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    files = [path for path in folder.glob("src/**/*.py") if "= MachineCode(" in path.read_text()]
    names = [".".join(path.relative_to(folder / "src").with_suffix("").parts) for path in files]
    run(folder, "-m", "compileall", "-q", "src")
    run(folder, "-c", f"import {', '.join(names)}")
    return folder


def run(folder: Path, *words: str) -> Seconds:
    """Runs Python on a folder's code; returns the seconds of all processes."""
    hook, notes = folder / "hook", folder / "notes"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    notes.write_text("")
    variables = {"PYTHONPATH": f"{hook}:{folder / 'src'}", "JOB_START_NOTES": str(notes)}
    words = (sys.executable, *words)
    subprocess.run(words, cwd=folder, env={**os.environ, **variables}, check=True, stdout=2)
    found = defaultdict(list)
    for argv, seconds in map(json.loads, notes.read_text().splitlines()):
        script = next((word for word in argv if ".snakemake/scripts/" in word), "Snakemake")
        found[Path(script).name.removesuffix(".py").split(".")[-1]].append(seconds)
    return found


def run_grown(folder: Path, methods: int) -> Seconds:
    """Plans and runs a study of small cells, one per method and epsilon, with 8 epsilons."""
    head = {"head": "sgd", "batch_size": "full", "steps": 4}
    heads = {f"m{index}": head | {"learning_rate": index + 1} for index in range(methods)}
    study = yaml.safe_load((folder / "config.yaml").read_text()) | GROWN
    study |= {"study": f"m{methods}", "methods": heads, "results_dir": f"results/m{methods}"}
    (folder / "grown.yaml").write_text(yaml.safe_dump(study))
    planned = run(folder, *SNAKEMAKE, "--configfile", "grown.yaml", "--dry-run")
    grown = run(folder, *SNAKEMAKE, "--configfile", "grown.yaml")
    return {**grown, "a plan alone": planned["Snakemake"]}


def show(runs: dict[str, Seconds]) -> None:
    """Prints a table with one row per script: number of jobs, seconds and share in each run."""
    print("| script |" + "".join(f" {run} | | share |" for run in runs))
    print("|---|" + "--:|--:|--:|" * len(runs))
    names = sorted({name for seconds in runs.values() for name in seconds})
    for name in [*names, ""]:
        print(f"| {name or 'all'} |", end="")
        for seconds in runs.values():
            whole = sum(map(sum, seconds.values()))
            own = seconds.get(name, []) if name else [whole]
            print(f" {len(own)} jobs | {sum(own):.1f} s | {sum(own) / whole:.0%} |", end="")
        print()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        old, new = (unpack(one, Path(temporary, one)) for one in (sys.argv[1], "HEAD"))
        show({"before": run(old, *SNAKEMAKE), "now": run(new, *SNAKEMAKE)})
        show({"104 cells": run_grown(new, 13), "1,000 cells": run_grown(new, 125)})
