"""Adds clipped gradients exactly, on the CPU: a unit row times a factor, both on a public grid.

Logits and sums are exact products of 16-bit integers (`integer_products`). A row's norm is at most
2^17, so few of its entries need more than 16 bits. Excess over 16 bits, and the row's constant, are
multiplied in float64. All sums are integers below 2^53, with equal bits in any order. Between the
products for logits and for sums, each row is computed by itself. So a row's contribution depends
neither on its position nor on other rows.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

import math

import numpy as np

from dpprobe.heads.kernels import integer_products, vectors
from dpprobe.heads.kernels.integer_products import CHUNK, LARGEST, padded
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__, integer_products.__file__, vectors.__file__)
jit = MACHINE_CODE.jit

# Rows and factors are shorter than their bounds by the share MARGIN, which exceeds the rounding of
# float64 in a million columns.
MARGIN = 2.0**-30
_LARGEST, _LARGEST_ENTRY, _LARGEST_SUM = np.finfo(np.float64).max, np.int32(LARGEST), 2.0**53
# A row of norm 2^17 has fewer than 16 entries that exceed 16 bits.
_MOST_RESTS = 16
# The number of rows that are prefetched.
_AHEAD = 4
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


@jit("Tuple((f8, f8, b1))(f4[::1], f8, f8, f4[::1], f8, f8[::1], i4[::1], i2[::1])")
def to_grid(source, scale, shift, centre, entry, row, whole, out):
    """Fills whole with x / |[x, 1]|, x = scale * source - shift * centre, in steps of `entry`.

    Entries are rounded towards zero, so the rounded row's norm is at most 1. If `centre` is empty,
    nothing is subtracted. `out` gets the lower 16 bits of `whole`; `row` is working memory.

    Returns:
      The norm |[x, 1]|, the last entry 1 / |[x, 1]|, and True if 16 bits hold all other entries. If
      the norm is not finite: 0, 0 and True, with zeros in `out`.
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
        out[:d] = 0
        return 0.0, 0.0, True
    factor, used = (1 - MARGIN) / (norm * entry), np.int32(0)
    for j in range(d):
        whole[j] = np.int32(row[j] * factor)
    # a separate loop, which compilers vectorise better
    for j in range(d):
        value = whole[j]
        used = np.int32(used | np.int32(value + _LARGEST_ENTRY) | np.int32(_LARGEST_ENTRY - value))
        out[j] = np.int16(value)
    return norm, np.trunc(factor), used >= 0


@jit("i8(i4[::1], i8, i8, i2[::1], i8[:, ::1])")
def cut_entries(whole, i, count, out, rests):
    """Cuts row i to 16 bits; appends (row, column, excess) to `rests`; returns its new length."""
    for j in range(whole.shape[0]):
        value = whole[j]
        out[j] = max(-LARGEST, min(value, LARGEST))
        if value != out[j]:
            rests[count, 0], rests[count, 1], rests[count, 2] = i, j, value - out[j]
            count += 1
    return count


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


@jit("void(f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[::1], i8[::1], f8, f4[:, ::1], f8[::1])")
def fill_units(features, scale, shift, centre, weights, rows, entry, out, norms):
    """Writes chosen rows, rounded by `to_grid`, to d + 1 columns of `out`, and norms to `norms`.

    Rows of weight 0 become 0, as in `add_sums`. Integers of 17 bits are exact in float32.
    """
    d = features.shape[1]
    work, whole, lower = np.empty(d + 1), np.empty(d, np.int32), np.empty(d, np.int16)
    for i in range(rows.shape[0]):
        row = rows[i]
        norms[i], constant = 0.0, 0.0
        if weights[row] > 0:
            moved = shift[row] if shift.shape[0] else 0.0
            norms[i], constant, _ = to_grid(
                features[row], scale[row], moved, centre, entry, work, whole, lower
            )
        for j in range(d):
            out[i, j] = whole[j] if norms[i] > 0 else 0.0
        out[i, d] = constant


_DATA = "f4[:, ::1], f4[::1], f4[::1], f4[::1], i8[::1], u1[:, ::1], f4[::1]"


@jit(f"void({_DATA}, i8[::1], i8, f8[:, :, ::1], i8, i8, f8, f8, f8, b1, f8[:, :, ::1])")
def add_sums(
    features,
    scale,
    shift,
    centre,
    labels,
    multi_hot,
    weights,
    rows,
    size,
    heads,
    bits,
    digit_bits,
    clip,
    entry,
    step,
    sigmoid,
    totals,
):
    """Adds each head's clipped sum over the same rows to its total, in steps of entry * step.

    Args:
      features, scale, shift, centre: float32; row i is scale[i] * features[i] - shift[i] * centre;
        shift and centre [0] for none.
      labels, multi_hot: int64 [n] and [0, 0]; for several labels [0] and uint8 [n, K].
      weights: float32 [n], factors of the clipped gradients; 0 for an unusable row.
      rows: int64 [size or more], each from 0 to n - 1, unchecked. Rows beyond `size` belong to the
        next call, and are prefetched.
      heads: [seeds, K, d + 1].
      bits, digit_bits: as in `to_integers`.
      clip: the largest norm of a gradient.
      entry, step: the grid steps of the rows' entries and of the factors.
      totals: [seeds, K, d + 1], padded to multiples of 4 and 32.
    """
    seeds, classes, d = heads.shape[0], heads.shape[1], features.shape[1]
    whole_heads, units, digits = np.empty(heads.shape), np.empty(seeds), []
    for seed in range(seeds):
        units[seed] = to_integers(heads[seed], bits, whole_heads[seed]) * (entry / (1 - MARGIN))
        digits.append(integer_products.split_weights(whole_heads[seed, :, :d], digit_bits))
    most = min(CHUNK, padded(size, 8))
    integers = np.empty((most, integer_products.row_width(d + 1)), np.int16)
    integers[:, d:] = 0
    logits, constants = np.empty((most, classes)), np.empty(most)
    norms, parts = np.empty(most), np.empty(most)
    work, whole = np.empty(d + 1), np.empty(d, np.int32)
    rests = np.empty((_MOST_RESTS * most, 3), np.int64)
    first = features.ctypes.data
    for start in range(0, size, CHUNK):
        chosen = rows[start : min(start + CHUNK, size)]
        m, count = chosen.shape[0], 0
        for i in range(m):
            row = chosen[i]
            later = rows[min(start + i + _AHEAD, rows.shape[0] - 1)]
            for line in range(0, 4 * d, vectors.LINE):
                vectors.fetch_line(first + 4 * d * later + line)
            vectors.fetch_line(scale.ctypes.data + 4 * later)
            vectors.fetch_line(weights.ctypes.data + 4 * later)
            vectors.fetch_line(labels.ctypes.data + 8 * later)
            parts[i], norms[i], constants[i], fits = weights[row], 0.0, 0.0, True
            if parts[i] > 0:
                moved = shift[row] if shift.shape[0] else 0.0
                norms[i], constants[i], fits = to_grid(
                    features[row], scale[row], moved, centre, entry, work, whole, integers[i]
                )
            else:
                integers[i, :d] = 0
            if not fits:
                count = cut_entries(whole, i, count, integers[i], rests)
        for seed in range(seeds):
            head, total = whole_heads[seed], totals[seed]
            integer_products.multiply_weights(integers, digits[seed], 2.0**digit_bits, logits[:m])
            for at in range(count):
                for k in range(classes):
                    logits[rests[at, 0], k] += rests[at, 2] * head[k, rests[at, 1]]
            for i in range(m):
                for k in range(classes):
                    exact = logits[i, k] + constants[i] * head[k, d]
                    logits[i, k] = exact * (units[seed] * norms[i])
            factors = np.empty((classes, m))
            to_factors(
                logits[:m], norms, parts, labels, multi_hot, chosen, clip, step, sigmoid, factors
            )
            integer_products.add_products(factors, integers, total)
            for k in range(classes):
                for i in range(m):
                    total[k, d] += factors[k, i] * constants[i]
                for at in range(count):
                    total[k, rests[at, 1]] += factors[k, rests[at, 0]] * rests[at, 2]


@jit(
    f"b1({_DATA}, i8[::1], i8[::1], f8[:, :, ::1], i8, i8, f8, f8, f8, b1, i8[:, ::1], f8, "
    "f8[::1], f8[::1], f8[:, ::1])",
    fastmath=frozenset({"contract"}),
)
def take_steps(
    features,
    scale,
    shift,
    centre,
    labels,
    multi_hot,
    weights,
    rows,
    sizes,
    heads,
    bits,
    digit_bits,
    clip,
    entry,
    step,
    sigmoid,
    noise,
    divisor,
    rates,
    mixing,
    average,
):
    """Takes steps of one head [1, K, d + 1]: head -= rate * (clipped sum + noise) / divisor.

    Args (others as in `add_sums`):
      rows, sizes: the rows, batch after batch, and the batches' sizes, int64 [steps].
      noise: int64 [steps, K (d + 1)], in steps of entry * step.
      mixing: [steps], how far the average [K, d + 1] moves towards the head; [0] without average.

    Where the processor can, products are added with one rounding, as by PyTorch's `add_` and
    `lerp_`. Returns False if a sum is not an integer that float64 represents exactly.
    """
    classes, columns, start, wrong = heads.shape[1], heads.shape[2], 0, 0
    totals = np.empty((1, padded(classes, 4), padded(columns, 32)))
    for at in range(sizes.shape[0]):
        totals[:] = 0.0
        add_sums(
            features,
            scale,
            shift,
            centre,
            labels,
            multi_hot,
            weights,
            rows[start:],
            sizes[at],
            heads,
            bits,
            digit_bits,
            clip,
            entry,
            step,
            sigmoid,
            totals,
        )
        start, rate, unit = start + sizes[at], -rates[at], entry * step
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
