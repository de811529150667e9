"""The cells that a study audits, and the reasons why it cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dpprobe.privacy.limits import INFINITE
from dpprobe.study.study import Cell, Study


def audit_cells(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells that a study audits, of some datasets or of all; none without `audit`.

    A cell that promises nothing has no promise to test. It is attacked to compare with, where real
    rows are.
    """
    if study.audit is None:
        return []
    methods, epsilons = study.audit.methods, study.audit.epsilons
    return [
        cell
        for cell in study.cells(*datasets)
        if (cell.epsilon != INFINITE or study.audit.membership)
        and (methods is None or cell.method in methods)
        and (epsilons is None or cell.epsilon in epsilons)
    ]


def audit_faults(study: Study) -> Iterator[str]:
    """Yields what is wrong with the audit of a study, a line each."""
    audit = study.audit
    if audit is None:
        return
    known = {"methods": tuple(study.methods), "epsilons": study.job_epsilons()}
    unknown = False
    for key, names in known.items():
        chosen = getattr(audit, key) or ()
        for name in chosen:
            if name not in names or chosen.count(name) > 1:
                unknown = True
                fault = "stands twice; remove one" if name in names else "is not in this study"
                remedy = "" if name in names else f"; write some of {', '.join(names)}"
                yield f"{key}: {name} {fault}{remedy}"
    if unknown:
        return
    for name in audit.methods or study.methods:
        method = study.methods[name]
        if not method.private:
            if audit.methods and not audit.membership:
                yield (
                    f"methods: {name} is not private and promises nothing to test; remove it, or "
                    "write `membership: {}` to attack it too"
                )
        elif method.audit_fault:
            others = "remove it" if audit.methods else "list others under audit.methods"
            yield f"methods: {name}: {method.audit_fault}; {others}"
    if INFINITE in (audit.epsilons or ()) and not audit.membership:
        yield (
            "epsilons: inf promises nothing to test; remove it, or write `membership: {}` to "
            "attack its heads too"
        )
    elif not audit_cells(study):
        yield "no cell of the study has these methods and epsilons; write others"
    if audit.membership:
        yield from _streamed(study)


def _streamed(study: Study) -> Iterator[str]:
    """Yields the features, as far as their size is known, that membership attacks would stream."""
    limit = study.features.memory_mb
    for dataset, options in study.datasets.items():
        rows = options.count_rows()
        for backbone, model in study.backbones.items():
            megabytes = streamed_mb(rows[0], model.dimension, limit) if rows else None
            if megabytes is not None:
                yield (
                    f"membership: the features of {dataset}, {backbone} take {megabytes} MB, and "
                    f"attacks need them in memory; write features.memory_mb above that, or no "
                    "membership"
                )


def streamed_mb(rows: int, dimension: int | None, memory_mb: int) -> int | None:
    """Returns the MB that features take as float32 where that is above a limit; else None."""
    size = 4 * rows * (dimension or 0)
    return math.ceil(size / 10**6) if size > memory_mb * 10**6 else None
