"""Lists names that a study writes into results_dir; imports only the standard library."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dpprobe.analysis_registry import FOLDERS

RELEASES = "releases"
COMPARISONS = "comparisons"  # results of `dpprobe compare`; a rerun costs epsilon again
DOWNLOADS = "downloads"  # in data_dir

# All names that a study writes into results_dir except releases and their comparisons; includes
# MLflow's files.
WRITTEN = frozenset(
    {
        *FOLDERS, ".cells", ".written", "backbones.json", "benchmarks", "calibration", "cells",
        "cuts", "features", "figures", "logs", "mlartifacts", "mlflow.db", "mlflow.db-shm",
        "mlflow.db-wal", "mlflow.lock", "networks", "overlap", "report.html", "searches", "summary",
        "tables", "tracking",
    }
)  # fmt: skip
# Other studies' folders in `results` must not have these names, which the default study uses.
TAKEN = WRITTEN | {RELEASES, COMPARISONS, DOWNLOADS}

# The ledger of a dataset, in the folder of its split tables.
LEDGER_FILE = "ledger.jsonl"
# In the ledger's folder, the folders with the ledger's bundles: one path per line, in JSON.
NOTED_FILE = "release-folders.jsonl"
# The record of a comparison, in its folder below COMPARISONS.
COMPARISON_FILE = "comparison.json"


def locate_features(results: str, dataset: str, backbone: str, split: str) -> str:
    """Returns the path of the manifest of a split's features."""
    return f"{results}/features/{dataset}/{backbone}/{split}/manifest.json"


def same_units_fault(
    dataset: str, other: str | None, known: Collection[str], data_dir: Path
) -> str | None:
    """Explains why a dataset cannot share units with another dataset; None if it can.

    Args:
      other: the dataset's `same_units_as`.
      known: the datasets of the study, and all datasets with a ledger in `data_dir`.
    """
    if other is None or (other != dataset and other in known):
        return None
    return (
        f"same_units_as: {other}: write the name of another dataset of the study, or with releases "
        f"in {data_dir}. Before the other dataset's first release, write `same_units_as: "
        f"{dataset}` under it instead"
    )
