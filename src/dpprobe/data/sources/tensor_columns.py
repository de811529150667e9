"""Columns of parquet files with one tensor per row, as Arrow, Ray Data and Daft write them.

Tensors are stored as lists of numbers. Types of Ray Data and Daft are read as such lists, without
their libraries; the shape is in the column's metadata. Ray Data 2.49 to 2.54 wrote the shape as a
pickle, and loading a pickle may run code. This module reads the numbers without loading it.
"""

from __future__ import annotations

import pickletools
import re
from typing import TYPE_CHECKING, Any

from dpprobe.json_values import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

Lengths = tuple[int | None, ...]

_NAME, _STATED = b"ARROW:extension:name", b"ARROW:extension:metadata"
_RAY, _DAFT = re.compile(rb"ray\.data\.arrow_tensor(_v2)?"), b"daft.super_extension"
_PICKLE = b"\x80"  # the first byte of a pickle
_NUMBER, _TUPLE = re.compile("BININT[12]?"), re.compile("PROTO|FRAME|MARK|MEMOIZE|TUPLE.?|STOP")
_FIELDS = ("data", "shape")  # fields of tensors of any shape, in Ray Data and Daft


def list_kind(kind: pa.DataType) -> pa.DataType:
    """Returns the list type that stores a column's tensors; returns other types unchanged."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return list_kind(kind.storage_type)
    if pa.types.is_struct(kind) and {field.name for field in kind} == {*_FIELDS}:
        return kind.field("data").type
    return kind


def take_lists(column: pa.Array) -> pa.Array:
    """Returns a column's tensors as lists; raises OSError for tensors of several dimensions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ExtensionArray):
        return take_lists(column.storage)
    if not pa.types.is_struct(column.type):
        return column
    lists, shapes = (pc.struct_field(column, name) for name in _FIELDS)
    if (most := pc.max(pc.list_value_length(shapes)).as_py() or 1) > 1:
        raise OSError(f"a row has a tensor of {most} dimensions; store one vector per row")
    return lists


def read_shape(field: pa.Field) -> Lengths | None:
    """Reads the shape of a column's rows; None if they are no tensors.

    A length that is unknown before reading is None. Lengths of 1 are omitted: a tensor [1, 768] is
    a vector of 768 numbers. Raises OSError for a shape in an unknown notation.
    """
    import pyarrow as pa

    kind, metadata = field.type, field.metadata or {}
    shape: Lengths | None = (getattr(list_kind(kind), "list_size", None),)
    name, stated = metadata.get(_NAME, b""), metadata.get(_STATED, b"")
    if isinstance(kind, pa.FixedShapeTensorType):
        shape = tuple(kind.shape)
    elif isinstance(kind, pa.ExtensionType):  # from a library that is loaded in this process
        name, stated = kind.extension_name.encode(), kind.__arrow_ext_serialize__()
    if _RAY.fullmatch(name):
        shape = _check_lengths(_read_ray(stated), stated)
    elif name == _DAFT:
        shape = _read_daft(stated)
    return None if shape is None else tuple(length for length in shape if length != 1) or (1,)


def _read_ray(stated: bytes) -> Any:
    """Reads the shape that Ray Data states: JSON such as [768], or a pickle of a tuple."""
    if not stated.startswith(_PICKLE):
        return _parse(stated)
    codes = [(code.name, value) for code, value, _ in pickletools.genops(stated)]
    if other := [
        name for name, _ in codes if not (_NUMBER.fullmatch(name) or _TUPLE.fullmatch(name))
    ]:
        raise OSError(f"the shape of its tensors is a pickle with {other[0]}, which may run code")
    return [value for name, value in codes if _NUMBER.fullmatch(name)]


def _read_daft(stated: bytes) -> Lengths | None:
    """Reads the shape of Daft's embeddings and tensors; None for other types, such as images."""
    datatype = _parse(stated)
    datatype = datatype.get("datatype") if isinstance(datatype, dict) else None
    if not isinstance(datatype, dict):
        raise OSError(f"the type that Daft states, {stated[:80]!r}, is not known")
    if "Tensor" in datatype:  # of any shape
        return (None,)
    for name in ("Embedding", "FixedShapeTensor"):
        if isinstance(parts := datatype.get(name), list) and len(parts) == 2:
            lengths = parts[1] if isinstance(parts[1], list) else parts[1:]
            return _check_lengths(lengths, stated)
    return None


def _parse(stated: bytes) -> Any:
    try:
        return parse_json(stated)
    except ValueError as error:
        raise OSError(f"the type of its tensors is not JSON ({error})") from error


def _check_lengths(lengths: Any, stated: bytes) -> tuple[int, ...]:
    if isinstance(lengths, list) and all(type(each) is int and each > 0 for each in lengths):
        return tuple(lengths)
    raise OSError(f"the shape of its tensors is {stated[:80]!r}")
