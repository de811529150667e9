"""Chooses a fit's device: compiled loops on the CPU, or a GPU if there is enough work.

The device depends only on the method's options and on public facts, so it reveals nothing about
examples. It does not depend on the number of seeds, because adding a seed must not change earlier
seeds' heads. Planning, training, audits and releases all call `place_fit`, for one device.
"""

from __future__ import annotations

from typing import NamedTuple

from dpprobe.heads.gradient_options import GradientOptions, UnitRowOptions
from dpprobe.heads.options import MethodOptions

# A GPU is used for at least LEAST_STEP multiplications per step and LEAST_FIT per fit. The two
# products of a step of 2^26 take 1.5 ms on a core (175 GFLOP/s, bench/results/heads_avx512.md), and
# 0.3 ms on a GPU, mostly to start operations. A fit of 2^33 takes 0.2 s on a core; a job starts the
# GPU once.
LEAST_STEP = 2**26
LEAST_FIT = 2**33
# The approximate number of passes until `nonprivate` has converged for all penalties.
_PASSES = 100


class FitPlace(NamedTuple):
    """The devices of a fit: "cpu", or the study's `device`.

    Attributes:
      rows: the device of the rows and of all other work; it affects a head's last digits.
      exact_sums: the device of the integer sums of `engine: exact`, which are equal on all devices.
    """

    rows: str = "cpu"
    exact_sums: str = "cpu"


def place_fit(
    method: MethodOptions, device: str, *, n: int, dimension: int, classes: int
) -> FitPlace:
    """Chooses the devices of a fit on n units of privacy, in a study with this `device`.

    Rows of `engine: exact` stay on the CPU, so a GPU changes none of its numbers. Networks always
    train on `device`.
    """
    base = method.trial_head
    base = base if base.is_undecided else base.trained_head
    exact, steps, step = False, 1, n * dimension * classes
    if base.is_undecided:
        # every rule of `auto` chooses the default number of full-batch steps
        steps = int(UnitRowOptions.DEFAULT_EPOCHS)
    elif isinstance(base, GradientOptions):
        exact, steps = base.engine == "exact", base.step_count(n)
        step = base.expected_batch_size(n) * dimension * classes
    elif not base.private:
        steps = _PASSES
    elif base.head != "prototypes":
        step += n * dimension**2
    if not base.tunes_network and (step < LEAST_STEP or steps * step < LEAST_FIT):
        return FitPlace()
    return FitPlace(exact_sums=device) if exact else FitPlace(rows=device)
