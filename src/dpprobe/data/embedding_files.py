"""Files of vectors that another program wrote, read in blocks of rows.

The formats are NumPy's .npy and .npz, safetensors, parquet with list columns, and AnnData's .h5ad.
A file may also have labels, patients and groups: arrays of one dimension, columns, or `obs`.
"""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.data.alike_names import text_of
from dpprobe.data.option_paths import match_files
from dpprobe.errors import ConfigError, DataError

if TYPE_CHECKING:
    import h5py
    import pyarrow as pa

BLOCK_ROWS = 1024
NUMBERS = "fiu"  # NumPy's codes of floats and integers: neither booleans nor complex numbers
# The vectors that are read if a file has several and the study names none.
USUAL = ("X", "embedding", "embeddings")
_FORTRAN = "is stored column by column; save numpy.ascontiguousarray(array) instead"

Array = npt.NDArray[Any]
Blocks = Iterator[Sequence[Array]]


class Shape(NamedTuple):
    """The size of an array of vectors.

    Attributes:
      dimension: the length of each vector; None until the array is read.
    """

    rows: int
    dimension: int | None


class EmbeddingFile(ABC):
    """A file, or several parquet files, with one or more named vectors per row."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns with one value per row."""

    @abstractmethod
    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        """Reads columns as text; blank for a missing value."""

    @abstractmethod
    def list_vectors(self) -> dict[str, Shape]:
        """Lists the arrays of vectors, by their names in the file."""

    @abstractmethod
    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        """Yields blocks of rows, for each name one array [rows, dimension], in the file's order."""

    def find_vectors(self, name: str | None) -> str:
        """Finds the vectors that a study names; without a name, the only vectors or a usual name.

        Raises:
          ConfigError: if the file lacks these vectors; lists the vectors that it has.
        """
        known = self.list_vectors()
        if name is None:
            usual = [each for each in USUAL if each in known]
            name = next(iter(known)) if len(known) == 1 else next(iter(usual), None)
        if name not in known:
            there = ", ".join(filter(None, known)) or "one unnamed array, or none"
            wanted = "" if name is None else f" {name!r}"
            raise ConfigError(
                f"{self.path}: no vectors{wanted}, only {there}; name the right ones under "
                "`vectors`"
            )
        return name

    def read_blocks(self, names: Sequence[str]) -> Blocks:
        """Yields blocks as `stream_blocks` does.

        Raises:
          ConfigError: for a file that cannot be read.
          DataError: if vectors have different lengths; names the first row that differs.
        """
        with explain_damage(self.path):
            yield from self.stream_blocks(names)


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Turns a library's error about a damaged file into a ConfigError of one line."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    # h5py, zipfile, NumPy, safetensors and pyarrow raise errors of many kinds.
    except Exception as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{path}: cannot be read ({line}); create the file again") from error


def check_numbers(path: Path, name: str, kind: object) -> None:
    """Raises ConfigError if vectors are not numbers."""
    if np.dtype(kind).kind not in NUMBERS:  # type: ignore[call-overload]
        raise ConfigError(
            f"{path}: vectors {name!r} are of type {kind}; save them as float32 numbers"
        )


def _write_texts(values: Array) -> list[str]:
    return [
        each.decode() if isinstance(each, bytes) else text_of(each).strip()
        for each in values.tolist()
    ]


class NumpyHeader(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def _read_numpy_header(stream: IO[bytes]) -> NumpyHeader:
    major, _ = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    )
    return NumpyHeader(*read(stream))


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

    def _read_headers(self) -> dict[str, NumpyHeader]:
        names = [""]
        with explain_damage(self.path):
            if self.path.suffix.lower() == ".npz":
                with zipfile.ZipFile(self.path) as archive:
                    names = [each.removesuffix(".npy") for each in archive.namelist()]
            headers = {}
            for name in names:
                with self._open_array(name) as stream:
                    headers[name] = _read_numpy_header(stream)
        return headers

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, one in self._read_headers().items() if len(one.shape) == 1)

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        texts = {}
        with explain_damage(self.path):
            for name in names:
                with self._open_array(name) as stream:
                    texts[name] = _write_texts(np.lib.format.read_array(stream, allow_pickle=False))
        return texts

    def list_vectors(self) -> dict[str, Shape]:
        vectors = {}
        for name, header in self._read_headers().items():
            if len(header.shape) == 2:
                check_numbers(self.path, name, header.dtype)
                if header.fortran and min(header.shape) > 1:
                    raise ConfigError(f"{self.path}: vectors {name!r}: the array {_FORTRAN}")
                vectors[name] = Shape(*header.shape)
        return vectors

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with ExitStack() as stack:
            streams = [stack.enter_context(self._open_array(name)) for name in names]
            headers = [_read_numpy_header(stream) for stream in streams]
            rows = headers[0].shape[0]
            for start in range(0, rows, BLOCK_ROWS):
                count = min(BLOCK_ROWS, rows - start)
                yield [
                    _read_numbers(stream, header, count)
                    for stream, header in zip(streams, headers, strict=True)
                ]


def _read_numbers(stream: IO[bytes], header: NumpyHeader, rows: int) -> Array:
    wanted = rows * header.shape[1] * header.dtype.itemsize
    data = stream.read(wanted)
    if len(data) != wanted:
        raise OSError("it ends before its last row")
    return np.frombuffer(data, header.dtype).reshape(rows, -1)


class SafetensorsFile(EmbeddingFile):
    """A .safetensors file with tensors by name."""

    def _read_header(self) -> dict[str, tuple[list[int], str]]:
        from safetensors import safe_open

        with explain_damage(self.path), safe_open(self.path, framework="np") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, (shape, _) in self._read_header().items() if len(shape) == 1)

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        from safetensors import safe_open

        with explain_damage(self.path), safe_open(self.path, framework="np") as tensors:
            return {name: _write_texts(tensors.get_tensor(name)) for name in names}

    def list_vectors(self) -> dict[str, Shape]:
        vectors = {}
        for name, (shape, kind) in self._read_header().items():
            if len(shape) == 2:
                if kind[0] not in "FIU" or kind.startswith(
                    "F8"
                ):  # bfloat16, booleans, 8-bit floats
                    raise ConfigError(
                        f"{self.path}: vectors {name!r} are of type {kind}; save them as float32 "
                        "numbers"
                    )
                vectors[name] = Shape(shape[0], shape[1])
        return vectors

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        from safetensors import safe_open

        with safe_open(self.path, framework="np") as tensors:
            parts = [tensors.get_slice(name) for name in names]
            yield from _slice_blocks(parts, parts[0].get_shape()[0])


def _slice_blocks(parts: Sequence[Any], rows: int) -> Blocks:
    for start in range(0, rows, BLOCK_ROWS):
        yield [np.asarray(part[start : min(start + BLOCK_ROWS, rows)]) for part in parts]


class ParquetFiles(EmbeddingFile):
    """Parquet files of one dataset, with vectors as lists of numbers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.paths = match_files(path)

    def _read_schema(self) -> pa.Schema:
        import pyarrow.parquet as pq

        with explain_damage(self.paths[0]):
            return pq.read_schema(self.paths[0])

    @property
    def columns(self) -> tuple[str, ...]:
        import pyarrow as pa

        return tuple(each.name for each in self._read_schema() if not pa.types.is_nested(each.type))

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        import pyarrow.parquet as pq

        texts: dict[str, list[str]] = {name: [] for name in names}
        for path in self.paths:
            with explain_damage(path):
                table = pq.read_table(path, columns=list(names), partitioning=None)
                for name in names:
                    values = table.column(name).to_pylist()
                    texts[name] += [text_of(value).strip() for value in values]
        return texts

    def list_vectors(self) -> dict[str, Shape]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with explain_damage(self.path):
            rows = sum(pq.read_metadata(path).num_rows for path in self.paths)
        vectors = {}
        for each in self._read_schema():
            fixed = pa.types.is_fixed_size_list(each.type)
            if fixed or pa.types.is_list(each.type) or pa.types.is_large_list(each.type):
                kind = each.type.value_type
                if pa.types.is_floating(kind) or pa.types.is_integer(kind):
                    vectors[each.name] = Shape(rows, each.type.list_size if fixed else None)
        return vectors

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        import pyarrow.parquet as pq

        start = 0
        for path in self.paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BLOCK_ROWS, columns=list(names)):
                    yield [
                        _stack_lists(batch.column(name), f"{path}: column {name!r}", start)
                        for name in names
                    ]
                    start += batch.num_rows


def _stack_lists(lists: pa.Array, where: str, start: int) -> Array:
    """Returns lists of equal length as an array; DataError names the first other list."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy(zero_copy_only=False)
    other = np.flatnonzero((lengths != lengths[0]) | (lengths < 1))
    if len(other):
        row = int(other[0])
        described = "no list" if lengths[row] < 0 else f"a list of {lengths[row]} numbers"
        raise DataError(
            f"{where} row {start + row}: {described}, but the first row of its block has "
            f"{lengths[0]}; all vectors must have the same length"
        )
    # Not `values`: a null among the numbers becomes NaN, which is reported with its row.
    numbers = lists.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(numbers).reshape(len(lists), -1)


class AnnDataFile(EmbeddingFile):
    """An .h5ad file of AnnData: vectors in `X` or `obsm`, and columns in `obs`."""

    @contextmanager
    def _open_file(self) -> Iterator[h5py.File]:
        import h5py

        with explain_damage(self.path), h5py.File(self.path, "r") as file:
            yield file

    @property
    def columns(self) -> tuple[str, ...]:
        with self._open_file() as file:
            return tuple(file["obs"])

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as file:
            return {name: _read_obs(file["obs"][name]) for name in names}

    def list_vectors(self) -> dict[str, Shape]:
        with self._open_file() as file:
            vectors = {}
            for name in ("X", *(f"obsm/{name}" for name in file.get("obsm", ()))):
                part = file.get(name)
                if getattr(part, "ndim", 0) == 2:
                    check_numbers(self.path, name, part.dtype)
                    vectors[name] = Shape(*part.shape)
            return vectors

    def find_vectors(self, name: str | None) -> str:
        written = name or "X"
        with self._open_file() as file:
            kind = file[written].attrs.get("encoding-type") if written in file else None
        if kind in ("csr_matrix", "csc_matrix") and (name or not self.list_vectors()):
            raise ConfigError(
                f"{self.path}: vectors {written!r}: a sparse matrix, mostly of counts; save "
                "vectors of a model as an array in obsm, or matrix.toarray()"
            )
        return super().find_vectors(name)

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with self._open_file() as file:
            parts = [file[name] for name in names]
            yield from _slice_blocks(parts, parts[0].shape[0])


def _read_obs(column: Any) -> list[str]:
    """Reads a column of `obs`: a plain or categorical array, or an array with a mask of blanks."""
    if hasattr(column, "dtype"):
        return _write_texts(column[:])
    if "codes" in column:
        names = _write_texts(column["categories"][:])
        return [names[code] if code >= 0 else "" for code in column["codes"][:].tolist()]
    both = zip(_write_texts(column["values"][:]), column["mask"][:].tolist(), strict=True)
    return ["" if missing else text for text, missing in both]


FORMATS: dict[str, Callable[[Path], EmbeddingFile]] = {
    ".h5ad": AnnDataFile,
    ".npy": NumpyFile,
    ".npz": NumpyFile,
    ".parquet": ParquetFiles,
    ".pq": ParquetFiles,
    ".safetensors": SafetensorsFile,
}


def open_embeddings(path: Path, *, option: str) -> EmbeddingFile:
    """Opens a file of vectors; raises ConfigError if it is missing or has another suffix."""
    make = FORMATS.get(path.suffix.lower())
    if make is None:
        raise ConfigError(
            f"{option}: {path}: its name is not that of a file of vectors; name a file that ends "
            f"in {', '.join(FORMATS)}"
        )
    if not path.is_file() and not (make is ParquetFiles and match_files(path)):
        raise ConfigError(f"{option}: no file {path}; correct the path or put the file there")
    return make(path)
