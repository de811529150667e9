"""Folders with one file per item, whose patches' vectors are pooled into one vector."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpprobe.counted_nouns import count_noun
from dpprobe.data.sources.embedding_files import FORMATS
from dpprobe.data.sources.embedding_formats.embedding_file import (
    BLOCK_ROWS,
    NOTHING,
    Array,
    Blocks,
    EmbeddingFile,
    Header,
    choose_array,
    explain_damage,
)
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    from dpprobe.data.options import Pooling

ITEM_FORMATS = (".h5", ".hdf5", ".pt", ".npz", ".npy", ".safetensors")
_MOST_COMPARED = 10_000  # the most names searched for a similar one


class ItemFolder(EmbeddingFile):
    """A folder with one file per item: the item's vector, or the vectors of its patches.

    No file may affect what is read from another: unless the study names the arrays, they must have
    the same names in all files, and all vectors must have the same length.

    Attributes:
      pool: how the patches of an item become one vector; None if each item has one vector.
      named: True if the study names the arrays.
      items: the file names of the chosen rows without endings, in the order of rows.
      files: the only files of the folder to read; None for all.
    """

    def __init__(
        self,
        path: Path,
        *,
        pool: Pooling | None,
        named: bool,
        items: Sequence[str] = (),
        files: Sequence[Path] | None = None,
    ) -> None:
        super().__init__(path)
        self.pool = pool
        self.named = named
        self.items = items
        self._chosen = files

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """The files of each item."""
        files: dict[str, list[Path]] = {}
        for path in list_items(self.path) if self._chosen is None else self._chosen:
            files.setdefault(path.stem, []).append(path)
        return files

    @cached_property
    def _first(self) -> tuple[Path, Mapping[str, Header]]:
        """The first readable file, and the headers of its arrays."""
        faults: list[Exception] = []
        for path in chain.from_iterable(self._files.values()):
            try:
                return path, _read_item_headers(path)
            except ConfigError as error:
                faults.append(error)
        raise next(iter(faults), OSError(f"no file that ends in {', '.join(ITEM_FORMATS)}"))

    def read_headers(self) -> dict[str, Header]:
        """Returns the headers of one file; other files may have other numbers of patches."""
        return {
            name: Header((None, header.shape[-1]), header.kind, header.is_number)
            for name, header in _item_arrays(self._first[1]).items()
        }

    def read_stored_headers(self) -> Mapping[str, Header]:
        return self._first[1]

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]:
        raise NotImplementedError(f"{self.path}: no columns {names}")

    def choose_items(self, ids: Sequence[str]) -> ItemFolder:
        """Returns a copy of the folder with the files for some rows as items."""
        return ItemFolder(self.path, pool=self.pool, named=self.named, items=ids)

    def holds_patches(self, name: str) -> bool:
        """Returns True if a readable file has several patches in an array."""
        for path in chain.from_iterable(self._files.values()):
            with suppress(ConfigError):
                shape = _read_item_headers(path).get(name, NOTHING).shape
                if math.prod(length or 0 for length in shape[:-1]) > 1:
                    return True
        return False

    def describe_names(self, ids: Collection[str]) -> str:
        """Writes how many items have a file, by name, and which items have none."""
        lacking = [name for name in ids if name not in self._files]
        told = f"{len(ids) - len(lacking):,} of {count_noun(len(ids), 'item')} have a file"
        if lacking:
            more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
            told += f"; not {lacking[0]!r}{more} ({self._suggest(lacking[0])})"
        if other := len(self._files.keys() - set(ids)):
            told += f"; {count_noun(other, 'file')} without an item"
        return told

    def _find_item(self, name: str) -> Path | tuple[str, str]:
        """Finds an item's file; returns a fault if there are none or several."""
        found = self._files.get(name, [])
        if not found:
            return "missing", f"no file of {name!r} in {self.path}, {self._suggest(name)}"
        if len(found) > 1:
            files = " and ".join(path.name for path in found)
            return "item", f"{self.path}: item {name!r} has {files}; keep one file"
        return found[0]

    def _suggest(self, name: str) -> str:
        """Suggests a file for an item: one without an ending, or with a similar name."""
        wanted = {name.casefold(), name.rpartition(".")[0].casefold()}
        alike = [stem for stem in self._files if stem.casefold() in wanted]
        if not alike and len(self._files) <= _MOST_COMPARED:
            alike = difflib.get_close_matches(name, self._files, n=1, cutoff=0.8)
        if alike:
            return f"only {self._files[alike[0]][0].name}, which has a similar name"
        return f"such as {name}.h5"

    def _find_fault(self, name: str, headers: Mapping[str, Header]) -> str | None:
        """Explains how an item's array differs from the study's options, with the remedy."""
        first, there = self._first, ", ".join(map(repr, headers)) or "nothing"
        if name not in headers:
            return f"no array {name!r}, only {there}; save it there"
        shape, kind, is_number = headers[name]
        patches = math.prod(length or 0 for length in shape[:-1])
        told = f"array {name!r} has the shape {shape},"
        if not is_number:
            code = headers[name].suggest_code(name)
            how = f", such as by `{code}`" if code else ""
            return f"{told} type {kind}; save it as float32 numbers{how}"
        if not self.named and choose_array(_item_arrays(headers)) != name:
            return f"{name!r} in {first[0]}, but {there} here; name one array under `vectors`"
        if 0 in shape or not shape or patches != max((1, *(n or 0 for n in shape[:-1]))):
            return f"{told} but an item needs [numbers] or [patches, numbers]; save it again"
        if patches > 1 and self.pool is None:
            return f"{told} so the item has several patches; write `pool: mean` or `pool: max`"
        if shape[-1] != (length := first[1][name].shape[-1]):
            return f"{told} but {length} numbers in {first[0]}; use vectors of one model"
        return None

    def stream_blocks(self, names: Sequence[str]) -> Blocks:
        """Yields pooled vectors; an item that is missing or damaged gives NaN, and a fault."""
        known = self.list_vectors()
        for start in range(0, len(self.items), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(self.items))
            block = [np.full((stop - start, known[name].dimension or 0), np.nan) for name in names]
            for row in range(start, stop):
                for array, vector in zip(block, self._pool_item(row, names), strict=False):
                    array[row - start] = vector
            yield block

    def _pool_item(self, row: int, names: Sequence[str]) -> list[Array]:
        """Returns an item's vectors; none if its file has a fault.

        If an array does not match the study's options, the fault has kind `item`, so that
        `unreadable: drop` does not hide it.
        """
        path = self._find_item(self.items[row])
        if isinstance(path, tuple):
            self.faults[row] = path
            return []
        file, vectors = FORMATS[path.suffix.lower()](path), []
        try:
            with explain_damage(path):
                headers = file.read_headers()
                if empty := [name for name in names if 0 in headers.get(name, NOTHING).shape[:-1]]:
                    shape = headers[empty[0]].shape
                    self.faults[row] = "unreadable", f"{path}: no patches, shape {shape}"
                    return []
                fault = next(filter(None, (self._find_fault(name, headers) for name in names)), "")
                for name in () if fault else names:
                    blocks: Iterable[Array] = (block for (block,) in file.stream_blocks([name]))
                    if len(headers[name].shape) == 1:
                        blocks = [np.concatenate([*blocks])]
                    vectors.append(pool_patches(blocks, self.pool or "mean"))
        except ConfigError as error:
            self.faults[row] = "unreadable", str(error)
            return []
        if fault:
            self.faults[row] = "item", f"{path}: {fault}"
        return vectors


def _item_arrays(headers: Mapping[str, Header]) -> dict[str, Header]:
    """Returns an item's arrays that may be vectors, without single values and texts."""
    return {
        name: header
        for name, header in headers.items()
        if len(header.shape) > (0 if header.is_number else 1)
    }


def _read_item_headers(path: Path) -> Mapping[str, Header]:
    with explain_damage(path):
        return FORMATS[path.suffix.lower()](path).read_headers()


def list_items(folder: Path) -> list[Path]:
    """Lists a folder's files that may contain one item each, by name."""
    return sorted(each for each in folder.iterdir() if each.suffix.lower() in ITEM_FORMATS)


def pool_patches(blocks: Iterable[Array], pool: Pooling) -> Array:
    """Pools blocks of patches [..., numbers] to one vector; NaN if a number is not finite."""
    total, count = np.array(np.nan), 0
    for block in blocks:
        patches = block.reshape(-1, block.shape[-1]).astype(np.float64)
        patches[~np.isfinite(patches)] = np.nan  # -inf could vanish in a maximum
        part = patches.max(axis=0) if pool == "max" else patches.sum(axis=0)
        merge = np.maximum if pool == "max" else np.add
        total = merge(total, part) if count else part
        count += len(patches)
    return total if pool == "max" else total / count
