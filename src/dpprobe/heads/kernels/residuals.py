"""Clips the residuals of second-order heads on the CPU, in float64, row by row.

A row's result depends neither on the row's position nor on the block's other rows. Libraries do not
guarantee this: they compute vectors of exponentials, and the rest by other code.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)


@MACHINE_CODE.jit("void(f8[:, ::1], f4[:, ::1], f8[::1], f8[::1], f8[::1], f8, b1, f8)")
def clip_rows(logits, targets, norms, lengths, weights, clip, sigmoid, step):
    """Replaces logits [m, K] by clipped residuals, times the rows' lengths and weights.

    Args:
      targets: float32 [m, K], labels as zeros and ones.
      norms: [m]; a residual's norm times the row's norm is at most `clip`, which may be infinite.
      lengths, weights: [m].
      step: results are in units of `step`, rounded towards zero; 0 for results that are not
        rounded.
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
            row[k] = (row[k] if row[k] == row[k] else 0.0) - targets[i, k]
            square += row[k] * row[k]
        product = np.sqrt(square) * norms[i]
        factor = (clip / product if product > clip else 1.0) * weights[i] * lengths[i]
        for k in range(classes):
            row[k] *= factor
            if step > 0:
                row[k] = np.trunc(row[k] / step)


MACHINE_CODE.keep()
