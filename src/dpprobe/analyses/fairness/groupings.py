"""The groups of test examples, and the rule that decides which groups and labels are compared.

A group is compared if it has enough units (patients, or rows if patients are unknown). All groups'
means are over equal sets of labels. While any group has too few units with or without a label, the
label or group with the largest share of such numbers is left out (in a tie, the label). So one tiny
group does not remove all labels, and one rare label does not remove all groups. Results give a
reason for each omitted label or group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpprobe.analyses.fairness.fairness_record import Compared, Minimum
from dpprobe.data.people.group_columns import CLASSES, group_name
from dpprobe.errors import DataError

Codes = npt.NDArray[np.int32]
Values = npt.NDArray[np.float64]

NO_GROUP = -1  # `codes` of a row without a group
NO_NAME = "(blank)"


@dataclass(frozen=True, kw_only=True)
class TestRows:
    """The test examples of all heads.

    Attributes:
      labels: int64 [n], or bool [n, K] if a row may have several labels.
      units: int64 [n], the unit of each row, numbered from 0 without gaps.
      named_units: True if units are patients, False if each row is a unit.
      groups: for each group column, n names of groups.
    """

    __test__ = False  # tells pytest that the class is not a test

    labels: np.ndarray
    class_names: tuple[str, ...]
    units: npt.NDArray[np.int64]
    named_units: bool
    groups: Mapping[str, Sequence[str | None]] = field(default_factory=dict)

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @cached_property
    def count(self) -> int:
        return int(self.units.max()) + 1

    @cached_property
    def weights(self) -> Values:
        """The weight of each row: 1 / m in a unit of m rows."""
        return 1 / np.bincount(self.units)[self.units]

    def format_number(self, units: int) -> str:
        return f"{units} {'patient' if self.named_units else 'row'}{'s' * (units != 1)}"

    @cached_property
    def ranked_labels(self) -> tuple[str, ...]:
        """The names of the labels that have an AUC: all labels, or the second of two classes."""
        if self.multi_label:
            return self.class_names
        return self.class_names[1:] if len(self.class_names) == 2 else ()

    @cached_property
    def recalled_labels(self) -> tuple[str, ...]:
        return self.ranked_labels or self.class_names

    def rows_with(self, name: str) -> npt.NDArray[np.bool_]:
        index = self.class_names.index(name)
        return np.asarray(self.labels[:, index] if self.multi_label else self.labels == index)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """An attribute: the group of each row, and the groups that are compared.

    Attributes:
      codes: int32 [n], the group of each row as an index into `names`, or `NO_GROUP`.
      left_out: for each group that no metric compares, the reason.
      classes: True if the groups are the dataset's classes, not a column with the name "class".
      by_label: True if the groups are the labels, so that each row belongs to all groups.
    """

    attribute: str
    names: tuple[str, ...]
    codes: Codes
    rows: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]
    left_out: Mapping[str, str]
    classes: bool = False
    by_label: bool = False


def make_groupings(
    rows: TestRows,
    *,
    groups: Sequence[str] | None,
    pairs: Sequence[tuple[str, str]],
    minimum: Minimum,
) -> list[Grouping]:
    """Makes the groupings of test examples: one per group column, and one per pair of columns.

    Args:
      groups: names of group columns, with or without the prefix `group_`, or "class"; None means
        every group column, or the classes if there is no group column.
      pairs: pairs of column names; the groups of a pair are intersections of its columns' groups.

    Raises:
      DataError: if rows have none of the named group columns.
    """
    columns = {group_name(name): values for name, values in rows.groups.items()}
    names = list(map(group_name, groups or tuple(columns) or (CLASSES,)))
    made = [_of_column(rows, name, columns[name], minimum) for name in names if name in columns]
    if CLASSES in names and CLASSES not in columns:
        made.append(_of_classes(rows, minimum))
    for pair in pairs:
        first, second = map(group_name, pair)
        if first in columns and second in columns:
            values = _join_names(columns[first], columns[second])
            made.append(_of_column(rows, f"{first} x {second}", values, minimum))
    if not made:
        raise DataError(
            f"fairness.groups: the test rows have no group column {' or '.join(names)}; choose "
            f"from {', '.join(sorted({*columns, CLASSES}))}"
        )
    return made


def _join_names(first: Sequence[str | None], second: Sequence[str | None]) -> list[str]:
    return [
        "" if _is_blank(a) or _is_blank(b) else f"{a} x {b}"
        for a, b in zip(first, second, strict=True)
    ]


def _is_blank(name: str | None) -> bool:
    return name is None or not str(name).strip()


def _of_column(
    rows: TestRows, attribute: str, values: Sequence[str | None], minimum: Minimum
) -> Grouping:
    """Returns the groups of a column, in the order of their names, with the blank group last."""
    given = [NO_NAME if _is_blank(value) else str(value) for value in values]
    names = sorted(set(given) - {NO_NAME}, key=natural_key)
    place = {name: code for code, name in enumerate(names)} | {NO_NAME: NO_GROUP}
    codes = np.array([place[name] for name in given], dtype=np.int32)
    return _make_grouping(rows, attribute, tuple(names), codes, minimum)


def natural_key(name: str) -> tuple[bool, float, str]:
    """Returns a key that sorts names such as "<20" and "20-39" by number, other names by letter."""
    digits = name.lstrip("<>=").split("-")[0]
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):  # `float` also reads the names "nan" and "inf"
        return True, 0.0, name
    return False, number - 0.5 * name.startswith("<"), name


def _of_classes(rows: TestRows, minimum: Minimum) -> Grouping:
    if not rows.multi_label:
        codes = rows.labels.astype(np.int32)
        return replace(
            _make_grouping(rows, CLASSES, rows.class_names, codes, minimum), classes=True
        )
    left_out = {}
    for name in rows.class_names:
        if reason := _explain_lack(rows, rows.rows_with(name), name, minimum, negatives=True):
            left_out[name] = reason
    return Grouping(
        attribute=CLASSES,
        names=rows.class_names,
        codes=np.zeros(len(rows.labels), dtype=np.int32),
        rows=np.full(len(rows.class_names), len(rows.labels)),
        units=np.full(len(rows.class_names), rows.count),
        left_out=left_out,
        classes=True,
        by_label=True,
    )


def _make_grouping(
    rows: TestRows, attribute: str, names: tuple[str, ...], codes: Codes, minimum: Minimum
) -> Grouping:
    sizes = np.bincount(codes[codes >= 0], minlength=len(names))
    units = _count_units(rows, codes, len(names))
    left_out = {
        name: f"{rows.format_number(count)}, {minimum.units} needed"
        for name, count in zip(names, units.tolist(), strict=True)
        if count < minimum.units
    }
    blank = codes == NO_GROUP
    if blank.any():
        names, left_out[NO_NAME] = (*names, NO_NAME), "no group is named"
        sizes = np.append(sizes, blank.sum())
        units = np.append(units, len(np.unique(rows.units[blank])))
    return Grouping(
        attribute=attribute, names=names, codes=codes, rows=sizes, units=units, left_out=left_out
    )


def _count_units(
    rows: TestRows, codes: Codes, groups: int, of: np.ndarray | None = None
) -> np.ndarray:
    """Counts the units of each group, int64 [groups]; only the rows `of` (bool [n]) if given."""
    named = codes >= 0 if of is None else (codes >= 0) & of
    pairs = np.unique(codes[named].astype(np.int64) * rows.count + rows.units[named])
    return np.bincount(pairs // rows.count, minlength=groups)


def _explain_lack(
    rows: TestRows, has: np.ndarray, label: str, minimum: Minimum, *, negatives: bool
) -> str | None:
    """Returns the reason why a label has too few units for a metric; None for enough units."""
    positive = len(np.unique(rows.units[has]))
    if positive < minimum.positives:
        return f"{rows.format_number(positive)} with {label}, {minimum.positives} needed"
    negative = len(np.unique(rows.units[~has]))
    if negatives and negative < minimum.negatives:
        return f"{rows.format_number(negative)} without {label}, {minimum.negatives} needed"
    return None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The numbers of units in each group with and without each label, int64 [groups, labels]."""

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]


def label_counts(rows: TestRows, grouping: Grouping, labels: Sequence[str]) -> Counts:
    if grouping.by_label:
        both = [(rows.rows_with(name), ~rows.rows_with(name)) for name in labels]
        pairs = [[len(np.unique(rows.units[part])) for part in parts] for parts in both]
        counts = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return Counts(positives=counts[:, :1], negatives=counts[:, 1:])
    groups = len(grouping.names)

    def count_labels(present: bool) -> np.ndarray:
        columns = [
            _count_units(rows, grouping.codes, groups, of=rows.rows_with(name) == present)
            for name in labels
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((groups, 0), dtype=np.int64)

    return Counts(positives=count_labels(True), negatives=count_labels(False))


def choose_compared(
    rows: TestRows,
    grouping: Grouping,
    labels: Sequence[str],
    counts: Counts,
    minimum: Minimum,
    *,
    negatives: bool,
) -> Compared:
    """Returns the labels and groups of a metric that needs units with each label.

    Args:
      negatives: True if the metric also needs units without each label.
    """
    kept = [index for index, name in enumerate(grouping.names) if name not in grouping.left_out]
    groups, used = list(kept), list(range(len(labels)))
    enough = counts.positives >= minimum.positives
    if negatives:
        enough &= counts.negatives >= minimum.negatives
    while groups and used and not (part := enough[np.ix_(groups, used)]).all():
        by_label, by_group = 1 - part.mean(axis=0), 1 - part.mean(axis=1)
        if by_label.max() >= by_group.max():
            del used[int(by_label.argmax())]
        else:
            del groups[int(by_group.argmax())]
    left_out = {}
    if not used:
        reason = "no label is in enough units of enough groups"
        return Compared(labels=(), left_out={grouping.names[index]: reason for index in kept})
    for index in kept:
        label = next((label for label in used if not enough[index, label]), None)
        if label is not None:
            few = counts.positives[index, label] < minimum.positives
            kind, number = ("with", counts.positives) if few else ("without", counts.negatives)
            needed = minimum.positives if few else minimum.negatives
            left_out[grouping.names[index]] = (
                f"{rows.format_number(int(number[index, label]))} {kind} {labels[label]}, "
                f"{needed} needed"
            )
    return Compared(labels=tuple(labels[label] for label in used), left_out=left_out)


def kept_groups(grouping: Grouping, left_out: Iterable[str]) -> list[int]:
    return [index for index, name in enumerate(grouping.names) if name not in set(left_out)]
