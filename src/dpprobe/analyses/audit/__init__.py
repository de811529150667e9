"""Audits: lower bounds on epsilon, from attacks on heads that are trained only for the audit.

`epsilon_lower_bound` computes a lower bound on a mechanism's epsilon, at a stated confidence, from
scores of runs with and without a canary. Importing this package imports neither NumPy nor SciPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import Analysis, Section, of_datasets
from dpprobe.analyses.audit.audit_record import AUDITS, RECORD_SUFFIX, audit_path
from dpprobe.analyses.audit.bounds import epsilon_lower_bound
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.exhibits.exhibit import Exhibit, Place, many, one
from dpprobe.files.json_files import read_json
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_words
from dpprobe.results.cell_record import CEILING_HEAD

if TYPE_CHECKING:
    from pathlib import Path

    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Cell, Study

PACKAGE = "dpprobe.analyses.audit"
ATTACKS = "attacks on membership"

__all__ = ["ANALYSIS", "epsilon_lower_bound"]


def list_audited(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells that a study audits, by default of all datasets; none without `audit`.

    With `membership`, cells without a privacy guarantee are audited too, for comparison.
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


def audit_faults(study: Study, audit: AuditOptions) -> Iterator[str]:
    """Yields one line per fault in a study's audit options."""
    for name in audit.methods or study.methods:
        method = study.methods[name]
        if not method.private:
            if audit.methods and not audit.membership:
                yield (
                    f"methods: {name} is not private, so it has no guarantee to test; remove it, "
                    "or write `membership: {}` to attack it too"
                )
        elif method.tunes_network:
            others = "remove it" if audit.methods else "list other methods under audit.methods"
            yield f"methods: {name}: audits train linear heads, not networks; {others}"
    if INFINITE in (audit.epsilons or ()) and not audit.membership:
        yield (
            "epsilons: heads at inf have no guarantee to test; remove inf, or write `membership: "
            "{}` to attack these heads too"
        )
    elif not list_audited(study):
        yield "no cell of the study has these methods and epsilons; choose other values"


def list_attacked(study: Study, dataset: str) -> list[str]:
    """Lists the cells of a dataset whose real training examples are attacked."""
    audit = study.block(AuditOptions)
    return [
        f"{cell.backbone}/{cell.method} at epsilon {budget_words(cell.epsilon)}, {ATTACKS}"
        for cell in list_audited(study, dataset)
        if audit and audit.membership
    ]


def has_attacks(path: Path) -> bool:
    """Returns True if an audit's record has attacks on real examples, or cannot be read."""
    if path.suffix != RECORD_SUFFIX:  # a table of scores
        return False
    try:
        return read_json(path)["membership"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return True


def locate_audit(files: StudyFiles, cell: tuple[str, str, str, str]) -> str:
    return str(audit_path(f"{files.results}/{AUDITS}", cell, RECORD_SUFFIX))


def list_audit_records(files: StudyFiles, dataset: str) -> list[str]:
    return [locate_audit(files, cell) for cell in list_audited(files.study, dataset)]


def _promised_audits(study: Study) -> list[Cell]:
    return [cell for cell in list_audited(study) if cell.epsilon != INFINITE]


def _membership_places(study: Study) -> list[Place]:
    audit = study.block(AuditOptions)
    cells = _promised_audits(study) if audit and audit.membership else []
    return [cell._asdict() for cell in cells]


def _ceiling_audit(files: StudyFiles, place: Place) -> str | None:
    """Returns the audit of the non-private baseline on these features, if the study audits it."""
    ceilings = (
        locate_audit(files, cell)
        for cell in list_audited(files.study, place["dataset"])
        if cell.backbone == place["backbone"]
        and files.study.methods[cell.method].head == CEILING_HEAD
    )
    return next(ceilings, None)


AUDIT = Exhibit(
    name="plot_audit",
    kind="figure",
    files={"": "figures/{dataset}/audit"},
    needs={
        "audits": many(lambda files, place: list_audit_records(files, place["dataset"])),
    },
    make=f"{PACKAGE}.show:plot_audit",
    words="claims and bounds of audits, {dataset}",
    category="Audits",
    places=lambda study: [
        {"dataset": dataset}
        for dataset in dict.fromkeys(cell.dataset for cell in _promised_audits(study))
    ],
)

# Not for publication: the attacks score real training examples.
MEMBERSHIP = Exhibit(
    name="plot_membership",
    kind="figure",
    files={"": "figures/{dataset}/membership_{backbone}-{method}-eps-{epsilon}"},
    needs={
        "audit": one(
            lambda files, place: locate_audit(
                files, (place["dataset"], place["backbone"], place["method"], place["epsilon"])
            )
        ),
        "ceiling": one(_ceiling_audit),
    },
    make=f"{PACKAGE}.show:plot_membership",
    words="membership attacks on {dataset}, {backbone}, {method}, epsilon {epsilon}",
    category="Membership attacks",
    subcategory="{dataset}",
    labels={"backbone": "{backbone}", "method": "{method}", "epsilon": "{epsilon}"},
    places=_membership_places,
)

ANALYSIS = Analysis(
    name="audit",
    describe=(
        "Audit each cell's privacy guarantee by attacks on heads trained for the audit; "
        "skipped if absent."
    ),
    reads=(
        "Membership attacks",
        "attacks on real training rows have exact results, without noise. Audits with synthetic "
        "canaries use no real rows.",
    ),
    unpriced=ATTACKS,
    exposes=list_attacked,
    reveals=has_attacks,
    options=AuditOptions,
    faults=audit_faults,
    datasets=lambda study: list(study.datasets) if list_audited(study) else [],
    exhibits=(AUDIT, MEMBERSHIP),
    section=Section(
        anchor="audits",
        title="Audits",
        template="audit.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={
            "audits": many(of_datasets(list_audit_records)),
        },
        place=-1,
        figures={
            "audit": "Bounds of audits against claims",
            "membership_": "Membership attacks on {}",
        },
    ),
)
