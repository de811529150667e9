"""Adds clipped gradients exactly, on the CPU: a unit row times a factor, both on a public grid.

Both products are exact: of integers below 2^53 in float64, by NumPy's BLAS. The work between them
handles one row at a time, number by number, so a row's part depends on neither place nor
neighbours.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import math

import numpy as np

from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

CHUNK = 128
# Rows and factors are shorter than their bounds by this much, more than what float64 rounds in a
# million columns.
MARGIN = 2.0**-30
_LARGEST = np.finfo(np.float64).max
# Weights whose norm is smaller are 0 in logits, where they would change nothing.
_SMALLEST_HEAD = 1e-150


@jit("f8(f8[::1])", fastmath=frozenset({"reassoc"}))
def _square_norm(x):
    total = 0.0
    for j in range(x.shape[0]):
        total += x[j] * x[j]
    return total


@jit("void(f8[:, :, ::1], i8, f8[:, :, ::1], f8[::1])")
def to_integers(weights, bits, heads, units):
    """Fills heads [seeds, d + 1, K] with weights [seeds, K, d + 1] in units, rounded to integers.

    A class's integers have a norm of at most about 2^bits. `units` [seeds] become powers of two.
    Weights that are not finite become NaN, so that all their logits are not finite.
    """
    for seed in range(weights.shape[0]):
        longest = 0.0
        finite = True
        for k in range(weights.shape[1]):
            norm = np.sqrt(_square_norm(weights[seed, k]))
            finite = finite and norm <= _LARGEST
            longest = max(longest, norm)
        units[seed] = 1.0
        if not finite:
            heads[seed] = np.nan
            continue
        if longest < _SMALLEST_HEAD:
            heads[seed] = 0.0
            continue
        exponent = math.frexp(longest)[1] - bits
        units[seed], inverse = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent)
        for k in range(weights.shape[1]):
            for j in range(weights.shape[2]):
                heads[seed, j, k] = np.rint(weights[seed, k, j] * inverse)


@jit("f8(f4[::1], f8, f8, f4[::1], f8, f8[::1])")
def to_grid(source, scale, shift, centre, entry, out):
    """Fills out with [x, 1] / |[x, 1]|, x = scale * source - shift * centre, in steps of `entry`.

    Entries are rounded towards zero, so the result in steps is no longer than 1. An empty centre
    stands for none. Returns |[x, 1]|; or 0, and fills zeros, if it is not finite.
    """
    d = source.shape[0]
    if centre.shape[0]:
        for j in range(d):
            out[j] = scale * np.float64(source[j]) - shift * np.float64(centre[j])
    else:
        for j in range(d):
            out[j] = scale * np.float64(source[j])
    out[d] = 1.0
    norm = np.sqrt(_square_norm(out))
    if not norm <= _LARGEST:
        out[:] = 0.0
        return 0.0
    factor = (1 - MARGIN) / (norm * entry)
    for j in range(d + 1):
        out[j] = np.trunc(out[j] * factor)
    return norm


@jit("void(f8[:, ::1], f8[::1], f8[::1], i8[::1], u1[:, ::1], i8[::1], f8, f8, b1, f8[:, ::1])")
def _to_factors(logits, norms, weights, labels, multi_hot, rows, clip, step, sigmoid, out):
    """Turns logits [m, K] into factors [K, m] in steps: |row| times the clipped, weighted residual.

    A row of norm 0, or with a logit that is not finite, gets 0.
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


_DATA = "f4[:, ::1], f4[::1], f4[::1], f4[::1], i8[::1], u1[:, ::1], f4[::1]"


@jit(f"void({_DATA}, i8[::1], f8[:, :, ::1], f8[::1], f8, f8, f8, b1, f8[:, :, ::1])")
def add_sums(
    features, scale, shift, centre, labels, multi_hot, weights, rows, heads, units, clip, entry,
    step, sigmoid, totals,
):  # fmt: skip
    """Adds each head's clipped sum over the same rows [m] to its total, in steps of entry * step.

    Args:
      features, scale, shift, centre: float32; row i is scale[i] * features[i] - shift[i] * centre;
        shift and centre [0] for none.
      labels, multi_hot: int64 [n] and [0, 0]; for several labels [0] and uint8 [n, K].
      weights: float32 [n], factors of the clipped gradients; 0 for an unusable row.
      rows: int64 [m], each from 0 to n - 1: this is not checked.
      heads: [seeds, d + 1, K], integers.
      units: [seeds], of a row in steps times a head's integers.
      clip: of a gradient's norm.
      entry, step: of the rows' entries and of the factors.
      totals: [seeds, K, d + 1].
    """
    seeds, columns, classes = heads.shape
    most = min(CHUNK, rows.shape[0])
    block, logits = np.empty((most, columns)), np.empty((most, classes))
    norms, parts = np.empty(most), np.empty(most)
    part = np.empty((classes, columns))
    for start in range(0, rows.shape[0], CHUNK):
        chosen = rows[start : start + CHUNK]
        m = chosen.shape[0]
        for i in range(m):
            row = chosen[i]
            parts[i] = weights[row]
            if parts[i] > 0:
                moved = shift[row] if shift.shape[0] else 0.0
                norms[i] = to_grid(features[row], scale[row], moved, centre, entry, block[i])
            else:
                norms[i] = 0.0
                block[i] = 0.0
        for seed in range(seeds):
            np.dot(block[:m], heads[seed], logits[:m])
            for i in range(m):
                for k in range(classes):
                    logits[i, k] *= units[seed] * norms[i]
            factors = np.empty((classes, m))
            _to_factors(
                logits[:m], norms, parts, labels, multi_hot, chosen, clip, step, sigmoid, factors
            )
            np.dot(factors, block[:m], part)
            total = totals[seed]
            for k in range(classes):
                for j in range(columns):
                    total[k, j] += part[k, j]


MACHINE_CODE.keep()
