"""Runs tests, a study, fine-tuning and short benchmarks on a GPU in ten minutes; prints a table.

Each step has a time limit and a log. The script prints a step's rows when the step ends, and needs
no installed dpprobe:

    python bench/gpu.py --steps study tune --rows 10000
    python bench/gpu.py --device cpu --steps study tune  # tiny, to try this script
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import re
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet
import torch
import yaml
from PIL import Image

from copies import VARIABLE, find_data

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "bench" / "gpu_studies"
SHOWN_SECONDS = 10
HEADER = "| what | measured | limit | ratio |\n|---|---|---|---|"
EXACT = {"head": "momentum", "engine": "exact", "steps": 20}


class Row(NamedTuple):
    what: str
    measured: str
    limit: str = ""
    ratio: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


# A step: its time limit in seconds, its command, and the function that reads rows from its log.
Step = tuple[int, list[str], Callable[[str, Path, str], Iterable[Row]]]


def list_steps(options: argparse.Namespace, folder: Path) -> dict[str, Step]:
    """Writes the studies' configurations; returns the steps, with commands for this Python."""
    tiny, device = options.device == "cpu", ["--device", options.device]
    for name in ("study", "tune"):
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps(read_study(name, options, folder)), encoding="utf-8")
    snakemake = ["-m", "snakemake", "--cores", "all", "--configfile"]
    pytest = ["-m", "pytest", "-p", "no:cacheprovider", "-n0", "-o", "addopts=", "-q", "-m", "gpu"]
    measure = ["bench/gpu.py", *device, "--data", str(options.data)]
    quick = [*device, "--quick"]
    photos = ["--threads", str(os.cpu_count())]
    photos += ["--model", "mobilenetv2_100", "--size", "64", "--rows", "64"] * tiny
    heads = ["--only", "B", "--cases", "second"] * tiny
    precision = ["--precision", "float32" if tiny else "bfloat16"]
    images = ["--images", str(options.images)]
    files = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))  # importing all takes a minute
    marked = [str(path) for path in files if "tests.support.gpu" in path.read_text("utf-8")]
    steps = {
        "tests": (100, [*pytest, *marked], read_tests),
        "study": (200, [*snakemake, str(folder / "study.yaml")], read_jobs),
        "tune": (240, [*snakemake, str(folder / "tune.yaml")], read_jobs),
        "extract": (80, ["bench/extract.py", *quick, *photos], read_tables),
        "heads": (50, ["bench/heads.py", *quick, *heads], read_tables),
        "fine_tune": (90, ["bench/fine_tune.py", *quick, *precision], read_tables),
        "exact": (60, [*measure, "--measure", "exact"], read_tables),
        "features": (200, [*measure, "--measure", "features", *images], read_tables),
    }
    return {name: steps[name] for name in options.steps}


def read_study(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tiny = options.device == "cpu"
    text = "".join((STUDIES / f"{part}.yaml").read_text() for part in ("common", name))
    words = {"name": name, "device": options.device, "data": options.data, "folder": folder}
    words |= zip(("size", "batch", "steps"), (64, 64, 4) if tiny else (224, 2048, 40), strict=True)
    study: dict[str, Any] = yaml.safe_load(string.Template(text).substitute(words))
    if tiny:
        study["backbones"] = {"mobilenetv2": study["backbones"]["mobilenetv2"]}
        study.pop("few_shot", None)  # no other backbone reads text
    return study


# rows of the table


def read_tests(log: str, _folder: Path, _name: str) -> Iterator[Row]:
    """Counts tests by outcome, from pytest's last line."""
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", log)}
    yield Row("tests passed", str(counts.get("passed", 0)), str(sum(counts.values())))


def read_jobs(_log: str, folder: Path, name: str) -> Iterator[Row]:
    """Returns the time of each rule's jobs, from the benchmark files of Snakemake."""
    splits = ("train", "test")
    rows = sum(parquet.read_metadata(folder / f"{split}.parquet").num_rows for split in splits)
    folder = folder / name / "results" / "benchmarks"
    jobs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for path in folder.rglob("*.tsv"):
        with path.open(encoding="utf-8") as file:
            seconds = sum(float(row["s"]) for row in csv.DictReader(file, delimiter="\t"))
        parts, ended = path.relative_to(folder).parts, path.stat().st_mtime
        rule = (
            f"{parts[0]} {parts[2]}"
            if parts[0] == "extract_features"
            else parts[0].removesuffix(".tsv")
        )
        jobs[rule].append((ended - seconds, ended))
    for rule, times in sorted(jobs.items(), key=lambda item: min(item[1])):
        span = max(end for _, end in times) - min(start for start, _ in times)
        longest = max(end - start for start, end in times)
        words = f"{span:.1f} s from first to last of {len(times)}, the longest {longest:.1f} s"
        words += f", {rows / span:.0f} rows/s" * rule.startswith("extract")
        yield Row(f"{name}: {rule}", words)


def read_tables(log: str, _folder: Path, name: str) -> Iterator[Row]:
    """Returns the rows of the Markdown tables in a log, with each value's column title."""
    titles: list[str] = []
    before: list[str] = []
    for line in log.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            titles = []
        elif re.fullmatch(r"[|\s:-]+", line):
            titles = before
        elif titles:
            pairs = zip(titles[1:], cells[1:], strict=False)
            words = "; ".join(f"{title} {cell}" for title, cell in pairs if cell)
            yield Row(f"{name}: {cells[0]}", words)
        before = cells


# measurements


def measure_features(options: argparse.Namespace) -> None:
    """Prints the largest difference of features, device against CPU in float32, per backbone."""
    from dpprobe.backbones import loading
    from dpprobe.backbones.backbone import Runtime
    from dpprobe.backbones.registry import backbone_options

    print("| backbone | images | float32 | auto |\n|---|---|---|---|")
    rows = parquet.read_table(options.data / "cifar10" / "test.parquet").column(0).to_pylist()
    pictures = [Image.open(io.BytesIO(one["bytes"])) for one in rows[: options.images]]
    for name, values in read_study("study", options, ROOT)["backbones"].items():
        features = []
        full = Runtime(device="cpu", precision="float32")
        for runtime in (full, replace(full, device=options.device), Runtime(device=options.device)):
            torch.manual_seed(0)
            used = loading.resolve_runtime(runtime)
            backbone = loading.load_backbone(backbone_options(values), runtime=used)
            batches = torch.stack([backbone.transform(one) for one in pictures]).split(250)
            features.append(torch.cat([backbone.forward(one).float().cpu() for one in batches]))
        off = [float((one - features[0]).abs().max() / features[0].abs().max()) for one in features]
        print(f"| {name} | {len(pictures)} | {off[1]:.1e} | {off[2]:.1e} |", flush=True)


def measure_exact(options: argparse.Namespace) -> None:
    """Prints whether an exact head has the same bits on a device as on the CPU, and its time."""
    from dpprobe.heads.fit import fit_heads
    from dpprobe.heads.registry import method_options
    from dpprobe.heads.training_set import TrainingSet
    from dpprobe.privacy.noise_calibration import calibrate
    from dpprobe.privacy.target import Target

    rows, width, classes = (400, 16, 3) if options.device == "cpu" else (50_000, 768, 10)
    features = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    method, best = method_options(EXACT), {}
    target = Target(n=rows, epsilon=8, delta=1e-6, accountant="rdp")
    with tempfile.TemporaryDirectory() as cache:
        plan = calibrate(method.list_mechanisms(rows), target, cache=Path(cache))
    weights = []
    for place in 2 * ["cpu", options.device]:  # each device's first fit compiles code
        data = TrainingSet(features.clone(), features[:, :classes].argmax(1), classes)
        vars(data)["exact_device"] = place
        started = time.monotonic()
        weights.append(fit_heads(method, data, plan, [1]).weights)
        best[place] = time.monotonic() - started
    print("| exact head | bits | time | over CPU |\n|---|---|---|---|")
    same = "equal" if all(np.array_equal(weights[0], one) for one in weights) else "different"
    mine, cpu = best[options.device], best["cpu"]
    print(f"| {rows} x {width}, {classes} classes | {same} | {mine:.2f} s | {mine / cpu:.2f} |")


# steps


def run_step(name: str, step: Step, out: Path, folder: Path, left: float) -> list[Row]:
    """Runs a step, showing its last line of output from time to time; returns its rows."""
    log, last, started = out / f"{name}.log", "", time.monotonic()
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep), "PYTHONUNBUFFERED": "1"}
    limit, command, read = step
    limit = min(limit, round(left))
    with log.open("w", encoding="utf-8") as file:
        streams: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT}
        command = [sys.executable, *command]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, **streams
        )
        while process.poll() is None and (passed := time.monotonic() - started) < limit:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(SHOWN_SECONDS, limit - passed))
            line = log.read_text(errors="replace").strip().rpartition("\n")[2][-110:]
            if line != last:
                print(f"[{name} {passed:.0f} s] {line}", flush=True)
            last = line
    status = process.poll()
    with contextlib.suppress(ProcessLookupError):  # ends jobs that outlive their parent too
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    words = {None: "stopped at its limit", 0: "done"}.get(status, f"exit status {status}")
    text = log.read_text(errors="replace")
    if status:
        print(text[-1500:], flush=True)
    total = Row(f"{name}: {words}", f"{time.monotonic() - started:.0f} s", f"{limit} s")
    return [total, *read(text, folder, name)]


def main() -> None:
    """Runs the steps, and writes OUT/table.md."""
    options, started = parse_arguments(), time.monotonic()
    if options.measure:
        (measure_features if options.measure == "features" else measure_exact)(options)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    table = [HEADER]
    print(HEADER, flush=True)
    with tempfile.TemporaryDirectory(prefix="dpprobe-gpu-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        for split, share in (("train", 1), ("test", 2)):
            rows = parquet.read_table(options.data / "cifar10" / f"{split}.parquet")
            parquet.write_table(rows.slice(0, options.rows // share), folder / f"{split}.parquet")
        for name, step in list_steps(options, folder).items():
            left = 60 * options.minutes - (time.monotonic() - started)
            if left > SHOWN_SECONDS:
                lines = run_step(name, step, options.out, folder, left)
                table += map(str, lines)
                print("\n".join(map(str, lines)), flush=True)
                (options.out / "table.md").write_text("\n".join([*table, ""]), encoding="utf-8")
    print("\n".join(["", *table]))


def parse_arguments() -> argparse.Namespace:
    names = ["tests", "study", "tune", "extract", "heads", "fine_tune", "exact", "features"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument("--data", type=Path, default=find_data(), help="default: DPPROBE_TEST_DATA")
    parser.add_argument("--rows", type=int, help="training rows; half as many test rows")
    parser.add_argument("--images", type=int, default=2000, help="images in step features")
    parser.add_argument("--out", type=Path, default=Path("gpu_out"), help="folder of results")
    parser.add_argument("--minutes", type=float, default=9.5, help="limit for all steps together")
    parser.add_argument("--measure", choices=("features", "exact"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data is None:
        parser.error(f"--data: missing; name the folder of real data, or set {VARIABLE}")
    options.data, options.out = options.data.resolve(), options.out.resolve()
    os.environ[VARIABLE] = str(options.data)  # for the benches that are steps
    options.rows = options.rows or (240 if options.device == "cpu" else 10**9)
    if not (options.data / "cifar10" / "train.parquet").is_file():
        parser.error(f"--data {options.data}: has no cifar10/train.parquet; name another folder")
    return options


if __name__ == "__main__":
    main()
