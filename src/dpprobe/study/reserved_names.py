"""Lists names that a study writes into results_dir; imports only the standard library."""

from __future__ import annotations

from dpprobe.analysis_registry import FOLDERS

RELEASES = "releases"
COMPARISONS = "comparisons"  # results of `dpprobe compare`, which a rerun would pay for again
DOWNLOADS = "downloads"  # in data_dir

# All names that a study writes into results_dir except releases and their comparisons; includes
# MLflow's files.
WRITTEN = frozenset(
    {
        *FOLDERS, ".written", "backbones.json", "benchmarks", "calibration", "cells", "cuts",
        "features", "figures", "logs", "mlartifacts", "mlflow.db", "mlflow.db-shm", "mlflow.db-wal",
        "mlflow.lock", "networks", "overlap", "report.html", "searches", "summary", "tables",
        "tracking",
    }
)  # fmt: skip
# Folders of other studies in `results` must not have these names of the default study's files.
TAKEN = WRITTEN | {RELEASES, COMPARISONS, DOWNLOADS}

# The ledger of a dataset, beside its split tables.
LEDGER_FILE = "ledger.jsonl"
# The record of a comparison, in its folder below COMPARISONS.
COMPARISON_FILE = "comparison.json"


def locate_features(results: str, dataset: str, backbone: str, split: str) -> str:
    """Returns the path of the manifest of a split's features."""
    return f"{results}/features/{dataset}/{backbone}/{split}/manifest.json"
