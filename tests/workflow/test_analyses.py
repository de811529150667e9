"""Only the analyses of the study are planned; a wrong one stops the study before any job."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Workspace
from .test_representation_laws import TINY, TUNED

# By block: valid values, the rules that only this block plans, wrong values and their error.
ANALYSES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "audit": (
        {"runs": 40, "methods": ["sgd"], "membership": {"shadows": 8}},
        ("audit_cells", "plot_audit", "plot_membership"),
        {"methods": ["nonprivate", "sgd"], "epsilons": [3]},
        "audit: epsilons: 3 is not in this study",
    ),
    "fairness": (
        {"resamples": 200},
        ("compare_groups", "plot_fairness", "write_fairness_table"),
        {"groups": ["sex"]},
        "fairness: groups: sex is not a group of any dataset",
    ),
    "group_gradients": (
        {"minimum": 20},
        ("measure_group_gradients", "write_group_gradients", "plot_group_gradients"),
        {"methods": ["nonprivate"]},
        "group_gradients: no method clips gradients of examples: nonprivate (head nonprivate",
    ),
    "imbalance": (
        {"datasets": ["digits"], "classes": [3], "fractions": [0.1]},
        ("compare_rare_classes", "select_features"),
        {"datasets": ["digits"], "classes": ["cat"], "fractions": [0.1]},
        "'cat' is not a class of the dataset; choose from 0, 1",
    ),
    "long_tail": (
        {"clusters": [4]},
        ("measure_long_tail", "write_long_tail_tables", "plot_long_tail"),
        {"datasets": ["digit"]},
        "long_tail: datasets: digit is not in this study",
    ),
    "representation_law": (
        {"rows": 100, "shuffles": 1},
        ("measure_law", "plot_law", "write_law_tables"),
        {"methods": ["least_squares"]},
        "representation_law: methods: least_squares: head least_squares",
    ),
    "sites": (
        {"counts": 3},
        ("simulate_sites", "write_sites_table", "plot_sites"),
        {"method": "nonprivate"},
        "sites: method: nonprivate: head nonprivate: sites need one private head",
    ),
}


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    others = {"least_squares": {"head": "least_squares"}, "nonprivate": {"head": "nonprivate"}}
    methods = small["methods"] | others | {"two_blocks": TUNED}
    return small | {"backbones": {"tiny": TINY}, "methods": methods, "seeds": 1}


def test_target_all_has_only_requested_analyses(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    rules = {rule for _, own, _, _ in ANALYSES.values() for rule in own}
    planned = workspace.planned(study)
    assert not {rule for rule in rules if planned[rule]}
    assert planned["write_report"] == planned["tune_network"] == 1
    study |= {name: block for name, (block, *_) in ANALYSES.items()}
    asked = workspace.planned(study)
    assert not {rule for rule in rules if not asked[rule]}
    # A target also makes tables and figures, except for group comparisons.
    targets = [name for name in ANALYSES if name != "audit"]
    made = workspace.planned(study, *targets)
    hidden = {"plot_fairness", "write_fairness_table", *ANALYSES["audit"][1]}
    assert {rule for rule in rules if not made[rule]} == hidden


def test_impossible_analyses_are_refused_before_any_job(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    wrong = {name: block for name, (_, _, block, _) in ANALYSES.items()}
    result = workspace.run(study | wrong, check=False)
    assert result.returncode != 0
    for _, _, _, said in ANALYSES.values():
        assert said in result.stdout
    assert not (workspace.directory / "results").exists()
