"""The options of tables with one row per example, and of CSV manifests of images."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator, Field, field_validator, model_validator

from dpprobe.data.options import Embed, NamedPeople, PublicSplit
from dpprobe.data.people.alike_names import find_name_fault
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.group_columns import GroupColumns
from dpprobe.data.people.patient_sides import UnitOptions
from dpprobe.data.sources.path_template import template_parts
from dpprobe.data.train_test_split import SplitName, SplitSeed, TestFraction
from dpprobe.options import Options as Block
from dpprobe.options import resolve_path

Value = str | int | float
UncertainPolicy = Literal["ones", "zeros", "drop", "error"]


class Extract(Block):
    """A column whose values are extracted from another column."""

    column: str = Field(description="A column of the manifest.")
    pattern: str = Field(
        description="A regular expression with one group in round brackets, which matches the "
        "value."
    )

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(
                f"{value!r} is not a regular expression ({error}); correct it"
            ) from None
        if groups != 1:
            raise ValueError(
                f"{value!r} has {groups} groups, but needs one; put exactly one part in round "
                "brackets"
            )
        return value


class Join(Block):
    """Columns that are added from another file by a key; blank if the file lacks the key."""

    file: str = Field(min_length=1, description="A csv or tsv file, relative to `root`.")
    by: str | tuple[str, ...] | dict[str, str] = Field(
        min_length=1,
        description="The key: a column that both files have, a list of such columns, or {column of "
        "the dataset: column of `file`}.",
    )
    columns: tuple[str, ...] = Field(min_length=1, description="Columns to add.")
    first: bool = Field(
        False,
        description="If several rows of the file have the same key, true uses the first row, and "
        "false raises an error.",
    )

    @property
    def key_columns(self) -> dict[str, str]:
        """Maps columns of the manifest to key columns of the joined file."""
        if isinstance(self.by, str):
            return {self.by: self.by}
        return dict(self.by) if isinstance(self.by, dict) else {name: name for name in self.by}


def _read_names(value: Any) -> Any:
    """Sorts a mapping from labels to names by label, because YAML mappings have no order."""
    if not isinstance(value, Mapping):
        return value
    for label in value:
        if isinstance(label, bool) or not isinstance(label, str | int):
            raise ValueError(
                f"{label!r}: not a label, which is a string or a whole number; put the label in "
                "quotes"
            )
    named = dict(sorted(((str(label).strip(), value[label]) for label in value), key=_place_label))
    if len(named) < len(value) or "" in named:
        raise ValueError(f"{value}: a label is blank or appears twice; remove one")
    return named


def _place_label(item: tuple[str, Any]) -> tuple[bool, int, str]:
    """Returns a label's sort key: whole numbers by value, then other labels as text."""
    number = re.fullmatch(r"[+-]?[0-9]{1,18}", item[0])
    return number is None, int(item[0]) if number else 0, item[0]


ClassNames = Annotated[
    tuple[str, ...] | dict[str, str],
    BeforeValidator(_read_names),
    # Pydantic omits the length of a union from the JSON schema.
    Field(min_length=2, json_schema_extra={"minItems": 2, "minProperties": 2}),
]


class ColumnFile(Protocol):
    """Interface of files in other formats than CSV, with columns of labels, patients and groups."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    def read_columns(self, names: Collection[str]) -> dict[str, list[str]]: ...

    def explain_array(self, name: str) -> str | None: ...


class TableOptions(UnitOptions):
    """The options of a table with one row per example (an image, or vectors)."""

    paths: ClassVar[tuple[str, ...]] = ("root", "train", "test", "joins.*.file")

    root: str = Field(".", min_length=1, description="Folder where relative paths start.")
    train: str = Field(
        min_length=1,
        description="A .csv or .tsv file with a header; it may be compressed (.gz). For `source: "
        "csv` also a folder, whose images are the rows, with their paths in the one column `path`.",
    )
    test: str | None = Field(
        None,
        min_length=1,
        description="File of the test split. Without `test` and `split_column`, the rows of "
        "`train` are split.",
    )
    split_column: str | None = Field(
        None, description="Column of `train` that says to which split a row belongs."
    )
    train_values: tuple[Value, ...] = Field(
        ("train",), min_length=1, description="Values of `split_column` that mark training rows."
    )
    test_values: tuple[Value, ...] = Field(
        ("test",),
        min_length=1,
        description="Values of `split_column` that mark test rows; rows of neither split are "
        "not used.",
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="Delimiter of columns. Default: the delimiter in a first line such as sep=;, "
        "else a tab in .tsv files and a comma in other files.",
    )
    label_column: str | None = Field(
        None,
        description="Column with one label per row: a name of `class_names` or its number from 0. "
        "If `class_names` is a mapping, a label is a key of the mapping.",
    )
    label_columns: tuple[str, ...] | None = Field(
        None,
        min_length=2,
        description="Columns of rows with several labels, one column per label: 1 or true, 0 or "
        "false, -1 (uncertain) or blank.",
    )
    class_names: ClassNames | None = Field(
        None,
        description="Names of the classes: a list, or for `label_column` a mapping of each label "
        "to a readable name, such as {0: normal, 1: pneumonia}. Required with `label_column`; "
        "default: the names of `label_columns`. Class names are published with the weights, so "
        "they must be public, not read off the labels.",
    )
    uncertain: UncertainPolicy | dict[str, UncertainPolicy] = Field(
        "error",
        description="Treatment of the label -1: ones or zeros (read -1 as 1 or 0), drop (leave out "
        "the row; refused in releases) or error. A mapping sets the treatment of "
        "each label column; columns that the mapping leaves out have error.",
    )
    missing: Literal["zeros", "drop", "error"] = Field(
        "error",
        description="Treatment of a blank label: zeros (read a blank as 0), drop (leave out "
        "the row; refused in releases) or error.",
    )
    id_column: str | None = Field(
        None,
        description="Column of unique ids; without this option, the id is the image's path, or the "
        "row's number in a table without images.",
    )
    group_columns: GroupColumns = ()
    extract: dict[str, Extract] = Field(
        {},
        description="New columns with values extracted from other columns, such as a patient's "
        "number in a path.",
    )
    joins: tuple[Join, ...] = Field(
        (), description="Files whose columns are added by a key, in this order."
    )
    filters: dict[str, tuple[Value, ...]] = Field(
        {},
        description="Maps a column to the values to keep; rows with other values are left out. Who "
        "is kept is public, so releases refuse filters on labels.",
    )
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    @model_validator(mode="after")
    def _check_together(self) -> TableOptions:
        for fault in self._list_faults():
            raise ValueError(fault)
        return self

    def _list_faults(self) -> Iterator[str]:
        if (self.label_column is None) == (self.label_columns is None):
            yield "label_column, label_columns: set exactly one of the two"
        if self.test is not None and self.split_column is not None:
            yield "test, split_column: both choose the test rows; remove one"
        both = {str(value) for value in self.train_values} & {str(x) for x in self.test_values}
        if self.split_column is not None and both:
            shared = ", ".join(sorted(both))
            yield f"test_values: {shared}: also in train_values; remove it from one of the two"
        if self.class_names is None and self.label_columns is None:
            yield (
                "class_names: missing; with label_column list all classes in the order of their "
                "numbers (a public list, not read off the labels)"
            )
        elif fault := find_name_fault(self.class_names_or_labels()):
            yield f"class_names: {fault}"
        if self.label_columns is None:
            if self.uncertain != "error":
                yield "uncertain: works only with label_columns; remove it"
            if self.missing == "zeros":
                yield "missing: zeros works only with label_columns; use drop or error"
        else:
            if self.class_names is not None and len(self.class_names) != len(self.label_columns):
                yield (
                    "class_names: not as many names as label_columns; use one name per column, or "
                    "remove class_names"
                )
            if isinstance(self.class_names, dict):
                yield "class_names: a mapping works only with label_column; write a list"
            named = self.uncertain if isinstance(self.uncertain, dict) else {}
            for name in sorted(named.keys() - set(self.label_columns)):
                yield f"uncertain.{name}: not one of label_columns; correct its spelling"

    def image_params(self) -> dict[str, Any]:
        """Returns the options that determine the set of images.

        Omits `split_column`, and `extract` and `joins` if no path or filter uses their columns.
        """
        made = {*self.extract, *(column for join in self.joins for column in join.columns)}
        others = {"split_column"}
        if made.isdisjoint({*self.path_columns(), *self.filters}):
            others |= {"extract", "joins"}
        params = super().image_params()
        return {name: value for name, value in params.items() if name not in others}

    def has_test(self) -> bool:
        return super().has_test() or self.split_column is not None

    def class_names_or_labels(self) -> tuple[str, ...]:
        names = self.class_names or self.label_columns
        assert names is not None  # see _list_faults
        return tuple(names.values()) if isinstance(names, dict) else names

    def label_numbers(self) -> dict[str, int]:
        """Maps the values of `label_column` to class numbers."""
        names = tuple(self.class_names or ())  # if `class_names` is a mapping, the keys (labels)
        numbers = {name: number for number, name in enumerate(names)}
        # If a class name is a number, all numbers are read as names.
        if isinstance(self.class_names, dict) or any(n.lstrip("+-").isdecimal() for n in names):
            return numbers
        return numbers | {str(number): number for number in range(len(names))}

    def named_people(self) -> NamedPeople:
        """Returns the facts about patients; the column includes the pattern or join that made it.

        Columns with the same name but different patterns are different units: epsilons do not add
        up.
        """
        people = super().named_people()
        column = people.column and self._describe_column(people.column)
        return replace(people, column=column)

    def _describe_column(self, column: str) -> str:
        """Returns a column's name, with the pattern or join of an added column."""
        if column in self.extract:
            made = self.extract[column]
            return f"{column} ({made.pattern} in {made.column})"
        for join in self.joins:
            if column in join.columns:
                keys = (
                    f"{self._describe_column(here)} = {there}"
                    for here, there in join.key_columns.items()
                )
                return f"{column} ({join.file} by {', '.join(keys)})"
        return column

    def locate_path(self, name: str) -> Path:
        """Returns the path of a file named in the options; relative names start at `root`."""
        return resolve_path(self.root) / resolve_path(name)

    def side_options(self, *, own_test: bool) -> set[str]:
        made = {"extract", "joins"}
        if own_test:
            files = {"train", "test"}
            values = {"split_column", "train_values", "test_values"}
            return files if self.split_column is None else {*files, *values, *made}
        if self.unit_column is not None:
            return {"unit_column", *made}
        names = self.id_options() if self.id_column is None else {"id_column"}
        return {*names, *made}

    def id_options(self) -> set[str]:
        """Returns the options that determine ids if `id_column` is absent and rows are numbered."""
        return {"train"}

    def describe_split(self, *, own_test: bool) -> PublicSplit:
        split = super().describe_split(own_test=own_test)
        chosen = ["filters"] if self.filters else []
        options = " and ".join([*chosen, *_list_drops(self)])
        if not options or self.max_images_per_patient is None:
            return split
        fault = (
            f"max_images_per_patient keeps the first images of a patient after {options}, so "
            "removing one image would add another of this patient; write `unit: patient`, or a "
            "file with only the rows to use"
        )
        return replace(split, images_fault=fault)

    def explain_labels_used(self) -> str | None:
        """Explains which options leave out rows by their labels; see `_list_label_uses`."""
        if not (used := _list_label_uses(self)):
            return None
        return (
            f"{' and '.join(used)}: rows are left out by their labels, so the public number n "
            "would reveal labels; give every row a label, or choose rows by a column whose values "
            "are public, such as who was examined"
        )

    def input_files(self) -> tuple[str, ...]:
        """Returns the CSV files, but not the images, whose changed hashes are refused later."""
        files = [self.split_file(name) for name in self.list_splits()] + [
            join.file for join in self.joins
        ]
        return tuple(dict.fromkeys(str(self.locate_path(file)) for file in files))

    def multi_label(self) -> bool:
        return self.label_columns is not None

    def count_classes(self) -> int:
        return len(self.class_names_or_labels())

    def split_file(self, split: SplitName) -> str:
        return str(getattr(self, split))

    def path_columns(self) -> tuple[str, ...]:
        """Returns the columns of which paths consist; empty if rows have no paths."""
        return ()

    def open_columns(self, file: str) -> ColumnFile | None:  # noqa: ARG002
        """Opens a file in another format than CSV; returns None for CSV."""
        return None

    def check_length(self, split: SplitName, rows: int) -> None:
        """Raises ConfigError if the numbers of a split's rows and vectors differ."""

    def list_columns(self) -> dict[str, str]:
        """Maps every column in use, except keys of joins, to the option that names it."""
        wanted: dict[str, str] = {}
        for name in ("label_column", "id_column", "split_column", "unit_column"):
            if getattr(self, name) is not None:
                wanted[getattr(self, name)] = name
        wanted |= dict.fromkeys(self.label_columns or (), "label_columns")
        wanted |= {group.column: "group_columns" for group in self.list_groups().values()}
        return wanted | dict.fromkeys(self.filters, "filters")


def _list_label_uses(options: TableOptions) -> list[str]:
    """Lists the options that leave out rows by their labels.

    A guarantee compares data of equal n, in which one unit's rows are null or not. So n, and the
    number of test units, may depend on who is in the data, which is public, but not on what is
    known about them. `missing: drop`, `uncertain: drop` and a filter on labels count a row only for
    some labels, so n would reveal a label to somebody who knows all other rows.

    A filter on another column chooses who is in the data, as the files do: its values must be
    public, which dpprobe cannot check. The same holds for `split_column`, because rows with other
    values are not used. A column counts as a label if labels are extracted from it or joined by it,
    or if it is made from a label. The columns of names, `unit_column` and `id_column`, do not
    count.
    """
    labels = {*(options.label_columns or ()), *filter(None, [options.label_column])}
    told = set[str]().union(*(_trace_column(options, label) for label in labels))
    told -= {options.unit_column or "", options.id_column or ""}
    chosen = {column: f"filters.{column}" for column in options.filters}
    if options.split_column is not None:
        chosen.setdefault(options.split_column, f"split_column: {options.split_column}")
    return _list_drops(options) + [
        option
        for column, option in chosen.items()
        if column in told or not labels.isdisjoint(_trace_column(options, column))
    ]


def _list_drops(options: TableOptions) -> list[str]:
    """Lists the options that leave out rows with missing or uncertain labels."""
    uncertain = options.uncertain
    policies = uncertain.values() if isinstance(uncertain, dict) else [uncertain]
    chosen = {"missing: drop": options.missing == "drop", "uncertain: drop": "drop" in policies}
    return [option for option, drops in chosen.items() if drops]


def _trace_column(options: TableOptions, column: str) -> set[str]:
    """Returns a column and all columns from which `extract` and `joins` make it.

    Stops at names of units and rows: a column that is joined by a name says more than the name.
    """
    made = {name: {each.column} for name, each in options.extract.items()}
    for join in options.joins:
        made |= {name: {*join.key_columns} for name in join.columns}
    found, pending = set[str](), [column]
    while pending:
        name = pending.pop()
        if name not in found and name not in (options.unit_column, options.id_column):
            pending += made.get(name, ())
        found.add(name)
    return found


def _columns_of(template: str) -> tuple[str, ...]:
    return tuple(column for _, column, _ in template_parts(template) if column)


class ManifestOptions(CompanionOptions, TableOptions):
    """The options of a CSV manifest, without the code that reads CSV files."""

    path_column: str | None = Field(
        None, description="Column of the images' paths; without this option, the column `path`."
    )
    path_template: str | None = Field(
        None,
        description="Instead of `path_column`, a path with columns in braces, such as "
        "p{subject_id:.2}/{dicom_id}.jpg; {column:.2} is a value's first two characters. If the "
        "images are spread over several folders, `*` stands for a part of the folders' name, as in "
        "part_*/{image}.jpg.",
    )
    test_path_template: str | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that existing split tables stay up to date
        description="The path template of the rows of `test`, if their images are in another "
        "folder; without this option, `path_template`.",
    )
    embed: Embed = False

    @field_validator("path_template", "test_path_template")
    @classmethod
    def _check_template(cls, value: str | None) -> str | None:
        if value is not None and not any(column for _, column, _ in template_parts(value)):
            raise ValueError(f"{value!r} names no column; write at least one column in braces")
        return value

    def _list_faults(self) -> Iterator[str]:
        yield from super()._list_faults()
        if self.path_column is not None and self.path_template is not None:
            yield "path_column, path_template: set only one of the two"
        if self.test_path_template is not None:
            if self.path_template is None:
                yield "test_path_template: needs path_template, for the rows of train; set both"
            elif set(_columns_of(self.path_template)) != set(_columns_of(self.test_path_template)):
                yield (
                    "test_path_template: names other columns than path_template; use the same "
                    "columns"
                )

    def id_options(self) -> set[str]:
        return {"path_column", "path_template"}

    def template_of(self, file: str) -> str | None:
        """Returns the path template for a file's rows; None if a column contains complete paths."""
        own = self.test_path_template if file == self.test else None
        return own or self.path_template

    def path_columns(self) -> tuple[str, ...]:
        if self.path_template is None:
            return (self.path_column or "path",)
        return _columns_of(self.path_template)

    def list_columns(self) -> dict[str, str]:
        option = "path_template" if self.path_template else "path_column"
        return dict.fromkeys(self.path_columns(), option) | super().list_columns()
