"""Release notes compare what was measured, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.release.release_notes import state_difference

USEFUL = {"metric": "macro_accuracy", "value": 0.86, "interval": [0.82, 0.90]}
# 12 test units at a small epsilon: an interval that holds nearly all accuracies
USELESS = {"metric": "macro_accuracy", "value": 0.499, "interval": [0.03, 0.98]}


@pytest.mark.parametrize(
    ("now", "before"), [(USELESS, USEFUL), (USEFUL, USELESS), (USELESS, USELESS)]
)
def test_a_result_that_is_not_measurable_has_no_difference(
    now: dict[str, Any], before: dict[str, Any]
) -> None:
    said = state_difference(now, before)
    assert "not measurable" in said
    assert "more test units" in said, "no remedy"
    assert not any(letter.isdigit() for letter in said), f"states a number: {said}"
    assert "points" not in said


def test_two_measured_results_have_a_difference_of_their_intervals() -> None:
    better = USEFUL | {"value": 0.95, "interval": [0.93, 0.97]}
    # by hand: 95 - 86; 93 - 90; 97 - 82
    said = state_difference(better, USEFUL)
    assert "+9.0 points (95% CI +3.0 to +15.0)" in said
    assert "higher than before" in said
