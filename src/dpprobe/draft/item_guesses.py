"""Inspects a folder of vectors with one file per item, and the table of its items."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpprobe.data.images.image_files import is_helper
from dpprobe.data.sources import csv_files, embeddings
from dpprobe.data.sources.embedding_formats.embedding_file import (
    EmbeddingFile,
    choose_array,
    seems_vectors,
)
from dpprobe.data.sources.item_files import ITEM_FORMATS, ItemFolder, list_items
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Columns
from dpprobe.draft.csv_guesses import (
    Wishes,
    choose_labels,
    draft_columns,
    draft_split,
    read_table,
)
from dpprobe.draft.seen_dataset import (
    ItemVectors,
    Line,
    Seen,
    count_classes,
    make_options,
    name_of,
)
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path


def holds_items(folder: Path) -> bool:
    """Returns True if a folder has no subfolders, and files that may have one item each."""
    entries = (entry for entry in folder.iterdir() if not is_helper(entry.name))
    return bool(list_items(folder)) and not any(entry.is_dir() for entry in entries)


def find_folder(table: Path) -> Path | None:
    """Finds the only folder next to a table whose files are named in a column of the table."""
    _, columns = read_table(table)
    folders = sorted(each for each in table.parent.iterdir() if each.is_dir())
    fitting = [each for each in folders if holds_items(each) and _find_ids(columns, each)]
    return fitting[0] if len(fitting) == 1 else None


def look_at_items(place: str, wishes: Wishes) -> Seen:
    """Looks at the headers of a folder's files and at the table of its items.

    Raises ConfigError if no table or column names the files, or several arrays may be the vectors.
    """
    folder = resolve_path(place)
    if not list_items(folder):
        raise ConfigError(
            f"--table {wishes.table}: {place} has no file of an item's vectors "
            f"({', '.join(ITEM_FORMATS)}); leave out --table, or name a folder of vectors"
        )
    table = wishes.table or _find_table(place, folder)
    path = resolve_path(table)
    if not path.is_file() or not path.name.lower().endswith(csv_files.SUFFIXES):
        raise ConfigError(
            f"--table {table}: no table; name a file that ends in {', '.join(csv_files.SUFFIXES)}"
        )
    raw, columns = read_table(path)
    wishes.check_columns(columns, table)
    name = wishes.image or _find_ids(columns, folder)
    if name is None:
        raise ConfigError(
            f"{table}: no column has the names of the files in {place} without their endings, "
            f"such as {list_items(folder)[0].stem}; add this column, or name it with --image: "
            f"{', '.join(columns)}"
        )
    label, labels = choose_labels(columns, wishes, table)
    unit = guesses.find_unit(
        {each: columns[each] for each in columns if each != name}, wishes.patient
    )
    keys = {
        "source": Line(value="embeddings"),
        "train": Line(value=place, comment="One file per item."),
        "table": Line(value=table),
        "id_column": Line(value=name, comment="The names of the files without their endings."),
    }
    if raw.delimiter is not None:
        keys["delimiter"] = Line(value=raw.delimiter)
    files = ItemFolder(folder, pool=None, named=wishes.vectors is not None)
    named, vectors = draft_array(files, folder.resolve().name, place, wishes.vectors)
    keys |= named
    drafted, notes = draft_columns(columns, label, labels, unit, table)
    keys |= {key: of_items(line) for key, line in drafted.items()} | draft_split(columns)
    options = make_options(place, keys)
    assert isinstance(options, embeddings.Options)
    seen = count_classes(options, place, keys, notes)
    told = [*map(write_item, seen.notes), *options.describe_vectors()]
    return replace(seen, notes=tuple(told), table=table, vectors=vectors)


def of_items(line: Line) -> Line:
    return replace(line, comment=write_item(line.comment))


def write_item(text: str) -> str:
    """Rewrites a sentence on images as a sentence on items."""
    return re.sub(r"\ban image", "an item", re.sub(r"\bimage(s?)\b", r"item\1", text))


def _find_table(place: str, folder: Path) -> str:
    """Finds the only table, next to or in a folder, with a column of the folder's file names."""
    fitting = [table for table in _list_tables(folder) if _names_items(table, folder)]
    if len(fitting) == 1:
        return str(fitting[0])
    several = f"{' and '.join(each.name for each in fitting[:3])} name them; " if fitting else ""
    raise ConfigError(
        f"{place}: one file per item, such as {list_items(folder)[0].name}; {several}name the "
        f"table of the items' labels: dpprobe init {place} --table items.csv"
    )


def _list_tables(folder: Path) -> Iterator[Path]:
    for each in (folder.parent, folder):
        yield from (
            x for x in sorted(each.iterdir()) if x.name.lower().endswith(csv_files.SUFFIXES)
        )


def _names_items(table: Path, folder: Path) -> bool:
    with suppress(ConfigError):  # other tables may be of any kind
        return _find_ids(read_table(table)[1], folder) is not None
    return False


def _find_ids(columns: Columns, folder: Path) -> str | None:
    """Returns the column with the most file names; None if no column has file names."""
    stems = {path.stem for path in list_items(folder)}
    counts = {name: len(column.values & stems) for name, column in columns.items()}
    best = max(counts, key=lambda name: counts[name], default=None)
    return best if best is not None and counts[best] else None


def draft_array(
    files: EmbeddingFile, name: str | None, place: str, wish: str | None
) -> tuple[dict[str, Line], ItemVectors]:
    """Drafts `vectors` and `pool`; names the array only if a study needs its name.

    Args:
      files: a folder of items, or files with vectors of many items.
      name: the name of the vectors' backbone; None for the name of their array.
    """
    known = files.list_vectors()
    usual = choose_array(known) if wish is None else None
    array = wish or usual
    if array is None:
        array = _choose_likely(files, known, place)
    files.find_vectors(array if usual is None else None)
    backbone = name_of([name or array])
    keys = {} if usual is not None else {"vectors": Line(value={backbone: array})}
    if isinstance(files, ItemFolder) and files.holds_patches(array):
        keys["pool"] = Line(
            value="mean", comment="Makes one vector of the patches of each item; or write max."
        )
    return keys, ItemVectors(name=backbone, dimension=known[array].dimension)


def _choose_likely(files: EmbeddingFile, known: Collection[str], place: str) -> str:
    headers = files.read_headers()
    likely = [name for name in known if seems_vectors(name, headers[name])]
    if len(likely) == 1:
        return likely[0]
    there = ", ".join(headers[name].describe(name) for name in known) or "no array"
    raise ConfigError(f"{place}: the files have {there}; name the array of vectors with --vectors")
