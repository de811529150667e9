"""The names of a cell's files."""

from __future__ import annotations

METRICS_FILE = "metrics.json"
STATEMENT_FILE = "privacy.json"
WEIGHTS_FILE = "heads.safetensors"
PREDICTIONS_FILE = "predictions.parquet"
HISTORY_FILE = "history.parquet"
# metrics.json marks a cell as complete: it contains the other files' hashes, and is written last.
PAYLOAD_FILES = (WEIGHTS_FILE, PREDICTIONS_FILE, HISTORY_FILE, STATEMENT_FILE)
CELL_FILES = (METRICS_FILE, STATEMENT_FILE, WEIGHTS_FILE, PREDICTIONS_FILE, HISTORY_FILE)
# The cell's files that Snakemake's rules name as inputs or outputs.
NAMED_FILES = (METRICS_FILE, PREDICTIONS_FILE)
