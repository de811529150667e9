"""Reads arrays as training data: rows (in memory or in blocks), numbers for labels, and groups."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from numbers import Number
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.data.people.person_names import explain_rounding, name_warnings, person_name
from dpprobe.errors import PrivacyError
from dpprobe.estimator.given_values import ArrayError, check_kind, read_count
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.row_norms import find_unusable
from dpprobe.heads.row_source import RowSource

STREAMED_BYTES = 2**30  # larger sources (bytes as float32) are read in blocks, once per pass
# Types whose values NumPy would turn into floats, such as dates into seconds.
_NO_NUMBERS = ("date", "time", "duration", "period", "complex", "[(")
# Types of groups' names; other objects may have texts such as <Patient at 0x7f...>, or {'a', 'b'}.
_NAMES = (str, bytes, Number, np.generic, date, UUID)
SCORED_BYTES = 64 * 2**20  # bytes of a block that is scored, or read from a source


class TypeOfArrayError(ArrayError, TypeError):
    """Raised if rows have values of a wrong type; also a TypeError, as scikit-learn expects."""


def warn_caller(message: str) -> None:
    """Warns at the line that called dpprobe, so that each calling line gets a separate warning."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and re.match(r"dpprobe\.|functools$", frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class _SteadyRows:
    """Raises an error if rows change after the first pass.

    Clipping factors are computed in one pass and used in later passes, so changed rows would not be
    clipped. Each pass is compared at its end, before any sum over its rows leaves the fit.
    """

    def __init__(self) -> None:
        self._content: bytes | None = None

    def watch_pass(
        self, blocks: Iterator[tuple[int, npt.NDArray[np.float32]]]
    ) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields the blocks of a pass; raises ArrayError if the first pass had other rows."""
        content = hashlib.blake2b()
        for start, block in blocks:
            content.update(np.ascontiguousarray(block).data)
            yield start, block
        if self._content not in (None, content.digest()):
            raise ArrayError(
                "X: the rows changed between two passes over the data, so clipping would not bound "
                "them. Pass an array or a file that nothing else modifies"
            )
        self._content = content.digest()


class MappedRows(_SteadyRows):
    """An array, a memory map or a dataset of h5py whose rows are read as float32."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self._rows = rows
        self.rows, self.dimension = rows.shape

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields consecutive blocks of at most `rows` rows: (first row, [m, dimension])."""
        blocks = (
            (start, np.array(self._rows[start : start + rows], dtype=np.float32))
            for start in range(0, self.rows, rows)
        )
        # arrays in memory are not watched: only the user's threads could change them
        plain = type(self._rows) is np.ndarray
        yield from blocks if plain else self.watch_pass(blocks)

    def read_rows(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Reads some rows, with ascending indices."""
        return np.array(self._rows[rows], dtype=np.float32)


class CheckedRows(_SteadyRows):
    """Reads rows of a user's source, whose blocks must have the shape that the source states."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self._source = source
        self.rows = read_count("X: rows of its source:", source.rows)
        self.dimension = read_count("X: dimension of its source:", source.dimension)
        if min(self.rows, self.dimension) < 1:
            raise ArrayError(
                f"X: its source says it has shape ({self.rows}, {self.dimension}); pass some rows"
            )

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields the source's blocks; raises ArrayError if rows differ from the stated shape."""
        yield from self.watch_pass(self._read_checked(rows))

    def _read_checked(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        due = 0
        for pair in self._source.read_blocks(rows) or ():
            first, block = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, pair)
            block = _read_block(block)
            good = block.ndim == 2 and block.shape[1] == self.dimension
            if first != due or not good or due + len(block) > self.rows:
                raise ArrayError(
                    f"X: its source gives a block of shape {block.shape} for row {first}; row "
                    f"{due} of ({self.rows}, {self.dimension}) is expected next. Yield (first row, "
                    "block [m, dimension]) in order"
                )
            yield due, block
            due += len(block)
        if due != self.rows:
            raise ArrayError(f"X: its source says it has {self.rows} rows, but gives {due}")


def find_source(values: Any) -> RowSource | None:
    """Returns a reader for a feature store or a large array on disk; None for other rows."""
    # Arrays of h5py and zarr have `chunks`; their rows stay on disk until they are sliced.
    if isinstance(values, np.memmap) or (hasattr(values, "chunks") and hasattr(values, "ndim")):
        large = values.ndim == 2 and 4 * values.size > STREAMED_BYTES
        return MappedRows(values) if large else None
    if all(hasattr(values, name) for name in ("rows", "dimension", "read_blocks")):
        return values if isinstance(values, FeatureStore | MappedRows) else CheckedRows(values)
    return None


def read_source(source: RowSource) -> npt.NDArray[np.float32]:
    """Reads all rows of a source into memory."""
    rows = np.empty((source.rows, source.dimension), dtype=np.float32)
    for start, block in source.read_blocks(SCORED_BYTES // (4 * source.dimension) + 1):
        rows[start : start + len(block)] = block
    return rows


@contextmanager
def hide_values() -> Iterator[None]:
    """Raises errors for values that are not numbers, without quoting these private values."""
    try:
        yield
    except ValueError as error:
        if not re.match("could not convert|Complex data", str(error)):
            raise
        raise ArrayError("X: a value is a string or complex, not a number; pass numbers") from None
    except TypeError as error:
        if str(error).startswith("Sparse "):
            raise TypeOfArrayError(
                "X: a sparse matrix; pass X.toarray(). In a pipeline, add the step "
                'FunctionTransformer(operator.methodcaller("toarray")) before the classifier'
            ) from None
        raise TypeOfArrayError(f"X: {error}; pass numbers") from None


def refuse_masks(name: str, values: Any) -> None:
    """Raises ArrayError for every masked array, and for a list with masked values."""
    parts = values if isinstance(values, list | tuple) else ()
    if any(isinstance(each, np.ma.MaskedArray) for each in (values, *parts)):
        raise ArrayError(f"{name}: masked; fill the masked values, or leave their rows out")


def _check_type(values: Any) -> None:
    """Raises ArrayError for values that are not plain numbers or texts."""
    refuse_masks("X", values)
    kinds = getattr(values, "dtypes", getattr(values, "dtype", None))  # of columns, or of all
    for kind in np.ravel(np.asarray(kinds, dtype=object)):
        if str(kind).lower().startswith(_NO_NUMBERS):
            raise ArrayError(
                f"X: of type {kind}. Complex data not supported, nor dates or records; pass numbers"
            )


def _read_block(block: Any) -> npt.NDArray[np.float32]:
    _check_type(block)
    with hide_values():
        return np.array(block, dtype=np.float32, order="C")


def join_blocks(values: Any) -> Any:
    """Returns an iterator's blocks [m, d], or a tensor, as one array; other values unchanged.

    Raises ArrayError for types of X that NumPy would misread.
    """
    if isinstance(values, torch.Tensor):
        try:
            values = values.detach().cpu().numpy()
        except (TypeError, RuntimeError) as error:
            raise ArrayError(f"X: {error}; pass a dense tensor of float32 numbers") from error
    if not isinstance(values, Iterator):
        _check_type(values)
        return values
    blocks = [_read_block(block) for block in values]
    if not blocks:
        raise ArrayError("X: this iterator has no blocks, or was already read; pass a new iterator")
    shapes = {block.shape[1:] for block in blocks}
    if any(block.ndim != 2 for block in blocks) or len(shapes) > 1:
        raise ArrayError(
            f"X: blocks of shapes {', '.join(str(block.shape) for block in blocks[:3])}; each must "
            "be [rows, dimension], with the same dimension"
        )
    return np.concatenate(blocks)


def clear_unusable(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Returns rows [m, d] to be scored, with zeros for rows with NaN, infinity or huge values."""
    with np.errstate(over="ignore", invalid="ignore"):
        unusable = find_unusable(rows)
    if not unusable.any():
        return rows
    warn_caller(
        f"X: {int(np.sum(unusable))} rows contain NaN, infinity or huge values; they are scored as "
        "rows of zeros"
    )
    return np.where(unusable[:, None], np.float32(0), rows)


def read_shape(values: Any) -> tuple[int, int]:
    """Returns the number of rows and their dimension, without reading rows into memory."""
    if (source := find_source(values)) is not None:
        return source.rows, source.dimension
    shape = values.shape if hasattr(values, "shape") else np.asarray(values).shape
    if len(shape) != 2:
        raise ArrayError(
            f"Expected 2D array, got {len(shape)}D array instead: X has shape {tuple(shape)}. "
            "Reshape your data to [rows, dimension]"
        )
    rows, dimension = int(shape[0]), int(shape[1])
    for count, what in ((rows, "sample"), (dimension, "feature")):
        if count < 1:
            raise ArrayError(
                f"X: 0 {what}(s) (shape=({rows}, {dimension})) while a minimum of 1 is required."
            )
    return rows, dimension


def check_labels(labels: Any, classes: Sequence[Hashable] | None) -> None:
    """Raises ArrayError for missing labels, labels of several kinds, and unsupported kinds."""
    refuse_masks("y", labels)
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind in "bf":
        return  # scikit-learn's own checks refuse these labels
    kind = check_kind("y", values if values.dtype.kind == "O" else values[:1])
    of_classes = kind if classes is None else check_kind("classes", classes)
    if "texts" in (kind, of_classes) and kind not in (None, of_classes):
        raise ArrayError(f"y: labels are {kind}, but classes are {of_classes}; pass the same kind")


def number_labels(labels: npt.NDArray[Any], classes: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    """Returns each label's position in the list of classes, int64 [rows]."""
    places = {label: place for place, label in enumerate(classes)}
    known, inverse = np.unique(labels, return_inverse=True)
    try:
        codes = np.array([places[label] for label in known.tolist()], dtype=np.int64)
    except KeyError:
        # The error does not quote the label, which is private.
        raise ArrayError(
            f"y: a label is not in classes {list(classes)}; correct y, or add the label to "
            "classes, without looking at the data"
        ) from None
    return codes[inverse]


def number_groups(groups: Any, rows: int) -> Units:
    """Returns units by names of groups.

    Raises PrivacyError for missing names, for objects that are no names, such as sets, and for
    equal names with two texts, such as 7 and 7.0.
    """
    refuse_masks("groups", groups)
    if not isinstance(groups, list | tuple):  # texts of HDF5 cannot be read as objects directly
        groups = np.asarray(groups)
    stored = None if isinstance(groups, list | tuple) else groups.dtype.newbyteorder("=")
    objects = np.asarray(groups, dtype=object)
    if objects.shape != (rows,):
        raise PrivacyError(
            f"groups: has shape {objects.shape}, but X has {rows} rows; pass one name per row"
        )
    # The scalars of Arrow are converted to Python's.
    values = [each.as_py() if hasattr(each, "as_py") else each for each in objects]
    names = [person_name(value) for value in values]
    if "" in names:
        raise PrivacyError(
            f"groups: row {names.index('')} has no name, so its group is unknown; name its "
            "group, or leave the row out"
        )
    _refuse_objects(values)
    for line in (*name_warnings(names), *_list_rounding(values, names, stored)):
        warn_caller(line)
    units = Units.number_units(names)
    _refuse_two_texts(values, names)
    return units


def _refuse_objects(values: Sequence[Any]) -> None:
    for row, value in enumerate(values):
        if not isinstance(value, _NAMES) or isinstance(value, np.void):
            raise PrivacyError(
                f"groups: row {row} has an object of type {type(value).__name__}, whose text may "
                "differ between rows of one person; pass one text, number, date or UUID per row"
            )


def _list_rounding(values: Sequence[Any], names: Sequence[str], stored: Any) -> Iterator[str]:
    """Yields warnings about names that were float16 or float32, in an array or one by one."""
    for kind in (np.dtype(np.float16), np.dtype(np.float32)):
        short = (
            name
            for value, name in zip(values, names, strict=True)
            if stored == kind or isinstance(value, kind.type)
        )
        if (line := explain_rounding(short, kind.name)) is not None:
            yield line


def _refuse_two_texts(values: Sequence[Any], names: Sequence[str]) -> None:
    """Raises PrivacyError for equal values with two texts, such as 1 and True."""
    known: dict[Any, str] = {}
    for value, name in zip(values, names, strict=True):
        if (other := known.setdefault(value, name)) != name:
            raise PrivacyError(
                f"groups: {name!r} and {other!r} are equal, but each would count as one person; "
                "pass one text per person"
            )
