"""Inspects files with vectors of many items: clip-retrieval's part files, or parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from dpprobe.data.images.image_files import is_helper
from dpprobe.data.sources import csv_files, embeddings
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.sources.embedding_formats.embedding_file import seems_vectors
from dpprobe.data.sources.embedding_formats.parquet_vectors import ParquetFiles
from dpprobe.data.sources.folder_parts import Part, find_parts, find_test_file
from dpprobe.data.sources.parquet_columns import PARQUET, read_schema
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Column
from dpprobe.draft.csv_guesses import (
    Wishes,
    choose_labels,
    draft_columns,
    draft_split,
    read_table,
)
from dpprobe.draft.item_guesses import draft_array, of_items, write_item
from dpprobe.draft.seen_dataset import Line, Seen, count_classes, make_options
from dpprobe.errors import ConfigError

# Clip-retrieval's folders of vectors and of tables, and its tables' column of image names.
_VECTORS, _TABLES, _NAMES = ("img_emb", "text_emb"), "metadata", "image_path"


@dataclass(frozen=True, kw_only=True)
class VectorFiles:
    """Files with vectors of many items.

    Attributes:
      place: the folder or file with all of them.
      keys: the options that name the files.
      name: clip-retrieval's name of the vectors; None for parquet files.
      unused: other vectors, which the study does not use.
    """

    place: str
    keys: Mapping[str, str]
    name: str | None = None
    unused: tuple[str, ...] = ()


def find_vector_files(place: str, wishes: Wishes) -> VectorFiles | None:
    """Finds clip-retrieval's parts, or parquet files with vectors; None if there are none.

    Parquet files that also have images are used only if the user names their vectors.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        parts = path.name in _VECTORS and (str(Path(place).parent), path.name)
        found = _find_parts(*parts) if parts else _find_parts(place, *_VECTORS)
        return found or _find_parquet(place, wishes)
    if not path.is_file() or not path.name.lower().endswith(PARQUET):
        return None
    if not _holds_vectors(path, wishes):
        return None
    keys = {"train": place}
    if test := find_test_file(path):
        keys["test"] = str(Path(place).with_name(test.name))
    return VectorFiles(place=place, keys=keys)


def _find_parts(place: str, *names: str) -> VectorFiles | None:
    """Finds clip-retrieval's files, in their folders or all in one folder."""
    folder = Path(place).expanduser()
    for pattern in ("{0}/{0}_*", "{0}_*"):
        found = [name for name in names if any(folder.glob(f"{pattern.format(name)}.npy"))]
        table = f"{pattern.format(_TABLES)}.parquet"
        if found and any(folder.glob(table)):
            train = f"{pattern.format(found[0])}.npy"
            keys = {"train": f"{place}/{train}", "table": f"{place}/{table}"}
            return VectorFiles(place=place, keys=keys, name=found[0], unused=tuple(found[1:]))
    return None


def _find_parquet(place: str, wishes: Wishes) -> VectorFiles | None:
    entries = sorted(Path(place).expanduser().iterdir())
    entries = [each for each in entries if not is_helper(each.name)]
    files = [each for each in entries if each.name.lower().endswith(PARQUET)]
    if not files or any(map(Path.is_dir, entries)) or not _holds_vectors(files[0], wishes):
        return None
    return _name_splits(place, files)


def _holds_vectors(path: Path, wishes: Wishes) -> bool:
    schema, _ = read_schema(path)
    if wishes.vectors is None and any("binary" in str(field.type) for field in schema):
        return False
    file = ParquetFiles(path)
    return any(seems_vectors(name, file.read_headers()[name]) for name in file.list_vectors())


def _name_splits(place: str, files: list[Path]) -> VectorFiles:
    """Finds training and test files by names such as test-00000.parquet."""
    parts = find_parts(file.stem for file in files)
    splits: dict[Part, list[Path]] = {}
    for file in files:
        splits.setdefault(parts.get(file.stem, "train"), []).append(file)
    test: Part = "test" if "test" in splits else "held out"
    if "train" not in splits or test not in splits:
        return VectorFiles(place=place, keys={"train": _make_pattern(place, files, files)})
    keys = {"train": _make_pattern(place, splits["train"], files)}
    keys["test"] = _make_pattern(place, splits[test], files)
    others = (found for part, found in splits.items() if part not in ("train", test))
    unused = tuple(_make_pattern(place, found, files) for found in others)
    return VectorFiles(place=place, keys=keys, unused=unused)


def _make_pattern(place: str, chosen: list[Path], files: list[Path]) -> str:
    """Returns a glob pattern for the chosen files of a folder, or the name of a single file."""
    if len(files) > len(chosen) == 1:
        return f"{place}/{chosen[0].name}"
    start = ""
    if chosen != files:  # `*` is enough for all files, also of later runs
        letters = zip(*(file.name for file in chosen), strict=False)
        common = (each[0] for each in takewhile(lambda each: len({*each}) == 1, letters))
        start = "".join(common).rstrip("0123456789")
    pattern = f"{start}*{chosen[0].suffix}"
    if [file for file in files if file.match(pattern)] != chosen:
        raise ConfigError(
            f"{place}: no pattern matches only {chosen[0].name} and {chosen[-1].name}; write a "
            "study with `source: embeddings` and the files of training in a folder of their own"
        )
    return f"{place}/{pattern}"


def look_at_vectors(files: VectorFiles, wishes: Wishes) -> Seen:
    """Looks at the headers of vectors, and at the table of their items.

    Raises ConfigError if no column has labels, or several arrays may be the vectors.
    """
    keys = {"source": Line(value="embeddings")}
    keys |= {key: Line(value=value) for key, value in files.keys.items()}
    if wishes.table is not None:
        keys["table"] = Line(value=wishes.table)
    table = str(keys.get("table", keys["train"]).value)
    delimiter, columns, unique = _read_columns(table)
    wishes.check_columns(columns, table)
    if delimiter is not None:
        keys["delimiter"] = Line(value=delimiter)
    name = wishes.image or (_NAMES if files.name and _NAMES in unique else None)
    if name is not None:
        keys["id_column"] = Line(value=name, comment="The names of the items.")
    label, labels = choose_labels(columns, wishes, table)
    others = {each: column for each, column in columns.items() if each != name}
    unit = guesses.find_unit(others, wishes.patient)
    train = Path(files.keys["train"]).expanduser()
    named, vectors = draft_array(
        open_embeddings(train, option="train"), files.name, files.place, wishes.vectors
    )
    drafted, notes = draft_columns(columns, label, labels, unit, table)
    keys |= named | {key: of_items(line) for key, line in drafted.items()}
    keys |= {} if "test" in keys else draft_split(columns)
    notes += [f"{each} is not used" for each in files.unused]
    options = make_options(files.place, keys)
    assert isinstance(options, embeddings.Options)
    seen = count_classes(options, files.place, keys, notes)
    told = [*map(write_item, seen.notes), *options.describe_vectors()]
    return replace(seen, notes=tuple(told), vectors=vectors)


def _read_columns(table: str) -> tuple[str | None, dict[str, Column], set[str]]:
    """Returns a table's delimiter (None for the default), columns, and columns without repeats."""
    path = Path(table).expanduser()
    if path.name.lower().endswith(csv_files.SUFFIXES):
        raw, columns = read_table(path)
        return raw.delimiter, dict(columns), set()
    file = open_embeddings(path, option="table")
    columns, unique = {}, set()
    for name in file.columns:  # one column at a time, to save memory
        columns[name] = Column()
        texts = file.read_columns([name])[name]
        for text in texts:
            columns[name].add_value(text)
        if len({*texts} - {""}) == len(texts):
            unique.add(name)
    return None, columns, unique
