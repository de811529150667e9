"""Files of vectors that another program wrote, read in blocks of rows.

The formats are NumPy's .npy and .npz, safetensors, parquet with list columns, PyTorch's .pt, HDF5,
and AnnData's .h5ad. A file may also contain labels, patients and groups: in one-dimensional arrays,
columns, or `obs`.
"""

from __future__ import annotations

import math
import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.data.option_paths import match_files
from dpprobe.data.people.alike_names import text_of
from dpprobe.data.sources.numbered_parts import list_parts, number_parts
from dpprobe.data.sources.parquet_columns import (
    NUMBER_LISTS,
    TEXT_BYTES,
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
from dpprobe.files.array_files import require_short_header
from dpprobe.files.hdf5_files import open_hdf5, read_column
from dpprobe.files.plain_files import require_plain_file, require_proportion

if TYPE_CHECKING:
    import h5py
    import pyarrow as pa
    import torch


BLOCK_ROWS, _BLOCK_BYTES = 1024, 1 << 26  # the most rows and bytes read at a time
_LONGEST_HEADER = 10_000  # bytes of an array's header, as in NumPy
_MOST_ARRAYS = 1000  # the most arrays of an .npz file; each rereads the file's list
OBJECTS = "object"  # NumPy's type of arrays of Python objects, which only pickle reads
NUMBERS = "fiu"  # NumPy's codes of floats and integers: neither booleans nor complex numbers
# Array names to look for if a file has several arrays and the study names none.
USUAL = ("X", "embedding", "embeddings", "features", "feats")
# NumPy's names of short floats that safetensors, or another byte order, name otherwise.
_SHORT_FLOATS = {"F16": "float16", "F32": "float32", ">f2": "float16", ">f4": "float32"}
# Types whose values NumPy converts to numbers.
_CASTABLE = re.compile("^object$|^bool$|^[<>|][US][0-9]+$| in columns$")
# Names of arrays that are not vectors, even if they are a file's only array.
_NO_VECTORS = re.compile("(?i).*(coord|indic|index|label|mask|position|target|size).*|ids?|y")
# Attributes, and endings of array names, that contain the names of a column's codes.
_CODE_NAMES = ("levels", "labels", "value_labels", "flag_meanings", "names", "class_names")
_CODE_BOOKS = ("categories", "classes", "levels", "names")

Array = npt.NDArray[Any]
Blocks = Iterator[Sequence[Array]]


class Shape(NamedTuple):
    """The size of an array of vectors.

    Attributes:
      dimension: the length of each vector; None until the array is read.
    """

    rows: int
    dimension: int | None


class Header(NamedTuple):
    """An array's shape (None for an unknown length), and the name of its number type."""

    shape: tuple[int | None, ...]
    kind: str
    is_number: bool

    def describe(self, name: str) -> str:
        """Formats an array's name, shape and type for people; * for any length."""
        shape = ", ".join("*" if length is None else f"{length}" for length in self.shape)
        return f"{name or 'array'} [{shape}] of {self.kind}"

    def suggest_code(self, name: str) -> str | None:
        """Returns a line of Python to make vectors from an array; None if no simple line does."""
        array = name if name.isidentifier() else "array"
        if self.kind == OBJECTS and len(self.shape) == 1:
            return f'{array} = numpy.stack({array}).astype("float32")'
        if len(self.shape) > 2 and self.is_number:
            return f"{array} = {array}.reshape(len({array}), -1)"
        if len(self.shape) == 2 and _CASTABLE.search(self.kind):
            return f'{array} = numpy.ascontiguousarray({array}, "float32")'
        return None


NOTHING = Header((), "", is_number=False)


class EmbeddingFile(ABC):
    """A file, or several parquet files, with one or more named vectors per row.

    Attributes:
      faults: maps rows that cannot be read to (kind of problem, detail); filled by `read_blocks`
        before it yields such rows as NaN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: dict[int, tuple[str, str]] = {}

    def count_parts(self) -> dict[Path, int]:
        """Counts the rows of each file if there are several; else empty."""
        return {}

    @abstractmethod
    def read_headers(self) -> Mapping[str, Header]:
        """Reads the headers of all arrays: columns have one dimension, vectors have two."""

    @abstractmethod
    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        """Reads columns as text; blank for a missing value."""

    @abstractmethod
    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        """Yields blocks of rows in order, with one array [rows, dimension] per name."""

    def column_types(self, name: str) -> set[str]:
        """Returns NumPy's names of the types in which a column is stored, if known."""
        kind = self.read_headers()[name].kind
        return {_SHORT_FLOATS.get(kind, kind)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns with one value per row."""
        with explain_damage(self.path):
            headers = self.read_headers().items()
        return tuple(name for name, header in headers if len(header.shape) == 1)

    def explain_array(self, name: str) -> str | None:
        """Explains why an array is no column, with code to make one; None without the array."""
        header = self.read_headers().get(name)
        if header is None or len(header.shape) == 1:
            return None
        several = len(header.shape) == 2 and header.shape[1] != 1
        code = f"{name}.argmax(axis=1)` for labels one-hot" if several else f"{name}.ravel()`"
        return (
            f"array {header.describe(name)} does not have one value per row, as a column needs; "
            f"run `{name} = {code}, and save the file again"
        )

    def list_vectors(self) -> dict[str, Shape]:
        """Lists the arrays of vectors, by their names in the file.

        Raises ConfigError for vectors that are empty or not numeric.
        """
        with explain_damage(self.path):
            headers = self.read_headers().items()
        vectors = {}
        for name, (shape, kind, is_number) in headers:
            if len(shape) != 2:
                continue
            if not is_number:
                code = Header(shape, kind, is_number).suggest_code(name)
                raise ConfigError(
                    f"{self.path}: vectors {name!r} are of type {kind}; save them as float32 "
                    "numbers, row by row" + (f", such as by `{code}`" if code else "")
                )
            if 0 in shape:
                raise ConfigError(
                    f"{self.path}: vectors {name!r} are empty, of shape {shape}; save them again"
                )
            vectors[name] = Shape(shape[0] or 0, shape[1])
        return vectors

    def find_vectors(self, name: str | None) -> str:
        """Finds the array `name`; without a name, the only array or one named as in `USUAL`.

        Raises ConfigError, listing the file's arrays, if there is none.
        """
        known = self.list_vectors()
        if name is None and (name := choose_array(known)) is not None:
            self._check_choice(name)
        if name not in known:
            there = ", ".join(filter(None, known)) or self.describe_arrays()
            wanted = "" if name is None else f" {name!r}"
            raise ConfigError(
                f"{self.path}: no vectors{wanted}, only {there or 'nothing'}; "
                + (self.suggest_vectors(name) or "name arrays [rows, numbers] under `vectors`")
            )
        return name

    def read_stored_headers(self) -> Mapping[str, Header]:
        """Reads the headers of all arrays as they are in the file, for messages."""
        return self.read_headers()

    def describe_arrays(self) -> str:
        """Describes all arrays with their shapes, and notes arrays of Python objects."""
        return ", ".join(
            f"{name or 'an array'} of shape {header.shape}"
            + (" and type object" if header.kind == OBJECTS else "")
            for name, header in self.read_stored_headers().items()
        )

    def suggest_vectors(self, wanted: str | None) -> str | None:
        """Explains how to make vectors from the array that was probably meant; None without one."""
        codes = {
            name: code
            for name, header in self.read_stored_headers().items()
            if (code := header.suggest_code(name))
        }
        likely = (each for each in codes if _NO_VECTORS.fullmatch(each) is None)
        meant = choose_array(codes) or next(likely, None) if wanted is None else wanted
        if meant not in codes:
            return None
        return (
            f"if {meant or 'the array'} has the vectors, write `{codes[meant]}`, and save the "
            "file again"
        )

    def _check_choice(self, name: str) -> None:
        """Raises ConfigError if an array may not be vectors, unless the study names it."""
        header = self.read_headers()[name]
        if name in USUAL or not name or seems_vectors(name, header):
            return
        shape, kind, _ = header
        raise ConfigError(
            f"{self.path}: its only array is {name!r} of shape {shape} and type {kind}, which do "
            "not seem to be vectors; name the folder or file with vectors, or, if these are the "
            f"vectors, write `vectors: {{NAME: {name}}}`"
        )

    def read_blocks(self, names: Sequence[str]) -> Blocks:
        """Yields the blocks of `stream_blocks`, with one-line errors for damaged files.

        Raises ConfigError for a file that cannot be read, and DataError, naming the first differing
        row, if vectors have different lengths.
        """
        with explain_damage(self.path):
            yield from self.stream_blocks(names)


def choose_array(names: Collection[str]) -> str | None:
    """Returns the only name, or the first name in `USUAL` that is among several; else None."""
    usual = (name for name in USUAL if name in names)
    return next(iter(names if len(names) == 1 else usual), None)


def seems_vectors(name: str, header: Header) -> bool:
    """Returns False for arrays of whole numbers, and for names that are not usual for vectors."""
    whole = re.match("u?int|[UI][0-9]|torch.u?int", header.kind) is not None
    return not whole and _NO_VECTORS.fullmatch(name) is None


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Converts a library's error about a damaged file to a one-line ConfigError."""
    try:
        yield
    except (ConfigError, DataError):
        raise
    # h5py, zipfile, NumPy, safetensors and pyarrow raise errors of many kinds.
    except Exception as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        remedy = "create the file again"
        if isinstance(error, BlockingIOError) or "lock file" in line:
            remedy = "another program is writing it: close the file there, and try again"
        elif isinstance(error, PermissionError):
            remedy = "correct its permissions"
        raise ConfigError(f"{path}: cannot be read ({line}); {remedy}") from error


def _numpy_header(shape: tuple[int, ...], kind: np.dtype[Any]) -> Header:
    return Header(shape, str(kind), kind.kind in NUMBERS)


def _write_texts(values: Array) -> list[str]:
    return [text_of(each).strip() for each in values.tolist()]


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
            headers[name] = _numpy_header(shape, kind)
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
                return decode(values, _write_texts(written), f"array {name!r}, named by {book!r}")
        return _write_texts(values)

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
            step = _block_rows(
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


class SafetensorsFile(EmbeddingFile):
    """A .safetensors file with tensors by name."""

    @contextmanager
    def _open_file(self) -> Iterator[Any]:
        from safetensors import safe_open

        with explain_damage(self.path):
            require_short_header(self.path)
            with safe_open(self.path, framework="np") as tensors:
                yield tensors

    def read_headers(self) -> dict[str, Header]:
        headers = {}
        with self._open_file() as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(name)
                kind = part.get_dtype()
                # Supported types exclude bfloat16, booleans and 8-bit floats.
                is_number = re.fullmatch("F(16|32|64)|[IU](8|16|32|64)", kind) is not None
                headers[name] = Header(tuple(part.get_shape()), kind, is_number)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as tensors:
            return {name: _write_texts(tensors.get_tensor(name)) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with self._open_file() as tensors:
            parts = [tensors.get_slice(name) for name in names]
            # numbers of safetensors have 8 bytes or fewer
            longest = 8 * max(math.prod(part.get_shape()[1:]) for part in parts)
            yield from _slice_blocks(parts, parts[0].get_shape()[0], longest)


def _block_rows(row_bytes: int) -> int:
    """Returns the number of rows to read at a time, fewer if vectors are long."""
    return max(1, min(BLOCK_ROWS, _BLOCK_BYTES // max(row_bytes, 1)))


def _slice_blocks(parts: Sequence[Any], rows: int, row_bytes: int) -> Blocks:
    step = _block_rows(row_bytes)
    for start in range(0, rows, step):
        yield [np.asarray(part[start : min(start + step, rows)]) for part in parts]


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
                for batch in file.iter_batches(BLOCK_ROWS, columns=list(names)):
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


class TorchFile(EmbeddingFile):
    """A .pt file with one tensor, or with tensors by name; no code in the file is run."""

    def _read_tensors(self) -> dict[str, torch.Tensor]:
        import torch

        require_plain_file(self.path)
        with zipfile.ZipFile(self.path) as archive:  # PyTorch before 1.6 wrote no archives
            if any(member.compress_type for member in archive.infolist()):
                raise OSError("it is compressed, but torch.save writes no compressed files")
        other = (
            "it contains objects other than tensors; save it with "
            "torch.save(torch.as_tensor(vectors), ...)"
        )
        try:
            read = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except UnpicklingError as error:  # its text suggests running the file's code
            raise OSError(other) from error
        tensors = read if isinstance(read, dict) else {"": read}
        for name, tensor in tensors.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                raise OSError(other)
            require_proportion(self.path, name, tensor.numel() * tensor.element_size())
        return tensors

    def read_headers(self) -> dict[str, Header]:
        headers = {}
        for name, tensor in self._read_tensors().items():
            kind = str(tensor.dtype).removeprefix("torch.")
            is_number = re.fullmatch("b?float(16|32|64)|u?int(8|16|32|64)", kind) is not None
            if (layout := str(tensor.layout)) != "torch.strided" or tensor.is_meta:
                kind, is_number = f"{kind} without plain numbers ({layout})", False
            headers[name] = Header(tuple(tensor.shape), kind, is_number)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with explain_damage(self.path):
            tensors = self._read_tensors()
            return {name: _write_texts(tensors[name].detach().numpy()) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        tensors = self._read_tensors()
        parts = [tensors[name].detach() for name in names]
        # NumPy has no bfloat16; float32 represents all its numbers
        parts = [part.float() if str(part.dtype) == "torch.bfloat16" else part for part in parts]
        longest = 8 * max(math.prod(part.shape[1:]) for part in parts)
        yield from _slice_blocks(parts, parts[0].shape[0], longest)


class Hdf5File(EmbeddingFile):
    """An HDF5 file with data sets by name, such as `features` or `uni/features`."""

    @contextmanager
    def _open_file(self) -> Iterator[h5py.File]:
        with explain_damage(self.path), open_hdf5(self.path) as file:
            yield file

    def read_headers(self) -> dict[str, Header]:
        import h5py

        headers = {}

        def add_header(name: str, part: Any) -> None:
            if getattr(part, "shape", None):  # neither a group nor a single value
                header = _numpy_header(part.shape, part.dtype)
                is_text = part.dtype.hasobject and h5py.check_string_dtype(part.dtype)
                headers[name] = header._replace(kind="text") if is_text else header

        with self._open_file() as file:
            file.visititems(add_header)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as file:
            return {name: _read_obs(file[name]) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with self._open_file() as file:
            parts = [file[name] for name in names]
            longest = max(math.prod(part.shape[1:]) * part.dtype.itemsize for part in parts)
            yield from _slice_blocks(parts, parts[0].shape[0], longest)


class AnnDataFile(Hdf5File):
    """An .h5ad file of AnnData: vectors in `X` or `obsm`, and columns in `obs`."""

    @contextmanager
    def _open_file(self) -> Iterator[h5py.File]:
        import h5py

        with super()._open_file() as file:
            for name in ("obs", "obsm"):
                if name in file and not isinstance(file[name], h5py.Group):
                    raise ConfigError(
                        f"{self.path}: `{name}` is one array, as AnnData before version 0.7 wrote "
                        "it; open the file with anndata and save it again"
                    )
            yield file

    @property
    def columns(self) -> tuple[str, ...]:
        with self._open_file() as file:
            columns = file["obs"].items()
            return tuple(name for name, each in columns if name[:2] != "__" and _is_column(each))

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as file:
            return {name: _read_obs(file["obs"][name]) for name in names}

    def column_types(self, name: str) -> set[str]:
        with self._open_file() as file:
            column = file["obs"][name]
            if not hasattr(column, "dtype"):
                column = column["categories" if "codes" in column else "values"]
            kind = str(getattr(column, "dtype", ""))
            return {_SHORT_FLOATS.get(kind, kind)}

    def read_headers(self) -> dict[str, Header]:
        with self._open_file() as file:
            names = ("X", *(f"obsm/{name}" for name in file.get("obsm", ())))
            parts = {name: file.get(name) for name in names}
            return {
                name: _numpy_header(part.shape, part.dtype)
                for name, part in parts.items()
                if getattr(part, "ndim", 0) == 2
            }

    def find_vectors(self, name: str | None) -> str:
        written = name or "X"
        with self._open_file() as file:
            kind = file[written].attrs.get("encoding-type") if written in file else None
        if kind == "dataframe":
            key = written.removeprefix("obsm/")
            raise ConfigError(
                f"{self.path}: vectors {written!r}: a data frame, not an array; run "
                f"`adata.obsm[{key!r}] = adata.obsm[{key!r}].to_numpy()`, and save the file again"
            )
        if kind in ("csr_matrix", "csc_matrix") and (name or not self.list_vectors()):
            raise ConfigError(
                f"{self.path}: vectors {written!r}: a sparse matrix, mostly of counts; save "
                "vectors of a model as an array in obsm, or matrix.toarray()"
            )
        return super().find_vectors(name)


def _is_column(column: Any) -> bool:
    """Returns True for an array with one value per row, or a group of arrays for one column."""
    if hasattr(column, "dtype"):
        return column.ndim == 1 and column.dtype.names is None
    return {"codes", "categories"} <= {*column} or {"values", "mask"} <= {*column}


def _read_obs(column: Any) -> list[str]:
    """Reads a column of `obs`: plain, coded, or with a mask of blanks.

    Raises ConfigError for codes whose names are stored in an unknown way.
    """
    if not hasattr(column, "dtype"):
        if "codes" in column:
            return decode(column["codes"][:], _read_obs(column["categories"]), column.name)
        texts, mask = _read_obs(column["values"]), read_column(column["mask"]).tolist()
        return ["" if missing else text for text, missing in zip(texts, mask, strict=True)]
    if column.dtype.kind not in "iu":
        return _write_texts(read_column(column))
    if (names := _find_code_names(column)) is None:
        return _write_texts(column[:])
    return decode(column[:], names, column.name)


def _find_code_names(column: Any) -> Mapping[int, str] | Sequence[str] | None:
    """Finds names for a column of integers; None if the integers seem to be the values."""
    import h5py

    if enumeration := h5py.check_enum_dtype(column.dtype):  # a factor, as R writes it
        return {number: name for name, number in enumeration.items()}
    folder, _, name = column.name.rpartition("/")
    attribute = column.attrs.get("categories")
    if isinstance(attribute, h5py.Reference) and attribute:
        return _read_obs(column.file[attribute])
    if told := {attribute is not None and "categories", *_CODE_NAMES} & {*column.attrs}:
        raise ConfigError(
            f"{column.file.filename}: column {name!r} has codes, whose names in its attribute "
            f"{min(told)!r} cannot be read; store the names instead of the codes"
        )
    for place in (f"{folder}/__categories/{name}", f"/uns/{name}_categories"):
        if place in column.file:
            return _read_obs(column.file[place])
    return None


def decode(codes: Array, names: Mapping[int, str] | Sequence[str], where: str) -> list[str]:
    """Returns the names of codes; blank for -1. Raises OSError for a code without a name."""
    known = names if isinstance(names, Mapping) else dict(enumerate(names))
    known = {-1: "", **known}
    if other := set(codes.tolist()) - known.keys():
        raise OSError(f"{where}: the code {min(other)} has no name")
    return [known[code] for code in codes.tolist()]


FORMATS: dict[str, Callable[[Path], EmbeddingFile]] = {
    ".h5": Hdf5File,
    ".h5ad": AnnDataFile,
    ".hdf5": Hdf5File,
    ".npy": NumpyFile,
    ".npz": NumpyFile,
    ".parquet": ParquetFiles,
    ".pq": ParquetFiles,
    ".pt": TorchFile,
    ".safetensors": SafetensorsFile,
}
# Formats for which a glob pattern may match several files.
_PARTS: dict[str, Callable[[Path], EmbeddingFile]] = {
    ".npy": NumpyParts,
    ".parquet": ParquetFiles,
    ".pq": ParquetFiles,
}


def open_embeddings(path: Path, *, option: str) -> EmbeddingFile:
    """Opens a file of vectors; raises ConfigError if it is missing or has an unknown suffix."""
    make = FORMATS.get(path.suffix.lower())
    if make is None:
        raise ConfigError(
            f"{option}: {path}: not the name of a file of vectors; name a file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if not path.is_file():
        make = _PARTS.get(path.suffix.lower())
        if make is None or path.exists() or not match_files(path):  # neither folder nor device
            raise ConfigError(f"{option}: no file {path}; correct the path or put the file there")
    return make(path)
