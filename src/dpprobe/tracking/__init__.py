"""Writes results to MLflow; only this package imports mlflow."""

import os

# Set before mlflow is imported, because mlflow reads both variables at import.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
