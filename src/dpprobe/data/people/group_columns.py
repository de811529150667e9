"""Columns of subgroups: names, ranges of numbers, and blanks."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from dpprobe.data.people.alike_names import find_alike, in_words, text_of
from dpprobe.options import Options as Block

logger = logging.getLogger("dpprobe")

GROUP_PREFIX = "group_"
# The name of the grouping by class.
CLASSES = "class"
# Numbers that mean "unknown" in many tables: -1, -9, -99 and so on.
MISSING_CODE = re.compile(r"-(1|9+)(\.0+)?")
# Spellings of a blank number.
BLANKS = frozenset({"", "<na>", "na", "n/a", "nan", "nat", "none", "null", "unknown", "?"})
# Texts that spreadsheets write in place of a value that cannot be computed.
SHEET_ERRORS = frozenset({"#div/0!", "#n/a", "#name?", "#null!", "#num!", "#ref!", "#value!"})
# Spellings of 1 and 0 in columns of labels, in any case.
ADULT = 10  # years; bins from here on have no range for infants
OLDEST = 120  # years; a larger age is a mistake or a code
TRUTH = {"true": 1, "false": 0}


def group_column(name: str) -> str:
    return name if name.startswith(GROUP_PREFIX) else GROUP_PREFIX + name


def group_name(name: str) -> str:
    return name.removeprefix(GROUP_PREFIX)


class Group(Block):
    """A column whose values are subgroups; numbers in the column may be grouped into ranges."""

    column: str = Field(description="A column of numbers or names.")
    bins: tuple[float, ...] = Field(
        (),
        description="Ascending limits: [18, 40] groups the numbers into <18, 18-39 and >=40; "
        "blanks are unknown.",
    )
    ignore_case: bool = Field(
        False,
        exclude_if=lambda value: not value,  # so that existing split tables stay up to date
        description="Merge values that differ only in case, and write them in lower case.",
    )

    @field_validator("bins")
    @classmethod
    def _check_bins(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in itertools.pairwise(value)):
            raise ValueError(f"{list(value)}: limits must ascend; sort them")
        return value

    def _holds_ages(self) -> bool:
        return re.search(r"(?i)(?<![a-z])age(?![a-z])", self.column.replace("_", " ")) is not None

    def _is_odd_age(self, text: str) -> bool:
        """Returns True for an age above 120, and for 0 if all bins are of adults."""
        try:
            age = float(text)
        except ValueError:
            return False
        return age > OLDEST or (age == 0 and min(self.bins) >= ADULT)

    def read_values(self, values: Any, faults: Sequence[list[tuple[str, str]]]) -> Any:
        """Returns a column's values (a list or Arrow array) unchanged, in lower case, or as ranges.

        If there are ranges, a value that is not a number adds a fault to its row in `faults`.
        """
        if not self.bins and not self.ignore_case:
            return values
        texts = [text_of(value) for value in getattr(values, "tolist", lambda: values)()]
        if self.ignore_case:
            texts = [text.casefold() for text in texts]
        if not self.bins:
            return texts
        ranges = []
        for fault, text in zip(faults, texts, strict=True):
            try:
                ranges.append(bin_name(text, self.bins))
                negative = text.startswith("-") and self.bins[0] > 0
                if negative or (self._holds_ages() and self._is_odd_age(text)):
                    warn_of_code(self.column, text, f"falls into {ranges[-1]}")
            except ValueError:
                fault.append(("value", f"{self.column} is {text!r}, which is not a number"))
                ranges.append("")
        return ranges


Groups = tuple[str, ...] | dict[str, str | Group]


def _check_groups(value: Groups) -> Groups:
    names, remedy = tuple(value), "write a mapping, {name: column}"
    columns = [group_column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not name or "/" in name:
            raise ValueError(
                f"{name!r} cannot be the name of a group, because / separates folders; choose "
                f"another name and {remedy}"
            )
        if columns.count(column) > 1:
            raise ValueError(f"{name!r}: two groups would be named {column!r}; remove one")
    return value


GroupColumns = Annotated[
    Groups,
    AfterValidator(_check_groups),
    Field(
        description="Columns whose values are subgroups, such as sex or age; or a mapping of "
        "names to columns or to {column, bins, ignore_case}."
    ),
]


def list_groups(given: Groups) -> dict[str, Group]:
    """Maps each group column of the split tables to the source column with its values."""
    pairs = given.items() if isinstance(given, dict) else ((name, name) for name in given)
    return {
        group_column(name): Group(column=of) if isinstance(of, str) else of for name, of in pairs
    }


def find_spellings(groups: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yields an error per group (column -> values) with two spellings, such as `f` and `F`."""
    for column, values in groups.items():
        for names in find_alike(values):
            yield f"{group_name(column)}: {in_words(names)} are separate groups"


@cache
def warn_of_code(column: str, text: str, effect: str) -> None:
    """Warns once about each number of a column that may mean "unknown"."""
    logger.warning(
        "%s: %s may be a code for unknown, but %s; if it means unknown, leave these fields blank",
        column,
        text,
        effect,
    )


def bin_name(value: str, bins: Sequence[float]) -> str:
    """Returns a number's range, such as `<18`, `18-39` or `>=40` for [18, 40]; empty for a blank.

    Raises ValueError if the value is neither blank nor a number.
    """
    if value.lower() in BLANKS:
        return ""
    number = float(value)
    if not value.isascii() or not math.isfinite(number):  # float() reads digits of other scripts
        raise ValueError(f"{value!r} is not a finite number")
    place = bisect.bisect_right(bins, number)
    if place == 0:
        return f"<{bins[0]:g}"
    low = bins[place - 1]
    if place == len(bins):
        return f">={low:g}"
    whole = low.is_integer() and bins[place].is_integer()
    return f"{low:g}-{bins[place] - 1:g}" if whole else f"{low:g} to <{bins[place]:g}"
