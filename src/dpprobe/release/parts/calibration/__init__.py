"""The part `calibrate`: probabilities, sets of classes and cut-offs from noisy counts."""

from __future__ import annotations

from collections.abc import Iterator

from dpprobe.release.parts.part import ReleasePart
from dpprobe.study.study_checks import WantedRelease


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    """Yields why `calibrate` is impossible as written, with the remedy."""
    asked, evaluate = wanted.release.calibrate, wanted.release.evaluate
    if asked is None:
        return
    of_auc = evaluate is not None and evaluate.metric == "auc"
    if wanted.multi_label:
        yield "calibrate: needs one label per row, but these have several; remove it"
    elif of_auc and asked.epsilon is not None:
        yield (
            "calibrate.epsilon: `evaluate` pays for the counts of the AUC, which calibrate uses "
            "too; write `calibrate: {}`"
        )
    elif not of_auc and asked.epsilon is None:
        yield "calibrate: has no epsilon; write `calibrate: {epsilon: 1}`"


PART = ReleasePart(name="calibration", faults=list_faults)
