"""Reads the columns of parquet files, and compares their types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.artifacts import explain_parquet
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER_LISTS = "lists of numbers"


def read_schema(path: Path) -> tuple[pa.Schema, int]:
    """Reads a file's columns and its number of rows.

    Raises ConfigError if the file cannot be read, or two columns have the same name.
    """
    import pyarrow.parquet as pq

    fault = f"{path}: not a readable parquet file"
    with explain_parquet(path, ConfigError, fault), pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ConfigError(f"{path}: two columns are named {name!r}; rename one of them")
    return schema, rows


def check_same_kinds(files: Mapping[Path, tuple[pa.Schema, int]], names: Collection[str]) -> None:
    """Raises ConfigError if files lack a column of the first file, or kinds of a column differ."""
    (first, (expected, _)), *others = files.items()
    for path, (schema, _) in others:
        for name in names:
            if name not in schema.names:
                raise ConfigError(
                    f"{path}: no column {name!r}, which {first} has; name files of one dataset"
                )
            here, there = (describe_kind(each.field(name).type) for each in (schema, expected))
            blank = "null" in (here, there) and NUMBER_LISTS not in (here, there)
            if here != there and not blank:
                raise ConfigError(
                    f"{path}: column {name!r} has {here}, but {there} in {first}; write one type "
                    "in all files"
                )


def describe_kind(kind: pa.DataType) -> str:
    """Names the kind of a column's values; numbers of all widths have one name."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        is_number = types.is_integer(inner) or types.is_floating(inner)
        return NUMBER_LISTS if is_number else f"lists of {describe_kind(inner)}"
    for name, is_one in (
        ("whole numbers", types.is_integer),
        ("floats", types.is_floating),
        ("texts", lambda each: str(each) in ("string", "large_string", "string_view")),
    ):
        if is_one(kind):
            return name
    return str(kind)
