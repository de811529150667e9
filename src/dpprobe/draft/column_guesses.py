"""Guesses the meaning of a table's columns from their names and values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dpprobe.counted_nouns import count_noun
from dpprobe.data.people.alike_names import find_alike, in_words, joined_labels
from dpprobe.data.people.group_columns import BLANKS, SHEET_ERRORS, TRUTH, group_column
from dpprobe.data.sources.folder_parts import find_parts
from dpprobe.data.usual_columns import CASES, GROUPS, LABELS, PATIENTS, SPLITS, find_usual
from dpprobe.draft.seen_dataset import Line, Value
from dpprobe.errors import ConfigError

MOST_CLASSES = 1000
MOST_GROUPS = 20
AGE_BINS = (18, 40, 60, 80)
_YES_NO = frozenset({"0", "1", "0.0", "1.0"})
_UNCERTAIN = frozenset({"-1", "-1.0"})
_NO_LABEL = SHEET_ERRORS | {"<na>", "nan", "null"}


@dataclass
class Column:
    """The values of a column.

    Attributes:
      values: the distinct values without blanks; incomplete if `many`.
      many: True if the column has more than `MOST_CLASSES` distinct values.
      blanks: the number of rows without a value.
      first: the values of the first rows.
    """

    values: set[str] = field(default_factory=set)
    many: bool = False
    blanks: int = 0
    first: list[str] = field(default_factory=list)

    def add_value(self, value: str) -> None:
        if len(self.first) < MOST_GROUPS:
            self.first.append(value)
        if not value:
            self.blanks += 1
        elif not self.many:
            self.values.add(value)
            self.many = len(self.values) > MOST_CLASSES

    @property
    def holds_numbers(self) -> bool:
        """True if all values are finite numbers: nan cannot be sorted, and inf has no range."""
        try:
            return bool(self.values) and all(math.isfinite(float(value)) for value in self.values)
        except ValueError:
            return False

    @property
    def holds_ages(self) -> bool:
        """True if all values are numbers, or words that `bins` reads as blanks."""
        known = {value for value in self.values if value.lower() not in BLANKS}
        return Column(values=known).holds_numbers


Columns = Mapping[str, Column]


def guess_label(columns: Columns) -> str | None:
    """Returns the column that seems to have one label per image; None if there is none."""
    usual = {name: columns[name] for name in find_usual(columns, LABELS)}
    fit = (name for name, seen in usual.items() if not seen.many and len(seen.values) > 1)
    return next(fit, None)


def guess_labels(columns: Columns) -> list[str]:
    """Returns columns of 0 and 1, else of true and false; empty if there are fewer than two."""
    usual = {*find_usual(columns, [*PATIENTS, *CASES, *SPLITS, *GROUPS])}
    for words in (_YES_NO, TRUTH.keys()):
        binary = [
            name
            for name, column in columns.items()
            if name not in usual
            and column.values
            and {value.lower() for value in column.values} <= words | _UNCERTAIN
        ]
        if len(binary) > 1:
            return binary
    return []


def no_label(columns: Columns, place: str) -> ConfigError:
    return ConfigError(
        f"{place}: no column has a usual name for labels ({', '.join(LABELS)}) with two to "
        f"{MOST_CLASSES} values; name the column of labels with --label: {', '.join(columns)}"
    )


def class_names(column: Column, name: str, place: str) -> list[str]:
    """Returns the classes of a column of labels, in the order of numbers or of the alphabet.

    Raises ConfigError if there are fewer than two classes or too many, or two names look alike.
    """
    if column.many:
        raise ConfigError(
            f"{place}: column {name} has more than {MOST_CLASSES} different values, so it cannot "
            "hold classes; name another column with --label"
        )
    if len(column.values) < 2:
        raise ConfigError(
            f"{place}: column {name} has {count_noun(len(column.values), 'class')}, but a "
            "classifier needs two or more; add images of another class, or name another column "
            "with --label"
        )
    for names in find_alike(sorted(column.values)):
        raise ConfigError(
            f"{place}: column {name} has {in_words(names)}, which are spellings of one name; "
            "use one spelling everywhere"
        )
    if column.holds_numbers:
        return sorted(column.values, key=lambda value: (float(value), value))
    return sorted(column.values)


class UnitColumn(NamedTuple):
    """The column of patients, or of other units.

    Attributes:
      people: True if each value of the column names a person.
      named: True if the user named the column, False for a guess from the column's name.
    """

    name: str
    people: bool
    named: bool = False

    def write_option(self) -> Line:
        """Returns the line of YAML for the unit of privacy, with a comment if it is a guess."""
        if not self.people:
            comment = (
                "Guessed from the column's name: images that belong together. No column names "
                "people. If a person has several values of this column, the guarantee covers each "
                "value separately, not the person. If a column has patients, name that column."
            )
            return Line(value=self.name, comment=comment)
        meaning = (
            "patient of each image. The unit of privacy is a patient with all images, on one side "
            "of the split."
        )
        if self.named:
            return Line(value=self.name, comment=f"The {meaning}")
        comment = (
            f"Guessed from the column's name: the {meaning} Check this column: with a wrong column "
            "the privacy guarantee protects the wrong unit."
        )
        return Line(value=self.name, comment=comment)


def find_unit(columns: Columns, named: str | None) -> UnitColumn | None:
    """Returns the column that the user named, or a column whose name suggests patients or units."""
    if named:
        return UnitColumn(named, people=True, named=True)
    for names, people in ((PATIENTS, True), (CASES, False)):
        for name in find_usual(columns, names):
            if len(columns[name].values) > 1:
                return UnitColumn(name, people=people)
    return None


def unit_notes(columns: Columns, unit: UnitColumn | None) -> list[str]:
    if unit is None:
        return [
            f"no column of patients found ({', '.join(PATIENTS[:4])} or similar), so the unit of "
            "privacy is one image; if people have several images, name the column with --patient"
        ]
    name, notes = unit.name, []
    if not unit.people:
        notes.append(
            f"column {name} is the unit of privacy, but a person may have several of its values; "
            "if a column has patients, name that column with --patient"
        )
    if blanks := columns[name].blanks:
        notes.append(
            f"column {name} is blank in {count_noun(blanks, 'row')}, which a run refuses; "
            "fill in the column"
        )
    return notes


def guess_groups(columns: Columns, *, plain: bool = False) -> dict[str, Value]:
    """Maps names of subgroups to columns; ages are grouped into ranges unless `plain` is True."""
    groups: dict[str, Value] = {}
    for column in find_usual(columns, GROUPS):
        name = group_column(column.strip().lower().replace(" ", "_")).removeprefix("group_")
        seen = columns[column]
        if name in groups or len(seen.values) < 2:
            continue
        if name == "age" and seen.holds_ages and not plain:
            groups[name] = {"column": column, "bins": list(AGE_BINS)}
        elif len(seen.values) <= MOST_GROUPS and "/" not in name:
            by_case = len({value.casefold() for value in seen.values}) < len(seen.values)
            groups[name] = {"column": column, "ignore_case": True} if by_case else column
    return groups


def guess_split(columns: Columns) -> tuple[str, list[str], list[str]] | None:
    """Returns the column of splits, with the column's words for train and test."""
    for name in find_usual(columns, SPLITS):
        parts = find_parts(sorted(columns[name].values))
        words = {part: [each for each in parts if parts[each] == part] for part in parts.values()}
        test = words.get("test") or words.get("held out")
        if test and "train" in words and not columns[name].many:
            return name, words["train"], test
    return None


def uncertain_notes(columns: Columns, labels: Sequence[str]) -> list[str]:
    """Lists decisions that the user must make about missing or uncertain labels."""
    notes = []
    if blanks := sum(columns[name].blanks for name in labels):
        words = f"{'zeros or ' if len(labels) > 1 else ''}drop, which releases refuse"
        notes.append(
            f"{count_noun(blanks, 'blank label')}, which a run refuses: fill in each, or set "
            f"`missing:` ({words}) for this dataset"
        )
    if any(columns[name].values & _UNCERTAIN for name in labels) and len(labels) > 1:
        notes.append(
            "some labels are -1 (uncertain), which a run refuses; set `uncertain:` (ones, zeros or "
            "drop, which releases refuse) for this dataset"
        )
    odd = sorted(each for each in columns[labels[0]].values if each.lower() in _NO_LABEL)
    if len(labels) == 1 and odd:
        notes.append(
            f"{', '.join(odd)} in {labels[0]} is read as a class, but usually means no label; if "
            "so, clear these fields and correct `class_names`"
        )
    if len(labels) == 1 and (joined := joined_labels(columns[labels[0]].values)):
        notes.append(
            f"{', '.join(joined[:3])} in {labels[0]} is read as one class, and its parts are "
            "classes too; if images have several labels, make one column of 0 and 1 per label and "
            "list the columns in `label_columns`"
        )
    return notes
