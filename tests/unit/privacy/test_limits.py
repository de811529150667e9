"""Bounds of delta, rounding of prices, and accepted spellings of epsilon."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.privacy import limits
from dpprobe.privacy.limits import epsilon_token, epsilon_value
from tests.support.refusals import check_tokens

# delta * n, and whether it exceeds 1 by more than round-off.
SHARES = [(0.99, False), (1.0, False), (1 + 1e-10, False), (1 + 1e-8, True), (20.0, True)]


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_an_epsilon_token_is_stable_and_reads_back_as_its_value(value: float) -> None:
    token = epsilon_token(value)
    assert epsilon_token(token) == token
    assert epsilon_value(token) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (2, "2"),
        ("2.0", "2"),
        (0.5, "0.5"),
        ("5e-1", "0.5"),
        (1e-7, "1e-07"),
        (1.2345678, "1.2345678"),
        (math.inf, "inf"),
        ("INF", "inf"),
        ("Infinity", "inf"),
    ],
)
def test_an_epsilon_has_one_spelling_however_it_is_written(value: Any, token: str) -> None:
    assert epsilon_token(value) == token


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, -math.inf, math.nan, True, None, "much", "", 10**400, "1e999", "-inf"),
        *("٣", "１", "𝟙", "²", "½", "1\u200b", [1], {}),
    ],
)
def test_invalid_spellings_of_epsilon_are_refused(value: Any) -> None:
    """float() reads 1e999 as infinity, which would mean no privacy at all."""
    with pytest.raises(ValueError, match="must be a positive number or inf") as error:
        epsilon_token(value)
    assert str(error.value).startswith(f"{value!r:.100}")


def test_infinity_is_a_text_in_json_and_the_number_again_when_read() -> None:
    assert [limits.to_json(each) for each in (None, 0.5, math.inf)] == [None, 0.5, "inf"]
    assert epsilon_value("inf") == math.inf
    assert limits.round_up(math.inf) == math.inf
    assert epsilon_value("0.5") == 0.5


@given(st.floats(1e-12, 1e12))
def test_prices_are_rounded_to_six_digits_away_from_and_towards_zero(value: float) -> None:
    down, up = limits.round_down(value), limits.round_up(value)
    assert down <= value <= up
    exact, step = Decimal(value), Decimal(10) ** (Decimal(value).adjusted() - 5)
    # repr(value) is rounded, which is within half a unit in the last place of the float
    slack = Decimal(math.ulp(value))
    assert exact - Decimal(down) < step + slack
    assert Decimal(up) - exact < step + slack
    for rounded in (down, up):
        assert float(f"{rounded:.6g}") == rounded
        assert limits.round_up(rounded) == limits.round_down(rounded) == rounded


@given(st.floats(1e-9, 1e9))
def test_a_shown_loss_has_four_digits_and_is_never_below_the_loss(loss: float) -> None:
    shown = limits.rounded_up(loss)
    assert loss <= shown <= loss * 1.00101
    assert float(f"{shown:.4g}") == shown


@pytest.mark.parametrize("n", [3, 49, 1_281_167])
@pytest.mark.parametrize(("share", "above"), SHARES)
def test_a_delta_above_one_over_n_is_a_fault_unless_the_study_allows_it(
    n: int, share: float, above: bool
) -> None:
    delta = share / n
    assert limits.delta_above(delta, n) == above
    faults = [limits.delta_fault(delta, n, allowed=each) for each in (None, False, True)]
    assert [fault is not None for fault in faults] == [above, above, False]
    assert bool(limits.above_in_words(delta, n)) == above
    if above:
        plain, optional = faults[:2]
        assert plain is not None
        assert optional is not None
        assert plain.endswith("; set a smaller delta"), "a release has no such option"
        assert "`allow_delta_above_one_over_n: true`" in optional
        assert f"1/n = {1 / n:.3g} (n = {n} training rows)" in plain
        assert f"delta {delta:g}" in plain


UNITS = {"image": "rows", "row": "rows", "patient": "patients", "group": "groups"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("n", [1, 49, 1438, 60_000, 1_281_167])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.1 + 1e-12, 0.11, 0.5, 0.99, 1.0, 1 + 1e-10])
def test_a_delta_above_a_tenth_of_one_over_n_is_warned_of(share: float, n: int, unit: str) -> None:
    delta = share / n
    warning = limits.delta_warning(delta, n, unit=unit)
    if share < 0.105:
        assert warning is None
        return
    assert warning is not None
    units = UNITS[unit]
    published = "each row with" if units == "rows" else f"each {unit}'s rows with"
    average = f"on average {min(share, 1):g} {units} of {n}"
    says = (f"delta {delta:g}", f"n = {n} training {units}", published, average, "0.1/n")
    check_tokens(warning, *says, f"Prefer {limits.choose_delta(n):g}")
    assert limits.delta_warning(limits.choose_delta(n), n, unit=unit) is None
    assert "\n" not in warning


@pytest.mark.parametrize("share", [1 + 1e-8, 20.0])
def test_an_allowed_delta_above_one_over_n_is_warned_of(share: float) -> None:
    warning = limits.delta_warning(share / 49, 49, unit="patient")
    assert warning is not None
    assert warning.startswith(limits.above_in_words(share / 49, 49, unit="patient"))
    assert warning.endswith("No result with this delta may be released.")


@pytest.mark.parametrize(("n", "delta"), [(1, 0.5), (4, Fraction(99, 400)), (6, Fraction(1, 60))])
def test_publishing_each_row_with_probability_delta_keeps_delta(n: int, delta: Fraction) -> None:
    """No event is likelier by more than delta, although delta n rows are published."""
    delta = Fraction(delta)

    def chances(rows: int) -> dict[int, Fraction]:
        """Maps each set of published rows, as bits, to its probability."""
        return {
            output: delta ** output.bit_count() * (1 - delta) ** (rows - output.bit_count())
            for output in range(2**rows)
        }

    with_, without = chances(n), chances(n - 1)
    for left, right in ((with_, without), (without, with_)):
        likelier = sum(
            max(chance - right.get(output, Fraction(0)), Fraction(0))
            for output, chance in left.items()
        )
        assert likelier == delta, "at epsilon 0, so at every epsilon"
    assert sum(chance * output.bit_count() for output, chance in with_.items()) == n * delta


@pytest.mark.parametrize(
    ("unit", "units", "published"),
    [
        ("image", "training rows", "a random row"),
        ("row", "training rows", "a random row"),
        ("patient", "training patients", "a random patient's rows"),
        ("group", "training groups", "a random group's rows"),
    ],
)
def test_a_delta_above_one_over_n_is_explained_in_words_of_the_unit(
    unit: str, units: str, published: str
) -> None:
    words = limits.above_in_words(0.5, 49, unit=unit)
    assert f"n = 49 {units}" in words
    assert words.endswith(published)
    fault = limits.delta_fault(0.5, 49, unit=unit)
    assert fault is not None
    assert f"n = 49 {units}" in fault
