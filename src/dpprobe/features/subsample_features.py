"""Features of a subsample of a dataset, selected from the shards of the whole dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_header import row_range
from dpprobe.features.shard_writer import write_shard


def select_shard(
    *, manifest: Path, whole: Path, table: Path, split: str, shard: int, shards: int, output: Path
) -> None:
    """Writes a shard of a subsample, bit for bit equal to an extraction from images.

    Each row of the subsample must be in the whole dataset, in equal order, with equal id, image and
    label. Raises DataError for a row that differs, and for features of another dataset version.
    Raises ConfigError if there are more shards than rows.

    Args:
      whole, table: the parquet files of the whole split and of the subsample's split, each in the
        folder of its dataset.json.
      shard: the number of the shard among `shards` of the subsample's split.
      output: the shard's path; the file is complete or absent.
    """
    store, source = FeatureStore(manifest), SplitTable(table)
    if store.dataset_fingerprint != read_info(whole.with_name("dataset.json")).fingerprint:
        raise DataError(
            f"{manifest}: these features do not belong to the rows in {whole}; extract them again"
        )
    start, stop = row_range(source.rows, shard, shards)
    rows = _find_places(store, SplitTable(whole), source, slice(start, stop))
    record = next(record for record in store.shards if record.stop > rows[0])
    header = replace(
        store.read_header(record),
        split=split,
        rows=source.rows,
        dataset_fingerprint=read_info(table.with_name("dataset.json")).fingerprint,
        shard=shard,
        shards=shards,
    )
    write_shard(
        output,
        header,
        RowColumns.read_table(source, start, stop),
        store.read_rows(rows),
        layers={name: store.read_rows(rows, layer=name) for name in store.layers},
        probe=record.probe,
    )


def _find_places(
    store: FeatureStore, whole: SplitTable, source: SplitTable, rows: slice
) -> npt.NDArray[np.int64]:
    known = {row_id: place for place, row_id in enumerate(store.ids)}
    hashes, labels = whole.image_hashes(), store.labels
    places = []
    for row_id, digest, label in zip(
        source.read_ids()[rows],
        source.image_hashes()[rows],
        source.read_labels()[rows],
        strict=True,
    ):
        place = known.get(row_id)
        if place is None or hashes[place] != digest or not np.array_equal(labels[place], label):
            raise DataError(
                f"{source.path}: row {row_id} differs from the same row of {whole.path}; "
                f"delete {source.path.parent} and run again"
            )
        places.append(place)
    if np.any(np.diff(places) <= 0):
        raise DataError(
            f"{source.path}: its rows are not in the order of {whole.path}; delete "
            f"{source.path.parent} and run again"
        )
    return np.array(places, dtype=np.int64)
