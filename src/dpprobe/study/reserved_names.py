"""The names that a study writes into its results_dir.

Nothing but the standard library is imported: `make clean` reads them where the environment is gone.
"""

from __future__ import annotations

from dpprobe.analysis_registry import FOLDERS

RELEASES = "releases"
DOWNLOADS = "downloads"  # in data_dir

# All but the releases; MLflow's files among them.
WRITTEN = frozenset(
    {
        *FOLDERS, "backbones.json", "benchmarks", "calibration", "cells", "cuts", "features",
        "figures", "logs", "mlartifacts", "mlflow.db", "mlflow.db-shm", "mlflow.db-wal",
        "mlflow.lock", "networks", "overlap", "report.html", "searches", "summary", "tables",
        "tracking",
    }
)  # fmt: skip
# Folders of other studies that are called so would lie among what the default study writes.
TAKEN = WRITTEN | {RELEASES, DOWNLOADS}
