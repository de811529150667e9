"""A comparison figure is made only if the study has at least two things to compare."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study import comparisons
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

DIGITS = {"source": "sklearn", "name": "digits"}
VIT = {"family": "timm", "model": "test_vit", "pretrained": False}
SMALL = VIT | {"preprocessing": {"size": 64}}
RESNET = {"family": "timm", "model": "test_resnet", "pretrained": False}
SEARCHED = {
    "head": "fine_tune",
    "tune": "head",
    "steps": 2,
    "search": {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}},
}


def study_of(**changes: Any) -> Study:
    return load_study(STUDY | changes)


@pytest.mark.parametrize(
    ("backbones", "made"),
    [
        ({"a": VIT}, []),
        ({"a": VIT, "b": RESNET}, ["by_backbone"]),
        ({"a": VIT, "b": SMALL}, ["by_backbone", "by_resolution"]),
        ({"a": RESNET, "b": SMALL}, ["by_backbone"]),
    ],
)
def test_backbones_are_compared_and_sizes_of_the_same_one(
    backbones: dict[str, Any], made: list[str]
) -> None:
    assert comparisons.dataset_comparisons(study_of(backbones=backbones), "digits") == made


def test_equal_images_count_once_and_a_rare_class_not_at_all() -> None:
    again = DIGITS | {"delta": 1e-6}
    other = DIGITS | {"split_seed": 3}
    one = study_of(datasets={"digits": DIGITS, "again": again})
    assert comparisons.compared_datasets(one) == ["digits"]
    assert comparisons.study_comparisons(one) == ["deltas"]
    two = study_of(datasets={"digits": DIGITS, "again": again, "other": other})
    assert comparisons.compared_datasets(two) == ["digits", "other"]
    assert comparisons.study_comparisons(two) == ["datasets", "deltas"]
    rare = study_of(
        datasets={"digits": DIGITS},
        imbalance={"datasets": ["digits"], "classes": [3], "fractions": [0.5]},
    )
    assert len(rare.datasets) == 2
    assert comparisons.compared_datasets(rare) == ["digits"]
    assert comparisons.study_comparisons(rare) == []


def test_datasets_of_equal_images_are_grouped_if_their_deltas_differ() -> None:
    study = study_of(
        datasets={
            "a": DIGITS,
            "other": DIGITS | {"split_seed": 3, "delta": 1e-7},
            "b": DIGITS | {"delta": 1e-6},
            "c": DIGITS | {"delta": 1e-5},  # equals the study's delta
            "alone": DIGITS | {"split_seed": 4},
            "same": DIGITS | {"split_seed": 4, "delta": 1e-5},
        }
    )
    assert comparisons.delta_groups(study) == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("methods", "epsilons", "guaranteed"),
    [
        ({"sgd": {"head": "sgd"}, "ceiling": {"head": "nonprivate"}}, [1, "inf"], ["sgd"]),
        ({"sgd": {"head": "sgd"}}, [1], ["sgd"]),
        ({"sgd": {"head": "sgd"}}, ["inf"], []),
        ({"ceiling": {"head": "nonprivate"}}, [1], []),
        # no epsilon covers a search, so a searched network has no guarantee
        ({"sgd": {"head": "sgd"}, "net": SEARCHED}, [1], ["sgd"]),
        ({"net": SEARCHED}, [1], []),
    ],
)
def test_only_cells_with_a_guarantee_are_compared(
    methods: dict[str, Any], epsilons: list[Any], guaranteed: list[str]
) -> None:
    study = study_of(
        methods=methods,
        epsilons=epsilons,
        backbones={"a": VIT, "b": SMALL},
        datasets={"digits": DIGITS, "again": DIGITS | {"delta": 1e-6}},
    )
    assert list(comparisons.list_guaranteed(study)) == guaranteed
    assert comparisons.has_guarantee(study) == bool(guaranteed)
    made = ["by_backbone", "by_resolution"] if guaranteed else []
    assert comparisons.dataset_comparisons(study, "digits") == made
    assert comparisons.study_comparisons(study) == (["deltas"] if guaranteed else [])
