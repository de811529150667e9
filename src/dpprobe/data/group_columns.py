"""Names of the columns that say which subgroup a row is of."""

from __future__ import annotations

from collections.abc import Iterable

GROUP_PREFIX = "group_"
# The name of the classes where they are taken for groups.
CLASSES = "class"


def group_column(name: str) -> str:
    """Returns the name of a subgroup's column: `group_` before it, once."""
    return name if name.startswith(GROUP_PREFIX) else GROUP_PREFIX + name


def group_name(name: str) -> str:
    """Returns a subgroup's name, without `group_` before it."""
    return name.removeprefix(GROUP_PREFIX)


def check_groups(names: Iterable[str], *, remedy: str) -> None:
    """Checks the names of subgroups.

    Raises:
      ValueError: for one that cannot be a column's name, and for two that would become one.
    """
    names = tuple(names)
    columns = [group_column(name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not name or "/" in name:
            raise ValueError(f"{name!r} cannot name a group, / divides paths; {remedy}")
        if columns.count(column) > 1:
            raise ValueError(f"{name!r}: two groups would become {column!r}; remove one")
