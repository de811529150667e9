"""Computes the privacy cost of choosing a release by a study's results on the same units.

**Bound.** A release chosen after seeing a benchmark is a function of the benchmark's heads, their
test results, and the released head. To training units the choice costs at most as much as
publishing all heads of the benchmark and the release. The cost of publishing all heads is the
composition of all mechanisms, for every seed and backbone, at the release's delta. The bound equals
`dpprobe.results.best_head_price` over all epsilons, with one more fit. If a cell is not private,
the choice has no finite epsilon, because the cell may reveal all rows.

**What counts.** A person may be in several datasets, and a study's file may have listed other cells
before. So all datasets with units of the release's dataset count: by `same_units_as`, or as
subsamples and copies with rare classes. All cells and analyses in the results folder count too. A
unit is assumed to be a training unit in all of them, which is an upper bound. Another dataset has
no price for the units if its unit of privacy differs, or if labels or images decide who is a
training unit.

**Seeded noise.** The bound assumes noise that nobody can recompute. A benchmark's noise follows
from the study and the fingerprint of its data. So the bound holds against attackers who lack the
study or the data. Against an attacker who knows the study and all other units, the bound does not
hold; the statement says so.

`auto` chooses a head from each backbone's features. If features are missing, the mechanisms are
unknown, and no epsilon is stated.

The bound does not cover test units, because benchmarks print test results without noise. Cells
whose noise cannot be calibrated are left out, because they have no head.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpprobe.counted_nouns import count_noun
from dpprobe.data.promise_facts import promise_facts
from dpprobe.errors import DataError, DpprobeError, StoreError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.accountants import Fits, all_together
from dpprobe.privacy.limits import INFINITE, round_up
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.statement_words import format_epsilon, format_small
from dpprobe.privacy.target import Target
from dpprobe.privacy.unit_words import UnitWords, words_of_statement
from dpprobe.progress import Progress
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.parts.choice import fits_block, results_there
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.transport import Block
from dpprobe.study.study import Cell, Study
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import plan_method

logger = logging.getLogger("dpprobe")

# Reasons for a missing epsilon; "unstated" in statements of version 2, which lack the fact.
NOT_PRIVATE, NOT_KNOWN, UNSTATED = "not_private", "not_known", "unstated"
# The most names that a statement lists per reason; further names are only counted.
_NAMED = 3
# Noise multipliers of two calibrations to the same target differ by less.
_SAME_NOISE = 1e-6


def choice_block(
    study: Study,
    *,
    dataset: str,
    plan: Plan,
    cache: Path,
    known: Mapping[str, Mapping[str, DataFacts]] | None = None,
    joined: Collection[str] = (),
) -> dict[str, Any]:
    """Bounds the cost of choosing a release among a study's results; returns the block `choice`.

    All cells of the dataset and of datasets with the same units count, if the study lists them or
    its results folder has them. The block's epsilon is the bound at the release's delta. It is None
    without cells, or if some results are not private or unknown; `uncovered` names these results.

    Args:
      known: the facts from which `auto` chooses, per dataset and backbone with features.
      joined: datasets whose ledgers are added to the ledger of `dataset`.
    """
    known = known or {}
    sharing = results_there.list_sharing(study, dataset, joined)
    laid = dict(results_there.read_cells(study, [*sharing, *results_there.list_unlisted(study)]))
    listed = study.list_cells(*sharing)
    exposed = _not_private(study, dataset, sharing, laid)
    unknown = _not_known(study, sharing, known)
    if exposed or unknown:
        reason = {"reason": NOT_PRIVATE if exposed else NOT_KNOWN}
        named = exposed or unknown
        uncovered = {**reason, "results": named[:_NAMED], "more": max(0, len(named) - _NAMED)}
        return {"cells": len({*listed, *laid}), "epsilon": None, "uncovered": uncovered}
    planned = dict(_plan_cells(study, sharing, plan, cache, known))
    fits = [
        fit for cell in {**planned, **laid} for fit in _together(planned.get(cell), laid.get(cell))
    ]
    if not fits:
        return {"cells": 0, "epsilon": None, "uncovered": None}
    release = Fits(mechanisms=plan.mechanisms, times=1, selection=plan.selection)
    epsilon = round_up(all_together([*_merge(fits), release], plan.delta)[0])
    return {"cells": len({**planned, **laid}), "epsilon": epsilon, "uncovered": None}


def _not_known(
    study: Study, datasets: Sequence[str], known: Mapping[str, Mapping[str, DataFacts]]
) -> list[dict[str, Any]]:
    """Lists the cells of the study whose mechanisms are unknown until features are extracted."""
    return [
        _name_result(datasets[0], dataset, "method", f"{backbone}/{name}")
        for dataset in datasets
        for backbone in study.backbones
        for name, method in study.methods.items()
        if (method.is_undecided and backbone not in known.get(dataset, {}))
        or (dataset != datasets[0] and not known.get(dataset) and _depends_on_n(method))
    ]


def _depends_on_n(method: MethodOptions) -> bool:
    """Returns True if a private method's mechanisms depend on the number of units."""
    if not method.private:
        return False
    try:
        few, many = ({_bare(m) for m in method.list_mechanisms(n)} for n in (10**6, 10**7))
    except DpprobeError:
        return True
    return few != many


def _bare(mechanism: Mechanism) -> tuple[object, ...]:
    return mechanism.name, mechanism.sample_rate, mechanism.count, mechanism.noise_multiplier


def _other_rule(study: Study, other: str, unit: str) -> str | None:
    """Returns why the costs of fits on another dataset cannot be added up; None if they can."""
    if study.dataset_unit(other) != unit:
        return "other_unit"
    facts = promise_facts(study.datasets[other])
    if facts.list_promise_faults("patient"):
        return "labels_decide"
    if facts.list_promise_faults(unit):
        return "images_move_in"
    return None


def _not_private(
    study: Study, dataset: str, sharing: Sequence[str], laid: Mapping[Cell, Fits | None]
) -> list[dict[str, Any]]:
    """Lists results, in the study or its folder, that use training units without privacy."""
    unit = study.dataset_unit(dataset)
    cells = (
        (cell.dataset, "cell", f"{cell.backbone}/{cell.method}/eps-{cell.epsilon}")
        for cell in {**dict.fromkeys(study.list_cells(*sharing)), **laid}
        if laid.get(cell, True) is None or _is_exposed(study, cell)
    )
    everywhere = [*sharing, *results_there.list_unlisted(study)]
    analyses = (
        (other, "analysis", name) for other, name in results_there.list_unpriced(study, everywhere)
    )
    rules = (
        (other, rule, None) for other in sharing[1:] if (rule := _other_rule(study, other, unit))
    )
    found = dict.fromkeys([*cells, *analyses, *rules])
    return [_name_result(dataset, other, kind, name) for other, kind, name in found]


def _is_exposed(study: Study, cell: Cell) -> bool:
    method = study.methods.get(cell.method.partition(results_there.FORMER)[0])
    if cell.epsilon == INFINITE:
        return True
    return method is not None and bool(not method.private or method.private_choices)


def _name_result(dataset: str, other: str, kind: str, name: str | None) -> dict[str, Any]:
    """Describes a result, or a whole dataset; omits `dataset` if it is the release's dataset."""
    named = {} if name is None else {"name": name}
    return {"kind": kind, **({} if other == dataset else {"dataset": other}), **named}


def _plan_cells(
    study: Study,
    sharing: Sequence[str],
    release: Plan,
    cache: Path,
    known: Mapping[str, Mapping[str, DataFacts]],
) -> Iterator[tuple[Cell, Fits]]:
    """Yields the fits of each listed cell whose noise can be calibrated, over all seeds."""
    pairs = list(dict.fromkeys((cell.method, cell.epsilon) for cell in study.list_cells(*sharing)))
    with Progress(len(pairs) * len(sharing), label="price of the choice", unit="plans") as progress:
        for dataset, (method, epsilon) in itertools.product(sharing, pairs):
            facts, delta = known.get(dataset, {}), study.dataset_delta(dataset)
            there = next(iter(facts.values()), None)
            # a cell uses the dataset's metric, a release the metric that it publishes
            cells = {"delta": delta, "metric": study.datasets[dataset].metric}
            target = Target(
                n=release.n if dataset == sharing[0] or there is None else there.n,
                unit=release.unit,
                epsilon=read_budget(epsilon),
                delta=delta,
                accountant=study.accountant,
                above=True,
            )
            for options, backbones in _decide_methods(
                study.methods[method], study, facts, cells | {"epsilon": target.nominal_epsilon}
            ):
                try:
                    plan = plan_method(options, target, cache=cache, checked=False)
                except DpprobeError as error:
                    logger.info("%s at epsilon %s trains no head: %s", method, epsilon, error)
                    continue
                fits = Fits(mechanisms=plan.mechanisms, times=study.seeds, selection=plan.selection)
                for backbone in backbones:
                    yield Cell(dataset, backbone, method, epsilon), fits
            progress.advance_by(1)


def _decide_methods(
    method: MethodOptions, study: Study, facts: Mapping[str, DataFacts], more: Mapping[str, Any]
) -> list[tuple[MethodOptions, list[str]]]:
    """Returns a method, or each choice of `auto`, with the backbones where it applies."""
    if not method.is_undecided:
        return [(method, list(study.backbones))]
    return [
        (method.resolve_choice(replace(facts[each], **more)), [each]) for each in study.backbones
    ]


def _together(planned: Fits | None, laid: Fits | None) -> list[Fits]:
    """Returns the planned fits of a cell, and the fits in its files if they differ."""
    fits = [each for each in (planned, laid) if each is not None]
    if planned is None or laid is None or not _are_alike(planned, laid):
        return fits
    return [replace(planned, times=max(planned.times, laid.times))]


def _are_alike(one: Fits, other: Fits) -> bool:
    if one.selection != other.selection or len(one.mechanisms) != len(other.mechanisms):
        return False
    return all(
        (a.name, a.sample_rate, a.count) == (b.name, b.sample_rate, b.count)
        and math.isclose(a.noise_multiplier, b.noise_multiplier, rel_tol=_SAME_NOISE)
        for a, b in zip(one.mechanisms, other.mechanisms, strict=True)
    )


def _merge(fits: Sequence[Fits]) -> list[Fits]:
    """Merges equal fits and adds up their numbers, which saves time."""
    times: dict[Fits, int] = {}
    for each in fits:
        kind = replace(each, times=1)
        times[kind] = times.get(kind, 0) + each.times
    return [replace(kind, times=count) for kind, count in times.items()]


class Steps(PartSteps):
    slow = True

    def check(self) -> Block:
        release, dataset = self.release, self.release.options.dataset
        joined = release.ledger.list_added()
        sharing = results_there.list_sharing(release.study, dataset, joined)
        return choice_block(
            release.study,
            dataset=dataset,
            plan=self.planned.plan,
            cache=release.cache,
            known={name: self.list_facts(name) for name in sharing},
            joined=joined,
        )

    def list_facts(self, dataset: str) -> dict[str, DataFacts]:
        """Returns the facts of fits on a dataset, for each backbone with stored features."""
        release, planned, own = self.release, self.planned, dataset == self.release.options.dataset
        facts = {release.options.backbone: planned.facts} if own else {}
        for name in release.study.backbones:
            # <features>/<dataset>/<backbone>/train/manifest.json
            manifest = Path(*release.train.parts[:-4], dataset, name, *release.train.parts[-2:])
            with suppress(StoreError, DataError):
                store = FeatureStore(manifest)
                if own:
                    facts.setdefault(name, replace(planned.facts, dimension=store.dimension))
                else:
                    inputs = FitInputs(store, release.study.dataset_unit(dataset))
                    target = replace(planned.target, n=inputs.n, patients=None)
                    facts[name] = inputs.read_facts(target)
        return facts


# verification and words

CHOICE_KEYS = {"cells", "epsilon", "uncovered"}


def check_choice(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Checks the form of a choice, and that its epsilon exceeds the release's own epsilon."""
    if facts.is_of_estimator:
        expected = fits_block(read_whole("releases", values["ledger"]["releases"]))
        require_same("choice", expected, values["choice"])
        return explain_choice(expected, values), True
    block = read_block("choice", values["choice"], CHOICE_KEYS)
    cells, epsilon, uncovered = block["cells"], block["epsilon"], block["uncovered"]
    require_true(cells == 0 or read_whole("cells", cells) > 0, "cells: not a number")
    if uncovered is not None:
        require_true(epsilon is None, "has an epsilon, although results are not covered")
        _check_uncovered(uncovered, earlier=values["format_version"] == 2)
    elif epsilon is None:
        require_true(cells == 0, "must have an epsilon, or say which results have none")
    else:
        require_true(cells > 0, "has an epsilon but no cells")
        require_true(
            read_real("epsilon", epsilon) > plan.realised_epsilon,
            f"epsilon {epsilon:g}: must be above the release's own epsilon, because it also covers "
            "the choice",
        )
    return explain_choice(block, values), True


def _check_uncovered(stated: Values, *, earlier: bool) -> None:
    if earlier and stated == {"reason": UNSTATED}:
        return
    block = read_block("uncovered", stated, {"reason", "results", "more"})
    require_true(block["reason"] in (NOT_PRIVATE, NOT_KNOWN), "uncovered: an unknown reason")
    read_whole("more + 1", block["more"] + 1)
    require_true(0 < len(block["results"]) <= _NAMED, "uncovered: names no result, or too many")
    for each in block["results"]:
        texts = set(each) <= {"kind", "dataset", "name"} and all(
            isinstance(text, str) for text in each.values()
        )
        require_true(texts and each["kind"] in RESULT_KINDS, "uncovered: an unknown kind of result")


# words

RESULT_KINDS = {  # names of uncovered results
    "cell": "{name}",
    "method": "{name}",
    "analysis": "{name}",
    "other_unit": "its unit of privacy is another",
    "labels_decide": "labels decide who is trained on",
    "images_move_in": "a removed {item} lets another {item} of its patient in",
}
_ELSEWHERE = (
    " Not covered: choices by results of other studies, by deleted or moved results, and by "
    "results of datasets with the same units that no `same_units_as` names."
)
_TEST_UNITS = (
    " The test results of these cells are exact, without noise: no epsilon covers their test "
    "units, also not a training unit of this release that is tested on there: as a copy, or in "
    "another of these datasets."
)


def explain_choice(block: Facts, statement: Facts) -> str:
    """States the cost of choosing a release by results on the same units, or why it is unknown."""
    if "other_fits" in block:
        return _explain_fits(block["other_fits"])
    cells, epsilon, uncovered = block["cells"], block["epsilon"], block["uncovered"]
    if uncovered is None and not cells:
        return (
            "The study trains no other head on this dataset, and its results folder held none when "
            f"this release was made: the folder had no result to choose by.{_ELSEWHERE}"
        )
    if uncovered is not None and uncovered["reason"] == UNSTATED:
        return (
            "The version of dpprobe that made this bundle states in the bundle's own documents "
            "whether a choice by other results is covered; no epsilon of a choice is stated."
        )
    words = (
        "This release costs its own epsilon alone if its backbone, method and epsilon were fixed "
        "before anyone saw a result on this dataset, and no benchmark decided whether to make it. "
        "Otherwise the following holds. The study trains, or its results folder holds, "
        f"{count_noun(cells, 'cell')} of this dataset or of datasets with the same units "
        "(combinations of dataset, backbone, method and epsilon). "
    )
    if uncovered is None:
        several = ""
        if statement.get("patients"):
            items = words_of_statement(statement).items
            several = (
                f" To a patient with several {items} the choice costs more; no bound is stated."
            )
        return (
            f"{words}If all their results decided which head to release, the cost to one training "
            f"unit is at most epsilon {format_epsilon(epsilon)} at delta "
            f"{format_small(statement['delta'])}, release included.{several} The bound holds "
            "against anyone who cannot recompute the noise of these cells. That noise comes from "
            "seeds, which follow from the study and its data: against someone who knows both "
            "except for one unit, the choice is not covered. This epsilon covers a choice by heads "
            "and test results only. Training-loss curves and t-SNE plots are computed from the "
            "training rows without noise: no epsilon covers a choice by them."
            f"{_ELSEWHERE}{_TEST_UNITS}"
        )
    unit = words_of_statement(statement)
    named = ", ".join(_describe_result(result, unit) for result in uncovered["results"])
    named += f" and {uncovered['more']} more" if uncovered["more"] else ""
    words += "No epsilon covers choosing this release by looking at their results: some are "
    if uncovered["reason"] == NOT_KNOWN:
        return (
            f"{words}not known yet ({named}). Extract their features first, because head auto "
            f"needs them for its choice.{_ELSEWHERE}{_TEST_UNITS}"
        )
    return (
        f"{words}not private ({named}). The epsilon of this head holds for the head as named. It "
        "does not cover a decision, made after a look at these results, to publish this head "
        "rather than another: that decision may reveal something about the training data, and no "
        "bound on this is known. A choice on public data costs nothing; for a choice in a study "
        f"without these cells an epsilon is computed.{_ELSEWHERE}{_TEST_UNITS}"
    )


def _explain_fits(others: int) -> str:
    if not others:
        return (
            "The budget of this head lists no other fit on this dataset. A choice by results of "
            "fits that the budget does not list, such as benchmarks, is not covered."
        )
    return (
        f"The budget of this head lists {count_noun(others, 'other fit')} on this dataset. If "
        "results of these fits decided to publish this head rather than another, as in a grid "
        "search, no epsilon covers that decision: scores on private rows have no noise. A choice "
        "by results of fits that the budget does not list, such as benchmarks, is not covered "
        "either."
    )


def _describe_result(result: Facts, unit: UnitWords) -> str:
    words = unit.fill(RESULT_KINDS[result["kind"]], {"name": result.get("name")})
    return f"{result['dataset']}: {words}" if "dataset" in result else words


READER = PartReader(
    "choice",
    check_choice,
    ("values", "plan", "facts"),
    always=True,
    values=lambda block, _, statement: {"choice": explain_choice(block, statement)},
)
