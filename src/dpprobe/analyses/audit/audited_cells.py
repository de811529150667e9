"""Lists the cells that a study audits, and reasons why cells cannot be audited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import find_wrong_names
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.privacy.limits import INFINITE

if TYPE_CHECKING:
    from dpprobe.study.study import Cell, Study


def audit_cells(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells that a study audits, of some datasets or of all; none without `audit`.

    For comparison, attacks on real rows also audit cells without a guarantee.
    """
    audit = study.block(AuditOptions)
    if audit is None:
        return []
    return [
        cell
        for cell in study.list_cells(*datasets)
        if (cell.epsilon != INFINITE or audit.membership)
        and (audit.methods is None or cell.method in audit.methods)
        and (audit.epsilons is None or cell.epsilon in audit.epsilons)
    ]


def audit_faults(study: Study) -> Iterator[str]:
    """Yields one line per fault in a study's audit."""
    audit = study.block(AuditOptions)
    if audit is None:
        return
    wrong = [
        *find_wrong_names("methods", audit.methods or (), list(study.methods)),
        *find_wrong_names("epsilons", audit.epsilons or (), study.job_epsilons()),
    ]
    if wrong:
        yield from wrong
        return
    for name in audit.methods or study.methods:
        method = study.methods[name]
        if not method.private:
            if audit.methods and not audit.membership:
                yield (
                    f"methods: {name} is not private, so it has no guarantee to test; remove it, "
                    "or write `membership: {}` to attack it too"
                )
        elif method.tunes_network:
            others = "remove it" if audit.methods else "list others under audit.methods"
            yield f"methods: {name}: audits train linear heads, not networks; {others}"
    if INFINITE in (audit.epsilons or ()) and not audit.membership:
        yield (
            "epsilons: heads at inf have no guarantee to test; remove inf, or write `membership: "
            "{}` to attack these heads too"
        )
    elif not audit_cells(study):
        yield "no cell of the study has these methods and epsilons; write others"
