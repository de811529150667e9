"""The release part `calibrate`: trustworthy probabilities, sets of classes and cut-offs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dpprobe.options import Options
from dpprobe.privacy.limits import Budget
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


class CalibrateOptions(Options):
    """Noisy counts in a release's bundle that turn its scores into probabilities and sets."""

    epsilon: Budget | None = Field(
        None,
        description="Epsilon of the calibration, spent by test units. Leave epsilon out if "
        "`evaluate` measures the AUC of two classes, whose counts calibration reuses.",
    )


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    """Yields why `calibrate` is impossible as the study writes it, with the remedy."""
    asked = wanted.release.block(CalibrateOptions)
    if asked is None:
        return
    of_auc = wanted.release.test_metric == "auc"
    if wanted.multi_label:
        yield "calibrate: needs one label per row, but these rows have several; remove calibrate"
    elif of_auc and asked.epsilon is not None:
        yield (
            "calibrate.epsilon: `evaluate` pays for the counts of the AUC, which calibrate uses "
            "too; write `calibrate: {}`"
        )
    elif not of_auc and asked.epsilon is None:
        yield "calibrate: has no epsilon; write `calibrate: {epsilon: 1}`"


PART = ReleasePart(
    key="calibrate",
    options=CalibrateOptions,
    describe="Publish probabilities that match frequencies, sets that contain the true class at a "
    "stated rate, and cut-offs; needs one label per row.",
    faults=list_faults,
)
