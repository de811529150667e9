"""Where a head's fit computes: in compiled loops on the CPU, or on a GPU if there is enough work.

Only the method's options and public facts decide the device, so the device reveals nothing about
examples. The number of seeds does not decide the device, because adding a seed must not change
earlier seeds' heads. Planning, training, audits and releases all call `place_fit`, for one device.
"""

from __future__ import annotations

from typing import NamedTuple

from dpprobe.heads.gradient_options import GradientOptions, UnitRowOptions
from dpprobe.heads.options import MethodOptions

# A GPU is used from LEAST_STEP multiplications per step, and LEAST_FIT per fit, on. The two
# products of a step of 2^26 take a core (175 GFLOP/s, bench/results/heads_avx512.md) 1.5 ms, and a
# GPU 0.3 ms, mostly to start operations. A core takes 0.2 s for a fit of 2^33; a job starts a GPU
# once.
LEAST_STEP = 2**26
LEAST_FIT = 2**33
# Passes over the examples until `nonprivate` has converged for all penalties, roughly.
_PASSES = 100


class FitPlace(NamedTuple):
    """The devices of a fit: "cpu", or the study's `device`.

    Attributes:
      rows: the device of the rows and of all other work; it changes a head's last digits.
      exact_sums: where `engine: exact` computes whole numbers, which are equal on all devices.
    """

    rows: str = "cpu"
    exact_sums: str = "cpu"


def place_fit(
    method: MethodOptions, device: str, *, n: int, dimension: int, classes: int
) -> FitPlace:
    """Returns where a fit on n units of privacy computes in a study with this `device`.

    Rows of `engine: exact` stay on the CPU, so a GPU changes none of its numbers. Networks always
    train on `device`.
    """
    base = method.trial_head
    base = base if base.is_undecided else base.trained_head
    exact, steps, step = False, 1, n * dimension * classes
    if base.is_undecided:
        # every rule of `auto` chooses steps on all examples, in the default number
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
