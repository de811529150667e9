"""The release part `calibrate`: trustworthy probabilities, sets of classes and cut-offs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dpprobe.options import Options
from dpprobe.privacy.limits import Budget
from dpprobe.release.parts.part import ReleasePart
from dpprobe.similar_names import suggest_names

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


class OperatingPointOptions(Options):
    """The class whose units should not be missed, and the share of them to find."""

    positive_class: str = Field(
        min_length=1,
        description="Class that `--operating-point` predicts for probabilities at or above the "
        "threshold.",
    )
    sensitivity: float = Field(
        gt=0,
        lt=1,
        description="Share of the class's units whose probability should reach the threshold, such "
        "as 0.9.",
    )


class CalibrateOptions(Options):
    """Noisy counts in a release's bundle that turn its scores into probabilities and sets."""

    epsilon: Budget | None = Field(
        None,
        description="Epsilon of the calibration, spent by test units. Leave epsilon out if "
        "`evaluate` measures the AUC of two classes, whose counts calibration reuses.",
    )
    operating_point: OperatingPointOptions | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Publish the highest threshold of one class that surely reaches "
        "`sensitivity`. It costs nothing with two classes; with more, it costs a part of the "
        "calibration's epsilon.",
    )


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    """Yields the reasons why these options of `calibrate` are impossible, with remedies."""
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
    point, names = asked.operating_point, wanted.class_names
    if point is not None and names is not None and point.positive_class not in names:
        yield (
            f"calibrate.operating_point.positive_class {point.positive_class}: the dataset has no "
            f"such class; {suggest_names(point.positive_class, names)}: the classes are "
            f"{', '.join(names[:20])}"
        )


PART = ReleasePart(
    key="calibrate",
    options=CalibrateOptions,
    describe="Publish probabilities that match frequencies, sets that contain the true class at a "
    "stated rate, and cut-offs; needs one label per row.",
    faults=list_faults,
)
