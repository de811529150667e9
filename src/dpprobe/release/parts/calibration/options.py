"""The options of the part `calibration`."""

from __future__ import annotations

from pydantic import Field

from dpprobe.options import Options
from dpprobe.privacy.limits import Budget


class CalibrateOptions(Options):
    """Noisy counts in a release's bundle that turn its scores into probabilities and sets."""

    epsilon: Budget | None = Field(
        None,
        description="Epsilon of the calibration, spent by test units. Leave it out if `evaluate` "
        "measures the AUC of two classes, whose counts serve for both.",
    )
