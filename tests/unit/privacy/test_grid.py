"""Grids have enough bits for exact sums, and rounding never makes a row longer."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import PrivacyError
from dpprobe.privacy.grid import (
    Grid,
    GridSum,
    check_exact,
    entry_bits,
    factor_bits,
    grid_step,
    lone_bits,
    mirror_upper,
    towards_zero,
)

ROWS = [1, 2, 3, 1000, 1024, 1025, 2**17, 2**20 + 1, 1_281_167, 2**31]


@pytest.mark.parametrize("rows", ROWS)
def test_sums_of_the_largest_entries_are_exact(rows: int) -> None:
    """All n products at their bounds sum to at most 2^52; float64 has every integer up to there."""
    assert rows * 2 ** (entry_bits(rows) + factor_bits(rows)) <= 2**52
    assert rows * 2 ** (2 * entry_bits(rows)) <= 2**52
    assert rows * 2 ** lone_bits(rows) <= 2**52
    assert entry_bits(rows) >= 10


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(PrivacyError, match="n = 137438953472: exact sums support at most 68719"):
        entry_bits(2**37)
    assert entry_bits(2**36) == 8


@pytest.mark.parametrize("rows", [1, 3, 2**20 + 1, 2**36])
def test_the_bound_of_exact_sums_is_where_float64_begins_to_round(rows: int) -> None:
    largest = 2.0**53 / rows
    check_exact(rows, math.floor(largest))
    for wrong in (math.floor(largest) + 1, math.inf, math.nan):
        with pytest.raises(PrivacyError, match=f"n = {rows}: sums of products .* exceed 2.53"):
            check_exact(rows, wrong)
    edge = torch.tensor([2.0**53 - 1, 1.0, 1.0], dtype=torch.float64)
    assert [int(edge[:count].sum()) - 2**53 for count in (1, 2, 3)] == [-1, 0, 0]


@pytest.mark.parametrize("rows", [2**18, 2**20 + 1, 2**31])
def test_any_order_of_products_at_their_bound_has_the_sum_of_whole_numbers(rows: int) -> None:
    """Entries of either sign use all bits; a block's product equals the sum over its parts."""
    generator = torch.Generator().manual_seed(rows)
    entries, factors = 2 ** entry_bits(rows), 2 ** factor_bits(rows)
    count = 2**10
    share = rows // count  # as if each row were repeated
    left = torch.randint(0, 2, (count, 4), generator=generator) * 2 - 1
    right = torch.randint(0, 2, (count, 5), generator=generator) * 2 - 1
    left[:, 0], right[:, 0] = 1, 1
    wanted = [[int(v) * entries * factors * share for v in line] for line in (left.T @ right)]
    left, right = left.double() * entries * share, right.double() * factors
    order = torch.randperm(count, generator=generator)
    whole = left.T @ right
    parts = [left[each].T @ right[each] for each in order.split(count // 3)]
    assert [[int(v) for v in line] for line in whole.tolist()] == wanted
    assert torch.equal(sum(parts, torch.zeros(4, 5, dtype=torch.float64)), whole)
    assert 2**50 <= wanted[0][0] <= 2**52


@given(longest=st.floats(1e-6, 1e8), bits=st.integers(8, 30))
def test_the_step_is_a_power_of_two_that_fits(longest: float, bits: int) -> None:
    step = Fraction(grid_step(longest, bits))
    assert step.numerator == 1 or step.denominator == 1
    assert (step.numerator * step.denominator).bit_count() == 1
    assert Fraction(longest) / step <= 2**bits < 2 * Fraction(longest) / step + 1


@given(
    row=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8),
    longest=st.floats(1e-3, 1e4),
    bits=st.integers(8, 26),
)
def test_rounding_lengthens_no_row(row: list[float], longest: float, bits: int) -> None:
    """Exact fractions show that no entry changes its sign or moves by a whole step."""
    step = grid_step(longest, bits)
    units = towards_zero(torch.tensor(row, dtype=torch.float64), step)
    for value, unit in zip(row, units.tolist(), strict=True):
        rounded = Fraction(unit) * Fraction(step)
        assert unit == math.trunc(unit)
        assert abs(rounded) <= abs(Fraction(value)) < abs(rounded) + Fraction(step)
        assert rounded == 0 or (rounded > 0) == (value > 0)


def test_a_grid_without_noise_rounds_values_only_if_whole_is_set() -> None:
    values = torch.tensor([1 / 3, -2.7])
    plain, whole = (Grid.make_grid(1.0, 9, whole=each) for each in (False, True))
    assert torch.equal(plain.round_to_steps(values), values.double())
    assert plain.step == 1
    assert torch.equal(whole.round_to_steps(values), (values.double() / whole.step).trunc())


def test_sums_divided_by_a_public_number() -> None:
    sums = GridSum(torch.tensor([3.0, -4.0], dtype=torch.float64), 0.25)
    assert sums.divide_by(2.0).values.tolist() == [0.375, -0.5]
    assert sums.one_seed.values.shape == (1, 2)


def test_mirror_ignores_what_is_below() -> None:
    full = torch.randn(600, 600, generator=torch.Generator().manual_seed(0))
    upper = full.triu() + 7 * torch.ones(600, 600).tril(-1)
    assert torch.equal(mirror_upper(upper), full.triu() + full.triu(1).T)
