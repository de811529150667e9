"""Tables in parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.errors import DataError, DpprobeError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.plain_files import require_plain_file

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq  # late and heavy: few commands read tables

    with atomic_path(path) as temporary, temporary.open("wb") as stream:  # pyarrow needs UTF-8
        pq.write_table(table, stream, compression="zstd")


def read_table(path: Path) -> pa.Table:
    """Reads a table of results; raises DataError if it is missing, damaged or cut short."""
    import pyarrow.parquet as pq  # late and heavy: few commands read tables

    with explain_parquet(path, DataError, f"{path}: cannot be read", "delete it and run again"):
        return pq.read_table(path)


@contextmanager
def explain_parquet(
    path: Path, kind: type[DpprobeError], fault: str, remedy: str = "replace it"
) -> Iterator[None]:
    """Converts any error in reading a parquet file to an error of class `kind`, in one line."""
    import pyarrow as pa  # late and heavy: few commands read tables

    try:
        require_plain_file(path)
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        line = (getattr(error, "strerror", None) or str(error) or repr(error)).splitlines()[0]
        raise kind(f"{fault} ({line}); {remedy}") from error
