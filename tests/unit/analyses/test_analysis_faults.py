"""Impossible requests for analyses are refused with the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe.analyses import sites
from dpprobe.analyses.analysis import has_several_labels, list_single_label
from dpprobe.analysis_registry import ANALYSES, load_analyses
from dpprobe.errors import DataError
from dpprobe.heads.registry import method_options
from dpprobe.study.study import Study
from tests.support.asking_studies import BACKBONES, CHEST, METHODS, SGD, TUNED

Ask = Callable[..., Study]
BY_NAME = dict(zip(ANALYSES, load_analyses(), strict=True))
NO_CELL = "no cell of the study has these methods and epsilons; choose other values"
NOT_PRIVATE = r"methods: ceiling is not private, so .*; remove it, or write `membership: {}`"
NO_NETWORK = r"methods: tuned: audits train linear heads, not networks; "
SEVERAL = r"datasets: chest: has several labels per image, but {} needs one; name datasets .*{}"
PIXELS = {"backbones": {"pixels": BACKBONES["pixels"]}}
# The analysis, other parts of the study, and the start or a pattern of each fault.
FAULTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "names of audits": (
        "audit",
        {"audit": {"methods": ["sgd", "gone", "sgd"], "epsilons": [3]}},
        [
            r"methods: sgd appears twice; remove one",
            r"methods: gone is not in this study; choose from sgd, ours, ceiling, tuned, auto",
            r"epsilons: 3 is not in this study; choose from 1, 10, inf",
        ],
    ),
    "names of datasets": (
        "long_tail",
        {"long_tail": {"datasets": ["gone", "digits", "digits"]}},
        [
            r"datasets: gone is not in this study; choose from digits, chest, skin",
            r"datasets: digits appears twice; remove one",
        ],
    ),
    "names of backbones": (
        "sites",
        {"sites": {"backbones": ["gone"]}},
        [r"backbones: gone is not in this study; choose from pixels, clip, net"],
    ),
    "epsilons of laws": (
        "representation_law",
        {"representation_law": {"epsilons": [7]}},
        [r"epsilons: 7 is not in this study"],
    ),
    "audits of no guarantee": (
        "audit",
        {"audit": {"methods": ["ceiling", "tuned"], "epsilons": ["inf", 1]}},
        [NOT_PRIVATE, NO_NETWORK + "remove it", r"epsilons: heads at inf have no .*; remove inf, "],
    ),
    "audits without a cell": (
        "audit",
        {"audit": {"methods": ["ceiling"], "epsilons": [1]}},
        [NOT_PRIVATE, NO_CELL],
    ),
    "audits of all methods": (
        "audit",
        {"audit": {"membership": {}}},
        [NO_NETWORK + "list other methods under audit.methods"],
    ),
    "audits at inf alone": (
        "audit",
        {"epsilons": ["inf"], "audit": {"methods": ["sgd"]}},
        [NO_CELL],
    ),
    "attacks at inf": (
        "audit",
        {"audit": {"membership": {}, "epsilons": ["inf"], "methods": ["ours", "ceiling"]}},
        [],
    ),
    "long tails of labels": (
        "long_tail",
        {"long_tail": {"datasets": ["chest", "digits"]}},
        [SEVERAL.format("long_tail", "remove long_tail")],
    ),
    "long tails where they can be": ("long_tail", {"long_tail": {}}, []),
    "long tails of labels alone": (
        "long_tail",
        {"datasets": {"chest": CHEST}, "long_tail": {}},
        [SEVERAL.format("long_tail", "remove long_tail")],
    ),
    "laws of a head": (
        "representation_law",
        {"representation_law": {"methods": ["tuned", "sgd"]}},
        [r"methods: sgd: head sgd tunes no network; remove the method from this list"],
    ),
    "laws without a network": (
        "representation_law",
        {**PIXELS, "datasets": {"chest": CHEST}, "methods": {"sgd": SGD}, "representation_law": {}},
        [
            r"no backbone is a network with blocks; add a backbone with blocks",
            SEVERAL.format("representation_law", "remove representation_law"),
        ],
    ),
    "sites of another method": (
        "sites",
        {"sites": {"method": "other"}},
        [r"method: other is not in this study; choose from sgd, ours, ceiling, tuned, auto"],
    ),
    "sites of a method": (
        "sites",
        {"sites": {"method": "sgd"}},
        [r"method: sgd: head sgd: .* which it does not compute; write `engine: exact`"],
    ),
    "sites without noise": (
        "sites",
        {"epsilons": ["inf"], "sites": {}},
        [r"epsilons: only inf is listed, which needs no noise; add a finite epsilon, such as 1"],
    ),
    "sites without a method": (
        "sites",
        {"methods": {"auto": METHODS["auto"], "tuned": TUNED}, "sites": {}},
        [r"no method that sites can train: auto \(head auto: .*\); tuned \(head fine_tune"],
    ),
    "groups": (
        "fairness",
        {"fairness": {"groups": ["sex", "group_sex", "race"], "reference": "auto"}},
        [
            r"groups: sex appears twice; remove one",
            r"groups: datasets.digits has none of the groups sex, group_sex, race; add .* `class`",
            r"groups: datasets.skin has none of the groups",
            r"groups: race is not a group of any dataset; choose from age, sex, site",
        ],
    ),
    "classes as a group": ("fairness", {"fairness": {"groups": ["class", "age"]}}, []),
    "pairs": (
        "fairness",
        {
            "fairness": {
                "pairs": [
                    ["sex", "sex"],
                    ["sex", "age"],
                    ["age", "group_sex"],
                    ["class", "sex"],
                    ["sex", "site"],
                    ["age", "race"],
                ]
            }
        },
        [
            r"groups: race is not a group of any dataset",
            r"pairs: \[sex, sex\]: a pair needs two different columns",
            r"pairs: \[age, sex\] appears twice; remove one",
            r"pairs: \[class, sex\]: `class` is not a group column; use two group columns",
            r"pairs: \[sex, site\]: no dataset has both columns; use two columns of one dataset",
        ],
    ),
    "a column called class": (
        "fairness",
        {
            "datasets": {
                "chest": CHEST | {"group_columns": ["sex"]},
                "skin": CHEST | {"group_columns": ["class"]},
            },
            "fairness": {"pairs": [["class", "sex"]]},
        },
        [r"pairs: \[class, sex\]: no dataset has both columns"],
    ),
    "a reference without a cell": (
        "fairness",
        {"epsilons": [10, 1], "fairness": {"reference": "ours"}},
        [
            r"reference: no cell trains ours without privacy; add inf to epsilons, or name a "
            r"method with a cell at inf: ceiling"
        ],
    ),
    "no reference at all": (
        "fairness",
        {"epsilons": [1], "methods": {"sgd": SGD}, "fairness": {"reference": "sgd"}},
        [r"reference: no cell trains sgd without privacy; .* at inf: none"],
    ),
    "gradients of groups": (
        "group_gradients",
        {"group_gradients": {"groups": ["race", "class"], "methods": ["ours", "tuned"]}},
        [
            r"no method clips gradients of examples: ours \(head least_squares clips no "
            r"gradients of examples\); tuned \(trains a network, .*\); add one, such as momentum",
            r"groups: race is not a group of any dataset",
        ],
    ),
    "gradients without a cell": (
        "group_gradients",
        {"epsilons": [1], "methods": {"sgd": SGD, "ceiling": METHODS["ceiling"]}}
        | {"group_gradients": {"epsilons": ["inf"]}},
        [NO_CELL],
    ),
    "groups without a cell": (
        "fairness",
        {"fairness": {"methods": ["ceiling"], "epsilons": [1]}},
        [NO_CELL],
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_names_what_is_wrong_and_what_to_write(case: str, ask: Ask) -> None:
    name, changes, expected = FAULTS[case]
    found = BY_NAME[name].list_faults(ask(**changes))
    assert len(found) == len(expected), found
    for fault, pattern in zip(found, expected, strict=True):
        assert re.match(pattern, fault), f"{fault} is not {pattern}"


def test_single_label_datasets_are_listed_in_the_order_of_the_study(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ask()
    assert list_single_label(study) == ["digits"]
    assert list_single_label(study, ["skin", "digits"]) == ["digits", "skin"]
    assert has_several_labels(study, "chest")
    unreadable = Mock(side_effect=DataError("gone"))
    monkeypatch.setattr(type(study.datasets["chest"]), "multi_label", unreadable)
    assert not has_several_labels(study, "chest"), "its own fault is stated elsewhere"


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"head": "least_squares"}, None),
        ({"head": "newton"}, None),
        ({"head": "nonprivate"}, "head nonprivate: sites need one private head"),
        (TUNED, "head fine_tune: sites need one private head on frozen features"),
        ({"head": "auto"}, "head auto: sites need one private head"),
        (SGD, "write `engine: exact`"),
        (
            {
                "head": "tuned",
                "base": {"head": "prototypes"},
                "search": {"max_row_norm": [1.0, 2.0]},
            },
            "sites cannot search together; name the head to train",
        ),
    ],
    ids=lambda given: str(given)[:24],
)
def test_sites_train_one_private_head_of_exact_sums(
    options: dict[str, Any], fault: str | None
) -> None:
    found = sites.method_fault(method_options(options))
    assert found is None if fault is None else fault in (found or "")
