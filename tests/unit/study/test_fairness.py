"""The cells whose groups a study compares, their references, and what is refused beforehand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.fairness import fairness_cells, reference_of
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
    assert fairness_cells(study) == study.cells()
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


@pytest.mark.parametrize(
    ("fairness", "changes", "message"),
    [
        ({"methods": ["sdg"]}, {}, "methods: sdg is not in this study; write some of newton"),
        ({"epsilons": [3]}, {}, "epsilons: 3 is not in this study; write some of 1, 8, inf"),
        ({"methods": ["sgd", "sgd"]}, {}, "methods: sgd stands twice"),
        ({"methods": ["nonprivate"], "epsilons": [1]}, {}, "no cell of the study"),
        ({"reference": "sgd"}, {"epsilons": [1]}, "reference: sgd is trained without privacy in"),
        ({"groups": ["sex"]}, {}, "groups: sex is a group of no dataset; write some of class"),
        ({"groups": ["sex"]}, {}, "groups: datasets.digits has none of sex; add one that it has"),
        ({"groups": ["class", "class"]}, {}, "groups: class stands twice; remove one"),
        ({"groups": ["class", "group_class"]}, {}, "groups: class stands twice; remove one"),
        ({"pairs": [["sex", "age"]]}, {}, "groups: age is a group of no dataset"),
        ({"pairs": [["sex", "group_sex"]]}, {}, "pairs: [sex, sex]: a pair needs two different"),
        ({"pairs": [["sex", "class"]]}, {}, "pairs: [sex, class]: classes are no column"),
        ({"pairs": [["a", "b"], ["b", "a"]]}, {}, "pairs: [b, a] stands twice; remove one"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_job(
    fairness: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"config: fairness: {re.escape(message)}"):
        check_study(_study(fairness, **changes))


@pytest.mark.parametrize(
    ("fairness", "message"),
    [
        ({"pairs": [["sex", "sex"]]}, "a pair needs two different columns"),
        ({"thresholds": [0]}, "thresholds"),
        ({"thresholds": [{"false_positive_rate": 1}]}, "thresholds"),
        ({"resamples": 10}, "resamples"),
    ],
)
def test_values_out_of_range_are_refused(fairness: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _study(fairness)
