"""Makes split tables of some of a dataset's rows from the tables of all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.data.options import DatasetOptions
from dpprobe.data.table import SPLITS, SplitTable, open_table, read_info
from dpprobe.data.table_writer import write_dataset
from dpprobe.errors import DataError
from dpprobe.files import json_files

BATCH_ROWS = 256


def write_subsampled(whole: Path, directory: Path, options: DatasetOptions) -> None:
    """Writes the training rows that `options.subsample` keeps, in order, and all test rows.

    Raises DataError if the tables do not belong together, rows have several labels, or a class is
    unknown, has too few rows or would keep none.

    `whole` is the folder with the tables of all rows, whose images have been decoded.
    """
    assert options.subsample is not None
    info = read_info(whole / "dataset.json")
    tables = {name: open_table(whole / f"{name}.parquet", info) for name in SPLITS}
    if info.multi_label and options.subsample.fraction is None:
        raise DataError(
            "subsample: fractions and per_class need one label per row, but rows have several "
            "labels; write fraction"
        )
    train = tables["train"]
    chosen = options.subsample.choose_rows(
        train.read_labels().tolist(), train.read_units() or train.read_ids(), info.class_names
    )
    kept = {"train": chosen, "test": [True] * info.test_rows}
    write_dataset(
        directory,
        _make_batches(tables, kept),
        # `whole` contains only images that were decoded.
        options=options.model_copy(update={"verify": "hash"}),
        class_names=info.class_names,
        multi_label=info.multi_label,
        groups=info.groups,
        accepted=info.accepted,
        units=info.units is not None,
        rows=sum(map(sum, kept.values())),
        revision=json_files.read_json(whole / "dataset.json")["revision"],
    )


def _make_batches(
    tables: Mapping[str, SplitTable], kept: Mapping[str, Sequence[bool]]
) -> Iterator[tuple[str, pa.Table]]:
    for name, split in tables.items():
        start = 0
        with pq.ParquetFile(split.path, buffer_size=1 << 20) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                rows = pa.table(batch).drop_columns("image_sha256")
                stop = start + rows.num_rows
                yield name, rows.filter(pa.array(kept[name][start:stop]))
                start = stop
