"""Cells, references, networks and budgets of a study's analyses, compared with plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from dpprobe.analyses import audit, fairness, representation_law, sites
from dpprobe.heads.registry import method_options
from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study import Study
from tests.support.asking_studies import BACKBONES, METHODS, SGD, TUNED

Ask = Callable[..., Study]
DATASETS = ("digits", "chest", "skin")
PRIVATE = ("sgd", "ours", "tuned", "auto")
AT_INF = (*PRIVATE, "ceiling")


def _every(methods: Any, epsilons: Any) -> set[tuple[str, ...]]:
    return set(product(DATASETS, BACKBONES, methods, epsilons))


def _audits(ask: Ask, **block: Any) -> set[tuple[str, ...]]:
    return set(audit.list_audited(ask(audit=block)))


def test_audits_are_of_guarantees_and_attacks_of_the_rest_too(ask: Ask) -> None:
    assert audit.list_audited(ask()) == []
    assert _audits(ask) == _every(PRIVATE, ("1", "10"))
    assert _audits(ask, membership={}) == _every(PRIVATE, ("1", "10")) | _every(AT_INF, ("inf",))
    assert _audits(ask, methods=["sgd"], epsilons=[10]) == _every(("sgd",), ("10",))
    few = _audits(ask, methods=["sgd", "ceiling"], membership={}, epsilons=["inf", 1])
    assert few == _every(("sgd",), ("1",)) | _every(("sgd", "ceiling"), ("inf",))
    study = ask(audit={})
    assert {cell.dataset for cell in audit.list_audited(study, "skin")} == {"skin"}


def test_the_ceiling_of_attacks_is_the_non_private_head_on_the_same_features(ask: Ask) -> None:
    place = {"dataset": "chest", "backbone": "clip"}
    found = {}
    for name, block in {
        "attacked": {"membership": {}},
        "not attacked": {},
        "another method": {"membership": {}, "methods": ["sgd"]},
    }.items():
        files = StudyFiles(ask(audit=block), results="r")
        found[name] = audit.MEMBERSHIP.needs["ceiling"].paths(files, place)
    assert found == {
        "attacked": ["r/audit/chest/clip/ceiling/eps-inf.json"],
        "not attacked": [],
        "another method": [],
    }


def test_compared_cells_bring_their_references(ask: Ask) -> None:
    assert fairness.fairness_cells(ask()) == []
    everything = _every(PRIVATE, ("1", "10")) | _every(AT_INF, ("inf",))
    assert set(fairness.fairness_cells(ask(fairness={}))) == everything
    sgd = _every(("sgd",), ("10",))
    given = {"methods": ["sgd"], "reference": "ours"}
    study = ask(fairness=given | {"epsilons": [10]})
    assert set(fairness.fairness_cells(study)) == sgd | _every(("ours",), ("inf",))
    study = ask(fairness={"methods": ["sgd"], "epsilons": [10]})
    assert set(fairness.fairness_cells(study)) == sgd | _every(("ceiling",), ("inf",))
    assert fairness.fairness_cells(study) == [
        cell for cell in study.list_cells() if cell in fairness.fairness_cells(study)
    ], "in the study's order"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fairness": {}}, {"sgd 1": "ceiling", "sgd inf": "ceiling", "ceiling inf": None}),
        (
            {"fairness": {"reference": "ours"}},
            {"sgd 1": "ours", "ceiling inf": "ours", "ours 1": "ours", "ours inf": None},
        ),
        ({"fairness": {}, "methods": {"sgd": SGD}}, {"sgd 1": "sgd", "sgd inf": None}),
        ({"fairness": {}, "methods": {"sgd": SGD}, "epsilons": [1]}, {"sgd 1": None}),
        ({"fairness": {}, "epsilons": [1]}, {"sgd 1": "ceiling", "ceiling inf": None}),
        ({"fairness": {"reference": "ours"}, "epsilons": [1]}, {"sgd 1": None}),
    ],
    ids=["ceiling", "named", "itself at inf", "none", "ceiling without inf", "named without inf"],
)
def test_the_reference_is_named_or_the_ceiling_or_the_method_at_infinity(
    ask: Ask, changes: dict[str, Any], expected: dict[str, str | None]
) -> None:
    study = ask(**changes)
    found = {key: fairness.reference_of(study, *key.split()) for key in expected}
    assert found == {key: name and (name, "inf") for key, name in expected.items()}


def test_laws_are_of_networks_on_backbones_with_blocks(ask: Ask) -> None:
    networks = representation_law.list_law_networks
    assert networks(ask()) == []
    assert networks(ask(representation_law={})) == [("tuned", e) for e in ("1", "10", "inf")]
    finite = ask(representation_law={}, epsilons=[10, 1])  # only the ceiling trains at inf
    assert networks(finite) == [("tuned", "10"), ("tuned", "1")]
    more = {**METHODS, "more": TUNED}
    two = ask(methods=more, representation_law={"methods": ["tuned"], "epsilons": ["inf"]})
    assert networks(two) == [("tuned", "inf")]
    files = StudyFiles(two, results="r")
    assert representation_law.list_law_records(files, "digits") == [
        "r/layers/digits/clip/law.json",
        "r/layers/digits/net/law.json",
    ]
    assert representation_law.list_law_records(files, "chest") == [], "several labels"
    assert representation_law.list_law_records(StudyFiles(ask(), results="r"), "digits") == []


@pytest.mark.parametrize(
    ("tune", "search", "expected"),
    [
        ("head", {}, ("constant", "head", 0)),
        ("all", {}, ("constant", "all", None)),
        ({"blocks": 1}, {}, ("constant", "last 1 block", 1)),
        ({"blocks": 4}, {}, ("constant", "last 4 blocks", 4)),
        ({"lora": {"rank": 8}}, {}, ("constant", "lora 8", None)),
        (
            {"blocks": 4},
            {"search": {"space": {"learning_rate": [0.1, 1.0]}}},
            ("searched", "last 4 blocks", 4),
        ),
    ],
    ids=str,
)
def test_a_tuned_part_is_named_with_the_source_of_its_options(
    tune: Any, search: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = representation_law.describe_tuning(
        method_options({"head": "fine_tune", "tune": tune, **search})
    )
    assert found is not None
    assert (found.setting, found.tuned, found.blocks) == expected
    assert representation_law.describe_tuning(method_options(SGD)) is None


def test_sites_train_the_first_method_that_they_can_at_finite_budgets(ask: Ask) -> None:
    assert sites.choose_method(ask(sites={})) == "ours"
    assert sites.choose_method(ask(sites={"method": "sgd"})) == "sgd", "its fault is told"
    assert sites.choose_method(ask(sites={}, methods={"sgd": SGD})) is None
    assert sites.list_budgets(ask(epsilons=[10, "inf", 1])) == ["10", "1"]
    study = ask(sites={})
    inputs = sites.list_inputs(study, {"dataset": "digits", "backbone": "net"})
    assert (inputs["method"], inputs["epsilons"], inputs["unit"]) == ("ours", ["1", "10"], "image")
    assert inputs["options"]["head"] == "least_squares"
    assert (inputs["delta"], inputs["seeds"], inputs["seed"]) == (1e-5, 2, 0)
