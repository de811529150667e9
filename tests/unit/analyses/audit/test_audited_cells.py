"""The cells that a study audits, and the audits that are refused before anything runs."""

from __future__ import annotations

from typing import Any

from dpprobe.analyses.audit import audit_cells
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

METHODS = {
    "newton": {"head": "newton"},
    "sgd": {"head": "sgd", "batch_size": 32, "epochs": 1},
    "nonprivate": {"head": "nonprivate"},
}


def _study(audit: dict[str, Any] | None, **changes: Any) -> Any:
    return load_study(
        {**STUDY, "methods": METHODS, "epsilons": [1, 8, "inf"], "audit": audit, **changes}
    )


def test_by_default_every_promise_of_a_study_is_audited() -> None:
    cells = {(cell.method, cell.epsilon) for cell in audit_cells(_study({}))}
    assert cells == {(method, e) for method in ("newton", "sgd") for e in ("1", "8")}
    assert audit_cells(_study(None)) == []


def test_attacks_on_real_rows_take_cells_without_a_promise_too() -> None:
    cells = {(cell.method, cell.epsilon) for cell in audit_cells(_study({"membership": {}}))}
    assert {("nonprivate", "inf"), ("sgd", "inf"), ("sgd", "1")} <= cells
    assert len(cells) == 7


def test_a_study_may_choose_methods_and_epsilons() -> None:
    audit = {"methods": ["sgd"], "epsilons": [8.0]}
    study = _study(audit)
    check_study(study)
    assert {cell[2:] for cell in audit_cells(study)} == {("sgd", "8")}
