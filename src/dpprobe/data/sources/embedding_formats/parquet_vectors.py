"""Vectors in list columns of parquet files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpprobe.data.people.alike_names import text_of
from dpprobe.data.sources.embedding_formats import embedding_file
from dpprobe.data.sources.embedding_formats.embedding_file import (
    Array,
    Blocks,
    EmbeddingFile,
    Header,
    explain_damage,
)
from dpprobe.data.sources.numbered_parts import list_parts
from dpprobe.data.sources.parquet_columns import (
    NUMBER_LISTS,
    check_same_kinds,
    describe_kind,
    find_codes,
    float_type,
    list_names,
    read_schema,
    stream_columns,
)
from dpprobe.data.sources.tensor_columns import list_kind, read_shape, take_lists
from dpprobe.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetFiles(EmbeddingFile):
    """Parquet files of one dataset, with vectors as lists of numbers or as tensors."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.paths = list_parts(path)

    @cached_property
    def _schemas(self) -> dict[Path, tuple[pa.Schema, int]]:
        return {path: read_schema(path) for path in self.paths}

    def count_parts(self) -> dict[Path, int]:
        return {path: rows for path, (_, rows) in self._schemas.items()}

    def read_headers(self) -> dict[str, Header]:
        import pyarrow as pa

        rows = sum(self.count_parts().values())
        headers = {}
        for each in self._schemas[self.paths[0]][0]:
            if describe_kind(each.type) == NUMBER_LISTS:
                if (shape := read_shape(each)) is not None:
                    kind = str(np.dtype(list_kind(each.type).value_type.to_pandas_dtype()))
                    headers[each.name] = Header((rows, *shape), kind, is_number=True)
            elif not pa.types.is_nested(each.type):
                headers[each.name] = Header((rows,), str(each.type), is_number=False)
        return headers

    def column_types(self, name: str) -> set[str]:
        return {float_type(schema.field(name).type) for schema, _ in self._schemas.values()}

    def find_vectors(self, name: str | None) -> str:
        name = super().find_vectors(name)
        check_same_kinds(self._schemas, [name])
        lengths: dict[int | None, Path] = {}
        for path, (schema, _) in self._schemas.items():
            with explain_damage(path):
                shape = read_shape(schema.field(name)) or ()
            if len(shape) != 1:
                raise ConfigError(
                    f"{path}: column {name!r} has tensors of shape {shape}, but vectors in "
                    f"{self.paths[0]}; write one vector per row in all files"
                )
            lengths.setdefault(shape[0], path)
        if len(known := [length for length in lengths if length is not None]) > 1:
            raise ConfigError(
                f"{lengths[known[1]]}: column {name!r} has vectors of {known[1]} numbers, but of "
                f"{known[0]} in {lengths[known[0]]}; use vectors of one model"
            )
        return name

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        check_same_kinds(self._schemas, names)
        texts: dict[str, list[str]] = {name: [] for name in names}
        for path, (schema, _) in self._schemas.items():
            with explain_damage(path):
                codes = find_codes(path, schema, names)
                for batch in stream_columns(path, list(names)):
                    for name in names:
                        values = list_names(batch, name, codes)
                        texts[name] += [text_of(value).strip() for value in values]
        return texts

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        import pyarrow.parquet as pq

        start = 0
        for path, (schema, _) in self._schemas.items():
            with explain_damage(path), pq.ParquetFile(path) as file:
                stated = [read_shape(schema.field(name)) for name in names]
                for batch in file.iter_batches(embedding_file.BLOCK_ROWS, columns=list(names)):
                    block = [
                        _stack_lists(take_lists(batch[name]), f"{path}: column {name!r}", start)
                        for name in names
                    ]
                    for name, shape, array in zip(names, stated, block, strict=True):
                        if shape not in ((None,), array.shape[1:]):
                            raise OSError(
                                f"{name!r} has {array.shape[1]} numbers, but states {shape}"
                            )
                    yield block
                    start += batch.num_rows


def _stack_lists(lists: pa.Array, where: str, start: int) -> Array:
    """Stacks lists into an array; raises DataError at the first list of another length."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    other = np.flatnonzero((lengths != lengths[0]) | (lengths < 1))
    if len(other):
        row = int(other[0])
        described = "no list" if lengths[row] < 0 else f"a list of {lengths[row]} numbers"
        first = f"the first row of its block has {lengths[0]}" if row else "each row needs numbers"
        raise DataError(
            f"{where} row {start + row}: {described}, but {first}; all vectors must have the same "
            "length"
        )
    # `flatten` respects slices, unlike `values`. A null number becomes NaN, which is reported.
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(numbers).reshape(len(lists), -1)
