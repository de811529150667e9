"""Each dataset with too few images causes one warning, for its backbone with fewest features."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.planner.plan_text import too_few_warning
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


def test_a_dataset_that_is_too_small_is_named_with_its_units_and_classes() -> None:
    # 1,797 digits minus a fifth for tests; the small part has six training images per class
    (part,) = warnings_of(DIGITS | {"subsample": {"per_class": 6}}, 64)
    assert part.startswith("datasets.own: 60 images in 10 classes are too few for epsilon 0.1 ")
    assert warnings_of(DIGITS, 64, epsilons=(8,)) == []
    assert warnings_of(DIGITS, 64) == [], "1,438 images of 64 features are enough"


def test_a_dataset_s_own_delta_counts() -> None:
    part = DIGITS | {"subsample": {"per_class": 6}}
    (usual,), (strict,) = warnings_of(part, 64), warnings_of(part, 64, delta=1e-9)
    assert warnings_of(part | {"delta": 1e-9}, 64) == [strict] != [usual]


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
