"""Made-up cells on test rows with groups: records with predictions of our own making."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpprobe.artifacts import read_json, write_json, write_table
from tests.support.cell_files import write_cell


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
    seeds, rows, classes = scores.shape
    flat = pa.array(scores.astype(np.float32).reshape(-1))
    column = pa.array(labels.reshape(-1))
    if several:
        bits = pa.array(labels.astype(np.int8).reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(bits, classes).cast(pa.list_(pa.int8()))
    columns = {
        "seed_index": pa.array(np.repeat(np.arange(seeds, dtype=np.int32), rows)),
        "id": pa.array([f"test-{row}" for row in range(rows)] * seeds),
        "label": pa.chunked_array([column] * seeds),
        "scores": pa.FixedSizeListArray.from_arrays(flat, classes).cast(pa.list_(pa.float32())),
    }
    if units is not None:
        columns["unit"] = pa.array(np.tile(units, seeds))
    for name, values in groups.items():
        columns[f"group_{name}"] = pa.array(list(values) * seeds)
    write_table(path.with_name("predictions.parquet"), pa.table(columns))
    return path
