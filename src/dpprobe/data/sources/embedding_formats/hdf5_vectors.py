"""Vectors in HDF5 files, and columns of plain values or of codes with names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpprobe.data.sources.embedding_formats.embedding_file import (
    Blocks,
    EmbeddingFile,
    Header,
    decode_names,
    explain_damage,
    numpy_header,
    slice_blocks,
    write_texts,
)
from dpprobe.errors import ConfigError
from dpprobe.files.hdf5_files import open_hdf5, read_column

if TYPE_CHECKING:
    import h5py

# Attributes that contain the names of a column's codes.
_CODE_NAMES = ("levels", "labels", "value_labels", "flag_meanings", "names", "class_names")


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
                header = numpy_header(part.shape, part.dtype)
                is_text = part.dtype.hasobject and h5py.check_string_dtype(part.dtype)
                headers[name] = header._replace(kind="text") if is_text else header

        with self._open_file() as file:
            file.visititems(add_header)
        return headers

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        with self._open_file() as file:
            return {name: read_obs(file[name]) for name in names}

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        with self._open_file() as file:
            parts = [file[name] for name in names]
            longest = max(math.prod(part.shape[1:]) * part.dtype.itemsize for part in parts)
            yield from slice_blocks(parts, parts[0].shape[0], longest)


def read_obs(column: Any) -> list[str]:
    """Reads a column of `obs`: plain, coded, or with a mask of blanks.

    Raises ConfigError for codes whose names are stored in an unknown way.
    """
    if not hasattr(column, "dtype"):
        if "codes" in column:
            return decode_names(column["codes"][:], read_obs(column["categories"]), column.name)
        texts, mask = read_obs(column["values"]), read_column(column["mask"]).tolist()
        return ["" if missing else text for text, missing in zip(texts, mask, strict=True)]
    if column.dtype.kind not in "iu":
        return write_texts(read_column(column))
    if (names := _find_code_names(column)) is None:
        return write_texts(column[:])
    return decode_names(column[:], names, column.name)


def _find_code_names(column: Any) -> Mapping[int, str] | Sequence[str] | None:
    """Finds names for a column of integers; None if the integers seem to be the values."""
    import h5py

    if enumeration := h5py.check_enum_dtype(column.dtype):  # a factor, as R writes it
        return {number: name for name, number in enumeration.items()}
    folder, _, name = column.name.rpartition("/")
    attribute = column.attrs.get("categories")
    if isinstance(attribute, h5py.Reference) and attribute:
        return read_obs(column.file[attribute])
    if told := {attribute is not None and "categories", *_CODE_NAMES} & {*column.attrs}:
        raise ConfigError(
            f"{column.file.filename}: column {name!r} has codes, whose names in its attribute "
            f"{min(told)!r} cannot be read; store the names instead of the codes"
        )
    for place in (f"{folder}/__categories/{name}", f"/uns/{name}_categories"):
        if place in column.file:
            return read_obs(column.file[place])
    return None
