"""Where a head's fit computes: in compiled loops on the CPU, or on a GPU if its work repays that.

Only the method's options and public facts decide, so the device tells nothing about examples. The
number of seeds does not decide, because a further seed must not change earlier ones. Planning,
training, audits and releases ask the same function, so that they agree.
"""

from __future__ import annotations

from typing import NamedTuple

from dpprobe.heads import auto, tuned
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.options import MethodOptions

# The least work that a GPU does faster, in multiplications.
LEAST_FULL_STEP = 2**26  # for the scores of all examples, which many steps repeat
LEAST_SAMPLED_STEP = 2**28  # for the scores of a step's Poisson sample
LEAST_SUMS = 2**30  # for sums over all examples that a fit computes once


class FitPlace(NamedTuple):
    """The devices of a fit: "cpu", or the study's `device`.

    Attributes:
      rows: where the rows are, and where all else is computed; it changes a head's last digits.
      exact_sums: where `engine: exact` computes whole numbers, which are equal on all devices.
    """

    rows: str = "cpu"
    exact_sums: str = "cpu"


def place_fit(
    method: MethodOptions, device: str, *, n: int, dimension: int, classes: int
) -> FitPlace:
    """Returns where a fit on n units of privacy computes in a study with this `device`.

    Rows of `engine: exact` stay on the CPU, so a GPU changes none of its numbers. Networks always
    have the device. If `auto` has not chosen a head, it counts as the head with the most work.
    """
    base = method.base if isinstance(method, tuned.Options) else method
    base = base if auto.is_undecided(base) else auto.trained_head(base)
    work, least, exact = n * dimension * classes, LEAST_FULL_STEP, False
    if isinstance(base, GradientOptions):
        exact = base.engine == "exact"
        if base.batch_size != "full" and base.batch_size < n:
            work, least = base.batch_size * dimension * classes, LEAST_SAMPLED_STEP
    elif base.private:
        least = LEAST_SUMS
        work += 0 if base.head == "prototypes" else n * dimension**2
    if work < least and not base.tunes_network:
        return FitPlace()
    return FitPlace(exact_sums=device) if exact else FitPlace(rows=device)
