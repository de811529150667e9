"""Removes results and split tables: `make clean`, and with `--all` those of every study.

Releases and ledgers stay: a release cannot be made again, and a ledger says what was spent. Only
names that the workflow writes are removed, so that images or results that lie beside them stay.
It imports nothing but the standard library, as the environment may be gone.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

# All that a study writes into its results_dir but `releases`; MLflow's files among them.
WRITTEN = frozenset(
    {
        "audit", "backbones.json", "benchmarks", "calibration", "cells", "costly_images", "cuts",
        "embeddings", "fairness", "features", "few_shot", "figures", "imbalance", "layers", "logs",
        "long_tail", "mlartifacts", "mlflow.db", "mlflow.db-shm", "mlflow.db-wal", "networks",
        "overlap", "report.html", "searches", "summary", "tables", "tracking", "zero_shot",
    }
)  # fmt: skip
TABLES = ("train.parquet", "test.parquet", "problems.csv", "dataset.json")
DEFAULT_DATASETS = ("digits",)
RESULTS, DATA = Path("results"), Path("data")


def main() -> None:
    parser = argparse.ArgumentParser(description="Removes results and split tables.")
    parser.add_argument("--all", action="store_true", help="of every study in results/ and data/")
    every = parser.parse_args().all
    paths = [*all_results(), *all_tables()] if every else [*results(RESULTS), *default_tables()]
    if every:
        paths += [path for path in map(Path, (".snakemake", "logs", "benchmarks")) if path.exists()]
    for path in paths:
        print(f"removed {path}")
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in (RESULTS, DATA):
        remove_empty(folder)


def results(folder: Path) -> Iterator[Path]:
    """Lists what a study wrote into its results_dir."""
    for path in sorted(folder.glob("*")):
        if path.name in WRITTEN:
            yield path


def all_results() -> Iterator[Path]:
    """Lists what every study wrote into `results` or a folder of it."""
    yield from results(RESULTS)
    for folder in sorted(RESULTS.glob("*")):
        if folder.is_dir() and folder.name not in {*WRITTEN, "releases"}:
            yield from results(folder)


def default_tables() -> Iterator[Path]:
    """Lists the split tables of the default study."""
    for name in DEFAULT_DATASETS:
        yield from tables(DATA / name)


def all_tables() -> Iterator[Path]:
    """Lists the split tables of every study below `data`, and what they downloaded."""
    for record in sorted(DATA.rglob("dataset.json")):
        yield from tables(record.parent)
    yield from sorted([*DATA.glob("downloads"), *DATA.glob("*/downloads")])


def tables(folder: Path) -> Iterator[Path]:
    """Lists the tables of a dataset, which a `dataset.json` tells from a person's own files."""
    if (folder / "dataset.json").is_file():
        yield from (folder / name for name in TABLES if (folder / name).is_file())


def remove_empty(folder: Path) -> None:
    """Removes folders that hold nothing, from the innermost on."""
    if folder.is_dir() and not folder.is_symlink():
        for inner in sorted(folder.iterdir()):
            remove_empty(inner)
        if not any(folder.iterdir()):
            folder.rmdir()


if __name__ == "__main__":
    main()
