"""Bounds of epsilon and delta, and the spelling of an epsilon in paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.privacy.limits import delta_fault, delta_warning, epsilon_token, epsilon_value


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_an_epsilon_token_is_stable_and_stands_for_its_number(value: float) -> None:
    token = epsilon_token(value)
    assert epsilon_token(token) == token
    assert epsilon_value(token) == pytest.approx(value, rel=1e-11)


def test_delta_above_one_over_n_guarantees_nothing() -> None:
    fault = delta_fault(1.01e-3, 1000)
    assert fault is not None
    assert "above 1/n = 0.001 (n = 1000 training rows)" in fault
    assert delta_fault(1e-3, 1000) is None
    assert delta_fault(1e-5, 1000) is None


def test_delta_of_one_over_n_is_warned_of() -> None:
    warning = delta_warning(1e-3, 1000)
    assert warning is not None
    assert "delta 0.001 is 1/n (n = 1000)" in warning
    assert delta_warning(0.99e-3, 1000) is None
    assert delta_warning(1.01e-3, 1000) is None
