"""The table that `predict` writes: ids, classes, probabilities and faults, as CSV or parquet."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dpprobe.artifacts import atomic_path
from dpprobe.errors import ConfigError
from dpprobe.release.bundle import BundleFacts

SUFFIXES = (".csv", ".parquet")
# Separates the labels of an image that has several.
SEPARATOR = "|"
# Above it a label of several counts.
THRESHOLD = 0.5
# A row group of a parquet file is closed at so many.
GROUP_ROWS = 4096


class Prediction(NamedTuple):
    """A class and its values for one image, or the reason why there are none."""

    id: str
    label: str | None
    values: npt.NDArray[np.float32] | None
    error: str | None


Write = Callable[[Sequence[Prediction]], None]


def label_of(values: npt.NDArray[np.float32], facts: BundleFacts) -> str:
    """Returns the most probable class of an image; of several labels those that count, joined."""
    if not facts.multi_label:
        return facts.class_names[int(values.argmax())]
    said = [
        name for name, value in zip(facts.class_names, values, strict=True) if value > THRESHOLD
    ]
    return SEPARATOR.join(said)


def value_columns(class_names: Sequence[str], link: str) -> list[str]:
    """Returns the names of the columns of probabilities; of scores where these are none."""
    return [f"{'score' if link == 'none' else 'probability'}_{name}" for name in class_names]


def check_output(output: Path | None, inputs: Sequence[Path]) -> None:
    """Checks, before any work, that the table can be written there.

    Raises:
      ConfigError: for another suffix, a folder, or one of the inputs.
    """
    if output is None:
        return
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"output: {output}: write a name that ends in {' or '.join(SUFFIXES)}")
    if output.is_dir():
        raise ConfigError(f"output: {output} is a folder; name a file in it")
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise ConfigError(f"output: {output} is one of the inputs; name another file")


@contextmanager
def open_predictions(output: Path | None, columns: Sequence[str]) -> Iterator[Write]:
    """Opens a table that is whole or absent; yields the function that appends rows.

    Args:
      output: a CSV or parquet file; None for CSV on standard output.
    """
    if output is None:
        yield _csv_rows(sys.stdout, columns)
        sys.stdout.flush()
        return
    with atomic_path(output) as temporary:
        if output.suffix.lower() == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                yield _csv_rows(stream, columns)
        else:
            with _parquet_rows(temporary, columns) as write:
                yield write


def _csv_rows(stream: IO[str], columns: Sequence[str]) -> Write:
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["id", "class", *columns, "error"])

    def write_rows(predictions: Sequence[Prediction]) -> None:
        for one in predictions:
            # As few digits as give the same float32 again.
            values = [""] * len(columns) if one.values is None else map(str, one.values)
            rows.writerow([one.id, one.label or "", *values, one.error or ""])

    return write_rows


@contextmanager
def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Write]:
    fields = [("id", pa.string()), ("class", pa.string())]
    fields += [(name, pa.float32()) for name in columns]
    schema = pa.schema([*fields, ("error", pa.string())])

    def make_table(predictions: Sequence[Prediction]) -> pa.Table:
        missing: list[Any] = [None] * len(columns)
        values = [missing if one.values is None else one.values.tolist() for one in predictions]
        arrays = [
            [one.id for one in predictions],
            [one.label for one in predictions],
            *map(list, zip(*values, strict=True)),
            [one.error for one in predictions],
        ]
        typed = [pa.array(part, kind) for part, kind in zip(arrays, schema.types, strict=True)]
        return pa.Table.from_arrays(typed, schema=schema)

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        pending: list[Prediction] = []

        def write_rows(predictions: Sequence[Prediction]) -> None:
            pending.extend(predictions)
            if len(pending) >= GROUP_ROWS:
                flush_rows()

        def flush_rows() -> None:
            if pending:
                writer.write_table(make_table(pending))
                pending.clear()

        yield write_rows
        flush_rows()
