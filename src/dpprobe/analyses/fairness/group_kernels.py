"""Sums and areas of many groups in many resamples, in machine code.

Written here, since the libraries that have them go through Python for each group: 200 groups of 14
labels in 2,000 resamples of 9 cells are 50 million areas. A resample is the number of times that
each unit is drawn. Rows come in the order of their groups, and within a group of their scores, so
that one pass gives an area; 64 resamples lie side by side, one vector of the processor for eight.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np

from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

_FAST = frozenset({"contract", "nsz"})


@jit(
    "void(uint8[:,::1], int32[::1], boolean[::1], boolean[::1], float64[::1], int64[::1], "
    "float64[:,::1])",
    fastmath=_FAST,
)
def compute_areas(counts, unit, positive, last, weight, starts, out):
    """Computes the area under the ROC curve of each group in each resample.

    The chance that a row with the label scores above one without it, ties for a half; rows count by
    their weights, and as often as their units are drawn.

    Args:
      counts: [units, resamples].
      unit, positive, last, weight: of the rows, by group, then by score; `last` of equal scores.
      starts: [groups + 1], the first row of each group, and the end.
      out: [groups, resamples]; NaN where one kind of row is not drawn.
    """
    lanes = counts.shape[1]
    wins, hits, misses = np.empty(lanes), np.empty(lanes), np.empty(lanes)
    tied_hits, tied_misses = np.empty(lanes), np.empty(lanes)
    for group in range(len(starts) - 1):
        wins[:] = 0.0
        hits[:] = 0.0
        misses[:] = 0.0
        tied_hits[:] = 0.0
        tied_misses[:] = 0.0
        alone = True  # the row begins a run of equal scores
        for row in range(starts[group], starts[group + 1]):
            drawn, share = counts[unit[row]], weight[row]
            if alone and last[row]:
                if positive[row]:
                    for lane in range(lanes):
                        value = share * drawn[lane]
                        wins[lane] += value * misses[lane]
                        hits[lane] += value
                else:
                    for lane in range(lanes):
                        misses[lane] += share * drawn[lane]
                continue
            tied = tied_hits if positive[row] else tied_misses
            for lane in range(lanes):
                tied[lane] += share * drawn[lane]
            alone = last[row]
            if alone:
                for lane in range(lanes):
                    wins[lane] += tied_hits[lane] * (misses[lane] + tied_misses[lane] / 2)
                    hits[lane] += tied_hits[lane]
                    misses[lane] += tied_misses[lane]
                    tied_hits[lane] = 0.0
                    tied_misses[lane] = 0.0
        for lane in range(lanes):
            pairs = hits[lane] * misses[lane]
            out[group, lane] = min(wins[lane] / pairs, 1.0) if pairs > 0 else np.nan


@jit("void(uint8[:,::1], int32[::1], int32[::1], float64[::1], float64[:,::1])", fastmath=_FAST)
def add_sums(counts, unit, place, value, out):
    """Adds values, as often as their units are drawn.

    Args:
      counts: [units, resamples].
      unit, place, value: of each value, its unit, the row of `out` that it enters, and itself.
      out: [places, resamples].
    """
    lanes = counts.shape[1]
    for entry in range(len(unit)):
        drawn, total, amount = counts[unit[entry]], out[place[entry]], value[entry]
        for lane in range(lanes):
            total[lane] += amount * drawn[lane]


@jit(
    "void(int16[:,::1], int32[::1], boolean[::1], boolean[::1], float64[::1], float64[:,::1])",
    fastmath=_FAST,
)
def shuffled_areas(group, block, positive, last, weight, out):
    """Computes the area of each group, with blocks of rows given to groups in several ways.

    Args:
      group: [ways, blocks].
      block, positive, last, weight: of the rows, by score; `last` of equal scores.
      out: [ways, groups]; NaN where a group has one kind of row.
    """
    groups = out.shape[1]
    wins, hits, misses = np.empty(groups), np.empty(groups), np.empty(groups)
    for way in range(len(group)):
        of = group[way]
        wins[:] = 0.0
        hits[:] = 0.0
        misses[:] = 0.0
        first = 0
        for row in range(len(block)):
            if not last[row]:
                continue
            for tied in range(first, row + 1):
                if positive[tied]:
                    place = of[block[tied]]
                    wins[place] += weight[tied] * misses[place] / 2
            for tied in range(first, row + 1):
                if not positive[tied]:
                    misses[of[block[tied]]] += weight[tied]
            for tied in range(first, row + 1):
                if positive[tied]:
                    place = of[block[tied]]
                    wins[place] += weight[tied] * misses[place] / 2
                    hits[place] += weight[tied]
            first = row + 1
        for place in range(groups):
            pairs = hits[place] * misses[place]
            out[way, place] = min(wins[place] / pairs, 1.0) if pairs > 0 else np.nan


@jit("void(int16[:,::1], int32[::1], int32[::1], float64[::1], float64[:,:,::1])")
def add_shuffled_sums(group, block, place, value, out):
    """Adds values to groups, with blocks of rows given to groups in several ways.

    Args:
      group: [ways, blocks].
      block, place, value: of each value, its row's block, its place within a group, and itself.
      out: [ways, groups, places].
    """
    for way in range(len(group)):
        of, total = group[way], out[way]
        for entry in range(len(block)):
            total[of[block[entry]], place[entry]] += value[entry]


@jit("void(float32[:,::1], float64[::1], float64[:,::1], float64[::1])")
def largest_difference(values, shift, scale, out):
    """Computes the largest scaled difference between two groups, less a shift, in each resample.

    Args:
      values: [groups, resamples]; NaN where a resample has no value, which no difference enters.
      shift: [resamples].
      scale: [groups, groups], by which a difference is multiplied.
      out: [resamples]; -infinity where fewer than two groups have a value.
    """
    lanes = values.shape[1]
    out[:] = -np.inf
    for first in range(len(values)):
        for second in range(len(values)):
            if first == second:
                continue
            factor = scale[first, second]
            for lane in range(lanes):
                value = (values[first, lane] - values[second, lane] - shift[lane]) * factor
                out[lane] = value if value > out[lane] else out[lane]


MACHINE_CODE.keep()
