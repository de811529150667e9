"""The names and facts of a study that trains without near-duplicates of public images.

A dataset keeps its name, under which the rows that are left stand: cells, releases and ledgers
continue as they were. All of its rows stand under a second name, which has tables and features
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from dpprobe.study.options import OverlapOptions

_SUFFIX = "_all_rows"


def all_rows(dataset: str) -> str:
    """Returns the name of a dataset before near-duplicates were removed from it."""
    return f"{dataset}{_SUFFIX}"


def other_name(dataset: str) -> str:
    """Returns the other name under which all rows of a dataset may stand."""
    return dataset.removesuffix(_SUFFIX) if dataset.endswith(_SUFFIX) else all_rows(dataset)


def before_removal(overlap: OverlapOptions | None, datasets: Collection[str]) -> dict[str, str]:
    """Returns the name of all rows of each dataset whose near-duplicates are removed."""
    removes = overlap is not None and overlap.remove is not None
    return {name: all_rows(name) for name in datasets} if removes else {}


def left_out(overlap: OverlapOptions | None) -> dict[str, Any] | None:
    """Returns the public facts of the removal of near-duplicates; None without one."""
    if overlap is None or overlap.remove is None:
        return None
    return {
        "backbone": overlap.remove,
        "threshold": overlap.threshold,
        "public": list(overlap.public),
    }


def removal_faults(
    overlap: OverlapOptions, datasets: Collection[str], public: Collection[str]
) -> Iterator[str]:
    """Yields the datasets that have the name of all rows of another one."""
    for name, whole in before_removal(overlap, datasets).items():
        if whole in datasets or whole in public:
            yield (
                f"{whole} would be the name of all rows of {name}, but another dataset has "
                "that name; rename the other one"
            )
