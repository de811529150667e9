"""Cells whose subgroups a study compares, their references, and reasons against comparing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import find_wrong_names
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.data.group_columns import CLASSES, group_name
from dpprobe.privacy.limits import INFINITE

if TYPE_CHECKING:
    from dpprobe.study.study import Cell, Study


def fairness_cells(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells whose groups are compared, of some datasets or of all.

    The references of chosen cells are included. Without the block `fairness` there are no cells.
    """
    fairness = study.block(FairnessOptions)
    if fairness is None:
        return []
    chosen = {
        cell
        for cell in study.list_cells(*datasets)
        if (fairness.methods is None or cell.method in fairness.methods)
        and (fairness.epsilons is None or cell.epsilon in fairness.epsilons)
    }
    chosen |= {
        cell._replace(method=other[0], epsilon=other[1])
        for cell in chosen
        if (other := reference_of(study, cell.method, cell.epsilon))
    }
    return [cell for cell in study.list_cells(*datasets) if cell in chosen]


def reference_of(study: Study, method: str, epsilon: str) -> tuple[str, str] | None:
    """Returns the method and epsilon to compare a cell's gaps with; None without a reference.

    Returns None also for a cell that is itself the reference.
    """
    at_infinity = study.job_methods(INFINITE)
    fairness = study.block(FairnessOptions)
    named = fairness.reference if fairness else None
    ceilings = [name for name in at_infinity if not study.methods[name].private]
    candidates = [named] if named else [*ceilings[:1], method]
    reference = next((name for name in candidates if name in at_infinity), None)
    if reference is None or (reference, INFINITE) == (method, epsilon):
        return None
    return reference, INFINITE


def fairness_faults(study: Study) -> Iterator[str]:
    """Yields one line per fault in a study's comparison of subgroups."""
    fairness = study.block(FairnessOptions)
    if fairness is None:
        return
    at_infinity = study.job_methods(INFINITE)
    given = list(map(group_name, fairness.groups or ()))
    yield from find_wrong_names("groups", given, given)
    yield from find_wrong_names("methods", fairness.methods or (), list(study.methods))
    yield from find_wrong_names("epsilons", fairness.epsilons or (), study.job_epsilons())
    if fairness.reference and fairness.reference not in at_infinity:
        few = ", ".join(at_infinity) or "none"
        yield (
            f"reference: no cell trains {fairness.reference} without privacy; add inf to "
            f"epsilons, or write a method that has such a cell: {few}"
        )
    if not fairness_cells(study):
        yield "no cell of the study has these methods and epsilons; write others"
    by_dataset = {
        name: set(map(group_name, dataset.group_names()))
        for name, dataset in study.datasets.items()
    }
    for name, columns_of_it in by_dataset.items():
        if given and CLASSES not in given and not columns_of_it & set(given):
            named = ", ".join(fairness.groups or ())
            yield (
                f"groups: datasets.{name} has none of the groups {named}; "
                f"add a group of this dataset, or `{CLASSES}`"
            )
    columns = set().union(*by_dataset.values())
    pairs = [(group_name(first), group_name(second)) for first, second in fairness.pairs]
    for group in dict.fromkeys([*given, *itertools.chain(*pairs)]):
        if group not in columns and group != CLASSES:
            yield (
                f"groups: {group} is not a group of any dataset; write some of "
                f"{', '.join(sorted(columns)) or CLASSES}"
            )
    seen: set[frozenset[str]] = set()
    for first, second in pairs:
        pair = f"pairs: [{first}, {second}]"
        if first == second:
            yield f"{pair}: a pair needs two different columns"
        elif frozenset((first, second)) in seen:
            yield f"{pair} appears twice; remove one"
        elif CLASSES in (first, second) and CLASSES not in columns:
            yield f"{pair}: `class` is not a group column; write two group columns"
        elif {first, second} <= columns and not any(
            {first, second} <= each for each in by_dataset.values()
        ):
            yield f"{pair}: no dataset has both columns; write two columns of one dataset"
        seen.add(frozenset((first, second)))
