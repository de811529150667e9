"""Exact sums of gradients: their bits are those of products in float64, row by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.heads.kernels import exact_step
from dpprobe.heads.kernels.integer_products import LARGEST, digit_bits, padded, row_width
from dpprobe.privacy.grid import grid_step, product_bits

Numbers = npt.NDArray[np.float64]

CLIP = 0.7
NOTHING = np.zeros(0, np.float32)


def on_grid(x: npt.NDArray[np.float32], entry: float) -> tuple[Numbers, float]:
    """A row with its constant, in whole steps, and its norm."""
    d = len(x)
    whole, out = np.empty(d, np.int32), np.zeros(row_width(d + 1), np.int16)
    norm, constant, fits = exact_step.to_grid(
        x, 1.0, 0.0, NOTHING, entry, np.empty(d + 1), whole, out
    )
    if not norm:
        assert not out.any()
        return np.zeros(d + 1), 0.0
    factor = (1 - exact_step.MARGIN) / (norm * entry)
    row = np.trunc(np.append(x.astype(float), 1.0) * factor)
    np.testing.assert_array_equal(whole, row[:-1])
    assert constant == row[-1]
    assert fits == (abs(row[:-1]).max() <= LARGEST)
    return row, norm


def slow_sums(
    features: npt.NDArray[np.float32], labels: Any, weights: Any, heads: Numbers, bits: int,
    *, sigmoid: bool,
) -> Numbers:  # fmt: skip
    """The sums of `exact_step.add_sums` by products of float64 numbers, one row at a time."""
    entry, step = grid_step(1 - exact_step.MARGIN, bits), grid_step(CLIP, 17)
    total = np.zeros(heads.shape)
    for seed, head in enumerate(heads):
        whole = np.empty(head.shape)
        unit = exact_step.to_integers(head, product_bits(1) - bits - 1, whole)
        for x, label, weight in zip(features, labels, weights, strict=True):
            row, norm = on_grid(x, entry)
            logits = (whole @ row) * (unit * (entry / (1 - exact_step.MARGIN)) * norm)
            if not weight > 0 or not norm or not np.isfinite(logits).all():
                continue
            if sigmoid:
                power = np.array([math.exp(-abs(z)) for z in logits])
                residual = np.where(logits > 0, 1.0, power) / (1 + power)
            else:
                powers = [math.exp(z - logits.max()) for z in logits]
                residual = np.array(powers) / sum(powers)
            residual = residual - label
            square = 0.0
            for value in residual:
                square += value * value
            length = math.sqrt(square) * norm
            factor = float(weight) * norm * (CLIP / length if length > CLIP else 1.0) / step
            total[seed] += np.outer(np.trunc(residual * factor), row)
    return total


def fast_sums(
    features: npt.NDArray[np.float32], labels: Any, weights: Any, heads: Numbers, bits: int,
    *, sigmoid: bool, several: bool,
) -> Numbers:  # fmt: skip
    seeds, classes, columns = heads.shape
    totals = np.zeros((seeds, padded(classes, 4), padded(columns, 32)))
    rows = len(features)
    exact_step.add_sums(
        features, np.ones(rows, np.float32), NOTHING, NOTHING,
        np.zeros(0, np.int64) if several else labels.argmax(1),
        labels if several else np.zeros((0, 0), np.uint8), weights,
        np.append(np.arange(rows), [rows - 1, 0]), rows, heads,  # two rows of the next call's
        product_bits(1) - bits - 1, digit_bits(bits), CLIP,
        grid_step(1 - exact_step.MARGIN, bits), grid_step(CLIP, 17), sigmoid, totals,
    )  # fmt: skip
    sums = totals[:, :classes, :columns].copy()
    totals[:, :classes, :columns] = 0.0
    assert not totals.any()
    return sums


def rows_of(kind: str, rows: int, columns: int) -> npt.NDArray[np.float32]:
    features = np.random.default_rng(columns).standard_normal((rows, columns), dtype=np.float32)
    if kind == "peaks":  # numbers above 16 bits, of either sign, up to 15 in a row
        features[::2, : min(15, columns)] *= 1e3
        features[1::3] = 0.0
        features[1::3, columns // 2] = -1e6
    if kind == "bound":  # of the steps of 17 bits: 32,767, 32,768 and their neighbours
        features[:] = 0.0
        features[:, 0] = np.linspace(0.24999, 0.25001, rows)
        features[:, -1] = np.sqrt(1 - 0.25**2) * 1e4
        features[:, 0] *= 1e4 * np.where(np.arange(rows) % 2, 1, -1)
    if kind == "unusable":
        features[0], features[1 % rows], features[-1] = np.nan, np.inf, 0.0
        features[rows // 2], features[rows // 3] = 1e38, 1e-42
    return features


@pytest.mark.parametrize("kind", ["plain", "peaks", "bound", "unusable"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (131, 31), (300, 32), (40, 130)])
@pytest.mark.parametrize("bits", [8, 13, 17])
def test_sums_have_the_bits_of_float64_products(
    kind: str, rows: int, columns: int, bits: int
) -> None:
    features = rows_of(kind, rows, columns)
    generator = np.random.default_rng(rows)
    weights = generator.choice(np.array([1, 0.5, 1 / 3, 0], np.float32), rows)
    heads = generator.standard_normal((3, 5, columns + 1))
    heads[1] *= 1e5
    heads[2, 3, 0] = np.nan
    for several in (False, True):
        labels = np.eye(5, dtype=np.uint8)[generator.integers(5, size=rows)]
        if several:
            labels |= generator.integers(2, size=labels.shape, dtype=np.uint8)
        for sigmoid in (True,) if several else (False, True):
            given = features, labels, weights, heads, bits
            sums = fast_sums(*given, sigmoid=sigmoid, several=several)
            np.testing.assert_array_equal(sums, slow_sums(*given, sigmoid=sigmoid))
            assert not sums[2].any()
            if kind in ("plain", "peaks") and weights.any():
                assert sums[0].any()


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    rows=st.lists(st.lists(floats, min_size=2, max_size=2), min_size=1, max_size=9),
    head=st.lists(st.floats(-1e3, 1e3), min_size=9, max_size=9),
    bits=st.integers(8, 17),
)
@settings(max_examples=200, deadline=None)
def test_any_rows_have_the_bits_of_float64_products(
    rows: list[list[float]], head: list[float], bits: int
) -> None:
    """Among them NaN, infinite, huge, denormal and zero ones."""
    features = np.array(rows, np.float32)
    labels = np.eye(3, dtype=np.uint8)[np.arange(len(rows)) % 3]
    weights = np.isfinite(features).all(1).astype(np.float32)
    given = features, labels, weights, np.array(head).reshape(1, 3, 3), bits
    actual = fast_sums(*given, sigmoid=False, several=False)
    np.testing.assert_array_equal(actual, slow_sums(*given, sigmoid=False))


def test_a_row_that_is_not_finite_adds_nothing_even_with_a_weight() -> None:
    """Its weight is 0 elsewhere; the sum does not rest on that alone."""
    features = rows_of("unusable", 9, 5)[:2]
    assert not np.isfinite(features).any()
    labels, heads = np.eye(3, dtype=np.uint8)[:2], np.ones((1, 3, 6))
    given = features, labels, np.ones(2, np.float32), heads, 17
    assert not fast_sums(*given, sigmoid=False, several=False).any()
