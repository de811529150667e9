"""Made-up cells on test rows with groups: records with predictions of our own making."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.artifacts import read_json, write_json
from tests.support.cell_files import write_cell, write_predictions


def write_grouped_cell(
    root: Path,
    *,
    method: str,
    epsilon: str,
    scores: np.ndarray,
    labels: np.ndarray,
    groups: Mapping[str, Sequence[str | None]],
    units: Sequence[int] | np.ndarray | None = None,
    class_names: Sequence[str],
) -> Path:
    """Writes a cell whose heads gave these scores; returns its metrics.json.

    Args:
      scores: [seeds, rows, classes] logits.
      labels: [rows] integers, or [rows, classes] of 0 and 1.
    """
    several = labels.ndim == 2
    path = write_cell(
        root, method=method, epsilon=epsilon, seeds=len(scores), class_names=class_names,
        multi_label=several,
    )  # fmt: skip
    record = read_json(path)
    record["options"] = {"head": record["head"]}
    if several and record["head"] == "sgd":
        record["options"] |= {"batch_size": 32, "epochs": 1, "loss": "sigmoid"}
    write_json(path, record)
    columns: dict[str, Any] = {f"group_{name}": values for name, values in groups.items()}
    if units is not None:
        columns["unit"] = units
    write_predictions(path.with_name("predictions.parquet"), scores, labels, **columns)
    return path
