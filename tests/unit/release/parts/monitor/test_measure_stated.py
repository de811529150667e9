"""Tables of a monitor count equally many rows; directions are orthonormal and hold the centre."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpprobe.errors import DataError, PrivacyError
from dpprobe.heads.registry import method_options
from dpprobe.release.parts.monitor import measure as watching
from dpprobe.release.parts.monitor.measure import READER, _check_totals
from tests.support.mechanisms import best_of, gaussians, made_plan

FOUR = watching.monitor_mechanisms(unusual=True)
THREE = watching.monitor_mechanisms(unusual=False)


def check(first: float, second: list[float], *, n: int, deviation: float) -> None:
    """Two tables of one and of more bins."""
    plan = made_plan(FOUR, n, noise=deviation / made_plan(FOUR, n).mechanisms[0].noise_scale)
    sizes = {"a": 1, "b": len(second)}
    _check_totals({"a": [first], "b": second}, sizes, plan)


def test_a_total_exceeds_n_by_its_noise_alone() -> None:
    """By eight deviations of a sum of bins."""
    check(300.0, [299.0, 1.0, 0.0], n=300, deviation=0.1)
    check(5.0, [5.0, 0.0], n=300, deviation=0.1)  # null rows are not counted
    check(300 + 0.79, [300.0, 0, 0], n=300, deviation=0.1)
    with pytest.raises(DataError, match="a: 301 test units, more than n or another table has"):
        check(300 + 0.81, [300.0, 0, 0], n=300, deviation=0.1)
    reach = 8 * 0.1 * math.sqrt(3)
    check(300.0, [300 + 0.99 * reach, 0, 0], n=300, deviation=0.1)
    with pytest.raises(DataError, match="b: 301 test units"):
        check(300.0, [300 + 1.01 * reach, 0, 0], n=300, deviation=0.1)


def test_a_total_exceeds_another_table_by_the_noise_of_both() -> None:
    reach = 8 * 0.1 * math.sqrt(1 + 3)
    for more, right in ((0.99 * reach, True), (1.01 * reach, False)):
        for first, second in ((200 + more, 200.0), (200.0, 200 + more)):
            if right:
                check(first, [second, 0, 0], n=300, deviation=0.1)
            else:
                with pytest.raises(DataError, match="more than n or another table has"):
                    check(first, [second, 0, 0], n=300, deviation=0.1)


def test_another_number_of_cells_is_named() -> None:
    plan = made_plan(FOUR, 300)
    with pytest.raises(DataError, match="b: 2 bins instead of 3"):
        _check_totals({"a": [1.0], "b": [1.0, 1.0]}, {"a": 1, "b": 3}, plan)
    for bad in (math.nan, "1", True):
        with pytest.raises(DataError, match="a: .* is not a number"):
            _check_totals({"a": [bad]}, {"a": 1}, plan)


def test_directions_are_orthonormal_and_hold_the_centre() -> None:
    rows = np.eye(2, 4, dtype=np.float32)
    inside, outside = np.array([3.0, 4, 0, 0]), np.array([3.0, 0, 4, 0])
    READER.check_arrays({})
    READER.check_arrays({"typical_directions": rows})
    READER.check_arrays({"typical_directions": rows, "centre": inside})
    with pytest.raises(DataError, match="without centre"):
        READER.check_arrays({"typical_directions": rows, "centre": outside})
    for wrong in (2 * rows, rows + 0.01, np.ones((2, 4), np.float32)):
        with pytest.raises(DataError, match="not orthonormal"):
            READER.check_arrays({"typical_directions": wrong})


@pytest.mark.parametrize(
    ("options", "dimension", "expected"),
    [
        ({"head": "feature_covariance", "normalize": "l2"}, 100, 25),
        ({"head": "feature_covariance", "normalize": "centred"}, 100, 26),
        ({"head": "least_squares", "normalize": "centred"}, 999, 65),
        ({"head": "least_squares", "normalize": "l2"}, 1, 1),
        ({"head": "prototypes", "normalize": "centred"}, 100, 1),
        ({"head": "prototypes", "normalize": "l2"}, 100, 0),
        ({"head": "prototypes", "normalize": "whitened"}, 100, 26),
    ],
    ids=str,
)
def test_heads_publish_a_centre_and_a_quarter_of_the_directions(
    options: dict[str, Any], dimension: int, expected: int
) -> None:
    """If they release a centre, and a second moment; at most 64 directions of the latter."""
    method = method_options(options)
    plan = made_plan(method.list_mechanisms(100), 100)
    count = watching.count_typical(plan, method.normalize, dimension)
    assert count == expected
    facts: Any = type("Facts", (), {"dimension": dimension})
    shapes = {"typical_directions": (expected, dimension)} if expected else {}
    assert READER.list_arrays({"monitor": {}}, plan, method, facts) == shapes
    assert READER.list_arrays({}, plan, method, facts) == {}


def test_moments_of_a_search_give_no_directions() -> None:
    """Each trial releases one, and epsilon covers only the best."""
    method = method_options({"head": "feature_covariance", "normalize": "l2"})
    mechanisms = method.list_mechanisms(100)
    searched = made_plan(mechanisms, 100, selection=best_of(3.0, mechanisms[0].name))
    assert watching.count_typical(searched, method.normalize, 100) == 0


def test_a_monitor_needs_twenty_deviations_of_test_units() -> None:
    """A count's noise is the multiplier times the root of the tables."""
    assert FOUR[0].sensitivity == pytest.approx(2)
    assert THREE[0].sensitivity == pytest.approx(math.sqrt(3))
    assert "unusualness" in FOUR[0].released
    assert "unusualness" not in THREE[0].released
    fewest = math.ceil(20 * made_plan(FOUR, 9).mechanisms[0].noise_scale)
    watching.check_monitor_size(made_plan(FOUR, fewest))
    with pytest.raises(PrivacyError, match=f"{fewest - 1} test units .* epsilon 1 needs {fewest};"):
        watching.check_monitor_size(made_plan(FOUR, fewest - 1))


@pytest.mark.parametrize("unit", ["image", "patient"])
def test_what_test_units_pay_together_is_told(unit: str) -> None:
    plan = made_plan(FOUR, 9, unit=unit)
    together = made_plan([*FOUR, gaussians(8.0)], 9, unit=unit, epsilon=1.5)
    alone = f"Monitoring costs test {unit}s epsilon 1 and training {unit}s nothing."
    assert watching.monitor_words(plan, plan) == alone
    assert watching.monitor_words(plan, together) == (
        f"{alone} Everything that was measured on test {unit}s together costs a test {unit} "
        "epsilon 1.5."
    )
