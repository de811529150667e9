"""The price of choosing what to release by looking at a study's cells of the same dataset.

**Claim.** Who names a release after a look at the benchmark publishes a function of all heads of
all its cells on the dataset, of their test results and of the release itself. As far as the
training units go that costs no more than publishing all those heads: the composition of their
mechanisms, each as often as there are seeds and backbones, with the release's, at its delta. It is
an upper bound for the choice always, and the bound of `dpprobe.results.choice`, over all epsilons
and with one fit more. It holds where every cell is private: one that is not may tell all of its
rows, and then the choice has no price.

The bound supposes noise that nobody can repeat. A benchmark's follows from the study and the
fingerprint of its data, so it holds for people who lack either, and not against the adversary of
the release itself, who knows all other units; the words say so.

Nothing here covers the test units: benchmarks print their results without noise. Cells whose noise
cannot be calibrated are left out, as no head of them exists.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpprobe.errors import DpprobeError
from dpprobe.privacy.accountants import Fits, all_together
from dpprobe.privacy.calibration import calibrate, round_up
from dpprobe.privacy.limits import INFINITE, epsilon_value
from dpprobe.privacy.plan import Plan
from dpprobe.progress import Progress
from dpprobe.results.summary import rounded_up
from dpprobe.study.long_tails import long_tail_datasets
from dpprobe.study.study import Study

logger = logging.getLogger("dpprobe")

NO_CHOICE = (
    "The study trains no other head on this dataset: nothing was chosen by its results. Looks at "
    "results elsewhere are not covered."
)
SEEDED = (
    " The bound is for people who cannot compute the noise of these cells again: it comes from "
    "seeds, which follow from the study and its data. Against somebody who knows both but for one "
    "unit the choice is not covered."
)
NOT_COVERED = "A choice of this release by looking at their results is not covered by any price: "
TEST_UNITS = (
    " The test results of these cells are exact, and nothing covers the test units that they are "
    "of."
)
_NAMED = 3


def choice_block(study: Study, *, dataset: str, plan: Plan, n: int, cache: Path) -> dict[str, Any]:
    """Prices the choice of a release among the study's cells: the block `choice` of a statement.

    Args:
      dataset: that the release is of.
      plan: of the release.
      n: training units of the cells.
      cache: the folder of calibrations, which are looked up or added.

    Returns:
      cells, the number of cells on the dataset; epsilon, the bound at the release's delta, None
      without cells and where some are not private; words, a sentence or two for the card.
    """
    exposed = _not_private(study, dataset)
    if exposed:
        count = len(study.cells(dataset))
        return {"cells": count, "epsilon": None, "words": choice_words(count, None, exposed)}
    fits = _fits(study, dataset, n, plan.unit, cache)
    count = len(fits) * len(study.backbones)
    if not fits:
        return {"cells": 0, "epsilon": None, "words": NO_CHOICE}
    release = Fits(mechanisms=plan.mechanisms, times=1, selection=plan.selection)
    epsilon = round_up(all_together([*fits, release], plan.delta)[0])
    words = choice_words(count, epsilon, delta=plan.delta)
    return {"cells": count, "epsilon": epsilon, "words": words}


def choice_words(
    cells: int, epsilon: float | None, exposed: Sequence[str] = (), *, delta: float = 0.0
) -> str:
    """Says what a choice among so many cells costs, or why it has no price.

    Args:
      epsilon: the bound at `delta`; None where there is none.
      exposed: what is not private, where there is no bound.
    """
    if not (cells or exposed):
        return NO_CHOICE
    several = "s" if cells > 1 else ""
    trains = f"The study trains {cells} cell{several} on this dataset. "
    if epsilon is not None:
        return (
            f"{trains}Choosing this release by looking at all their results costs at most epsilon "
            f"{rounded_up(epsilon):g} at delta {delta:g} to one training unit, the release "
            f"included.{SEEDED}{TEST_UNITS}"
        )
    more = f" and {len(exposed) - _NAMED} more" if len(exposed) > _NAMED else ""
    return (
        f"{trains}{NOT_COVERED}not private among them: {', '.join(exposed[:_NAMED])}{more}. Choose "
        f"on public data, or leave these out of the study.{TEST_UNITS}"
    )


def _not_private(study: Study, dataset: str) -> list[str]:
    """Names what the study trains or measures on a dataset's training rows without privacy."""
    cells = (
        f"{cell.backbone}/{cell.method} at epsilon {cell.epsilon}"
        for cell in study.cells(dataset)
        if cell.epsilon == INFINITE
        or not (method := study.methods[cell.method]).private
        or method.private_choices
    )
    probes = (f"{backbone}/few-shot probes" for backbone in study.few_shot_backbones())
    measured = study.backbones if dataset in long_tail_datasets(study) else ()
    return [*cells, *probes, *(f"{backbone}/long tail" for backbone in measured)]


def _fits(study: Study, dataset: str, n: int, unit: str, cache: Path) -> list[Fits]:
    """Returns the fits of each method and epsilon: of all seeds on all backbones."""
    pairs = list(dict.fromkeys((cell.method, cell.epsilon) for cell in study.cells(dataset)))
    fits = []
    with Progress(len(pairs), label="price of the choice", unit="plans") as progress:
        for method, epsilon in pairs:
            options = study.methods[method]
            try:
                plan = calibrate(
                    options.mechanisms(n),
                    n=n,
                    epsilon=epsilon_value(epsilon),
                    delta=study.dataset_delta(dataset),
                    accountant=study.accountant,
                    cache=cache,
                    selection=options.selection(n),
                    unit=unit,
                )
            except DpprobeError as error:
                logger.info("%s at epsilon %s trains no head: %s", method, epsilon, error)
            else:
                times = study.seeds * len(study.backbones)
                fits.append(Fits(mechanisms=plan.mechanisms, times=times, selection=plan.selection))
            progress.advance(1)
    return fits
