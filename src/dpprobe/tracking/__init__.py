"""Writes results to MLflow; only this package imports mlflow."""

import os

# Set before mlflow is imported, because the import reads both variables.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
