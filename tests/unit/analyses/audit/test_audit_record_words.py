"""Bounds and powers of audits in words: they never claim more than was measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.analyses.audit.audit_record import at_least, power_in_words


@given(st.floats(1e-6, 1e5))
def test_a_lower_bound_is_rounded_down_to_three_digits(value: float) -> None:
    told = float(at_least(value))
    assert told <= value * (1 + 1e-11), f"{told} is more than {value}"
    assert told > value * 0.99
    assert at_least(told) == at_least(value), "twice is once"


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1.0, "0"), (0.0, "0"), (0.57, "0.57"), (0.71299, "0.712"), (999.9, "999"), (0.3, "0.3")],
)
def test_bounds_read_like_this(value: float, text: str) -> None:
    assert at_least(value) == text


def test_what_an_audit_would_have_caught_is_reported() -> None:
    assert power_in_words(None) is None
    for factor in (None, math.inf):
        told = power_in_words({"caught_factor": factor, "probability": 0.9})
        assert told == "would have caught no error in the noise with probability 0.9"
    told = power_in_words({"caught_factor": 1.23456, "probability": 0.9})
    assert told is not None
    assert "a factor of 1.23 with probability 0.9" in told
