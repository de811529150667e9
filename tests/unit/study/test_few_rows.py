"""Warnings of too few images: one for each dataset that is too small, of its smallest backbone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.planner.plan_text import round_count, too_few_warning
from dpprobe.study.few_rows import few_rows_warnings
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY

DIGITS = {"source": "sklearn", "name": "digits"}
SGD, CEILING = {"head": "sgd"}, {"head": "nonprivate"}


def warnings_of(
    dataset: dict[str, Any],
    *dimensions: int | None,
    epsilons: tuple[Any, ...] = (0.1, "inf"),
    **more: Any,
) -> list[str]:
    values = STUDY | {"datasets": {"own": dataset}, "epsilons": list(epsilons)} | more
    return few_rows_warnings(load_study(values), list(dimensions))


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """Three images of two classes, and two labels of which an image may have both."""
    (tmp_path / "rows.csv").write_text(
        "image,kind,one,two\n1.png,a,0,1\n2.png,b,1,1\n3.png,b,1,0\n"
    )
    return {"source": "csv", "root": str(tmp_path), "train": "rows.csv", "test": "rows.csv"}


def test_a_dataset_that_is_too_small_is_named_with_its_units_and_classes() -> None:
    # 1,797 digits, of which a fifth is tested; of a part, six of each class are trained on
    (part,) = warnings_of(DIGITS | {"subsample": {"per_class": 6}}, 64)
    assert part.startswith("datasets.own: 60 images in 10 classes are too few for epsilon 0.1 ")
    assert warnings_of(DIGITS, 64, epsilons=(8,)) == []
    assert warnings_of(DIGITS, 64) == [], "1,438 images of 64 features are enough"


def test_a_dataset_s_own_delta_counts() -> None:
    part = DIGITS | {"subsample": {"per_class": 6}}
    (usual,), (strict,) = warnings_of(part, 64), warnings_of(part, 64, delta=1e-9)
    assert warnings_of(part | {"delta": 1e-9}, 64) == [strict] != [usual]


def test_two_classes_are_warned_of_and_more_classes_than_images_are_not(
    table: dict[str, Any],
) -> None:
    """Fewer images than classes is an error of another check, and no matter of epsilon."""
    for classes, warned in (("ab", True), ("abc", True), ("abcd", False)):
        labels = table | {"label_column": "kind", "class_names": [*classes]}
        assert bool(warnings_of(labels, 64)) == warned, classes
    assert warnings_of(table | {"label_columns": ["one", "two"]}, 64) == []


def test_the_fewest_features_stand_for_all_and_an_unknown_number_for_the_fewest() -> None:
    part = DIGITS | {"subsample": {"per_class": 6}}

    def needed(*dimensions: int | None) -> int:
        (line,) = warnings_of(part, *dimensions)
        (found,) = re.findall(r"about ([\d,]+) are", line)
        return int(found.replace(",", ""))

    assert needed(1280) > needed(512) > needed(64)
    assert needed(1280, 512) == needed(512) == needed(512, 1280)
    assert needed(1280, None) <= needed(512)
    assert needed(1280, None) == needed(None) == needed()


@pytest.mark.parametrize(
    ("epsilons", "methods", "warned"),
    [
        ((0.1,), {"sgd": SGD}, True),
        (("inf",), {"sgd": SGD}, False),
        ((0.1,), {"ceiling": CEILING}, False),
        ((0.1, 1), {"ceiling": CEILING, "sgd": SGD}, True),
    ],
)
def test_only_private_heads_at_an_epsilon_are_warned_of(
    epsilons: tuple[Any, ...], methods: dict[str, Any], warned: bool
) -> None:
    part = DIGITS | {"subsample": {"per_class": 2}}
    assert bool(warnings_of(part, 64, epsilons=epsilons, methods=methods)) == warned


def test_each_epsilon_that_is_too_small_is_named_in_ascending_order() -> None:
    part = DIGITS | {"subsample": {"per_class": 2}}
    (line,) = warnings_of(part, 64, epsilons=(1, 0.1, 0.5, "inf"))
    named = [float(number) for number in re.findall(r"epsilon ([\d.]+)", line)]
    assert named == sorted(named)
    assert {0.1, 0.5} <= {*named}
    (risk,) = warnings_of(part, 64, epsilons=({"advantage": 0.05}, "inf"))
    assert len(re.findall(r"epsilon ([\d.]+)", risk)) == 1


def test_patients_are_counted_where_they_are_the_unit(tmp_path: Path) -> None:
    lines = [f"{n}.png,{'ab'[n % 2]},{n // 4}" for n in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["image,kind,who", *lines]))
    dataset = {
        "source": "csv",
        "root": str(tmp_path),
        "train": "rows.csv",
        "test": "rows.csv",
        "label_column": "kind",
        "class_names": ["a", "b"],
    }
    (images,) = warnings_of(dataset, 64)
    assert images.startswith("datasets.own: 40 images in 2 classes")
    (patients,) = warnings_of(dataset | {"unit_column": "who"}, 64)
    assert patients.startswith("datasets.own: 10 patients in 2 classes")


@given(
    n=st.integers(20, 3000),
    epsilon=st.floats(0.05, 4),
    dimension=st.sampled_from([64, 512, 2048]),
)
def test_what_is_said_to_be_enough_is_enough(n: int, epsilon: float, dimension: int) -> None:
    told: dict[str, Any] = {"classes": 10, "dimension": dimension, "delta": 1e-5}
    line = too_few_warning(n=n, epsilons=[epsilon], **told)
    if line is None:
        assert too_few_warning(n=2 * n, epsilons=[epsilon], **told) is None
        return
    (enough,) = re.findall(r"about ([\d,]+) are", line)
    count = int(enough.replace(",", ""))
    assert count > n
    assert too_few_warning(n=count, epsilons=[epsilon], **told) is None


def test_a_warning_names_no_epsilon_that_is_enough() -> None:
    told: dict[str, Any] = {"classes": 10, "dimension": 64, "delta": 1e-5}
    alone = {e for e in (0.05, 0.2, 1, 8) if too_few_warning(n=300, epsilons=[e], **told)}
    assert 0.05 in alone
    assert 8 not in alone
    line = too_few_warning(n=300, epsilons=[8, 1, 0.2, 0.05], **told) or ""
    assert {float(number) for number in re.findall(r"epsilon ([\d.]+)", line)} == alone


@given(n=st.integers(1, 10**7))
def test_counts_are_rounded_up_to_two_digits(n: int) -> None:
    rounded = round_count(n)
    assert n <= rounded < n * 1.1 + 1e-9 or (n < 100 and rounded == n)
    assert len(str(rounded).rstrip("0")) <= 2 or n < 100
    assert round_count(rounded) == rounded
