"""MLflow: the only room that imports it."""

import os

# Before mlflow is imported, which reads both then.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
