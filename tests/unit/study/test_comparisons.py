"""Figures that compare datasets and backbones are planned where a study has what they need."""

from __future__ import annotations

from typing import Any

from dpprobe.study.comparisons import (
    compared_datasets,
    dataset_comparisons,
    delta_groups,
    study_comparisons,
)
from dpprobe.study.study_file import load_study

DIGITS = {"source": "sklearn", "name": "digits"}


def _study(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "datasets": {"digits": DIGITS},
        "backbones": {"pixels": {"family": "pixels"}},
        "methods": {"sgd": {"head": "sgd"}},
        "epsilons": [1, "inf"],
        "delta": 1e-4,
    }
    return load_study(values | changes)


def test_one_dataset_and_one_backbone_compare_nothing() -> None:
    study = _study()
    assert dataset_comparisons(study, "digits") == []
    assert study_comparisons(study) == []


def test_two_backbones_two_sizes_and_two_datasets_are_compared() -> None:
    vit = {"family": "timm", "model": "test_vit", "pretrained": False}
    study = _study(
        datasets={"digits": DIGITS, "part": DIGITS | {"subsample": {"per_class": 20}}},
        backbones={"vit": vit, "vit_64": vit | {"preprocessing": {"size": 64}}},
    )
    assert dataset_comparisons(study, "digits") == ["by_backbone", "by_resolution"]
    assert study_comparisons(study) == ["datasets"]


def test_the_same_images_at_two_deltas_are_one_dataset_and_a_figure_of_deltas() -> None:
    study = _study(datasets={"a": DIGITS, "b": DIGITS | {"delta": 1e-5}})
    assert delta_groups(study) == [["a", "b"]]
    assert compared_datasets(study) == ["a"]
    assert study_comparisons(study) == ["deltas"]
    assert delta_groups(_study(datasets={"a": DIGITS, "b": DIGITS})) == []


def test_datasets_with_a_rare_class_are_not_compared() -> None:
    study = _study(imbalance={"datasets": ["digits"], "classes": ["3"], "fractions": [1, 0.1]})
    assert len(study.datasets) > 1
    assert compared_datasets(study) == ["digits"]


def test_without_privacy_nothing_is_compared() -> None:
    study = _study(epsilons=["inf"], backbones={"a": {"family": "pixels"},
                                                "b": {"family": "scattering"}})  # fmt: skip
    assert dataset_comparisons(study, "digits") == []
    assert study_comparisons(study) == []
