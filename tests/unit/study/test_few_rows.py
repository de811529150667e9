"""Datasets too small for an epsilon are warned of before work, by what is known of features."""

from __future__ import annotations

from dpprobe.study.dimension_checks import check_dimensions
from dpprobe.study.few_rows import few_rows_warnings
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed

FEW = changed("datasets.digits.subsample", {"per_class": 6}) | {"epsilons": [0.1, "inf"]}


def test_too_few_images_for_an_epsilon_are_warned_of() -> None:
    (warning,) = check_dimensions(load_study(FEW))
    assert warning.startswith(
        "datasets.digits: 60 images in 10 classes are too few for epsilon 0.1"
    )
    assert "are enough)" in warning
    assert check_dimensions(load_study(FEW | {"epsilons": ["inf"]})) == []
    ceiling = FEW | {"methods": {"ceiling": {"head": "nonprivate"}}}
    assert check_dimensions(load_study(ceiling)) == []


def test_the_fewest_features_stand_for_all_and_unknown_ones_for_the_most_favourable() -> None:
    study = load_study(FEW | {"epsilons": [1]})
    assert few_rows_warnings(study, [64]) == few_rows_warnings(study, [1280, 64]) == []
    (wide,) = few_rows_warnings(study, [1280])
    assert "too few for epsilon 1 " in wide, "more features need more images"
    assert few_rows_warnings(study, [1280, 512]) == few_rows_warnings(study, [512]) != []
    assert few_rows_warnings(study, [1280, None]) == few_rows_warnings(study, [None]) == []


def test_the_study_s_backbones_say_how_many_features_there_are() -> None:
    backbones = {"grey": {"family": "scattering"}}
    (warning,) = check_dimensions(load_study(FEW | {"epsilons": [1], "backbones": backbones}))
    assert "too few for epsilon 1 " in warning
