"""Vectors in NumPy's files: one array in .npy, numbered .npy files, arrays by name in .npz."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpprobe.data.sources.embedding_formats.embedding_file import (
    Array,
    Blocks,
    EmbeddingFile,
    Header,
    Shape,
    block_rows,
    decode_names,
    explain_damage,
    numpy_header,
    write_texts,
)
from dpprobe.data.sources.numbered_parts import number_parts
from dpprobe.data.sources.parquet_columns import TEXT_BYTES
from dpprobe.errors import ConfigError
from dpprobe.files.plain_files import require_plain_file, require_proportion

_LONGEST_HEADER = 10_000  # bytes of an array's header, as in NumPy
_MOST_ARRAYS = 1000  # the most arrays of an .npz file; each rereads the file's list
# Endings of the names of arrays with the names of codes: `y_categories` of `y`.
_CODE_BOOKS = ("categories", "classes", "levels", "names")


class NumpyFile(EmbeddingFile):
    """A .npy file with one array, or a .npz file with arrays by name."""

    @contextmanager
    def _open_array(self, name: str) -> Iterator[IO[bytes]]:
        if self.path.suffix.lower() == ".npy":
            with self.path.open("rb") as stream:
                yield stream
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
            yield member

    def _list_sizes(self) -> dict[str, int]:
        """Lists the sizes of all arrays with their headers, in bytes."""
        require_plain_file(self.path)
        if self.path.suffix.lower() == ".npy":
            return {"": self.path.stat().st_size}
        sizes: dict[str, int] = {}
        with zipfile.ZipFile(self.path) as archive:
            if len(members := archive.infolist()) > _MOST_ARRAYS:
                raise OSError(f"more than {_MOST_ARRAYS:,} arrays")
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in sizes:
                    raise ConfigError(
                        f"{self.path}: two arrays are named {name!r}; save each under its own name"
                    )
                if name != member.filename:
                    sizes[name] = member.file_size
        return sizes

    def read_headers(self) -> dict[str, Header]:
        headers = {}
        for name, size in self._list_sizes().items():
            with self._open_array(name) as stream:
                shape, fortran, kind = _read_numpy_header(stream)
                named, stored = math.prod(shape) * kind.itemsize, size - stream.tell()
            if named != stored and not kind.hasobject:  # pickled objects have any size
                raise ConfigError(
                    f"{self.path}: cannot be read ({stored} bytes of numbers, but its header "
                    f"states {named}); create the file again"
                )
            texts = TEXT_BYTES * shape[0] if len(shape) == 1 else 0
            require_proportion(self.path, name, max(named, texts))
            headers[name] = numpy_header(shape, kind)
            if fortran and sum(length > 1 for length in shape) > 1:
                headers[name] = Header(shape, f"{kind} in columns", is_number=False)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with explain_damage(self.path):
            return {name: self._read_column(name) for name in names}

    def _read_column(self, name: str) -> list[str]:
        values = self._read_array(name)
        books = {f"{name}_{ending}" for ending in _CODE_BOOKS} & {*self._list_sizes()}
        for book in sorted(books) if values.dtype.kind in "iu" else ():
            if (written := self._read_array(book)).dtype.kind in "SU" and written.ndim == 1:
                return decode_names(
                    values, write_texts(written), f"array {name!r}, named by {book!r}"
                )
        return write_texts(values)

    def _read_array(self, name: str) -> Array:
        with self._open_array(name) as stream:
            if _read_numpy_header(stream)[2].hasobject:
                raise ConfigError(
                    f"{self.path}: array {name!r} has Python objects, which are not read because "
                    f"they may run code; run `{name} = {name}.astype(str)`, or for numbers "
                    "`.astype(float)`, and save the file again"
                )
        with self._open_array(name) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with ExitStack() as stack:
            streams = [stack.enter_context(self._open_array(name)) for name in names]
            headers = [_read_numpy_header(stream) for stream in streams]
            rows = headers[0][0][0]
            widths = [math.prod(shape[1:]) for shape, _, _ in headers]
            step = block_rows(
                max(w * kind.itemsize for w, (_, _, kind) in zip(widths, headers, strict=True))
            )
            for start in range(0, rows, step):
                count = min(step, rows - start)
                yield [
                    np.frombuffer(stream.read(count * width * kind.itemsize), kind).reshape(
                        count, *shape[1:]
                    )
                    for stream, width, (shape, _, kind) in zip(
                        streams, widths, headers, strict=True
                    )
                ]


class NumpyParts(EmbeddingFile):
    """Numbered .npy files, such as img_emb_0.npy, whose rows are concatenated."""

    @cached_property
    def _parts(self) -> dict[Path, Shape]:
        """The shape of each part; raises ConfigError if parts are inconsistent."""
        parts = {path: NumpyFile(path).list_vectors() for path in number_parts(self.path).values()}
        first, *_ = parts
        for path, known in parts.items():
            if not known:
                raise ConfigError(
                    f"{path}: no vectors; save parts as one array [rows, numbers] each"
                )
            if (length := known[""].dimension) != parts[first][""].dimension:
                raise ConfigError(
                    f"{path}: vectors of {length} numbers, but {parts[first][''].dimension} in "
                    f"{first}; use vectors of one model"
                )
        return {path: known[""] for path, known in parts.items()}

    def count_parts(self) -> dict[Path, int]:
        return {path: shape.rows for path, shape in self._parts.items()}

    def read_headers(self) -> dict[str, Header]:
        kinds = {NumpyFile(path).read_headers()[""].kind: None for path in self._parts}
        first = next(iter(self._parts.values()))
        shape = sum(self.count_parts().values()), first.dimension
        return {"": Header(shape, " and ".join(kinds), is_number=True)}

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        raise NotImplementedError(f"{self.path}: no columns {names}")

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        for path in self._parts:
            yield from NumpyFile(path).read_blocks(names)


def _read_numpy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads an array's shape, its storage order (True: column by column), and its type."""
    major, _ = np.lib.format.read_magic(stream)
    # NumPy would read a header of up to 4 GB before refusing more than this length.
    start, size = stream.tell(), int.from_bytes(stream.read(2 if major == 1 else 4), "little")
    if size > _LONGEST_HEADER:
        raise OSError(f"a header of {size:,} bytes")
    stream.seek(start)
    read = (
        np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    )
    shape, fortran, kind = read(stream)
    if any(type(length) is not int or length < 0 for length in shape):
        raise OSError(f"its header has the shape {shape}")
    return shape, fortran, kind
