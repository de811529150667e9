"""Adds clipped gradients exactly, on the CPU: a unit row times a factor, both on a public grid.

Rows, weights and factors are whole numbers, which BLAS multiplies as float64. Float64 represents
all whole numbers up to 2^53 and adds them exactly, so a product has the same bits for any order of
additions, blocks, threads, BLAS library and with or without fused multiply-add:

- Logits: a row has norm at most 2^e, for entries of e bits, and a class's weights have norm at most
  2^(51 - e) + sqrt(d) / 2 (`to_integers`). By Cauchy-Schwarz no partial sum of their products
  exceeds 2^52.
- Sums: a row times its factor has norm at most 2^(e + f), for factors of f bits. The rows of one
  unit of privacy together do not exceed it. So no partial sum over n units exceeds n 2^(e + f) <=
  2^52. `privacy.grid` chooses e and f by n, and refuses an n that has none; `check_exact` checks
  the result. Hence no block of rows needs to end early: rows are multiplied in chunks of `CHUNK`
  only because a chunk stays in the processor's cache.

Between the two products each row is computed by itself. So a row's contribution depends neither on
its position nor on other rows.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

import math

import numpy as np

from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

# Rows and factors are shorter than their bounds by the share MARGIN, which exceeds the rounding of
# float64 in a million columns.
MARGIN = 2.0**-30
_LARGEST, _LARGEST_SUM = np.finfo(np.float64).max, 2.0**53
CHUNK = 64
# Weights of a smaller norm count as 0 in logits, which they would not change.
_SMALLEST_HEAD = 1e-150


@jit("f8(f8[::1])", fastmath=frozenset({"reassoc"}))
def _square_norm(x):
    total = 0.0
    for j in range(x.shape[0]):
        total += x[j] * x[j]
    return total


@jit("f8(f8[:, ::1], i8, f8[:, ::1])")
def to_integers(head, bits, out):
    """Fills `out` with a head [K, d + 1], rounded to integer multiples of a unit.

    A class's integers have a norm of at most about 2^bits. Weights that are not finite become 0.

    Returns:
      The unit, a power of two; NaN if weights are not finite, so that no logit is finite.
    """
    longest = 0.0
    finite = True
    for k in range(head.shape[0]):
        norm = np.sqrt(_square_norm(head[k]))
        finite = finite and norm <= _LARGEST
        longest = max(longest, norm)
    if not finite or longest < _SMALLEST_HEAD:
        out[:] = 0.0
        return 1.0 if finite else np.nan
    exponent = math.frexp(longest)[1] - bits
    inverse = math.ldexp(1.0, -exponent)
    for k in range(head.shape[0]):
        for j in range(head.shape[1]):
            out[k, j] = np.rint(head[k, j] * inverse)
    return math.ldexp(1.0, exponent)


# Rows for a GPU are float32, which represents whole numbers of up to 24 bits.
_ROWS = "f4[:, ::1]", "f8[:, ::1]"


@jit(*(f"f8(f4[::1], f8, f8, f4[::1], f8, f8[::1], {rows[:2]}[::1])" for rows in _ROWS))
def to_grid(source, scale, shift, centre, entry, row, out):
    """Fills `out` with x / |x|, x = [scale * source - shift * centre, 1], in steps of `entry`.

    Entries are rounded towards zero, so the rounded row's norm is at most 1. If `centre` is empty,
    nothing is subtracted. `row` is working memory.

    Returns:
      The norm |x|; 0, with zeros in `out`, if the norm is not finite.
    """
    d = source.shape[0]
    if centre.shape[0]:
        for j in range(d):
            row[j] = scale * np.float64(source[j]) - shift * np.float64(centre[j])
    else:
        for j in range(d):
            row[j] = scale * np.float64(source[j])
    row[d] = 1.0
    norm = np.sqrt(_square_norm(row))
    if not norm <= _LARGEST:
        out[:] = 0.0
        return 0.0
    factor = (1 - MARGIN) / (norm * entry)
    for j in range(d + 1):
        out[j] = np.trunc(row[j] * factor)
    return norm


@jit("void(f8[:, ::1], f8[::1], f8[::1], i8[::1], u1[:, ::1], i8[::1], f8, f8, b1, f8[:, ::1])")
def to_factors(logits, norms, weights, labels, multi_hot, rows, clip, step, sigmoid, out):
    """Turns logits [m, K] into factors [K, m] in steps: |row| times the clipped, weighted residual.

    Factors are 0 for a row of norm 0, or with a logit that is not finite.
    """
    classes = logits.shape[1]
    for i in range(logits.shape[0]):
        row, norm = logits[i], norms[i]
        usable = norm > 0
        highest = row[0]
        for k in range(classes):
            usable = usable and abs(row[k]) <= _LARGEST
            highest = max(highest, row[k])
        if not usable:
            out[:, i] = 0.0
            continue
        if sigmoid:
            for k in range(classes):
                power = np.exp(-abs(row[k]))
                row[k] = (1.0 if row[k] > 0 else power) / (1 + power)
        else:
            total = 0.0
            for k in range(classes):
                row[k] = np.exp(row[k] - highest)
                total += row[k]
            for k in range(classes):
                row[k] /= total
        if multi_hot.shape[0]:
            for k in range(classes):
                row[k] -= multi_hot[rows[i], k]
        else:
            row[labels[rows[i]]] -= 1.0
        square = 0.0
        for k in range(classes):
            square += row[k] * row[k]
        length = np.sqrt(square) * norm
        factor = weights[i] * norm * (clip / length if length > clip else 1.0) / step
        for k in range(classes):
            out[k, i] = np.trunc(row[k] * factor)


# As in `exact_sums.Data` and `exact_sums.Given`.
_DATA = "Tuple((f4[:, ::1], f4[::1], f4[::1], f4[::1], i8[::1], u1[:, ::1], f4[::1]))"
_GIVEN = "Tuple((i8, f8, f8, f8, b1))"


@jit(*(f"void({_DATA}, i8[::1], f8, {rows}, f8[::1])" for rows in _ROWS))
def fill_units(data, rows, entry, out, norms):
    """Writes chosen rows, rounded by `to_grid`, to d + 1 columns of `out`, and norms to `norms`.

    Rows of weight 0 become 0.
    """
    features, scale, shift, centre, _, _, weights = data
    columns = features.shape[1] + 1
    work = np.empty(columns)
    for i in range(rows.shape[0]):
        row, unit = rows[i], out[i, :columns]
        if weights[row] > 0:
            moved = shift[row] if shift.shape[0] else 0.0
            norms[i] = to_grid(features[row], scale[row], moved, centre, entry, work, unit)
        else:
            norms[i], unit[:] = 0.0, 0.0


@jit(f"void({_DATA}, i8[::1], f8[:, :, ::1], {_GIVEN}, f8[:, :, ::1])")
def add_sums(data, rows, heads, given, totals):
    """Adds each head's clipped sum over the same rows to its total, in steps of entry * step.

    Args:
      data: `exact_sums.Data`.
      rows: int64 [m], each from 0 to n - 1, unchecked.
      heads: [seeds, K, d + 1].
      given: `exact_sums.Given`.
      totals: [seeds, K, d + 1].
    """
    _, _, _, _, labels, multi_hot, weights = data
    bits, clip, entry, step, sigmoid = given
    (seeds, classes, columns), most = heads.shape, min(CHUNK, rows.shape[0])
    whole_heads, units = np.empty(heads.shape), np.empty(seeds)
    for seed in range(seeds):
        units[seed] = to_integers(heads[seed], bits, whole_heads[seed]) * (entry / (1 - MARGIN))
    integers, norms, parts = np.empty((most, columns)), np.empty(most), np.empty(most)
    logits, sums = np.empty((most, classes)), np.empty((classes, columns))
    for start in range(0, rows.shape[0], CHUNK):
        chosen = rows[start : start + CHUNK]
        m = chosen.shape[0]
        fill_units(data, chosen, entry, integers, norms)
        for i in range(m):
            parts[i] = weights[chosen[i]]
        for seed in range(seeds):
            np.dot(integers[:m], whole_heads[seed].T, logits[:m])
            for i in range(m):
                for k in range(classes):
                    logits[i, k] *= units[seed] * norms[i]
            factors = np.empty((classes, m))
            to_factors(
                logits[:m], norms, parts, labels, multi_hot, chosen, clip, step, sigmoid, factors
            )
            np.dot(factors, integers[:m], sums)
            for k in range(classes):
                for j in range(columns):
                    totals[seed, k, j] += sums[k, j]


@jit(
    f"b1({_DATA}, i8[::1], i8[::1], f8[:, :, ::1], {_GIVEN}, i8[:, ::1], f8, f8[::1], f8[::1], "
    "f8[:, ::1])",
    fastmath=frozenset({"contract"}),
)
def take_steps(data, rows, sizes, heads, given, noise, divisor, rates, mixing, average):
    """Takes steps of one head [1, K, d + 1]: head -= rate * (clipped sum + noise) / divisor.

    Args (others as in `add_sums`):
      rows, sizes: the rows, batch after batch, and the batches' sizes, int64 [steps].
      noise: int64 [steps, K (d + 1)], in steps of entry * step.
      mixing: [steps], how far the average [K, d + 1] moves towards the head; [0] without average.

    Where the processor can, products are added with one rounding, as by PyTorch's `add_` and
    `lerp_`. Returns False if a sum is not an integer that float64 represents exactly.
    """
    (_, classes, columns), start, wrong = heads.shape, 0, 0
    _, _, entry, step, _ = given
    totals, unit = np.empty(heads.shape), entry * step
    for at in range(sizes.shape[0]):
        totals[:] = 0.0
        add_sums(data, rows[start : start + sizes[at]], heads, given, totals)
        start, rate = start + sizes[at], -rates[at]
        for k in range(classes):
            total, head, drawn = totals[0, k], heads[0, k], noise[at, k * columns :]
            for j in range(columns):
                value = total[j]
                wrong += (not abs(value) <= _LARGEST_SUM) | (value != np.trunc(value))
                head[j] += rate * ((value + drawn[j]) * unit / divisor)
            if mixing.shape[0]:
                mean, mix = average[k], mixing[at]
                for j in range(columns):
                    way = head[j] - mean[j]
                    mean[j] = mean[j] + mix * way if mix < 0.5 else head[j] - way * (1 - mix)
    return wrong == 0


MACHINE_CODE.keep()
