"""The datasets that a study's `imbalance` adds, and the blocks that are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.imbalance import rare_classes
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

BLOCK = {"datasets": ["digits"], "classes": [3, "8"], "fractions": [0.05, 1, 0.5]}
ADDED = ["digits_3_0p5", "digits_3_0p05", "digits_8_0p5", "digits_8_0p05"]


def study(block: dict[str, Any] | None = BLOCK, **changes: Any) -> Study:
    return load_study({**STUDY, "imbalance": block, **changes})


def test_each_class_and_fraction_is_a_dataset() -> None:
    loaded = study()
    check_study(loaded)
    assert list(loaded.datasets) == ["digits", *ADDED]
    part = loaded.datasets["digits_3_0p05"].subsample
    assert part is not None
    assert part.fractions == {"3": 0.05}
    assert [rare.name for rare in rare_classes(loaded.imbalance)] == ADDED
    assert loaded.wholes() == dict.fromkeys(ADDED, "digits")
    assert {cell.dataset for cell in loaded.cells()} == {"digits", *ADDED}
    assert list(study(None).datasets) == ["digits"]
    assert rare_classes(None) == []


def test_a_part_is_its_wholes_in_all_else() -> None:
    whole = {"source": "sklearn", "name": "digits", "delta": 1e-6, "split_seed": 3}
    loaded = study(datasets={"digits": whole})
    assert loaded.dataset_delta("digits_3_0p5") == 1e-6
    assert loaded.datasets["digits_3_0p5"].whole() == loaded.datasets["digits"]
    other = study(datasets={"digits": whole, "again": {**whole, "split_seed": 4}})
    assert other.wholes()["digits_3_0p5"] == "digits"
    alone = study(None, datasets={"part": {**whole, "subsample": {"per_class": 5}}})
    assert alone.wholes() == {}


def test_published_results_are_those_of_whole_datasets() -> None:
    whole = {"catalog": "cifar10"}
    loaded = study(
        {"datasets": ["cifar10"], "classes": ["cat"], "fractions": [0.5]},
        datasets={"cifar10": whole},
    )
    assert loaded.published_names() == {
        "cifar10": "cifar10",
        "cifar10_cat_0p5": "cifar10_cat_0p5",
    }


def test_a_release_of_a_part_would_not_be_added_up() -> None:
    methods = {"exact": {"head": "least_squares"}}
    release = {"dataset": "digits_3_0p5", "backbone": "pixels", "method": "exact", "epsilon": 1}
    loaded = study(methods=methods, releases={"mine": release})
    with pytest.raises(ConfigError, match="the images are those of digits too"):
        check_study(loaded)


@pytest.mark.parametrize(
    ("block", "changes", "message"),
    [
        ({**BLOCK, "datasets": ["mnist"]}, {}, "imbalance.datasets: 'mnist' is not in this study"),
        ({**BLOCK, "classes": []}, {}, "imbalance.classes"),
        (
            {**BLOCK, "fractions": [1.5]},
            {},
            "imbalance.fractions.0: 1.5: input should be less than",
        ),
        ({**BLOCK, "fractions": [1]}, {}, "imbalance: fractions: none is below 1"),
        ({**BLOCK, "fractions": [0.5, 0.5]}, {}, "fractions: 0.5 stands twice"),
        ({**BLOCK, "classes": ["3", 3]}, {}, "classes: 3 stands twice"),
        ({**BLOCK, "classes": ["A b", "a-b"]}, {}, "digits_a_b_0p5 would be the name of two"),
        (
            BLOCK,
            {"datasets": {**STUDY["datasets"], "digits_8_0p5": {"source": "sklearn"}}},
            "digits_8_0p5 would be the name of two datasets; rename a dataset",
        ),
        (
            BLOCK,
            {"datasets": {"digits": {"source": "sklearn", "subsample": {"per_class": 9}}}},
            "imbalance.datasets: digits has a subsample already",
        ),
    ],
)
def test_a_faulty_block_is_one_clear_error(
    block: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        study(block, **changes)


def test_a_class_that_is_not_there_stops_planning_where_classes_are_known() -> None:
    loaded = study({**BLOCK, "classes": ["cat"]})
    with pytest.raises(ConfigError, match="datasets.digits_cat_0p5: .*'cat' is no class of it"):
        check_study(loaded)
