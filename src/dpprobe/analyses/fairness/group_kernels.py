"""Areas under the ROC curve of many groups in many resamples, in machine code.

Libraries compute one area per call: 200 groups of 14 labels in 2,000 resamples of 9 cells are 50
million areas. Rows come in the order of their groups, and within a group of their scores, so that
one pass gives an area. 64 resamples lie side by side: one vector of the processor for eight.
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

    The chance that a row with the label scores above one without it, ties for a half; rows count by
    their weights, and as often as their units are drawn.

    Args:
      counts: [units, resamples], how often a resample draws each unit.
      unit, positive, last, weight: of the rows, by group, then by score; `last` of equal scores.
      starts: [groups + 1], the first row of each group, and the end.
      out: [groups, resamples]; NaN where one kind of row is not drawn.
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
