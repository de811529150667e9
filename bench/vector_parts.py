"""Measures a study of vectors in parts, from clip-retrieval's files to a private head.

    .venv/bin/python bench/vector_parts.py FOLDER               # 1,000,000 rows, an hour
    .venv/bin/python bench/vector_parts.py FOLDER --rows 20000  # two minutes; writes no result

Writes float16 vectors of 768 numbers, with tables, into FOLDER (11 GB, not removed afterwards), and
runs the study of one head with `dpprobe run` on one core. Snakemake records the jobs' processor
seconds and memory. For 10,000,000 rows, seconds and bytes are extrapolated by a factor of ten from
1,000,000 rows, and memory by the growth per row from 100,000 to 1,000,000 rows.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dpprobe.files.atomic_writes import write_text

RESULTS = Path(__file__).resolve().parent / "results" / "vector_parts.md"
ROWS, WIDTH, PARTS = 1_000_000, 768, 12
CLASSES = [f"class {number}" for number in range(10)]
STEPS = {  # by the rule of a step: its name in the table, and the pattern of its files
    "check": ("`dpprobe check`, with the parts on disk", "clip/*/*"),
    "prepare_data": ("split tables", "data/*/*.parquet"),
    "extract_features": ("features", "results/features/**/*.h5"),
    "train_heads": ("head (`least_squares`, streamed)", "results/cells/**/*"),
}


class Cost(NamedTuple):
    """Processor seconds of a step, MB of its largest job, and bytes of its files."""

    seconds: float
    memory: float
    disk: float

    def describe(self, rows: int) -> str:
        rate = f"{rows / self.seconds:,.0f}"
        return f"{self.seconds / 60:,.1f} | {rate} | {self.memory:,.0f} | {self.disk / 1e9:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    arguments = parser.parse_args()
    small, large = (
        measure(arguments.folder / f"{rows}", rows)
        for rows in (arguments.rows // 10, arguments.rows)
    )
    text = "\n".join(make_page(small, large, arguments.rows))
    print(text)
    if arguments.rows == ROWS:
        write_text(RESULTS, text)


def measure(folder: Path, rows: int) -> dict[str, Cost]:
    """Runs a study with this number of rows, unless finished; returns the cost of each step."""
    if not (folder / "study.yaml").exists():
        write_parts(folder / "clip", rows)
        (folder / "study.yaml").write_text(yaml.safe_dump(make_study()))
    checked = run_dpprobe(folder, "check", "study.yaml")
    run_dpprobe(folder, "run", "heads", "--cores", "1", "--configfile", "study.yaml")
    disk = {name: measure_files(folder, pattern) for name, (_, pattern) in STEPS.items()}
    jobs = {name: read_jobs(folder, name) for name in STEPS if name != "check"}
    return {name: Cost(*(jobs | {"check": checked})[name], disk[name]) for name in STEPS}


def run_dpprobe(folder: Path, *words: str) -> tuple[float, float]:
    """Runs a command; returns its processor seconds and peak memory in MB."""
    process = subprocess.Popen([sys.executable, "-m", "dpprobe", *words], cwd=folder, stdout=2)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"dpprobe {' '.join(words)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def write_parts(folder: Path, rows: int) -> None:
    """Writes vectors near class centres, and tables, in parts with clip-retrieval's layout."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(len(CLASSES), WIDTH)).astype(np.float32)
    for name in ("img_emb", "metadata"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for part, places in enumerate(np.array_split(np.arange(rows), PARTS)):
        labels = generator.integers(0, len(CLASSES), len(places))
        noise = generator.standard_normal((len(places), WIDTH), np.float32)
        vectors = (0.1 * centres[labels] + noise).astype(np.float16)
        np.save(folder / "img_emb" / f"img_emb_{part}.npy", vectors)
        names = [f"{place:012d}" for place in places]
        table = {"image_path": names, "label": [CLASSES[label] for label in labels]}
        pq.write_table(pa.table(table), folder / "metadata" / f"metadata_{part}.parquet")


def make_study() -> dict[str, object]:
    notes = {
        "source": "embeddings",
        "train": "clip/img_emb/img_emb_*.npy",
        "table": "clip/metadata/metadata_*.parquet",
        "id_column": "image_path",
        "label_column": "label",
        "class_names": CLASSES,
        "split_by": "id",
    }
    return {
        "datasets": {"parts": notes},
        "backbones": {"clip": {"family": "external", "model": "random", "each_by_itself": True}},
        "methods": {"least_squares": {"head": "least_squares"}},
        "epsilons": [1],
        "seeds": 1,
        "features": {"memory_mb": 100},  # the head reads its features from disk, as at 10^7 rows
        "delta": 1e-8,
    }


def read_jobs(folder: Path, rule: str) -> tuple[float, float]:
    """Returns the processor seconds of a rule's jobs, and the largest memory of a job in MB."""
    rows: list[dict[str, str]] = []
    for path in (folder / "results" / "benchmarks" / rule).rglob("*.tsv"):
        with path.open(encoding="utf-8") as file:
            rows += csv.DictReader(file, delimiter="\t")
    return sum(float(row["cpu_time"]) for row in rows), max(float(row["max_rss"]) for row in rows)


def measure_files(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def make_page(small: dict[str, Cost], large: dict[str, Cost], rows: int) -> Iterator[str]:
    yield from (
        "# Vectors in parts, from files to a head",
        "",
        f"Written by `bench/vector_parts.py`: float16 vectors of {WIDTH} numbers in {PARTS} parts, "
        f"one core, processor time and memory of jobs as Snakemake records them. {rows:,} rows are "
        f"measured; {10 * rows:,} are computed from {rows // 10:,} and {rows:,}. Four in five rows "
        "are for training. A head that draws batches has them in memory as float32: "
        f"{0.8 * 4 * WIDTH * rows / 1e9:.1f} and {0.8 * 40 * WIDTH * rows / 1e9:.1f} GB more.",
        "",
    )
    columns = ("minutes", "rows/s", "memory (MB)", "disk (GB)")
    heads = [f"{count:,}: {column}" for count in (rows, 10 * rows) for column in columns]
    yield f"| step | {' | '.join(heads)} |"
    yield "|---" + "|--:" * len(heads) + "|"
    for name, (title, _) in STEPS.items():
        here, before = large[name], small[name]
        grown = here.memory + 10 * max(here.memory - before.memory, 0)
        ten = Cost(10 * here.seconds, grown, 10 * here.disk)
        yield f"| {title} | {here.describe(rows)} | {ten.describe(10 * rows)} |"
    yield ""


if __name__ == "__main__":
    main()
