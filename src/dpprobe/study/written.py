"""The names that a study writes into its results_dir.

Nothing but the standard library is imported: `make clean` reads them where the environment is gone.
"""

from __future__ import annotations

from dpprobe.analysis_registry import FOLDERS

RELEASES = "releases"
DOWNLOADS = "downloads"  # in data_dir
# In results_dir and data_dir: names the object store that the files around it are copies from.
STORE_MARK = ".object_store.json"
STORE_MARK_FORMAT, STORE_MARK_FORMAT_VERSION = "dpprobe-object-store", 1

# All but the releases; MLflow's files among them.
WRITTEN = frozenset(
    {
        *FOLDERS, "backbones.json", "benchmarks", "calibration", "cells", "costly_images", "cuts",
        "features", "figures", "logs", "mlartifacts", "mlflow.db", "mlflow.db-shm", "mlflow.db-wal",
        "mlflow.lock", "networks", "overlap", "report.html", "searches", "summary", "tables",
        "tracking",
    }
)  # fmt: skip
# Folders of other studies that are called so would lie among what the default study writes.
TAKEN = WRITTEN | {RELEASES, DOWNLOADS}
