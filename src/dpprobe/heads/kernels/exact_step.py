"""Adds clipped gradients exactly, on the CPU, as unit rows times factors on public grids.

Rows, weights and factors are whole numbers, which `tiles` multiplies as float64. Float64 adds whole
numbers up to 2^53 exactly. So products are bit-identical for any library, order of additions,
blocks and threads, because no partial sum exceeds 2^52:

- Logits. A row has norm at most 2^e, for entries of e bits. A class's weights have norm at most
  2^(51 - e) + sqrt(d) / 2 (`to_integers`). Cauchy-Schwarz bounds partial sums of their product.
- Sums. A row times its factor has norm at most 2^(e + f), for factors of f bits. All rows of a unit
  of privacy together do not exceed this norm. So no partial sum over n units exceeds n 2^(e + f).

`privacy.grid` chooses e and f with n 2^(e + f) <= 2^52, and raises an error if n is too large.
`check_exact` checks both bounds. The bounds cover all rows together, so any number of rows may be
added. Rows are multiplied in chunks only because a chunk stays in the processor's cache.

Between the two products, rows are processed one by one. So a row's contribution depends neither on
its position nor on other rows.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

import math

import numpy as np

from dpprobe.heads.kernels import tiles, vectors
from dpprobe.heads.kernels.tiles import ALIGNED, CHUNK, CLASSES
from dpprobe.heads.kernels.vectors import LINE
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__, tiles.__file__, vectors.__file__)
jit = MACHINE_CODE.jit

# Rows and factors are shortened by MARGIN (relative), above float64 rounding in 10^6 columns.
MARGIN = 2.0**-30
_LARGEST, _LARGEST_SUM = np.finfo(np.float64).max, 2.0**53
# Bytes of a chunk's rounded rows, and the fewest rows of a chunk.
_CHUNK_BYTES, _LEAST_CHUNK = 192 * 2**10, 16
# Weights with a smaller norm count as 0 in logits, which they would not change anyway.
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

    A class's integers have a norm of about 2^bits at most. If weights are not finite, all are 0.

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


@jit("void(f4[::1], f8, f8, f4[::1], f8[::1])")
def _move_row(source, scale, shift, centre, row):
    """Fills `row` with [scale * source - shift * centre, 1]; an empty centre subtracts nothing."""
    d = source.shape[0]
    if centre.shape[0]:
        for j in range(d):
            row[j] = scale * np.float64(source[j]) - shift * np.float64(centre[j])
    else:
        for j in range(d):
            row[j] = scale * np.float64(source[j])
    row[d] = 1.0


@jit("void(f4[:, ::1], f4[::1], f4[::1], f4[::1], f4[::1], f8[::1])")
def measure_rows(features, scale, shift, centre, weights, norms):
    """Writes the norm of each row, including the constant 1, to `norms`.

    The norm is 0 if it is not finite, or if the row has weight 0.
    """
    row = np.empty(features.shape[1] + 1)
    for i in range(features.shape[0]):
        norms[i] = 0.0
        if weights[i] > 0:
            moved = shift[i] if shift.shape[0] else 0.0
            _move_row(features[i], scale[i], moved, centre, row)
            norm = np.sqrt(_square_norm(row))
            norms[i] = norm if norm <= _LARGEST else 0.0


# Rows for a GPU are float32, which represents whole numbers of up to 24 bits.
@jit(*(f"void(f4[::1], f8, f8, f4[::1], f8, f8, f8[::1], {kind}[::1])" for kind in ("f4", "f8")))
def to_grid(source, scale, shift, centre, norm, entry, row, out):
    """Fills `out` with a row divided by its norm (from `measure_rows`), in steps of `entry`.

    Entries are rounded towards zero, so the rounded row's norm is at most 1. A row of norm 0
    becomes 0. `row` is working memory.
    """
    if norm == 0:
        out[: row.shape[0]] = 0.0
        return
    _move_row(source, scale, shift, centre, row)
    factor = (1 - MARGIN) / (norm * entry)
    for j in range(row.shape[0]):
        out[j] = np.trunc(row[j] * factor)


@jit("void(f8[:, ::1], f8[::1], f8[::1], i8[::1], u1[:, ::1], i8[::1], f8, f8, b1)")
def to_factors(z, norms, weights, labels, multi_hot, rows, clip, step, sigmoid):
    """Converts logits [K, m] to factors, in steps: |row| times the clipped, weighted residual.

    Factors are 0 for a row of norm 0, or with a logit that is not finite. Ignores further columns
    of `z`.
    """
    classes, m = z.shape[0], norms.shape[0]
    usable, work = norms > 0, np.empty((2, m))
    top, total = work[0], work[1]
    top[:], total[:] = -_LARGEST, 0.0
    for k in range(classes):
        line = z[k]
        for i in range(m):
            usable[i] &= abs(line[i]) <= _LARGEST
            top[i] = max(top[i], line[i])
    for k in range(classes):
        line = z[k]
        for i in range(m):
            if sigmoid:
                power = np.exp(-abs(line[i]))
                line[i] = (1.0 if line[i] > 0 else power) / (1 + power)
            else:
                line[i] = np.exp(line[i] - top[i])
                total[i] += line[i]
    for k in range(classes if not sigmoid else 0):
        line = z[k]
        for i in range(m):
            line[i] /= total[i]
    if multi_hot.shape[0]:
        for i in range(m):
            for k in range(classes):
                z[k, i] -= multi_hot[rows[i], k]
    else:
        for i in range(m):
            z[labels[rows[i]], i] -= 1.0
    square = total
    square[:] = 0.0
    for k in range(classes):
        line = z[k]
        for i in range(m):
            square[i] += line[i] * line[i]
    factor = top
    for i in range(m):
        length = np.sqrt(square[i]) * norms[i]
        factor[i] = weights[i] * norms[i] * (clip / length if length > clip else 1.0) / step
    for k in range(classes):
        line = z[k]
        for i in range(m):
            line[i] = np.trunc(line[i] * factor[i]) if usable[i] else 0.0


# The order of fields in `exact_sums.Data` and `exact_sums.Given`.
_DATA = "Tuple((f4[:, ::1], f4[::1], f4[::1], f4[::1], i8[::1], u1[:, ::1], f4[::1], f8[::1]))"
_GIVEN = "Tuple((i8, f8, f8, f8, b1))"


@jit(*(f"void({_DATA}, i8[::1], f8, {kind}[:, ::1])" for kind in ("f4", "f8")))
def fill_units(data, rows, entry, out):
    """Writes chosen rows, rounded by `to_grid`, to d + 1 columns of `out`."""
    features, scale, shift, centre, _, _, _, norms = data
    work = np.empty(features.shape[1] + 1)
    for i in range(rows.shape[0]):
        row = rows[i]
        moved = shift[row] if shift.shape[0] else 0.0
        to_grid(features[row], scale[row], moved, centre, norms[row], entry, work, out[i])


@jit()
def _make_zeros(shape):
    """Returns zeros aligned to a cache line, so that no vector spans two lines."""
    size = 1
    for each in shape:
        size *= each
    buffer = np.zeros(size + LINE // 8)
    start = -buffer.ctypes.data % LINE // 8
    return buffer[start : start + size].reshape(shape)


@jit()
def _make_scratch(shape):
    """Returns working memory for heads of a shape [seeds, K, d + 1].

    Returns:
      Integer weights and totals [seeds, padded K, padded d + 1], all 0; a unit per seed; a chunk's
      norms and weights, rounded rows, and logits; and addresses.
    """
    seeds, classes, columns = shape
    padded = -(-classes // CLASSES) * CLASSES, -(-columns // ALIGNED) * ALIGNED
    heads, totals = _make_zeros((seeds, *padded)), _make_zeros((seeds, *padded))
    # Chunks are larger for many classes, as each reads all weights from a slower cache.
    most = _CHUNK_BYTES * max(20, classes) // (20 * 8 * padded[1])
    chunk = max(_LEAST_CHUNK, min(CHUNK, most // 4 * 4))
    rows, z = _make_zeros((chunk, padded[1])), _make_zeros((padded[0], CHUNK))
    pointers, later = tiles.make_pointers(), tiles.make_pointers()
    for i in range(pointers.shape[0]):
        pointers[i] = rows.ctypes.data + rows.strides[0] * min(i, chunk - 1)
    units, numbers = np.empty(seeds), np.empty((2, chunk))
    return heads, totals, units, numbers, rows, z, pointers, later, tiles.make_panel()


@jit()
def _add_rows(data, rows, start, stop, heads, given, scratch):
    """Adds each head's clipped sum over rows[start:stop] to its totals in `scratch`.

    Also prefetches the rows that follow.
    """
    features, _, _, _, labels, multi_hot, weights, norms = data
    bits, clip, entry, step, sigmoid = given
    whole_heads, totals, units, numbers, integers, z, pointers, later, panel = scratch
    (seeds, classes, _), (chunk, columns) = heads.shape, integers.shape
    for seed in range(seeds):
        whole = whole_heads[seed]
        units[seed] = to_integers(heads[seed], bits, whole) * (entry / (1 - MARGIN))
    first, stride = features.ctypes.data, features.strides[0]
    kinds, lines = whole_heads.shape[1] // CLASSES, -(-stride // LINE)
    for at in range(start, stop, chunk):
        last = min(at + chunk, stop)
        chosen, following = rows[at:last], rows[last : last + chunk]
        m, due = chosen.shape[0], following.shape[0]
        row_norms, row_weights = numbers[0, :m], numbers[1, :m]
        fill_units(data, chosen, entry, integers)
        for i in range(m):
            row_norms[i], row_weights[i] = norms[chosen[i]], weights[chosen[i]]
        together = tiles.aim_at(first, stride, following, m, kinds, later)
        for seed in range(seeds):
            # Only the last seed's products prefetch rows, as in `fused_step`.
            fetched = due if seed == seeds - 1 else 0
            ahead, afterwards = tiles.split_fetches(later, fetched, together, lines, pointers)
            tiles.multiply_rows(pointers, m, columns, whole_heads[seed], z, ahead)
            for k in range(classes):
                for i in range(m):
                    z[k, i] *= units[seed] * row_norms[i]
            to_factors(
                z[:classes], row_norms, row_weights, labels, multi_hot, chosen, clip, step, sigmoid
            )
            tiles.multiply_back(pointers, m, columns, z, totals[seed], panel, afterwards)


@jit(f"void({_DATA}, i8[::1], f8[:, :, ::1], {_GIVEN}, f8[:, :, ::1])")
def add_sums(data, rows, heads, given, totals):
    """Adds each head's clipped sum over the same rows to its total, in steps of entry * step.

    Args:
      data: `exact_sums.Data`.
      rows: int64 [m], each from 0 to n - 1 (not checked).
      heads: [seeds, K, d + 1].
      given: `exact_sums.Given`.
      totals: [seeds, K, d + 1].
    """
    scratch = _make_scratch(heads.shape)
    _add_rows(data, rows, 0, rows.shape[0], heads, given, scratch)
    seeds, classes, columns = heads.shape
    for seed in range(seeds):
        for k in range(classes):
            for j in range(columns):
                totals[seed, k, j] += scratch[1][seed, k, j]


@jit(
    f"b1({_DATA}, i8[::1], i8[::1], f8[:, :, ::1], {_GIVEN}, i8[:, ::1], f8, f8[::1], f8[::1], "
    "f8[:, ::1])",
    fastmath=frozenset({"contract"}),
)
def take_steps(data, rows, sizes, heads, given, noise, divisor, rates, mixing, average):
    """Takes steps of one head [1, K, d + 1]: head -= rate * (clipped sum + noise) / divisor.

    Args (others as in `add_sums`):
      rows, sizes: the rows, batch after batch, and each batch's size, int64 [steps].
      noise: int64 [steps, K (d + 1)], in steps of entry * step.
      mixing: [steps], the share by which the average [K, d + 1] moves to the head; or [0].

    If the processor has fused multiply-add, it is used, as in PyTorch's `add_` and `lerp_`. Returns
    False if a sum is not an integer that float64 represents exactly.
    """
    (_, classes, columns), start, wrong = heads.shape, 0, 0
    _, _, entry, step, _ = given
    scratch, unit = _make_scratch(heads.shape), entry * step
    totals = scratch[1]
    for at in range(sizes.shape[0]):
        totals[:] = 0.0
        _add_rows(data, rows, start, start + sizes[at], heads, given, scratch)
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
