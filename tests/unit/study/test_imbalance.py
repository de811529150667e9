"""`imbalance` adds a dataset for each class and fraction, named after both."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.options import NAME_PATTERN
from dpprobe.study.comparisons import whole_datasets
from dpprobe.study.imbalance import rare_classes, with_rare_classes
from dpprobe.study.options import ImbalanceOptions
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

DIGITS = {"source": "sklearn", "name": "digits"}


def test_one_dataset_for_each_class_and_fraction_below_1() -> None:
    block = {"datasets": ["digits"], "classes": [3, "8"], "fractions": [0.05, 1, 0.5], "seed": 7}
    study = load_study(STUDY | {"imbalance": block})
    assert list(study.datasets) == [
        "digits",
        "digits_3_0p5",
        "digits_3_0p05",
        "digits_8_0p5",
        "digits_8_0p05",
    ]
    part = study.datasets["digits_8_0p05"].subsample
    assert part is not None
    assert part.model_dump(exclude_none=True)["fractions"] == {"8": 0.05}
    assert part.seed == 7
    assert study.datasets["digits"].subsample is None
    assert whole_datasets(study) == dict.fromkeys(list(study.datasets)[1:], "digits")
    last = rare_classes(study.imbalance)[-1]
    assert (last.name, last.dataset, last.class_name, last.fraction) == (
        "digits_8_0p05",
        "digits",
        "8",
        0.05,
    )


def test_an_added_dataset_has_the_options_of_its_whole() -> None:
    own = DIGITS | {"delta": 1e-6, "split_seed": 4}
    block = {"datasets": ["b"], "classes": [3], "fractions": [0.5]}
    values = {"datasets": {"a": DIGITS, "b": own}, "imbalance": block}
    made = with_rare_classes(values)["datasets"]
    assert set(made) == {"a", "b", "b_3_0p5"}
    subsample = made["b_3_0p5"].pop("subsample")
    assert made["b_3_0p5"] == own
    assert subsample["fractions"] == {"3": 0.5}
    assert set(values["datasets"]) == {"a", "b"}, "what was given is not changed"


def test_rare_classes_returns_only_the_classes_of_the_given_dataset() -> None:
    options = ImbalanceOptions(datasets=("a", "b"), classes=("x",), fractions=(0.5,))
    assert [rare.dataset for rare in rare_classes(options)] == ["a", "b"]
    assert [rare.dataset for rare in rare_classes(options, "b")] == ["b"]
    assert rare_classes(options, "none") == []
    assert rare_classes(None) == []


@given(
    class_name=st.text(min_size=1, max_size=12),
    fraction=st.floats(1e-4, 1, exclude_max=True),
)
def test_every_name_is_one_that_a_study_may_have(class_name: str, fraction: float) -> None:
    options = ImbalanceOptions(datasets=("d",), classes=(class_name,), fractions=(fraction,))
    for rare in rare_classes(options):
        assert re.fullmatch(NAME_PATTERN, rare.name), rare


@pytest.mark.parametrize("values", [5, {}, {"datasets": 3}, {"datasets": {}, "imbalance": 3}])
def test_invalid_studies_are_returned_unchanged_for_the_study_check(values: Any) -> None:
    assert with_rare_classes(values) == values
