"""Rounds rows to the grid of exact sums on the CPU, and adds their clipped gradients, in one pass.

A chunk of rows stays in the second-level cache between its two products. `integer_products`
computes the products if all entries fit into 16 bits, else NumPy's BLAS. Logits and sums are exact
on the
grid, and all other work handles one row at a time: no contribution depends on a row's position.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from dpprobe.heads.kernels import integer_products, vectors
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__, integer_products.__file__, vectors.__file__)
jit = MACHINE_CODE.jit

CHUNK = 64


@jit("void(f4[:, ::1], f8[::1], f8[::1], f8[::1], f8[::1], b1, f8[:, ::1])")
def fill_rows(features, scale, shift, centre, constant, whole, out):
    """Fills float64 [m, d + 1] with scale[i] * features[i] - shift[i] * centre, and constant[i].

    Scale, shift and centre hold values of float32: their products are exact in float64, and each
    entry is rounded once. If `centre` is empty, nothing is subtracted. `whole` rounds entries, but
    not the constant, towards zero to whole numbers.
    """
    columns = features.shape[1]
    for i in range(features.shape[0]):
        row, source, factor, length = out[i], features[i], scale[i], shift[i]
        # a branch within a loop would prevent vectorisation
        if centre.shape[0] and whole:
            for j in range(columns):
                row[j] = np.trunc(factor * source[j] - length * centre[j])
        elif centre.shape[0]:
            for j in range(columns):
                row[j] = factor * source[j] - length * centre[j]
        elif whole:
            for j in range(columns):
                row[j] = np.trunc(factor * source[j])
        else:
            for j in range(columns):
                row[j] = factor * source[j]
        row[columns] = constant[i]


@jit("void(f8[::1], b1, f8[:, ::1])")
def weigh_rows(factors, whole, rows):
    """Multiplies rows [m, d] with factors [m], in place, rounding entries as `fill_rows` does."""
    for i in range(rows.shape[0]):
        row, factor = rows[i], factors[i]
        if whole:
            for j in range(row.shape[0]):
                row[j] = np.trunc(factor * row[j])
        else:
            for j in range(row.shape[0]):
                row[j] *= factor


@jit("void(f4[:, ::1], f8[::1], b1, f8[::1])")
def add_rows(features, scale, whole, total):
    """Adds scale[i] * features[i] to float64 [d], each entry rounded towards zero if `whole`."""
    for i in range(features.shape[0]):
        source, factor = features[i], scale[i]
        if whole:
            for j in range(source.shape[0]):
                total[j] += np.trunc(factor * source[j])
        else:
            for j in range(source.shape[0]):
                total[j] += factor * source[j]


@jit("void(f8[:, ::1], f4[:, ::1], f8[::1], f8[::1], f8[::1], f8, b1, f8, f8[:, ::1])")
def _compute_residuals(logits, targets, norms, lengths, weights, clip, sigmoid, step, out):
    """Turns logits [m, K] into clipped, weighted residuals [K, m] times the rows' lengths.

    Residuals are in units of `step` unless `step` is 0.
    """
    classes = logits.shape[1]
    for i in range(logits.shape[0]):
        row, square = logits[i], 0.0
        if sigmoid:
            for k in range(classes):
                row[k] = 1 / (1 + np.exp(-row[k]))
        else:
            highest, total = row[0], 0.0
            for k in range(1, classes):
                highest = max(highest, row[k])
            for k in range(classes):
                row[k] = np.exp(row[k] - highest)
                total += row[k]
            for k in range(classes):
                row[k] /= total
        for k in range(classes):
            # weights that are not finite make probabilities NaN, which count as 0
            residual = (row[k] if row[k] == row[k] else 0.0) - targets[i, k]
            row[k] = residual
            square += residual * residual
        product = np.sqrt(square) * norms[i]
        factor = (clip / product if product > clip else 1.0) * weights[i] * lengths[i]
        for k in range(classes):
            residual = row[k] * factor
            out[k, i] = np.trunc(residual / step) if step > 0 else residual


@jit(
    "void(f4[:, ::1], f8[::1], f8[::1], f8[::1], f8[::1], b1, f4[:, ::1], f8[::1], f8[::1], "
    "f8[::1], f8[:, ::1], i4[:, ::1], f8, b1, f8[::1], f8, f8, b1, f8, f8[:, ::1])"
)
def add_gradients(
    features,
    scale,
    shift,
    centre,
    constant,
    whole,
    targets,
    norms,
    lengths,
    weights,
    factors,
    digits,
    base,
    weighted,
    biases,
    unit,
    clip,
    sigmoid,
    step,
    total,
):
    """Adds examples' clipped gradients to total [K, d + 1], in the rows' units times `step`.

    Args (the first six as in `fill_rows`):
      targets: float32 [m, K], labels as zeros and ones.
      norms, lengths: [m], norms of rows with their constants, and what rows were divided by.
      weights: [m], factors of the clipped gradients.
      factors: [d + 1, K], weights in units of their grid; 0 in the last row.
      digits: the factors' digits, by `integer_products.split_weights`; empty for float64 products.
      base: the base of the digits.
      weighted: False if all factors are 0.
      unit: the unit of products of rows and factors, before multiplication with `lengths`.
      clip: the largest norm of a gradient; infinite for no clipping.
      step: the grid step of residuals; 0 for residuals that are not rounded.
    """
    classes, columns = total.shape
    chunk = integer_products.CHUNK if digits.shape[0] else CHUNK
    block, products = np.zeros((chunk, columns)), np.zeros((chunk, classes))
    width, height = integer_products.padded(columns - 1, 32), integer_products.padded(classes, 4)
    integers = np.zeros((chunk, integer_products.row_width(columns - 1)), np.int16)
    part, sums = np.empty((classes, columns)), np.zeros((height, width))
    for start in range(0, features.shape[0], chunk):
        stop = min(start + chunk, features.shape[0])
        rows, logits = block[: stop - start], products[: stop - start]
        fits = digits.shape[0] > 0 and integer_products.fill_rows(
            features[start:stop], scale[start:stop], shift[start:stop], centre, integers
        )
        if not fits:
            fill_rows(
                features[start:stop],
                scale[start:stop],
                shift[start:stop],
                centre,
                constant[start:stop],
                whole,
                rows,
            )
        if not weighted:
            logits[:] = 0.0
        elif fits:
            integer_products.multiply_weights(integers, digits, base, logits)
        else:
            np.dot(rows, factors, logits)
        for i in range(stop - start):
            for k in range(classes):
                logits[i, k] = logits[i, k] * (unit * lengths[start + i]) + biases[k]
        residuals = np.empty((classes, stop - start))
        _compute_residuals(
            logits,
            targets[start:stop],
            norms[start:stop],
            lengths[start:stop],
            weights[start:stop],
            clip,
            sigmoid,
            step,
            residuals,
        )
        if fits:
            integer_products.add_products(residuals, integers, sums)
            constants = np.dot(residuals, constant[start:stop])
            for k in range(classes):  # Numba takes seconds to compile a sum of slices
                total[k, columns - 1] += constants[k]
        else:
            np.dot(residuals, rows, part)
            total += part
    for k in range(classes):
        for j in range(columns - 1):
            total[k, j] += sums[k, j]


MACHINE_CODE.keep()
