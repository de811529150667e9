"""Inspects a CSV file with one row per image."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dpprobe.data.images.image_files import hint_misspelling
from dpprobe.data.images.image_search import join_roots, list_roots, names_image, search_images
from dpprobe.data.sources import csv_files, csv_manifest
from dpprobe.data.sources.csv_options import ManifestOptions
from dpprobe.data.sources.folder_parts import find_test_file
from dpprobe.data.usual_columns import IMAGE_COLUMNS, IMAGE_NAMES, find_usual
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Column, Columns
from dpprobe.draft.seen_dataset import Line, Seen, count_classes, make_options
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path

_PUBLIC_NAMES = (
    "Class names, read from the labels. Every head publishes the class names. If only the private "
    "labels reveal that a class exists, its name is not public."
)
_NUMBERED = (
    "The labels are numbers: replace each number after a colon by a readable name, as in "
    "`'0': normal`. Tables, figures and the report show these names."
)
_NUMBERS = "the class names are numbers; set readable names at class_names in the study"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Columns and a folder that a user named, used instead of guesses."""

    label: str | None = None
    image: str | None = None
    patient: str | None = None
    root: str | None = None
    table: str | None = None
    vectors: str | None = None

    def check_columns(self, columns: Collection[str], place: str) -> None:
        for option in ("label", "image", "patient"):
            name = getattr(self, option)
            if name is not None and name not in columns:
                raise ConfigError(
                    f"--{option} {name}: {place} has no column with this name; choose one of "
                    f"{', '.join(columns)}"
                )


def look_at_csv(place: str, wishes: Wishes) -> Seen:
    """Looks at the rows of a CSV file; opens no image.

    Raises ConfigError if a named column does not exist, or no column names existing images.
    """
    path = resolve_path(place)
    raw, columns = read_table(path)
    wishes.check_columns(columns, place)
    label, labels = choose_labels(columns, wishes, place)
    root = resolve_path(wishes.root) if wishes.root else None
    start, images = _find_images(columns, raw, table=path, root=root, column=wishes.image)
    unit = guesses.find_unit(columns, wishes.patient)
    keys = _place_keys(start, path, raw.delimiter) | images
    drafted, notes = draft_columns(columns, label, labels, unit, place)
    keys |= drafted | _split_keys(columns, path)
    options = make_options(place, keys)
    assert isinstance(options, csv_manifest.Options)
    return count_classes(options, place, keys, notes)


def choose_labels(columns: Columns, wishes: Wishes, place: str) -> tuple[str | None, list[str]]:
    """Returns the column of labels, else two or more columns with one label each."""
    label = wishes.label or guesses.guess_label(columns)
    labels = [] if label else guesses.guess_labels(columns)
    if label is None and not labels:
        raise guesses.no_label(columns, place)
    return label, labels


def draft_columns(
    columns: Columns,
    label: str | None,
    labels: list[str],
    unit: guesses.UnitColumn | None,
    place: str,
) -> tuple[dict[str, Line], list[str]]:
    """Drafts the options of labels, patients and groups, with notes on them."""
    keys: dict[str, Line] = {}
    notes = []
    if label is not None:
        names = guesses.class_names(columns[label], label, place)
        keys["label_column"] = Line(value=label)
        if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
            each: dict[str, object] = {name: name for name in names}
            keys["class_names"] = Line(value=each, comment=f"{_PUBLIC_NAMES} {_NUMBERED}")
            notes.append(_NUMBERS)
        else:
            keys["class_names"] = Line(value=names, comment=_PUBLIC_NAMES)
    else:
        keys["label_columns"] = Line(value=labels, comment="Several labels per image.")
    if unit is not None:
        keys["unit_column"] = unit.write_option()
    if groups := guesses.guess_groups(columns):
        keys["group_columns"] = Line(
            value=dict(groups),
            comment="Subgroups, guessed from the columns' names. Subgroups are stored with "
            "predictions, not trained on. Add `fairness: {}` below `seeds` to compare subgroups.",
        )
    notes += guesses.unit_notes(columns, unit)
    notes += guesses.uncertain_notes(columns, labels or [str(label)])
    return keys, notes


def read_table(path: Path) -> tuple[ManifestOptions, Columns]:
    """Reads the values of all columns, with the delimiter of the header."""
    # Options are not validated, because labels and classes are not known yet.
    raw = csv_manifest.Options.model_construct(root=str(path.parent), train=path.name)
    header = csv_files.read_header(raw, path.name, "train")
    if delimiter := csv_files.other_delimiter(header):
        other = raw.model_copy(update={"delimiter": delimiter})
        columns_there = csv_files.read_header(other, path.name, "train")
        if len(columns_there) > 1:
            raw, header = other, columns_there
    columns = {name: Column() for name in header}
    with csv_files.open_rows(raw, path.name) as rows:
        next(rows)
        for row in rows:
            for column, value in zip(columns.values(), row, strict=False):
                column.add_value(value.strip())
    if not any(column.first for column in columns.values()):
        raise ConfigError(f"{path}: no row below the header; fill the file")
    return raw, columns


def _place_keys(start: Path, path: Path, delimiter: str | None) -> dict[str, Line]:
    root = os.path.normpath(start)
    if not Path(root).exists() or not start.samefile(root):  # a link changes the meaning of `..`
        root = str(start)
    same = start.resolve() == path.parent.resolve()
    train = path.name if same else os.path.relpath(path.resolve(), start.resolve())
    keys = {
        "source": Line(value="csv"),
        "root": Line(
            value=root, comment="Paths of the CSV file and in it are relative to this folder."
        ),
        "train": Line(value=train),
    }
    if delimiter is not None:
        keys["delimiter"] = Line(value=delimiter)
    return keys


def _find_images(
    columns: Columns, raw: ManifestOptions, *, table: Path, root: Path | None, column: str | None
) -> tuple[Path, dict[str, Line]]:
    """Finds the images that a column names; returns their root folder, and the column's option.

    Args:
      root: the folder to search, with its subfolders. By default, first the table's folder with its
        subfolders, then the working directory and the parent of the table's folder.
      column: the column to use; if None, a column with a usual name, or with names of image files.

    Raises ConfigError if no column names existing files.
    """
    candidates = [column] if column else list(find_usual(columns, (*IMAGE_COLUMNS, *IMAGE_NAMES)))
    if not candidates:
        candidates = [name for name in columns if names_image(_first_value(columns, name))]
    if not candidates:
        raise ConfigError(
            f"{table}: no column has a usual name for images ({', '.join(IMAGE_COLUMNS[:5])} or "
            f"similar) or names of images; name the column with --image: {', '.join(columns)}"
        )
    roots = [root] if root else list_roots(table)
    for name in candidates:
        first = _first_value(columns, name)
        if paths := search_images([first] if first else [], roots):
            if paths.before:
                paths = paths.spread(_read_values(raw, table, name))
            before = paths.pattern.replace("{", "{{").replace("}", "}}")
            template = Line(value=f"{before}{{{name}}}{paths.after}")
            added = paths.before or paths.after
            keys = {"path_template": template} if added else {"path_column": Line(value=name)}
            return paths.root, keys
    first = _first_value(columns, candidates[0])
    hint = hint_misspelling(first) if "\\" in first else ""
    raise ConfigError(
        f"{table}: column {candidates[0]} names {first!r}, which is not under "
        f"{join_roots(roots)}{hint}; name the folder with --root, or another column with --image"
    )


def _read_values(raw: ManifestOptions, table: Path, column: str) -> set[str]:
    """Reads all values of a column, because `Column` may have only the first values."""
    with csv_files.open_rows(raw, table.name) as rows:
        place = [name.strip() for name in next(rows)].index(column)
        return {row[place].strip() for row in rows if len(row) > place} - {""}


def _first_value(columns: Columns, name: str) -> str:
    return next((value for value in columns[name].first if value), "")


def _split_keys(columns: Columns, path: Path) -> dict[str, Line]:
    if keys := draft_split(columns):
        return keys
    other = find_test_file(path)
    return {} if other is None else {"test": Line(value=other.name)}


def draft_split(columns: Columns) -> dict[str, Line]:
    """Drafts the options of a column of splits; empty if there is none."""
    if split := guesses.guess_split(columns):
        name, train, test = split
        return {
            "split_column": Line(value=name),
            "train_values": Line(value=train),
            "test_values": Line(value=test),
        }
    return {}
