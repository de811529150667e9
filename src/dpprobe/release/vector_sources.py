"""Lists the vectors that a user names for a head of vectors; reads files as in training.

If the bundle states that patches of a file were pooled to one vector, each file is one item and is
pooled in this way. Otherwise a file has one vector per row, and a folder has one file with one
vector per item. A damaged item causes an error only for its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.data.sources.embedding_files import FORMATS, open_embeddings
from dpprobe.data.sources.embedding_formats.embedding_file import EmbeddingFile, choose_array
from dpprobe.data.sources.item_files import ITEM_FORMATS, ItemFolder, list_items
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.decoding_workers import Fault, Row
from dpprobe.release.bundle import BundleFacts

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A file of rows, or a folder's items, with the name of the array of vectors."""

    file: EmbeddingFile
    array: str
    ids: Sequence[str] | None  # of items; None for rows, which are numbered
    count: int

    def read_blocks(self, first: int) -> Iterator[tuple[list[Row], npt.NDArray[Any], list[Fault]]]:
        """Yields rows with vectors, the vectors, and faults of rows without a vector."""
        start = 0
        for (array,) in self.file.read_blocks([self.array]):
            places = range(start, start + len(array))
            rows = [(first + place, self._name_row(place)) for place in places]
            known = self.file.faults
            faults = {place: known[place][1] for place in places if place in known}
            kept = [row for place, row in zip(places, rows, strict=True) if place not in faults]
            usable = np.array([place not in faults for place in places], bool)
            reasons = [Fault(rows[place - start], why) for place, why in faults.items()]
            yield kept, array[usable], reasons
            start += len(array)

    def _name_row(self, place: int) -> str:
        return f"{self.file.path}:{place}" if self.ids is None else self.ids[place]


@dataclass(frozen=True, kw_only=True)
class VectorSource:
    """All rows and items of the named files and folders, in order."""

    parts: Sequence[_Part]
    dimension: int

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def read_blocks(self) -> Iterator[tuple[list[Row], npt.NDArray[np.float32], list[Fault]]]:
        """Yields rows (position and id), their vectors [m, d], and rows without usable vector.

        Raises DataError for vectors of another dimension.
        """
        first = 0
        for part in self.parts:
            for rows, array, faults in part.read_blocks(first):
                if array.shape[1] != self.dimension:
                    raise DataError(
                        f"{part.file.path}: vectors of {array.shape[1]} numbers, but the head "
                        f"takes {self.dimension}; use vectors of one model"
                    )
                with np.errstate(over="ignore"):  # overflow of float32 is reported as a fault
                    yield rows, array.astype(np.float32), faults
            first += part.count


def find_vectors(inputs: Sequence[Path], facts: BundleFacts) -> VectorSource:
    """Opens the files and folders without reading vectors.

    Raises ConfigError for files of another kind, with other arrays or another dimension.
    """
    pooled = facts.backbone.pool is not None
    parts = [
        _open_items(path, facts) if pooled or path.is_dir() else _open_rows(path, facts)
        for path in inputs
    ]
    source = VectorSource(parts=parts, dimension=facts.dimension)
    if not source.count:
        named = ", ".join(map(str, inputs)) or "none named"
        raise ConfigError(f"vectors: {named}: no rows; name files of vectors or folders of items")
    return source


def is_vector_file(path: Path) -> bool:
    """Returns True for files that contain only vectors."""
    return path.suffix.lower() in FORMATS and path.suffix.lower() not in (".parquet", ".pq")


def _open_rows(path: Path, facts: BundleFacts) -> _Part:
    file = open_embeddings(path, option="vectors")
    array = _find_array(path, file, facts)
    return _Part(file=file, array=array, ids=None, count=file.list_vectors()[array].rows)


def _open_items(path: Path, facts: BundleFacts) -> _Part:
    backbone = facts.backbone
    if path.is_dir():
        files = list_items(path)
    elif not path.is_file():
        raise ConfigError(f"vectors: no file or folder {path}; correct the path")
    else:
        files = [path]
    if any(each.suffix.lower() not in ITEM_FORMATS for each in files) or not files:
        kind = f"pooled by {backbone.pool}" if backbone.pool else "with one vector"
        raise ConfigError(
            f"{path}: no files of items; the head takes one file per item, {kind}, that ends in "
            f"{', '.join(ITEM_FORMATS)}"
        )
    folder = ItemFolder(
        path if path.is_dir() else path.parent,
        pool=backbone.pool,
        named=backbone.array is not None,
        items=[each.stem for each in files],
        files=files,
    )
    array = _find_array(path, folder, facts)
    return _Part(file=folder, array=array, ids=list(map(str, files)), count=len(files))


def _find_array(path: Path, file: EmbeddingFile, facts: BundleFacts) -> str:
    """Returns the name of the array in a file with vectors of the head's dimension."""
    known, wanted = file.list_vectors(), facts.backbone.array
    array = choose_array(known) if wanted is None else wanted
    if array not in known or known[array].dimension not in (None, facts.dimension):
        there = file.describe_arrays() or "nothing"
        named = "" if wanted is None else f" in the array {wanted!r}"
        code = None if array in known else file.suggest_vectors(wanted)
        raise ConfigError(
            f"{path}: {there}; the head takes numbers [rows, {facts.dimension}]"
            f"{named}, the vectors of {facts.backbone.architecture}" + (f"; {code}" if code else "")
        )
    return array
