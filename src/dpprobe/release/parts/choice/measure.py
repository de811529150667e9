"""The privacy cost of choosing a release by looking at a study's cells of the same dataset.

**Bound.** A release chosen after seeing a benchmark is a function of the benchmark's heads, their
test results, and the released head. To training units the choice costs at most as much as
publishing all heads of the benchmark and the release. The cost of publishing all heads is the
composition of all mechanisms, for every seed and backbone, at the release's delta. The bound equals
`dpprobe.results.best_head_price` over all epsilons, with one more fit. If a cell is not private,
the choice has no finite epsilon, because the cell may reveal all rows.

**Seeded noise.** The bound assumes noise that nobody can recompute. A benchmark's noise follows
from the study and the fingerprint of its data. So the bound holds against attackers who lack the
study or the data. Against an attacker who knows the study and all other units, the bound does not
hold; the statement says so.

`auto` chooses a head from each backbone's features. If features are missing, the mechanisms are
unknown, and no epsilon is stated.

The bound does not cover test units, because benchmarks print test results without noise. Cells
whose noise cannot be calibrated are left out, because no head exists for them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpprobe.analyses.audit import audit_cells
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.analyses.representation_law import law_backbones, law_datasets
from dpprobe.analysis_registry import load_analyses
from dpprobe.counted_nouns import count_noun
from dpprobe.errors import DpprobeError
from dpprobe.heads.auto import is_undecided
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.accountants import Fits, all_together
from dpprobe.privacy.limits import INFINITE, round_up, rounded_up
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.risk import budget_words, read_budget
from dpprobe.privacy.target import Target
from dpprobe.progress import Progress
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.parts.part import PartReader, PartSteps
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.study.study import Study
from dpprobe.training.plan_file import plan_method

logger = logging.getLogger("dpprobe")

NO_CHOICE = (
    "The study trains no other head on this dataset, so nothing was chosen by its results. "
    "Choices by results of other studies are not covered."
)
ONLY_FIT = (
    "The budget of this head lists no other fit on this dataset. A choice by results of fits that "
    "the budget does not list, such as benchmarks, is not covered."
)
OTHER_FITS = (
    "The budget of this head lists {others} on this dataset. If results of these fits decided to "
    "publish this head rather than another, as in a grid search, no epsilon covers that decision: "
    "scores on private rows have no noise. A choice by results of fits that the budget does not "
    "list, such as benchmarks, is not covered either."
)
IF_FIXED = (
    "This release costs its own epsilon alone if its backbone, method and epsilon were fixed "
    "before anyone saw a result on this dataset, and no benchmark decided whether to make it. "
    "Otherwise the following holds. "
)
SEEDED = (
    " The bound holds against anyone who cannot recompute the noise of these cells. That noise "
    "comes from seeds, which follow from the study and its data: against someone who knows both "
    "except for one unit, the choice is not covered."
)
NOT_COVERED = "No epsilon covers choosing this release by looking at their results: some are "
WHAT_IT_MEANS = (
    "The epsilon of this head holds for the head as named. It does not cover a decision, made "
    "after a look at these results, to publish this head rather than another: that decision may "
    "reveal something about the training data, and no bound on this is known. A choice on public "
    "data costs nothing; for a choice in a study without these cells an epsilon is computed."
)
TEST_UNITS = (
    " The test results of these cells are exact, without noise: no epsilon covers their test units."
)
LOOKED_AT = (
    " This epsilon covers a choice by heads and test results only. Training-loss curves and t-SNE "
    "plots are computed from the images without noise: no epsilon covers a choice by them."
)
MAKE_FEATURES = "Extract their features first, because head auto needs them for its choice."
_NAMED = 3


def choice_block(
    study: Study,
    *,
    dataset: str,
    plan: Plan,
    cache: Path,
    facts: Mapping[str, DataFacts] | None = None,
) -> dict[str, Any]:
    """Bounds the cost of choosing a release among the study's cells: a statement's block `choice`.

    The block's epsilon is the bound at the release's delta; None without cells, or if some cells
    are not private or not known. `facts` has, for each backbone with features, the facts from which
    `auto` chooses a head.
    """
    exposed = _not_private(study, dataset)
    unknown = _not_known(study, facts or {})
    if exposed or unknown:
        count = len(study.list_cells(dataset))
        words = choice_words(count, None, exposed, unknown=unknown)
        return {"cells": count, "epsilon": None, "words": words}
    fits = _list_fits(study, dataset, plan, cache, facts or {})
    count = sum(fit.times for fit in fits) // study.seeds
    if not fits:
        return {"cells": 0, "epsilon": None, "words": NO_CHOICE}
    release = Fits(mechanisms=plan.mechanisms, times=1, selection=plan.selection)
    epsilon = round_up(all_together([*fits, release], plan.delta)[0])
    words = choice_words(count, epsilon, delta=plan.delta)
    return {"cells": count, "epsilon": epsilon, "words": words}


def choice_words(
    cells: int,
    epsilon: float | None,
    exposed: Sequence[str] = (),
    *,
    unknown: Sequence[str] = (),
    delta: float = 0.0,
) -> str:
    """States the epsilon of a choice among a number of cells at `delta`, or why none exists.

    `exposed` names the study's non-private parts, `unknown` the heads that `auto` did not choose.
    """
    if not (cells or exposed or unknown):
        return NO_CHOICE
    trains = (
        f"{IF_FIXED}The study trains {count_noun(cells, 'cell')} on this dataset (combinations of "
        "backbone, method and epsilon). "
    )
    if epsilon is not None:
        return (
            f"{trains}If all their results decided which head to release, the cost to one "
            f"training unit is at most epsilon {rounded_up(epsilon):g} at delta {delta:g}, release "
            f"included.{SEEDED}{LOOKED_AT}{TEST_UNITS}"
        )
    if not exposed:
        listed = _name_first("not known yet", unknown)
        return f"{trains}{NOT_COVERED}{listed}. {MAKE_FEATURES}{TEST_UNITS}"
    return (
        f"{trains}{NOT_COVERED}{_name_first('not private', exposed)}. {WHAT_IT_MEANS}{TEST_UNITS}"
    )


def fits_block(listed: int) -> dict[str, Any]:
    """States how an estimator's head was chosen, from the fits and releases in its budget."""
    others = count_noun(listed - 1, "other fit")
    words = OTHER_FITS.format(others=others) if listed > 1 else ONLY_FIT
    return {"cells": 0, "epsilon": None, "words": words}


def _name_first(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what} ({', '.join(names[:_NAMED])}{more})"


def _not_known(study: Study, facts: Mapping[str, DataFacts]) -> list[str]:
    return [
        f"{backbone}/{name}"
        for backbone in study.backbones
        for name, method in study.methods.items()
        if is_undecided(method) and backbone not in facts
    ]


def _not_private(study: Study, dataset: str) -> list[str]:
    """Names the study's results that use a dataset's training examples without privacy."""
    cells = (
        f"{cell.backbone}/{cell.method} at epsilon {budget_words(cell.epsilon)}"
        for cell in study.list_cells(dataset)
        if cell.epsilon == INFINITE
        or not (method := study.methods[cell.method]).private
        or method.private_choices
    )
    probes = (f"{backbone}/few-shot probes" for backbone in study.few_shot_backbones())
    measured = (
        f"{backbone}/{analysis.unpriced}"
        for analysis in load_analyses()
        if analysis.unpriced and dataset in analysis.datasets(study)
        for backbone in analysis.backbones(study)
    )
    lawful = law_backbones(study) if dataset in law_datasets(study) else ()
    laws = (f"{backbone}/representation law" for backbone in lawful)
    audit = study.block(AuditOptions)
    attacks = (
        f"{cell.backbone}/{cell.method} at epsilon {budget_words(cell.epsilon)}, attacks on "
        "membership"
        for cell in audit_cells(study, dataset)
        if audit and audit.membership
    )
    return [*cells, *probes, *measured, *laws, *attacks]


def _list_fits(
    study: Study, dataset: str, release: Plan, cache: Path, facts: Mapping[str, DataFacts]
) -> list[Fits]:
    """Returns the study's fits on a dataset by method and epsilon, over all seeds and backbones."""
    pairs = list(dict.fromkeys((cell.method, cell.epsilon) for cell in study.list_cells(dataset)))
    delta, fits = study.dataset_delta(dataset), []
    with Progress(len(pairs), label="price of the choice", unit="plans") as progress:
        for method, epsilon in pairs:
            target = Target(
                n=release.n, unit=release.unit, epsilon=read_budget(epsilon), delta=delta,
                accountant=study.accountant, above=True,
            )  # fmt: skip
            there = {
                name: replace(each, epsilon=target.nominal_epsilon, delta=delta)
                for name, each in facts.items()
            }
            for options, backbones in _decide_methods(study.methods[method], study, there):
                try:
                    plan = plan_method(options, target, cache=cache, checked=False)
                except DpprobeError as error:
                    logger.info("%s at epsilon %s trains no head: %s", method, epsilon, error)
                else:
                    times = study.seeds * backbones
                    fits.append(
                        Fits(mechanisms=plan.mechanisms, times=times, selection=plan.selection)
                    )
            progress.advance_by(1)
    return fits


def _decide_methods(
    method: MethodOptions, study: Study, facts: Mapping[str, DataFacts]
) -> list[tuple[MethodOptions, int]]:
    """Returns a method, or the choices of `auto`, each with its number of backbones."""
    if not is_undecided(method):
        return [(method, len(study.backbones))]
    return [(method.resolve_choice(facts[backbone]), 1) for backbone in study.backbones]


class Steps(PartSteps):
    """Has no steps: `release.make` itself writes the block `choice` of every release."""


# verification and words

_ANY = "@"
CHOICE_KEYS = {"cells", "epsilon", "words"}


def check_choice(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    if facts.is_of_estimator:
        expected = fits_block(read_whole("releases", values["ledger"]["releases"]))
        require_same("choice", expected, values["choice"])
        return expected["words"], True
    block = read_block("choice", values["choice"], CHOICE_KEYS)
    cells, epsilon, words = block["cells"], block["epsilon"], str(block["words"])
    require_true(cells == 0 or read_whole("cells", cells) > 0, "cells: not a number")
    if epsilon is not None:
        require_true(cells > 0, "has an epsilon but no cells")
        require_true(
            read_real("epsilon", epsilon) > plan.realised_epsilon,
            f"epsilon {epsilon:g}: must be above the release's own epsilon, because it also covers "
            "the choice",
        )
    if epsilon is not None or (cells == 0 and NOT_COVERED not in words):
        require_same("words", choice_words(cells, epsilon, delta=plan.delta), block["words"])
    else:
        without_price = (
            choice_words(cells, None, [_ANY]),
            choice_words(cells, None, unknown=[_ANY]),
        )
        begins = tuple(text.partition(_ANY)[0] for text in without_price)
        require_true(
            words.startswith(begins) and words.endswith(TEST_UNITS),
            "words: must say that the choice is not covered",
        )
    return words, True


READER = PartReader("choice", check_choice, "values", "plan", "facts", always=True)
