"""Inspects a parquet file of images in the Hugging Face convention."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from dpprobe.data.people.alike_names import text_of
from dpprobe.data.sources import parquet
from dpprobe.data.sources.folder_parts import find_test_file
from dpprobe.data.sources.parquet_columns import (
    find_codes,
    list_names,
    read_schema,
    stream_columns,
)
from dpprobe.data.usual_columns import CASES, GROUPS, IMAGE_COLUMNS, LABELS, PATIENTS, find_usual
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.column_guesses import Column
from dpprobe.draft.csv_guesses import Wishes
from dpprobe.draft.seen_dataset import Line, Seen, check_counts, count_classes, make_options
from dpprobe.errors import ConfigError
from dpprobe.files.table_files import explain_parquet
from dpprobe.options import resolve_path

NUMBERED = (
    "The file has no class names: these are the numbers of its labels. Replace each number by a "
    "name. Every head publishes the class names."
)
_ONE_NAME = "its values are lists or structs; store a string or a number in each row"


def look_at_parquet(place: str, wishes: Wishes) -> Seen:
    """Looks at all columns of a parquet file except the images.

    Raises ConfigError if a study could not read the file's images or labels.
    """
    path = resolve_path(place)
    names, columns = _read_table(path, wishes)
    wishes.check_columns(names, place)
    if wishes.root is not None:
        raise ConfigError(
            f"--root {wishes.root}: a parquet file contains its images; leave out --root"
        )
    image = wishes.image or next(find_usual(names, IMAGE_COLUMNS), "image")
    label = wishes.label or next(find_usual(names, LABELS), None)
    if label is None:
        raise guesses.no_label(columns, place)
    keys = {"source": Line(value="parquet"), "train": Line(value=place)}
    if test := find_test_file(path):
        keys["test"] = Line(value=str(Path(place).with_name(test.name)))
    keys |= {"image_column": Line(value=image), "label_column": Line(value=label)}
    nested = [name for name in find_usual(names, (*PATIENTS, *CASES)) if name not in columns]
    if wishes.patient is not None and wishes.patient not in columns:
        raise ConfigError(f"--patient {wishes.patient}: {place}: {_ONE_NAME}")
    unit = guesses.find_unit(columns, wishes.patient)
    if unit is not None:
        keys["unit_column"] = unit.write_option()
    if groups := guesses.guess_groups(columns, plain=True):
        listed = [str(column) for column in groups.values()]
        keys["group_columns"] = Line(
            value=dict(groups) if any(isinstance(x, dict) for x in groups.values()) else listed,
            comment="Subgroups, guessed from the columns' names. Subgroups are stored with "
            "predictions, not trained on.",
        )
    notes = guesses.unit_notes(columns, unit)
    notes += [f"column {name} is not used: {_ONE_NAME}" for name in nested]
    if "test" not in keys and (split := guesses.guess_split(columns)):
        notes.append(
            f"column {split[0]} is not used: a study reads parquet test rows from a separate file; "
            "write the test rows to a file, and name the file at `test`"
        )
    return _count_rows(place, keys, label, notes)


def _read_table(path: Path, wishes: Wishes) -> tuple[list[str], dict[str, Column]]:
    """Reads the names of all columns, and the values of columns with one value per row.

    Columns of bytes may contain images, so they are read only if they name patients or groups.
    """
    import pyarrow as pa

    schema, _ = read_schema(path)
    usual = {*find_usual(schema.names, (*PATIENTS, *CASES, *GROUPS)), wishes.patient}
    plain = [
        field.name
        for field in schema
        if not pa.types.is_nested(field.type)
        and (field.name in usual or "binary" not in str(field.type))
    ]
    columns = {name: Column() for name in plain}
    fault = f"{path}: not a readable parquet file"
    labels = {wishes.label, *find_usual(schema.names, LABELS)}
    with explain_parquet(path, ConfigError, fault):
        codes = find_codes(path, schema, {*plain} & usual - labels)
        for batch in stream_columns(path, plain):
            for name in plain:
                for value in list_names(batch, name, codes):
                    columns[name].add_value(text_of(value).strip())
    return list(schema.names), columns


def _count_rows(place: str, keys: dict[str, Line], label: str, notes: list[str]) -> Seen:
    """Counts the rows by class name, or by class number if classes have no names."""
    options = _make_options(place, keys)
    if options.class_names_or_labels() is None:  # also raises ConfigError for unusable labels
        index = options.read_index()
        labels = [*chain(*map(index.labels, index.rows))]
        lists = [label for label in labels if isinstance(label, list)]
        if len({*map(len, lists)}) > 1 or not {0, 1}.issuperset(chain(*lists)):
            raise ConfigError(
                f"{place}: column {label} has lists of class numbers; store lists of 0 and 1, with "
                "one number per class"
            )
        highest = max(map(_highest_label, labels), default=0)
        if highest >= guesses.MOST_CLASSES:
            raise ConfigError(
                f"{place}: column {label} has the label {highest}: init reads labels as class "
                f"numbers from 0 and accepts at most {guesses.MOST_CLASSES:,} classes; correct the "
                "labels, name another column with --label, or set class_names in a study"
            )
        numbers = [str(number) for number in range(highest + 1)]
        check_counts(dict.fromkeys(numbers, 0), place)
        keys = keys | {"class_names": Line(value=list(numbers), comment=NUMBERED)}
        options = _make_options(place, keys)
    return count_classes(options, place, keys, notes)


def _make_options(place: str, keys: dict[str, Line]) -> parquet.Options:
    options = make_options(place, keys)
    assert isinstance(options, parquet.Options)
    return options


def _highest_label(value: Any) -> int:
    if isinstance(value, list):
        return len(value) - 1
    return -1 if value is None else int(value)
