"""Bounds of epsilon and delta, and the spelling of an epsilon in paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.privacy.limits import (
    above_in_words,
    delta_above,
    delta_fault,
    delta_warning,
    epsilon_token,
    epsilon_value,
)


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


def test_an_allowed_delta_above_one_over_n_is_warned_of() -> None:
    assert delta_fault(1e-6, 1_281_167, allowed=True) is None
    assert delta_warning(1e-6, 1_281_167) == (
        "delta 1e-06 is above 1/n = 7.81e-07 (n = 1281167 training rows): this delta would allow "
        "a mechanism that publishes a random row. No result with this delta may be released."
    )
    of_patients = delta_warning(0.02, 100, unit="patient")
    assert of_patients is not None
    assert "a mechanism that publishes a random patient's rows" in of_patients


def test_a_refusal_names_the_option_where_there_is_one() -> None:
    with_option, without = delta_fault(0.1, 100, allowed=False), delta_fault(0.1, 100)
    assert with_option is not None
    assert without is not None
    assert with_option.endswith(
        "; write a smaller delta, or `allow_delta_above_one_over_n: true` if nothing will be "
        "released"
    )
    assert without.endswith("; write a smaller delta")


def test_one_over_n_itself_is_not_above() -> None:
    for n in (3, 49, 1000, 1_281_167):
        assert not delta_above(1 / n, n)
        assert above_in_words(1 / n, n) == ""
        assert delta_above(1 / n * (1 + 1e-8), n)
    assert delta_warning(1e-3, 1000) == delta_warning(1e-3, 1000, unit="patient")
