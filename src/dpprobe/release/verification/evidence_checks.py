"""Checks the parts of a statement besides the guarantee: evaluation, choice, ledger and audit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.accountants import exactly_priced
from dpprobe.privacy.calibration import price_plan, second_opinions
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement import mechanism_values
from dpprobe.release import calibration_release as calibrations
from dpprobe.release import documents
from dpprobe.release import evaluation as evaluations
from dpprobe.release import monitor_release as monitors
from dpprobe.release import release_choice_price as choices
from dpprobe.release.audit_evidence import Evidence
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.class_recalls import CLASS_COUNTS, estimate_recalls
from dpprobe.release.cohorts import describe_cohort
from dpprobe.release.evaluation import COUNTS
from dpprobe.release.monitor import list_edges
from dpprobe.release.site_part import describe_sites
from dpprobe.release.verification.stated import (
    Values,
    is_hash,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.verification.stated_plan import (
    CHECK_TOLERANCE,
    read_mechanism,
    require_bounded,
)
from dpprobe.training.plan_file import PRICE_TOLERANCE

LEDGER_TOLERANCE = 1e-4
# A source's own split, or the rule of one that was made here.
SPLIT_WORDS = r"(source|id, seed \d+, fraction 0\.\d+)"
_ANY = "@"
# Deviations of noise that never occur.
_RARE = 8.0

EVALUATION_KEYS = {
    "metric", "value", "interval", "standard_error", "n", "epsilon", "epsilon_target", "delta",
    "mechanisms", "released", "composition",
}  # fmt: skip
RECALL_KEYS = {CLASS_COUNTS, "worst_class"}
DERIVED_KEYS = {"scale", "offset", "sets", "reliability", "abstention"}
TWO_CLASS_KEYS = {"cut_offs", "net_benefit"}
COHORT_KEYS = {"name", "place", "horizon", "units", "noise_growth", "earlier", "words"}
SITES_KEYS = {
    "names", "packed_by", "aggregator", "colluders", "agreement", "smallest_share", "coordinates",
    "log10_penalty", "words",
}  # fmt: skip
MONITOR_KEYS = {
    "tables", "edges", "n", "epsilon", "epsilon_target", "delta", "mechanisms", "composition",
}  # fmt: skip
CHOICE_KEYS = {"cells", "epsilon", "words"}
LEDGER_KEYS = {"entry", "releases", "unit", "delta", "epsilon", "exact"}


def check_evidence(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that a stated audit does not refute the guarantee."""
    if values["evidence"] is None:
        return "no audit is stated", True
    evidence = Evidence.model_validate(values["evidence"])
    require_true(
        evidence.epsilon_lower <= plan.realised_epsilon,
        f"epsilon_lower {evidence.epsilon_lower:g} is above the stated epsilon",
    )
    return "the bundle states an audit, whose numbers cannot be checked from the bundle", True


def check_cohort(values: Values, plan: Plan) -> tuple[str, bool]:
    """Derives the block `cohort` again from its names, its horizon and the numbers of units."""
    block = read_block("cohort", values["cohort"], COHORT_KEYS)
    for place, one in enumerate(block["earlier"]):
        read_block(f"cohort.earlier.{place}", one, {"release", "cohort", "n"})
        read_whole(f"cohort.earlier.{place}.n", one["n"])
        require_true(
            all(isinstance(one[key], str) for key in ("release", "cohort")), "cohort: not a name"
        )
    expected = describe_cohort(
        block["name"], block["earlier"], horizon=block["horizon"], n=plan.n, unit=plan.unit
    )
    require_same("cohort", expected, block)
    before = values.get("predecessor") or {"name": None}
    last = block["earlier"][-1]["release"] if block["earlier"] else before["name"]
    require_true(
        before["name"] == last,
        f"cohort: the sums are those of {last}, which is not the predecessor",
    )
    return f"number {block['place']} of its chain, {block['units']:,} {plan.unit}s", True


def check_sites(values: Values, plan: Plan) -> tuple[str, bool]:
    """Derives the block `sites` again from its names, its mode and its smallest share of noise."""
    block = read_block("sites", values["sites"], SITES_KEYS)
    names, aggregator = block["names"], block["aggregator"]
    require_true(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        and len(names) == len(set(names)) >= 2 and names == sorted(names),
        "names: not those of two or more sites, in their order",
    )  # fmt: skip
    for key in ("packed_by", "aggregator"):
        named = block[key] in names or (key == "aggregator" and block[key] is None)
        require_true(named, f"{key}: not one of the sites")
    require_true(is_hash(block["agreement"]), "agreement: not a SHA-256")
    colluders = read_whole("colluders", block["colluders"], largest=len(names) - 1)
    share = None if aggregator else read_real("smallest_share", block["smallest_share"])
    expected = describe_sites(
        names,
        packed_by=block["packed_by"],
        aggregator=aggregator,
        colluders=colluders,
        agreement=block["agreement"],
        smallest_share=share,
        coordinates=read_whole("coordinates", block["coordinates"], largest=2**50),
        unit=plan.unit,
    )
    require_same("sites", expected, block)
    trusted = f"{aggregator} is trusted" if aggregator else f"{colluders} may collude"
    return f"{len(names)} sites, of which {trusted}", True


def check_evaluation(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Checks a published test result, its words and its epsilon."""
    if values["evaluation"] is None:
        return "no test result is published", True
    metric = values["evaluation"]["metric"]
    require_true(
        metric in documents.METRICS, f"metric {metric!r}: releases do not have this metric"
    )
    more = RECALL_KEYS if metric == "macro_accuracy" else set()
    if "calibration" in values and metric == "auc":
        more = {COUNTS}
    block = read_block("evaluation", values["evaluation"], EVALUATION_KEYS | more)
    tested = _make_tested_plan(block, plan)
    evaluations.check_evaluation_plan(
        tested, metric, classes=len(facts.class_names), multi_label=facts.multi_label
    )
    cost = _test_price(tested)
    expected = [mechanism_values(item, tested) for item in tested.mechanisms]
    require_same("mechanisms", expected, block["mechanisms"])
    _check_result(block, tested, facts.class_names)
    words = re.escape(evaluations.composition_words(plan, tested, split=_ANY))
    require_true(
        re.fullmatch(words.replace(re.escape(_ANY), SPLIT_WORDS), str(block["composition"]))
        is not None,
        "composition: differs from the costs of head and test result",
    )
    return f"{documents.state_measured(block)}, epsilon {cost:.6g} on {tested.n} test units", True


def check_calibration(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Computes all that a calibration publishes again from its noisy counts, and its epsilon."""
    stated = values["calibration"]
    two, noisy = len(facts.class_names) == 2, stated
    wanted = calibrations.calibration_mechanisms(
        classes=len(facts.class_names), multi_label=facts.multi_label
    )
    keys = DERIVED_KEYS | {"n", "epsilon", "composition"} | (TWO_CLASS_KEYS if two else set())
    cost: float | None = None
    if stated["epsilon"] is None:
        noisy = values["evaluation"]
        tested = _make_tested_plan(noisy, plan)
        read_block("calibration", stated, keys)
        require_same("composition", calibrations.OF_THE_AUC, stated["composition"])
    else:
        tables = {mechanism.name for mechanism in wanted}
        read_block("calibration", stated, keys | tables | {"epsilon_target", "delta", "mechanisms"})
        tested = _make_tested_plan(stated, plan)
        cost = _test_price(tested)
        require_same("delta", plan.delta, stated["delta"])
        expected = [mechanism_values(item, tested) for item in tested.mechanisms]
        require_same("mechanisms", expected, stated["mechanisms"])
        block = values["evaluation"]
        together = calibrations.compose_test_price(block and _make_tested_plan(block, plan), tested)
        words = calibrations.calibration_words(plan.unit, tested, together or tested)
        require_same("composition", words, stated["composition"])
        evaluations.check_mechanisms(tested, wanted, calibrations.OTHER_PLAN)
    require_same("n", tested.n, stated["n"])
    if values["evaluation"]:
        require_same("n", values["evaluation"]["n"], stated["n"])
    derived = calibrations.describe_calibration(noisy, tested.mechanisms, tested.n)
    for name, value in derived.items():
        require_true(_agree(value, stated[name]), f"{name}: does not follow from the noisy counts")
    price = "no further epsilon" if cost is None else f"epsilon {cost:.6g}"
    return (
        f"probabilities and sets follow from noisy counts, {price} on {tested.n} test units",
        True,
    )


def check_monitor(
    values: Values, plan: Plan, facts: BundleFacts, options: MethodOptions
) -> tuple[str, bool]:
    """Checks the ranges, prices and totals of the tables for new images."""
    block = read_block("monitor", values["monitor"], MONITOR_KEYS)
    unusual = monitors.count_typical(plan, options.normalize, facts.dimension) > 0
    tested = _make_tested_plan(block, plan)
    evaluations.check_mechanisms(
        tested, monitors.monitor_mechanisms(unusual=unusual), monitors.OTHER_PLAN
    )
    cost = _test_price(tested)
    require_same("delta", plan.delta, block["delta"])
    expected = [mechanism_values(item, tested) for item in tested.mechanisms]
    require_same("mechanisms", expected, block["mechanisms"])
    for other in _list_tested(values, plan):
        require_same("n", other.n, block["n"])
    together = calibrations.compose_test_price(*_list_tested(values, plan)) or tested
    words = monitors.monitor_words(plan.unit, tested, together)
    require_same("composition", words, block["composition"])
    edges = list_edges(facts.backbone.probe["norm"], unusual=unusual)
    require_true(_agree(edges, block["edges"]), "edges: not those of the tables")
    sizes = monitors.table_sizes(len(facts.class_names), edges)
    tables = read_block("tables", block["tables"], set(sizes))
    _check_totals(tables, sizes, tested)
    return f"new images can be compared with {tested.n} test units, epsilon {cost:.6g}", True


def _check_totals(tables: Values, sizes: Mapping[str, int], tested: Plan) -> None:
    """Compares the totals of tables, which all count these rows, apart from noise."""
    (item,) = tested.mechanisms
    deviation, totals = item.noise_scale, {}
    for name, size in sizes.items():
        counts = [read_real(name, each) for each in tables[name]]
        require_true(len(counts) == size, f"{name}: {len(counts)} cells instead of {size}")
        totals[name] = (math.fsum(counts), size)
    for name, (total, size) in totals.items():
        # n may be above all totals: null rows count nothing
        bounds = [(float(tested.n), size), *((each, size + of) for each, of in totals.values())]
        require_true(
            all(total <= most + _RARE * deviation * math.sqrt(cells) for most, cells in bounds),
            f"{name}: {total:.0f} test units, more than n or another table has",
        )


def _agree(value: object, stated: object) -> bool:
    """Returns True for equal values of JSON, but for last digits of numbers."""
    if isinstance(value, dict) and isinstance(stated, dict):
        return value.keys() == stated.keys() and all(_agree(value[k], stated[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(stated, list | tuple):
        return len(value) == len(stated) and all(map(_agree, value, stated))
    if isinstance(value, str) or isinstance(stated, str):
        return value == stated
    return bool(np.isclose(read_real("", value), read_real("", stated), rtol=1e-4, atol=1e-9))


def _list_tested(values: Values, plan: Plan) -> list[Plan]:
    """Returns the plans of all that read the test units."""
    blocks = (values["evaluation"], values.get("calibration"), values.get("monitor"))
    return [_make_tested_plan(block, plan) for block in blocks if block and "mechanisms" in block]


def _make_tested_plan(block: Values, plan: Plan) -> Plan:
    return require_bounded(
        Plan(
            mechanisms=tuple(read_mechanism(item) for item in block["mechanisms"]),
            n=read_whole("n", block["n"]),
            unit=plan.unit,
            epsilon=read_real("epsilon_target", block["epsilon_target"]),
            delta=read_real("delta", block["delta"]),
            accountant="pld",
            realised_epsilon=read_real("epsilon", block["epsilon"]),
        )
    )


def _test_price(tested: Plan) -> float:
    """Prices an evaluation exactly, since it never samples, and by the other libraries."""
    cost = price_plan(tested)
    require_true(
        math.isclose(tested.realised_epsilon, cost, rel_tol=PRICE_TOLERANCE),
        f"epsilon {tested.realised_epsilon:g} is stated, but {cost:.6g} is computed",
    )
    require_true(
        math.isclose(tested.epsilon, cost, rel_tol=CHECK_TOLERANCE),
        f"epsilon_target {tested.epsilon:g} is stated, but epsilon {cost:.6g} is computed",
    )
    _, others, _ = second_opinions(replace(tested, realised_epsilon=min(cost, tested.epsilon)))
    require_true(
        all(value is None or value >= 0.99 * cost for value in others.values()),
        f"epsilon {cost:.6g}, but other libraries compute {others}",
    )
    return cost


def _check_result(block: Values, tested: Plan, class_names: Sequence[str]) -> None:
    low, high = (read_real("interval", end) for end in block["interval"])
    value = read_real("value", block["value"])
    error = read_real("standard_error", block["standard_error"])
    require_true(
        0 <= low <= value <= high <= 1 and low < high and error > 0,
        f"value {value:g} with interval {low:g} to {high:g}, standard error {error:g}",
    )
    stated = evaluations.Estimate(value, low, high, error)
    deviation = tested.mechanisms[0].noise_scale
    if block["metric"] == "macro_accuracy":
        _check_recalls(block, tested, deviation, class_names)
        return
    if COUNTS in block:
        counts = np.array(block[COUNTS]["counts"], float)[None]
        computed, remark = evaluations.area_estimate(counts, tested.mechanisms[-1].noise_scale)
        require_true(
            np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
            f"value {value:g}, interval {low:g} to {high:g}: do not follow from {COUNTS}",
        )
        words = evaluations.released_words("auc", computed, tested, remark)
        require_same("released", words, block["released"])
        return
    words = evaluations.released_words(block["metric"], stated, tested)
    if block["metric"] == "auc":  # with a remark on labels between the sentences
        first = words.split(". ")[0]
        require_true(str(block["released"]).startswith(first), f"released: not {first!r} first")
        return
    require_same("released", words, block["released"])
    computed = evaluations.accuracy_estimate(value, tested.n, deviation)
    require_true(
        np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
        f"interval {low:g} to {high:g}, standard error {error:g}; of this value and noise they "
        f"are {computed.low:g} to {computed.high:g}, {computed.standard_error:g}",
    )


def _check_recalls(
    block: Values, tested: Plan, deviation: float, class_names: Sequence[str]
) -> None:
    """Computes a macro accuracy and the worst class's recall again from the noisy counts."""
    counts = [[read_real(CLASS_COUNTS, each) for each in row] for row in block[CLASS_COUNTS]]
    shape = np.shape(counts)
    require_true(shape == (len(class_names), 2), f"{CLASS_COUNTS}: not two numbers for each class")
    recalls = estimate_recalls(counts, deviation)
    computed, remark = evaluations.summarise_recalls(recalls, class_names)
    name, numbers = _name_and_numbers(block["worst_class"])
    wanted_name, wanted = _name_and_numbers(evaluations.worst_values(recalls, class_names))
    stated = [block["value"], *block["interval"], block["standard_error"], *numbers]
    require_true(
        name == wanted_name and np.allclose(stated, [*computed, *wanted], rtol=1e-6, atol=1e-6),
        f"value {block['value']:g}: the value and the worst class do not follow from "
        f"{CLASS_COUNTS}",
    )
    words = evaluations.released_words(block["metric"], computed, tested, remark)
    require_same("released", words, block["released"])


def _name_and_numbers(worst: Values | None) -> tuple[str | None, list[float]]:
    if worst is None:
        return None, [0.0] * 3
    low, high = worst["interval"]
    return str(worst["name"]), [
        read_real("worst_class", each) for each in (worst["recall"], low, high)
    ]


def check_choice(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks the words and the epsilon of choosing this head among others."""
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
    if epsilon is not None or (cells == 0 and choices.NOT_COVERED not in words):
        require_same(
            "words", choices.choice_words(cells, epsilon, delta=plan.delta), block["words"]
        )
    else:
        without_price = (
            choices.choice_words(cells, None, [_ANY]),
            choices.choice_words(cells, None, unknown=[_ANY]),
        )
        begins = tuple(text.partition(_ANY)[0] for text in without_price)
        require_true(
            words.startswith(begins) and words.endswith(choices.TEST_UNITS),
            "words: must say that the choice is not covered",
        )
    return words, True


def check_ledger(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that the total of all releases is at least the cost of this release."""
    block = read_block("ledger", values["ledger"], LEDGER_KEYS)
    entry, count = (read_whole(name, block[name]) for name in ("entry", "releases"))
    require_same("unit", plan.unit, block["unit"])
    require_same("delta", plan.delta, block["delta"])
    require_true(isinstance(block["exact"], bool), "exact: neither true nor false")
    total = read_real("epsilon", block["epsilon"])
    tested = values["evaluation"]
    sides = [plan.realised_epsilon]
    if tested and tested["delta"] == plan.delta:
        sides.append(read_real("evaluation.epsilon", tested["epsilon"]))
    if len(plans := _list_tested(values, plan)) > bool(tested):
        together = calibrations.compose_test_price(*plans)
        sides += [] if together is None else [together.realised_epsilon]
    least = max(sides)
    known = exactly_priced(plan.mechanisms, plan.selection) or least > plan.realised_epsilon
    require_true(
        known or not block["exact"],
        "exact: true, but with samples or repeats epsilon is only a bound",
    )
    require_true(
        total >= least * (1 - LEDGER_TOLERANCE),
        f"epsilon {total:g}: less than this release alone costs, {least:g}",
    )
    if count == 1 and block["exact"]:
        require_true(
            total <= least * (1 + LEDGER_TOLERANCE),
            f"epsilon {total:g}: only one release, which costs {least:g}",
        )
    more = "exactly" if block["exact"] else "at most"
    releases = "1 release costs" if count == 1 else f"{count} releases together cost"
    return f"entry {entry}; {releases} {more} epsilon {total:g}, as the ledger said", True
