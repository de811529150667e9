"""Tar shards as WebDataset writes them: `key.jpg` with `key.cls`, or with `key.json`.

Shards are read in place, in order, and never unpacked. A first pass reads headers, labels and each
image's offset; a second pass reads, hashes and decodes images. Split tables store images' offsets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dpprobe.data.sources.webdataset_options import ShardOptions


class Options(ShardOptions):
    """Tar shards of samples: `key.jpg` with `key.cls`, or with the fields of `key.json`."""

    source: Literal["webdataset"] = "webdataset"


def prepare(options: Options, directory: Path) -> None:
    """Writes the split tables of tar shards.

    Raises ConfigError if there is no shard. Raises DataError for damaged shards, or one DataError
    for all faulty rows.
    """
    from dpprobe.data import table_writer  # slow import: pyarrow
    from dpprobe.data.sources import webdataset_rows  # slow import: pyarrow

    parts = webdataset_rows.read_shards(options)
    table_writer.write_dataset(
        directory,
        webdataset_rows.make_batches(options, parts),
        options=options,
        class_names=options.class_names,
        multi_label=options.several_labels,
        groups=tuple(options.list_groups()),
        units=options.unit_column is not None,
        rows=sum(map(len, parts.values())),
        embed=options.embed,
        chosen_test=options.has_test(),
    )
