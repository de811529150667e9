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


# Of a row: its scale, its shift, and the centre that the shift multiplies.
Move = tuple[Numbers, Numbers, npt.NDArray[np.float32]]


def on_grid(
    x: npt.NDArray[np.float32],
    entry: float,
    scale: float = 1.0,
    shift: float = 0.0,
    centre: npt.NDArray[np.float32] = NOTHING,
) -> tuple[Numbers, float]:
    """A row with its constant, in whole steps, and its norm."""
    d = len(x)
    whole, out = np.empty(d, np.int32), np.zeros(row_width(d + 1), np.int16)
    norm, constant, fits = exact_step.to_grid(
        x, scale, shift, centre, entry, np.empty(d + 1), whole, out
    )
    with np.errstate(all="ignore"):
        x = np.append(
            scale * x.astype(float) - shift * (centre.astype(float) if len(centre) else 0), 1
        )
        wanted = np.linalg.norm(x)
    np.testing.assert_allclose(norm, wanted if wanted < np.inf else 0.0, rtol=1e-12)
    if not norm:
        assert not out.any()
        return np.zeros(d + 1), 0.0
    factor = (1 - exact_step.MARGIN) / (norm * entry)
    row = np.trunc(x * factor)
    np.testing.assert_array_equal(whole, row[:-1])
    assert constant == row[-1]
    assert fits == (abs(row[:-1]).max() <= LARGEST)
    return row, norm


def slow_sums(
    features: npt.NDArray[np.float32],
    labels: Any,
    weights: Any,
    heads: Numbers,
    bits: int,
    *,
    sigmoid: bool,
    move: Move | None = None,
) -> Numbers:
    """The sums of `exact_step.add_sums` by products of float64 numbers, one row at a time."""
    entry, step = grid_step(1 - exact_step.MARGIN, bits), grid_step(CLIP, 17)
    total = np.zeros(heads.shape)
    for seed, head in enumerate(heads):
        whole = np.empty(head.shape)
        unit = exact_step.to_integers(head, product_bits(1) - bits - 1, whole)
        for i, (x, label, weight) in enumerate(zip(features, labels, weights, strict=True)):
            moved = (float(move[0][i]), float(move[1][i]), move[2]) if move else ()
            row, norm = on_grid(x, entry, *moved)
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
    features: npt.NDArray[np.float32],
    labels: Any,
    weights: Any,
    heads: Numbers,
    bits: int,
    *,
    sigmoid: bool,
    several: bool,
    move: Move | None = None,
) -> Numbers:
    seeds, classes, columns = heads.shape
    totals = np.zeros((seeds, padded(classes, 4), padded(columns, 32)))
    rows = len(features)
    exact_step.add_sums(
        features,
        *(move or (np.ones(rows, np.float32), NOTHING, NOTHING)),
        np.zeros(0, np.int64) if several else labels.argmax(1),
        labels if several else np.zeros((0, 0), np.uint8),
        weights,
        np.append(np.arange(rows), [rows - 1, 0]),
        rows,
        heads,  # two rows of the next call's
        product_bits(1) - bits - 1,
        digit_bits(bits),
        CLIP,
        grid_step(1 - exact_step.MARGIN, bits),
        grid_step(CLIP, 17),
        sigmoid,
        totals,
    )
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
            move = None
            if several and kind == "plain":
                move = (
                    *generator.random((2, rows), np.float32),
                    generator.random(columns, np.float32),
                )
            sums = fast_sums(*given, sigmoid=sigmoid, several=several, move=move)
            np.testing.assert_array_equal(sums, slow_sums(*given, sigmoid=sigmoid, move=move))
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


@pytest.mark.parametrize("columns", [1, 31, 32, 130])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
def test_steps_are_sums_one_by_one(columns: int, sigmoid: bool, averaged: bool) -> None:
    """Batches of 0, 1 and 200 rows, averages that move little and much, and sums off the grid."""
    generator = np.random.default_rng(columns)
    sizes, features = np.array([5, 0, 1, 200, 129]), rows_of("peaks", 335, columns)
    labels = np.eye(3, dtype=np.uint8)[generator.integers(3, size=335)]
    weights = generator.choice(np.array([1, 0.5, 0], np.float32), 335)
    start = generator.standard_normal((1, 3, columns + 1))
    entry, step = grid_step(1 - exact_step.MARGIN, 13), grid_step(CLIP, 17)
    noise = generator.integers(-(2**30), 2**30, (5, 3 * (columns + 1)))
    rates, mixing = np.linspace(0.1, 0.3, 5), np.array([0.1, 0.5, 0.9, 0.49, 0.0])

    def run(head: Numbers, average: Numbers, step: float) -> bool:
        done: bool = exact_step.take_steps(
            features,
            np.ones(335, np.float32),
            NOTHING,
            NOTHING,
            labels.argmax(1),
            np.zeros((0, 0), np.uint8),
            weights,
            np.arange(335),
            sizes,
            head,
            product_bits(1) - 13 - 1,
            digit_bits(13),
            CLIP,
            entry,
            step,
            sigmoid,
            noise,
            7.0,
            rates,
            mixing if averaged else mixing[:0],
            average,
        )
        return done

    head, average, wanted, mean = start.copy(), start[0] + 1, start.copy(), start[0] + 1
    assert run(head, average, step)
    stops = sizes.cumsum()
    for at, (first, stop) in enumerate(zip(stops - sizes, stops, strict=True)):
        part = slice(first, stop)
        if sizes[at]:
            total = fast_sums(
                features[part],
                labels[part],
                weights[part],
                wanted,
                13,
                sigmoid=sigmoid,
                several=False,
            )[0]
        else:
            total = np.zeros(start[0].shape)
        wanted[0] -= rates[at] * (total + noise[at].reshape(total.shape)) * entry * step / 7
        if averaged:
            mean += mixing[at] * (wanted[0] - mean)
    np.testing.assert_allclose(head, wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(average, mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("factor", "exact"), [(2**53 // 8191, True), (2**53 // 8191 + 2, False)])
def test_a_sum_above_the_whole_numbers_of_float64_is_refused(factor: int, exact: bool) -> None:
    """A row of zeros, whose sum is its constant of 8,191 steps times its factor."""
    head, average = np.zeros((1, 2, 2)), np.zeros((2, 2))
    done = exact_step.take_steps(
        np.zeros((1, 1), np.float32),
        np.ones(1, np.float32),
        NOTHING,
        NOTHING,
        np.zeros(1, np.int64),
        np.zeros((0, 0), np.uint8),
        np.ones(1, np.float32),
        np.zeros(1, np.int64),
        np.ones(1, np.int64),
        head,
        product_bits(1) - 14,
        digit_bits(13),
        1.0,
        2.0**-13,
        0.5 / (factor + 0.5),
        False,
        np.zeros((1, 4), np.int64),
        1.0,
        np.ones(1),
        np.zeros(0),
        average,
    )
    assert done == exact
    np.testing.assert_allclose(head[0], [[0, 0.5], [0, -0.5]], rtol=2e-4)


@pytest.mark.parametrize("bits", [34, 43])
@pytest.mark.parametrize(
    "scale", [0.0, 1e-153, 1e-149, 1e-3, 1.0, 7.3, 1e150, 1e160, np.inf, np.nan]
)
def test_heads_are_whole_numbers_of_a_power_of_two(bits: int, scale: float) -> None:
    head, out = np.random.default_rng(bits).standard_normal((3, 9)), np.ones((3, 9))
    head[0] *= 1e-3
    if np.isfinite(scale):
        head *= scale
    else:
        head[0, 1] = scale
    unit = exact_step.to_integers(head, bits, out)
    longest = np.linalg.norm(head, axis=1).max()
    if 1e-150 < longest < 1e155:
        assert math.frexp(unit)[0] == 0.5
        assert 2 ** (bits - 1) <= longest / unit < 2**bits
        np.testing.assert_array_equal(out, np.rint(head / unit))
    else:
        assert not out.any()
        np.testing.assert_equal(unit, 1.0 if longest < 1 else np.nan)


@pytest.mark.parametrize("moved", [False, True])
def test_units_are_rows_on_the_grid(moved: bool) -> None:
    """Chosen rows in any order; rows of weight 0, or not finite, are 0."""
    features, entry = rows_of("unusable", 12, 5), grid_step(1 - exact_step.MARGIN, 13)
    generator, chosen = np.random.default_rng(0), np.array([3, 11, 3, 0, 1, 7, 6, 4])
    scale, shift, weights = generator.random((3, 12), np.float32) + 0.5
    centre, weights[7] = generator.random(5, np.float32), 0.0
    out, norms = np.full((8, 6), 7, np.float32), np.full(8, 7.0)
    around = (shift, centre) if moved else (NOTHING, NOTHING)
    exact_step.fill_units(features, scale, *around, weights, chosen, entry, out, norms)
    for i, row in enumerate(chosen):
        moves = (float(shift[row]), centre) if moved else ()
        whole, norm = on_grid(features[row], entry, float(scale[row]), *moves)
        np.testing.assert_array_equal(out[i], whole * (weights[row] > 0))
        assert norms[i] == norm * (weights[row] > 0)
