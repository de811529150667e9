"""Split tables of a part of a dataset's training rows, made from the tables of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.data.options import DatasetOptions
from dpprobe.data.table import SPLITS, DatasetInfo, SplitTable, read_info, write_dataset
from dpprobe.errors import DataError

BATCH_ROWS = 256


def write_subsampled(whole: Path, directory: Path, options: DatasetOptions) -> None:
    """Writes the rows that `options.subsample` keeps of `whole`, in their order, and all test rows.

    Args:
      whole: the folder of the whole dataset's tables, whose images are known to decode.
      directory: where the tables go.

    Raises:
      DataError: for tables that do not belong together, rows of several labels, and a class that is
        unknown, has too few rows or would be left without any.
    """
    assert options.subsample is not None
    info = read_info(whole / "dataset.json")
    tables = {name: _opened(whole / f"{name}.parquet", info) for name in SPLITS}
    if info.multi_label:
        raise DataError("subsample: rows have several labels, so that none has a class; remove it")
    train = tables["train"]
    kept = options.subsample.choose(
        train.labels().tolist(), train.units() or train.ids(), info.class_names
    )
    write_dataset(
        directory,
        _batches(tables, kept),
        options=options.model_copy(update={"verify": "hash"}),  # they were decoded already
        class_names=info.class_names,
        groups=info.groups,
        accepted=info.accepted,
        units=info.units is not None,
        rows=kept.count(True) + info.test_rows,
    )


def _opened(path: Path, info: DatasetInfo) -> SplitTable:
    """Opens a split table, which must be the one that its dataset.json describes."""
    table = SplitTable(path)
    if table.fingerprint != info.splits[table.split].fingerprint:
        raise DataError(
            f"{path}: not the table that its dataset.json describes; delete both and prepare the "
            "dataset again"
        )
    return table


def _batches(tables: dict[str, SplitTable], kept: list[bool]) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows of both splits as `write_dataset` takes them."""
    for name, split in tables.items():
        start = 0
        with pq.ParquetFile(split.path, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                rows = pa.table(batch).drop_columns("image_sha256")
                stop = start + rows.num_rows
                yield name, rows.filter(pa.array(kept[start:stop])) if name == "train" else rows
                start = stop
