"""Products of 16-bit integers: exact at their bounds, and every head's bits those of float64."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpprobe.heads import feature_covariance, second_order
from dpprobe.heads.kernels import integer_products
from dpprobe.heads.kernels.integer_products import (
    CHUNK,
    LARGEST,
    NO_DIGITS,
    PANEL,
    Squares,
    digit_bits,
    padded,
    row_width,
)
from dpprobe.heads.normalisation import L2
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.second_order import Design
from dpprobe.heads.training_set import TrainingSet
from tests.support.second_order_data import classes_of, with_unusable

Integers = npt.NDArray[np.int64]


def signs(*shape: int, seed: int = 0) -> Integers:
    return np.random.default_rng(seed).choice(np.array([-1, 1]), size=shape)


def squares_of(*blocks: Integers) -> Integers | None:
    """The sums over blocks of rows, None if their numbers do not fit; the last column is apart."""
    squares = Squares(blocks[0].shape[1])
    if not all(squares.add_rows(block.astype(float)) for block in blocks):
        return None
    total = np.zeros((blocks[0].shape[1],) * 2)
    squares.add_to(total)
    return np.triu(total).astype(np.int64)


def exact_squares(*blocks: Integers) -> Integers:
    return np.triu(sum(block.T @ block for block in blocks))


@pytest.mark.parametrize("columns", [2, 32, 33, 34, 66, 130])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 41])
def test_squares_are_those_of_whole_numbers(rows: int, columns: int) -> None:
    """Panels and groups that are not full; a shorter block after a longer one; large constants."""
    generator = np.random.default_rng(rows)
    blocks = [generator.integers(-9000, 9001, (count, columns)) for count in (rows, rows // 2 + 1)]
    for block in blocks:
        block[:, -1] = 2**17
    actual = squares_of(*blocks)
    assert actual is not None
    np.testing.assert_array_equal(actual, exact_squares(*blocks))


@pytest.mark.parametrize("kind", ["alike", "signs", "two rows"])
def test_squares_are_exact_at_the_bound_of_32_bits(kind: str) -> None:
    """Sums of 4 x 23,170^2 and 2 x 32,767^2, both just below 2^31, of either sign."""
    block = 23_170 * np.ones((24, 40), np.int64)
    if kind == "signs":
        block *= signs(24, 40)
        block[:, 1] = -block[:, 0]
    if kind == "two rows":
        block[:] = 0
        block[::4], block[3::4] = LARGEST, LARGEST
        block[:, 1] *= -1
    columns = np.square(block[:4]).sum(0)
    assert 2**31 - 2**18 < columns[0] < 2**31
    actual = squares_of(block)
    assert actual is not None
    np.testing.assert_array_equal(actual, exact_squares(block))


def test_32_bits_are_emptied_before_they_overflow() -> None:
    """A group of rows whose squares sum to just below 2^31 with those before it, or to 2^31."""
    block = np.full((8, 3), 16_384.0)
    block[7, :2] -= 1
    packed, last = np.zeros((padded(2, 32) // PANEL, 4, PANEL), np.int32), np.zeros(3)
    stops = np.zeros(2, np.int64)
    assert integer_products.pack_rows(block, packed, stops, last) == 1
    block[7, 1] += 1
    assert integer_products.pack_rows(block, packed, stops, last) == 2
    assert stops.tolist() == [2, 4]


@pytest.mark.parametrize(
    "entry", [32_768.0, -32_768.0, 2.0**17, -(2.0**40), 1e300, math.inf, math.nan]
)
def test_a_number_that_does_not_fit_is_refused(entry: float) -> None:
    block = np.ones((9, 40))
    for row, column in ((0, 0), (8, 38), (3, 17)):
        squares, other = Squares(40), block.copy()
        other[row, column] = entry
        assert not squares.add_rows(other)
        total = np.zeros((40, 40))
        squares.add_to(total)
        assert not total.any()
    assert squares_of(np.full((4, 40), 23_171)) is None  # squares above 2^31


@pytest.mark.parametrize("classes", [1, 2, 3, 7])
def test_products_of_factors_are_exact_at_their_bound(classes: int) -> None:
    """A chunk of the largest entries and factors, of either sign: no order of them overflows."""
    for factor in (2**17, -(2**17), 2**17 - 1, 2**8, 2**8 + 2**9, 1 - 2**17):
        for row_signs in (np.ones(CHUNK, np.int64), signs(CHUNK)):
            rows = LARGEST * np.ones((CHUNK, 64), np.int64) * row_signs[:, None]
            factors = factor * np.ones((classes, CHUNK), np.int64) * row_signs
            total = np.ones((padded(classes, 4), 64))
            integer_products.add_products(factors.astype(float), rows.astype(np.int16), total)
            np.testing.assert_array_equal(total[:classes] - 1, factors @ rows)


@pytest.mark.parametrize("rows", [1, 2, 33, 100])
def test_products_of_some_rows_leave_the_others_out(rows: int) -> None:
    """Rows may be further apart than the sums are wide; what follows the last row is anything."""
    generator = np.random.default_rng(rows)
    given = generator.integers(-LARGEST, LARGEST, (padded(rows, 8), row_width(96)))
    factors = generator.integers(-(2**17), 2**17, (3, rows))
    total = np.zeros((4, 96))
    integer_products.add_products(factors.astype(float), given.astype(np.int16), total)
    np.testing.assert_array_equal(total[:3], factors @ given[:rows, :96])
    weights = generator.integers(-(2**28), 2**28, (3, 96))
    split = integer_products.split_weights(weights.astype(float), 11)
    logits = np.empty((rows, 3))
    integer_products.multiply_weights(given.astype(np.int16), split, 2.0**11, logits)
    np.testing.assert_array_equal(logits, given[:rows, :96] @ weights.T)


@pytest.mark.parametrize("bits", [9, 11, 15])
def test_digits_are_of_equal_size_but_for_the_highest(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(-(2**35), 2**35, 1000)
    numbers[:5] = 0, 2 ** (bits - 1), -(2 ** (bits - 1)), 2**35, -(2**35)
    out = np.zeros((5, 1001), np.int16)
    integer_products.fill_digits(numbers.astype(float), bits, out)
    digits = out.astype(np.int64)
    assert abs(digits[:-1]).max() <= 2 ** (bits - 1)
    joined = (digits << (bits * np.arange(5))[:, None]).sum(0)
    np.testing.assert_array_equal(joined[:-1], numbers)


@pytest.mark.parametrize("entry_bits", range(8, 18))
def test_logits_are_exact_at_their_bound(entry_bits: int) -> None:
    """Rows of the largest norm in 128 columns or all, times weights of the largest digits."""
    bits = digit_bits(entry_bits)
    norm, digit, longest = 2**entry_bits, 2 ** (bits - 1), 2 ** (51 - entry_bits)
    assert norm * digit * math.sqrt(128) < 2**31
    assert longest // 4**bits <= 2**13
    columns = 300
    rows = np.zeros((CHUNK, padded(columns, 32)), np.int16)
    rows[:, 128:256] = (norm / math.sqrt(128)) * signs(CHUNK, 1)
    rows[0, :columns] = norm / math.sqrt(columns)
    rows[1, :] = 0
    rows[1, 7] = min(norm, LARGEST)
    low, most = -digit * (1 + 2**bits), longest // 18  # of 300 columns
    weights = np.zeros((5, columns), np.int64)
    weights[:] = np.array([low, low // -digit * (digit - 1), most // 2 + low, 0, most])[:, None]
    weights[1] *= signs(columns)
    weights[3, 7] = -longest
    split = integer_products.split_weights(weights.astype(float), bits)
    digits = split.view(np.int16).reshape(len(split), -1, 2)[:, :15].reshape(len(split), 5, 3, 2)
    assert abs(digits[:, :, :2].astype(np.int64)).max() == digit
    out = np.empty((CHUNK, 5))
    integer_products.multiply_weights(rows, split, 2.0**bits, out)
    expected = rows[:, :columns].astype(object) @ weights.T.astype(object)
    assert abs(expected).max() < 2**53
    np.testing.assert_array_equal(out.astype(np.int64), expected.astype(np.int64))


def no_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products in float64, as on rows whose numbers do not fit."""
    monkeypatch.setattr(Squares, "add_rows", lambda *_: False)
    monkeypatch.setattr(integer_products, "split_weights", lambda *_: NO_DIGITS)


def data_of(kind: str) -> TrainingSet:
    """330 rows of 150 features in 4 classes."""
    features, labels = classes_of(326, 150, noise=2.0)
    units = None
    if kind == "unusable rows":
        features[5], features[17] = 0.0, 1e-30
        features, labels = with_unusable(features, labels)
    if kind == "float16":
        features = features.half().float()
    if kind == "units":
        units = Units.number_units([f"{index * index % 97}" for index in range(326)])
    if kind == "large entries":
        features[200] = 0.0
        features[200, 3] = -1e3
    return TrainingSet(features, labels, 4, units=units)


KINDS = ("plain", "unusable rows", "float16", "units", "large entries")


@pytest.mark.parametrize("entry_bits", [8, 13, 15, 17])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.0, 0.3, 1e4, 1e30, math.inf, math.nan])
def test_sums_have_the_bits_of_float64_products(
    scale: float, kind: str, entry_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the grids of few rows and of many, for weights of any size."""
    monkeypatch.setattr(second_order, "entry_bits", lambda _: entry_bits)
    options = feature_covariance.Options(normalize=L2(), intercept=0.7)
    weights = torch.randn(4, 151, generator=torch.Generator().manual_seed(0)) * scale

    def sums() -> list[torch.Tensor]:
        data = data_of(kind)
        design = Design(options, Rows(data, Transform(L2())), private=True)
        losses = [second_order.Loss(sigmoid=sigmoid, clip=0.7) for sigmoid in (False, True)]
        gradients = [second_order.sum_gradients(design, loss, weights) for loss in losses]
        return [second_order.second_moment(design).units, *(each.units for each in gradients)]

    actual = sums()
    no_integers(monkeypatch)
    for one, other in zip(actual, sums(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, one.trunc())
