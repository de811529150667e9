"""The cells that a study audits, and the audits that are refused before anything runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.audits import audit_cells
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

METHODS = {
    "newton": {"head": "newton"},
    "sgd": {"head": "sgd", "batch_size": 32, "epochs": 1},
    "nonprivate": {"head": "nonprivate"},
}
OPACUS = {"head": "sgd", "batch_size": 32, "epochs": 1, "engine": "opacus"}


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


@pytest.mark.parametrize(
    ("audit", "changes", "message"),
    [
        ({"methods": ["sdg"]}, {}, "methods: sdg is not in this study; write some of newton"),
        ({"methods": ["sgd", "sgd"]}, {}, "methods: sgd stands twice"),
        ({"epsilons": [3]}, {}, "epsilons: 3 is not in this study; write some of 1, 8, inf"),
        ({"methods": ["nonprivate"]}, {}, "nonprivate is not private"),
        ({"epsilons": ["inf"]}, {}, "epsilons: inf promises nothing"),
        ({}, {"methods": {**METHODS, "peer": OPACUS}}, "methods: peer: engine opacus"),
        ({"methods": ["nonprivate"], "epsilons": [1], "membership": {}}, {}, "no cell"),
    ],
)
def test_an_audit_that_cannot_be_done_is_refused(
    audit: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^config: audit: .*{re.escape(message)}"):
        check_study(_study(audit, **changes))


def test_all_faults_of_an_audit_stand_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        check_study(_study({"methods": ["a", "b"], "epsilons": [3]}))
    assert len(str(caught.value).splitlines()) == 3


def test_too_few_runs_for_the_confidence_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"audit: runs: 10 show nothing.*write 14 or more"):
        _study({"runs": 10, "confidence": 0.9999})
    assert _study({"runs": 14, "confidence": 0.9999}).audit.runs == 14


def test_no_more_heads_are_attacked_than_are_trained() -> None:
    with pytest.raises(ConfigError, match="targets: 9 of 8 shadows"):
        _study({"membership": {"shadows": 8, "targets": 9}})
    assert _study({"membership": {"shadows": 8, "targets": 8}}).audit.membership.targets == 8
