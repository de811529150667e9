"""Areas under the ROC curves of many groups in many resamples, in compiled code.

Libraries compute one area per call, but 200 groups with 14 labels in 2,000 resamples of 9 cells are
50 million areas. Rows are sorted by group, then by score, so that one pass computes all areas. The
loops compute 64 resamples together, eight in each vector register of the processor.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)


@MACHINE_CODE.jit(
    "void(uint8[:,::1], int32[::1], boolean[::1], boolean[::1], float64[::1], int64[::1], "
    "float64[:,::1])",
    fastmath=frozenset({"contract", "nsz"}),
)
def compute_areas(counts, unit, positive, last, weight, starts, out):
    """Computes the area under the ROC curve of each group in each resample.

    The area is the probability that a row with the label scores above a row without the label; ties
    count half. A row counts with its weight times the number of draws of its unit.

    Args:
      counts: [units, resamples], how often each resample contains each unit.
      unit, positive, last, weight: one value per row, sorted by group, then by score; `last` is
        True for the last of equal scores.
      starts: [groups + 1], the index of each group's first row, and the number of rows.
      out: [groups, resamples], the areas; NaN if a resample lacks rows with or without the label.
    """
    lanes = counts.shape[1]
    wins, hits, misses = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    tied_hits, tied_misses = np.zeros(lanes), np.zeros(lanes)
    for group in range(len(starts) - 1):
        wins[:] = 0.0
        hits[:] = 0.0
        misses[:] = 0.0
        for row in range(starts[group], starts[group + 1]):
            drawn, share = counts[unit[row]], weight[row]
            tied = tied_hits if positive[row] else tied_misses
            for lane in range(lanes):
                tied[lane] += share * drawn[lane]
            if last[row]:
                for lane in range(lanes):
                    wins[lane] += tied_hits[lane] * (misses[lane] + tied_misses[lane] / 2)
                    hits[lane] += tied_hits[lane]
                    misses[lane] += tied_misses[lane]
                    tied_hits[lane] = 0.0
                    tied_misses[lane] = 0.0
        for lane in range(lanes):
            pairs = hits[lane] * misses[lane]
            out[group, lane] = min(wins[lane] / pairs, 1.0) if pairs > 0 else np.nan


MACHINE_CODE.keep()
