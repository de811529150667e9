"""A file of vectors that another program wrote, read in blocks of rows.

A file may also contain labels, patients and groups: in one-dimensional arrays, columns, or `obs`.
Each module of this package reads one format.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpprobe.data.people.alike_names import text_of
from dpprobe.errors import ConfigError, DataError

BLOCK_ROWS, _BLOCK_BYTES = 1024, 1 << 26  # the most rows and bytes read at a time
OBJECTS = "object"  # NumPy's type of arrays of Python objects, which only pickle reads
NUMBERS = "fiu"  # NumPy's codes of floats and integers: neither booleans nor complex numbers
# Array names to look for if a file has several arrays and the study names none.
USUAL = ("X", "embedding", "embeddings", "features", "feats")
# NumPy's names of short floats that safetensors, or another byte order, name otherwise.
SHORT_FLOATS = {"F16": "float16", "F32": "float32", ">f2": "float16", ">f4": "float32"}
# Types whose values NumPy converts to numbers.
_CASTABLE = re.compile("^object$|^bool$|^[<>|][US][0-9]+$| in columns$")
# Names of arrays that are not vectors, even if they are a file's only array.
_NO_VECTORS = re.compile("(?i).*(coord|indic|index|label|mask|position|target|size).*|ids?|y")

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
        return {SHORT_FLOATS.get(kind, kind)}

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


def numpy_header(shape: tuple[int, ...], kind: np.dtype[Any]) -> Header:
    return Header(shape, str(kind), kind.kind in NUMBERS)


def write_texts(values: Array) -> list[str]:
    return [text_of(each).strip() for each in values.tolist()]


def block_rows(row_bytes: int) -> int:
    """Returns the number of rows to read at a time, fewer if vectors are long."""
    return max(1, min(BLOCK_ROWS, _BLOCK_BYTES // max(row_bytes, 1)))


def slice_blocks(parts: Sequence[Any], rows: int, row_bytes: int) -> Blocks:
    step = block_rows(row_bytes)
    for start in range(0, rows, step):
        yield [np.asarray(part[start : min(start + step, rows)]) for part in parts]


def decode_names(codes: Array, names: Mapping[int, str] | Sequence[str], where: str) -> list[str]:
    """Returns the names of codes; blank for -1. Raises OSError for a code without a name."""
    known = names if isinstance(names, Mapping) else dict(enumerate(names))
    known = {-1: "", **known}
    if other := set(codes.tolist()) - known.keys():
        raise OSError(f"{where}: the code {min(other)} has no name")
    return [known[code] for code in codes.tolist()]
