"""The cells whose subgroups a study compares, their references, and the reasons why it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.data.group_columns import CLASSES, group_name
from dpprobe.data.options import DatasetOptions
from dpprobe.privacy.limits import INFINITE

if TYPE_CHECKING:
    from dpprobe.study.study import Cell, Study


def fairness_cells(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells whose groups are compared, of some datasets or of all.

    None without `fairness`. The references of chosen cells are among them.
    """
    if study.block("fairness") is None:
        return []
    methods, epsilons = study.block("fairness").methods, study.block("fairness").epsilons
    chosen = {
        cell
        for cell in study.list_cells(*datasets)
        if (methods is None or cell.method in methods)
        and (epsilons is None or cell.epsilon in epsilons)
    }
    chosen |= {
        cell._replace(method=other[0], epsilon=other[1])
        for cell in chosen
        if (other := reference_of(study, cell.method, cell.epsilon))
    }
    return [cell for cell in study.list_cells(*datasets) if cell in chosen]


def reference_of(study: Study, method: str, epsilon: str) -> tuple[str, str] | None:
    """Returns the method and epsilon that a cell's gaps are compared with; None without one.

    None too for a cell that is itself the reference.
    """
    at_infinity = study.job_methods(INFINITE)
    named = study.block("fairness").reference if study.block("fairness") else None
    ceilings = [name for name in at_infinity if not study.methods[name].private]
    candidates = [named] if named else [*ceilings[:1], method]
    reference = next((name for name in candidates if name in at_infinity), None)
    if reference is None or (reference, INFINITE) == (method, epsilon):
        return None
    return reference, INFINITE


def fairness_faults(study: Study) -> Iterator[str]:
    """Yields what is wrong with a study's comparison of subgroups, a line each."""
    fairness = study.block("fairness")
    if fairness is None:
        return
    at_infinity = study.job_methods(INFINITE)
    given = list(map(group_name, fairness.groups or ()))
    for name in dict.fromkeys(given):
        if given.count(name) > 1:
            yield f"groups: {name} appears twice; remove one"
    known = {"methods": tuple(study.methods), "epsilons": study.job_epsilons()}
    for key, names in known.items():
        chosen = getattr(fairness, key) or ()
        for name in chosen:
            if name not in names or chosen.count(name) > 1:
                fault = "appears twice; remove one" if name in names else "is not in this study"
                remedy = "" if name in names else f"; write some of {', '.join(names)}"
                yield f"{key}: {name} {fault}{remedy}"
    if fairness.reference and fairness.reference not in at_infinity:
        few = ", ".join(at_infinity) or "none"
        yield (
            f"reference: no cell trains {fairness.reference} without privacy; add inf to "
            f"epsilons, or write one of the methods that have such a cell: {few}"
        )
    if not fairness_cells(study):
        yield "no cell of the study has these methods and epsilons; write others"
    for name, dataset in study.datasets.items():
        yield from _group_faults(study, name, dataset)
    columns = {group for dataset in study.datasets.values() for group in _group_columns(dataset)}
    for group in _chosen_groups(study):
        if group not in columns and group != CLASSES:
            yield (
                f"groups: {group} is not a group of any dataset; write some of "
                f"{', '.join(sorted(columns)) or CLASSES}"
            )
    yield from _pair_faults(study)


def _pair_faults(study: Study) -> Iterator[str]:
    """Yields the faults of pairs that would make no groups, or the same ones again."""
    assert study.block("fairness") is not None
    pairs = [
        (group_name(first), group_name(second)) for first, second in study.block("fairness").pairs
    ]
    seen: set[frozenset[str]] = set()
    for first, second in pairs:
        pair = f"pairs: [{first}, {second}]"
        columns = [set(_group_columns(dataset)) for dataset in study.datasets.values()]
        if first == second:
            yield f"{pair}: a pair needs two different columns"
        elif frozenset((first, second)) in seen:
            yield f"{pair} appears twice; remove one"
        elif CLASSES in (first, second) and not any(CLASSES in names for names in columns):
            yield f"{pair}: classes are not a group column; write two group columns"
        elif {first, second} <= set().union(*columns) and not any(
            {first, second} <= names for names in columns
        ):
            yield f"{pair}: no dataset has both; write two that one has"
        seen.add(frozenset((first, second)))


def _group_faults(study: Study, name: str, dataset: DatasetOptions) -> Iterator[str]:
    """Yields the fault of a dataset that has none of the chosen groups."""
    assert study.block("fairness") is not None
    chosen = study.block("fairness").groups
    if (
        chosen
        and CLASSES not in chosen
        and not set(map(group_name, chosen)) & set(_group_columns(dataset))
    ):
        yield (
            f"groups: datasets.{name} has none of {', '.join(chosen)}; add one that it has, or "
            f"`{CLASSES}`"
        )


def _chosen_groups(study: Study) -> list[str]:
    """Returns the names of all groups that a study chooses, each once."""
    assert study.block("fairness") is not None
    pairs = (group for pair in study.block("fairness").pairs for group in pair)
    return list(dict.fromkeys(map(group_name, [*(study.block("fairness").groups or ()), *pairs])))


def _group_columns(dataset: DatasetOptions) -> list[str]:
    return list(map(group_name, dataset.group_names()))
