"""The contents of a cell: the weights, scores and history of its seeds, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from dpprobe.files.array_files import pack_tensors
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.privacy.private_mark import mark_metadata
from dpprobe.results.cell_files import HISTORY_FILE, PREDICTIONS_FILE, WEIGHTS_FILE
from dpprobe.results.cell_record import CellName, CellRecord

if TYPE_CHECKING:
    from dpprobe.training.job_features import JobFeatures

HISTORY = pa.schema(
    [
        ("seed_index", pa.int32()),
        ("step", pa.int64()),
        ("epoch", pa.float64()),
        ("train_loss", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("test_auc", pa.float64()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class CellContents:
    """A cell's seeds, newly trained or read from files; each field has one entry per seed."""

    indices: tuple[int, ...]
    weights: np.ndarray  # [S, K, d + 1]
    arrays: Mapping[str, np.ndarray]  # statistics that normalisations released, [S, ...] each
    scores: np.ndarray  # [S, m, K]
    history: list[dict[str, Any]] = field(default_factory=list)
    chosen: tuple[Mapping[str, Any], ...] = ()  # values that a search chose
    seconds: float = 0.0


def merge_seeds(parts: Sequence[CellContents], seeds: int) -> CellContents:
    """Merges reused and new seeds; returns the first `seeds` seeds in order."""
    places = {
        index: (part, position) for part in parts for position, index in enumerate(part.indices)
    }
    chosen = [places[index] for index in range(seeds)]
    history = [row for part in parts for row in part.history if row["seed_index"] < seeds]
    return CellContents(
        indices=tuple(range(seeds)),
        weights=np.stack([part.weights[position] for part, position in chosen]),
        arrays={
            name: np.stack([part.arrays[name][position] for part, position in chosen])
            for name in parts[0].arrays
        },
        scores=np.stack([part.scores[position] for part, position in chosen]),
        history=sorted(history, key=lambda row: (row["seed_index"], row["step"])),
        chosen=tuple(part.chosen[position] for part, position in chosen if part.chosen),
        seconds=sum(part.seconds for part in parts),
    )


def write_contents(
    folder: Path,
    contents: CellContents,
    features: JobFeatures,
    *,
    name: CellName,
    options: Mapping[str, Any],
) -> None:
    """Writes a cell's weights, with the options of its method, predictions and history."""
    with atomic_path(folder / WEIGHTS_FILE) as temporary:
        tensors = {"weights": contents.weights, **contents.arrays}
        content = pack_tensors(tensors, mark_metadata(name.model_dump(), options))
        temporary.write_bytes(content)  # safetensors' save_file would hide the system's error
    with atomic_path(folder / PREDICTIONS_FILE) as temporary:
        pq.write_table(_make_predictions(contents, features), temporary, compression="zstd")
    with atomic_path(folder / HISTORY_FILE) as temporary:
        pq.write_table(pa.Table.from_pylist(contents.history, schema=HISTORY), temporary)


def read_contents(folder: Path, record: CellRecord) -> CellContents:
    indices = tuple(seed["index"] for seed in record.seeds)
    table = pq.read_table(folder / PREDICTIONS_FILE, columns=["scores"])
    values = table["scores"].combine_chunks().flatten().to_numpy()
    tensors = load_file(folder / WEIGHTS_FILE)
    return CellContents(
        indices=indices,
        weights=tensors.pop("weights"),
        arrays=tensors,
        scores=values.reshape(len(indices), record.rows.test, -1),
        history=pq.read_table(folder / HISTORY_FILE).to_pylist(),
        chosen=tuple(seed["chosen"] for seed in record.seeds if "chosen" in seed),
        seconds=record.seconds or 0.0,
    )


def _make_predictions(contents: CellContents, features: JobFeatures) -> pa.Table:
    rows, seeds = len(features.test_labels), len(contents.indices)
    labels = np.concatenate([features.test_labels] * seeds)
    columns = {
        "seed_index": pa.array(np.repeat(np.array(contents.indices, np.int32), rows)),
        "id": pa.array(list(features.test_ids) * seeds),
        "label": list_column(labels, pa.int8()) if features.multi_label else pa.array(labels),
        "scores": list_column(contents.scores, pa.float32()),
    }
    if features.test_units is not None:
        columns["unit"] = pa.array(np.tile(features.test_units, seeds))
    for name, values in features.test_groups.items():
        columns[name] = pa.array(list(values) * seeds)
    return pa.table(columns)


def list_column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Returns an Arrow column of lists from values [..., length of each list]."""
    flat = pa.array(values.reshape(-1)).cast(kind)
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[-1]).cast(pa.list_(kind))
