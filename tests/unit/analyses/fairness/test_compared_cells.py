"""The cells whose groups a study compares, their references, and what is refused beforehand."""

from __future__ import annotations

from typing import Any

from dpprobe.analyses.fairness import fairness_cells, reference_of
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

METHODS = {
    "newton": {"head": "newton"},
    "sgd": {"head": "sgd", "batch_size": 32, "epochs": 1},
    "nonprivate": {"head": "nonprivate"},
}


def _study(fairness: dict[str, Any] | None, **changes: Any) -> Any:
    values = {**STUDY, "methods": METHODS, "epsilons": [1, 8, "inf"], "fairness": fairness}
    return load_study({**values, **changes})


def test_by_default_every_cell_is_compared_with_the_ceiling() -> None:
    study = _study({})
    check_study(study)
    assert fairness_cells(study) == study.list_cells()
    assert fairness_cells(_study(None)) == []
    assert reference_of(study, "sgd", "1") == ("nonprivate", "inf")
    assert reference_of(study, "sgd", "inf") == ("nonprivate", "inf")
    assert reference_of(study, "nonprivate", "inf") is None


def test_without_a_ceiling_a_method_is_compared_with_itself_without_privacy() -> None:
    methods = {name: METHODS[name] for name in ("newton", "sgd")}
    study = _study({}, methods=methods)
    assert reference_of(study, "sgd", "1") == ("sgd", "inf")
    assert reference_of(study, "sgd", "inf") is None
    assert reference_of(_study({}, methods=methods, epsilons=[1]), "sgd", "1") is None


def test_a_choice_of_cells_brings_their_references() -> None:
    study = _study({"methods": ["sgd"], "epsilons": [8.0]})
    check_study(study)
    assert {cell[2:] for cell in fairness_cells(study)} == {("sgd", "8"), ("nonprivate", "inf")}
    named = _study({"methods": ["sgd"], "epsilons": [8], "reference": "newton"})
    assert {cell[2:] for cell in fairness_cells(named)} == {("sgd", "8"), ("newton", "inf")}
