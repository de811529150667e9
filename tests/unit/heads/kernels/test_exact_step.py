"""Exact gradient sums equal sums of Python integers, and whole steps equal NumPy's steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.heads.exact_sums import Given
from dpprobe.heads.kernels import exact_step
from dpprobe.privacy.grid import grid_step, product_bits

Numbers = npt.NDArray[np.float64]

CLIP = 0.7
NOTHING = np.zeros(0, np.float32)


# The scale and the shift of each row, and the centre that is multiplied by the shift.
Move = tuple[Numbers, Numbers, npt.NDArray[np.float32]]


def on_grid(
    x: npt.NDArray[np.float32],
    entry: float,
    scale: float = 1.0,
    shift: float = 0.0,
    centre: npt.NDArray[np.float32] = NOTHING,
) -> tuple[Numbers, float]:
    """Returns a row with its constant, in whole grid steps, and its norm."""
    out = np.empty(len(x) + 1)
    norms, one = np.empty(1), np.ones(1, np.float32)
    exact_step.measure_rows(x[None], one * scale, one * shift, centre, one, norms)
    norm = float(norms[0])
    exact_step.to_grid(x, scale, shift, centre, norm, entry, np.empty(len(out)), out)
    with np.errstate(all="ignore"):
        x = np.append(
            scale * x.astype(float) - shift * (centre.astype(float) if len(centre) else 0), 1
        )
        wanted = np.linalg.norm(x)
    np.testing.assert_allclose(norm, wanted if wanted < np.inf else 0.0, rtol=1e-12)
    if not norm:
        assert not out.any()
        return out, 0.0
    np.testing.assert_array_equal(out, np.trunc(x * ((1 - exact_step.MARGIN) / (norm * entry))))
    assert sum(int(value) ** 2 for value in out) <= entry**-2
    return out, norm


def whole_numbers(values: Numbers) -> npt.NDArray[np.object_]:
    return np.array([int(value) for value in values.flat], object).reshape(values.shape)


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
    """Computes the sums of `exact_step.add_sums` with Python integers, one row at a time."""
    entry, step = grid_step(1 - exact_step.MARGIN, bits), grid_step(CLIP, 17)
    total = np.zeros(heads.shape, object)
    for seed, head in enumerate(heads):
        whole = np.empty(head.shape)
        unit = exact_step.to_integers(head, product_bits(1) - bits - 1, whole)
        for i, (x, label, weight) in enumerate(zip(features, labels, weights, strict=True)):
            moved = (float(move[0][i]), float(move[1][i]), move[2]) if move else ()
            row, norm = on_grid(x, entry, *moved)
            products = whole_numbers(whole) @ whole_numbers(row)
            logits = products.astype(float) * (unit * (entry / (1 - exact_step.MARGIN)) * norm)
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
            factors = whole_numbers(np.trunc(residual * factor))
            total[seed] += np.outer(factors, whole_numbers(row))
    assert abs(total).max() < 2**53
    return total.astype(float)


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
    totals, rows = np.zeros(heads.shape), len(features)
    exact_step.add_sums(
        data_of(features, labels, weights, several=several, move=move),
        np.arange(rows),
        heads,
        given_of(bits, grid_step(CLIP, 17), sigmoid=sigmoid),
        totals,
    )
    return totals


def data_of(
    features: npt.NDArray[np.float32],
    labels: Any,
    weights: Any,
    *,
    several: bool = False,
    move: Move | None = None,
) -> tuple[Any, ...]:
    """Returns the rows as `exact_step` takes them; `labels` are zeros and ones."""
    none = np.zeros(0, np.int64), np.zeros((0, 0), np.uint8)
    rows = features, *(move or (np.ones(len(features), np.float32), NOTHING, NOTHING))
    norms = np.empty(len(features))
    exact_step.measure_rows(*rows, weights, norms)
    return (
        *rows,
        none[0] if several else labels.argmax(1),
        labels if several else none[1],
        weights,
        norms,
    )


def given_of(bits: int, step: float, clip: float = CLIP, *, sigmoid: bool = False) -> Any:
    entry = grid_step(1 - exact_step.MARGIN, bits)
    return tuple(Given(product_bits(1) - bits - 1, clip, entry, step, sigmoid))


def rows_of(kind: str, rows: int, columns: int) -> npt.NDArray[np.float32]:
    features = np.random.default_rng(columns).standard_normal((rows, columns), dtype=np.float32)
    if kind == "peaks":  # a few large numbers per row, of either sign
        features[::2, : min(15, columns)] *= 1e3
        features[1::3] = 0.0
        features[1::3, columns // 2] = -1e6
    if kind == "unusable":
        features[0], features[1 % rows], features[-1] = np.nan, np.inf, 0.0
        features[rows // 2], features[rows // 3] = 1e38, 1e-42
    return features


@pytest.mark.parametrize("kind", ["plain", "peaks", "unusable"])
@pytest.mark.parametrize(
    ("rows", "columns", "classes"),
    [(1, 1, 5), (3, 7, 4), (128, 31, 5), (129, 32, 6), (40, 130, 5), (5, 520, 21)],
)
@pytest.mark.parametrize("bits", [8, 17])
def test_sums_equal_those_of_whole_numbers(
    kind: str, rows: int, columns: int, classes: int, bits: int
) -> None:
    """Classes and columns may or may not fill the kernel's tiles."""
    features = rows_of(kind, rows, columns)
    generator = np.random.default_rng(rows)
    weights = generator.choice(np.array([1, 0.5, 1 / 3, 0], np.float32), rows)
    heads = generator.standard_normal((3, classes, columns + 1))
    heads[1] *= 1e5
    heads[2, 3, 0] = np.nan
    for several in (False, True):
        labels = np.eye(classes, dtype=np.uint8)[generator.integers(classes, size=rows)]
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
@settings(max_examples=200)
def test_any_rows_have_the_sums_of_whole_numbers(
    rows: list[list[float]], head: list[float], bits: int
) -> None:
    """The rows include NaN, infinite, huge, denormal and zero values."""
    features = np.array(rows, np.float32)
    labels = np.eye(3, dtype=np.uint8)[np.arange(len(rows)) % 3]
    weights = np.isfinite(features).all(1).astype(np.float32)
    given = features, labels, weights, np.array(head).reshape(1, 3, 3), bits
    actual = fast_sums(*given, sigmoid=False, several=False)
    np.testing.assert_array_equal(actual, slow_sums(*given, sigmoid=False))


def test_non_finite_rows_contribute_zero_even_with_a_nonzero_weight() -> None:
    """Such rows have a weight of 0 elsewhere, but the sum does not rely on the weight."""
    features = rows_of("unusable", 9, 5)[:2]
    assert not np.isfinite(features).any()
    labels, heads = np.eye(3, dtype=np.uint8)[:2], np.ones((1, 3, 6))
    given = features, labels, np.ones(2, np.float32), heads, 17
    assert not fast_sums(*given, sigmoid=False, several=False).any()


@given(seed=st.integers(0, 2**20), cuts=st.lists(st.integers(0, 400), max_size=4))
@settings(max_examples=40)
def test_any_order_and_any_split_of_the_rows_have_the_same_bits(seed: int, cuts: list[int]) -> None:
    """Entries and factors have 17 bits each, so products fill float64's range of whole numbers."""
    generator = np.random.default_rng(seed)
    features, heads = rows_of("peaks", 400, 40), generator.standard_normal((2, 5, 41))
    data = data_of(features, np.eye(5)[generator.integers(5, size=400)], np.ones(400, np.float32))
    totals = np.zeros((2, *heads.shape))
    exact_step.add_sums(data, np.arange(400), heads, given_of(17, grid_step(CLIP, 17)), totals[0])
    for part in np.split(generator.permutation(400), sorted(cuts)):
        exact_step.add_sums(data, part, heads, given_of(17, grid_step(CLIP, 17)), totals[1])
    np.testing.assert_array_equal(*totals)


@pytest.mark.parametrize("columns", [1, 31, 32, 130])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("averaged", [False, True])
def test_steps_are_sums_one_by_one(columns: int, sigmoid: bool, averaged: bool) -> None:
    """Includes batches of 0, 1 and 200 rows, slow and fast averages, and sums off the grid."""
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
            data_of(features, labels, weights),
            np.arange(335),
            sizes,
            head,
            given_of(13, step, sigmoid=sigmoid),
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
    """The only row is zero: its sum is its constant of 8,191 steps times its factor."""
    head, average = np.zeros((1, 2, 2)), np.zeros((2, 2))
    done = exact_step.take_steps(
        data_of(np.zeros((1, 1), np.float32), np.eye(2)[:1], np.ones(1, np.float32)),
        np.zeros(1, np.int64),
        np.ones(1, np.int64),
        head,
        given_of(13, 0.5 / (factor + 0.5), 1.0),
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
    """Rows may be chosen in any order; rows with weight 0 or non-finite values become 0."""
    features, entry = rows_of("unusable", 12, 5), grid_step(1 - exact_step.MARGIN, 13)
    generator, chosen = np.random.default_rng(0), np.array([3, 11, 3, 0, 1, 7, 6, 4])
    scale, shift, weights = generator.random((3, 12), np.float32) + 0.5
    centre, weights[7] = generator.random(5, np.float32), 0.0
    out = np.full((8, 6), 7, np.float32)
    around = (shift, centre) if moved else (NOTHING, NOTHING)
    data = data_of(features, np.eye(12), weights, move=(scale, *around))
    exact_step.fill_units(data, chosen, entry, out)
    for i, row in enumerate(chosen):
        moves = (float(shift[row]), centre) if moved else ()
        whole, norm = on_grid(features[row], entry, float(scale[row]), *moves)
        np.testing.assert_array_equal(out[i], whole * (weights[row] > 0))
        assert data[-1][row] == norm * (weights[row] > 0)
