"""Verifies and shows a release's test result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.statement_words import format_epsilon
from dpprobe.privacy.unit_words import UnitWords, words_of_statement
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import SCORE_COUNTS
from dpprobe.release.parts.evaluation.class_recalls import (
    CLASS_COUNTS,
    Estimate,
    estimate_recalls,
)
from dpprobe.release.parts.evaluation.measure import (
    LARGEST_SCORE,
    LEFT_OUT,
    accuracy_estimate,
    area_estimate,
    evaluation_mechanisms,
    worst_values,
)
from dpprobe.release.parts.part import Facts, PartReader
from dpprobe.release.stated_plans import agree, read_tested
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)

METRICS = {"accuracy": "Accuracy", "auc": "AUC", "macro_accuracy": "Macro accuracy"}
# The widest 95% interval with which a test result is stated.
WIDEST_INTERVAL = 0.8
# The widest 95% interval that follows the value; wider intervals precede the value.
WIDE_INTERVAL = 0.1
# With a wider interval, documents state that test units are few for the epsilon.
_FEW = 0.2

EVALUATION_KEYS = {"metric", "value", "interval", "standard_error"}
RECALL_KEYS = {CLASS_COUNTS, "worst_class"}


def check_evaluation(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    if values["evaluation"] is None:
        return "the bundle states no test metric", True
    metric = values["evaluation"]["metric"]
    require_true(metric in METRICS, f"metric {metric!r}: releases do not have this metric")
    more = {"macro_accuracy": RECALL_KEYS, "auc": {LEFT_OUT}}.get(metric, set())
    if "calibration" in values and metric == "auc":
        more = more | {SCORE_COUNTS}
    wanted = list_wanted(values["evaluation"], facts)
    block, tested, cost = read_tested(
        "evaluation", values["evaluation"], EVALUATION_KEYS | more, plan, wanted
    )
    check_result(block, tested, facts.class_names)
    unit = words_of_statement(values)
    return f"{state_measured(block)}, epsilon {cost:.6g} on {tested.n} test {unit.many}", True


def list_wanted(block: Facts, facts: BundleFacts) -> tuple[Mechanism, ...]:
    """Returns the mechanisms of a test result, which depend on its metric."""
    return evaluation_mechanisms(
        block["metric"], classes=len(facts.class_names), multi_label=facts.multi_label
    )


def check_result(block: Values, tested: Plan, class_names: Sequence[str]) -> None:
    """Raises DataError for a result whose numbers do not follow from each other and the plan."""
    low, high = (read_real("interval", end) for end in block["interval"])
    value = read_real("value", block["value"])
    error = read_real("standard_error", block["standard_error"])
    require_true(
        0 <= low <= value <= high <= 1 and low < high and error > 0,
        f"value {value:g}: impossible with interval {low:g} to {high:g}, standard error {error:g}",
    )
    stated, deviation = Estimate(value, low, high, error), tested.mechanisms[0].noise_scale
    if block["metric"] == "macro_accuracy":
        _check_recalls(block, deviation, class_names)
    elif block["metric"] == "auc":
        _check_area(block, stated, tested, len(class_names))
    else:
        _require_estimate(stated, accuracy_estimate(value, tested.n, deviation))


def _require_estimate(stated: Estimate, computed: Estimate) -> None:
    require_true(
        np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
        f"value {stated.value:g}, interval {stated.low:g} to {stated.high:g} and standard error "
        f"{stated.standard_error:g} are stated, but {computed.value:g}, {computed.low:g} to "
        f"{computed.high:g} and {computed.standard_error:g} are computed",
    )


def _check_area(block: Values, stated: Estimate, tested: Plan, classes: int) -> None:
    """Recomputes an AUC if its noisy counts are published for a calibration."""
    left_out = block[LEFT_OUT]
    if SCORE_COUNTS not in block:
        read_whole(f"{LEFT_OUT} + 1", left_out + 1, largest=classes + 1)
        return
    counted = read_block(SCORE_COUNTS, block[SCORE_COUNTS], {"edges", "counts"})
    edges = [read_real("edges", each) for each in counted["edges"]]
    ends = [-LARGEST_SCORE, LARGEST_SCORE]
    require_true(
        edges == sorted(edges) and np.allclose([edges[0], edges[-1]], ends, rtol=1e-6),
        f"{SCORE_COUNTS}: edges must rise from {ends[0]:g} to {ends[1]:g}",
    )
    counts = np.array(counted["counts"], float)[None]
    computed, left = area_estimate(counts, tested.mechanisms[-1].noise_scale)
    _require_estimate(stated, computed)
    require_same(LEFT_OUT, left, left_out)


def _check_recalls(block: Values, deviation: float, class_names: Sequence[str]) -> None:
    """Recomputes a macro accuracy and the worst class's recall from the noisy counts."""
    counts = [[read_real(CLASS_COUNTS, each) for each in row] for row in block[CLASS_COUNTS]]
    shape, classes = np.shape(counts), len(class_names)
    require_true(shape == (classes, 2), f"{CLASS_COUNTS}: not two numbers for each class")
    computed, worst = estimate_recalls(counts, deviation)
    stated = [block["value"], *block["interval"], block["standard_error"], block["worst_class"]]
    require_true(
        agree([*computed, worst_values(worst, class_names)], stated, 1e-6),
        f"value {block['value']:g}: the value and the worst class do not follow from "
        f"{CLASS_COUNTS}",
    )


def is_telling(evaluation: Mapping[str, Any]) -> bool:
    """Returns False for a test result whose interval contains nearly all values."""
    low, high = evaluation["interval"]
    return bool(high - low <= WIDEST_INTERVAL)


def show_result(block: Facts | None, unit: UnitWords, statement: Facts) -> dict[str, Any]:
    """Returns a test result's values for documents; `telling` is False for a very wide interval."""
    if block is None:
        return {"evaluation": None, "measured": None, "telling": False}
    return {
        "evaluation": block,
        "released": _explain_result(block, unit),
        "composition": _explain_composition(block, unit, statement),
        "measured": state_measured(block),
        "telling": is_telling(block),
        "metric": METRICS[block["metric"]],
        "rounded": round_result(block),
    }


def _explain_result(block: Facts, unit: UnitWords) -> str:
    """Explains what was measured, what the metric leaves out, and a wide interval."""
    what = {
        "accuracy": "accuracy",
        "auc": "area under the ROC curve",
        "macro_accuracy": "macro accuracy (mean recall of the classes)",
    }[block["metric"]]
    tested = f"{block['n']:,} test {unit.many}"
    words = (
        f"The {what} on {tested}, computed from sums with Gaussian noise; the 95% confidence "
        f"interval covers the noise and the choice of test {unit.many}."
    )
    words += _explain_metric(block)
    low, high = block["interval"]
    if high - low > _FEW:
        epsilon = format_epsilon(block["epsilon"])
        words += f" The interval is wide: {tested} are few for an epsilon of {epsilon}."
    return words


def _explain_metric(block: Facts) -> str:
    if block["metric"] == "accuracy":
        # no number, because no mechanism releases the share of a class
        return (
            " A head that always predicts the most frequent class (of several labels, each label's "
            "more frequent answer) is right in that class's share of cases, which this result "
            "leaves out."
        )
    if block["metric"] == "macro_accuracy":
        if block["worst_class"] is None:
            return " At least one class has too few test units for any measurement."
        constant = 100 / len(block[CLASS_COUNTS])
        return f" A model that always predicts the same class scores {constant:.1f}%."
    left_out = block[LEFT_OUT]
    if left_out and block["interval"] == [0.0, 1.0]:
        return " Too few rows have the label, or lack it, for any measurement."
    if left_out:
        labels = "1 label is" if left_out == 1 else f"{left_out} labels are"
        return f" {labels} left out, too rare or too frequent to measure at this epsilon."
    return ""


def _explain_composition(block: Facts, unit: UnitWords, statement: Facts) -> str:
    """States the epsilons of training and test units; no image may be on both sides."""
    tested = statement["test_units"]
    split = tested["split"]
    drawn = (
        f", seed {split['public_seed']}, fraction {split['fraction']:g}" if len(split) > 1 else ""
    )
    at = " at its site" if "sites" in statement else ""
    return (
        f"Each {unit.one} that was read counts as a training or as a test {unit.one}{at} (split: "
        f"{split['by']}{drawn})"
        f"{_explain_comparison(tested['compared'], unit, statement)}. The head costs training "
        f"{unit.many} epsilon {format_epsilon(statement['epsilon_realised'])} and test {unit.many} "
        f"nothing; the test result costs test {unit.many} epsilon "
        f"{format_epsilon(block['epsilon'])} and training {unit.many} nothing. A person with other "
        f"{unit.items}, or under another name, pays for each {unit.one}, and for both sides."
    )


def _explain_comparison(compared: Sequence[str] | None, unit: UnitWords, statement: Facts) -> str:
    """States how training images were compared with test images.

    Each site compares its own images, and a statement has only the comparison of one site.
    """
    if not compared:
        return f"; this bundle states no comparison of the {unit.items} of both sides"
    sites = statement.get("sites")
    at = f"at {sites['packed_by']} " if sites else ""
    pixels = "" if "pixels" in compared else " (pixels were not compared)"
    others = ", and what other sites compared is not stated" if sites else ""
    return (
        f", and {at}no {unit.item} is on both sides with equal {' or '.join(compared)}{pixels}"
        f"{others}"
    )


def state_measured(evaluation: Mapping[str, Any]) -> str:
    """States the metric with its interval, such as "Accuracy 81.2% (95% CI 77.2 to 85.2%)"."""
    low, high = evaluation["interval"]
    metric, value = evaluation["metric"], evaluation["value"]
    if not is_telling(evaluation):
        return f"{METRICS[metric]} not measurable: its 95% CI is {low:.2f} to {high:.2f}"
    percent = metric != "auc"
    measured = f"{METRICS[metric]} {_with_interval(value, low, high, percent=percent)}"
    if worst := evaluation.get("worst_class"):
        measured += f"; {_state_worst(worst, value)}"
    return measured


def round_result(evaluation: Mapping[str, Any]) -> float:
    """Rounds a test result so that one unit of its last digit is at most a tenth of the CI."""
    low, high = evaluation["interval"]
    digits = 1 + math.ceil(-math.log10(max(high - low, 1e-4)))
    return round(float(evaluation["value"]), digits)


def _state_worst(worst: Mapping[str, Any], mean: float) -> str:
    """States worst-class recall; names no class if noise may have decided which is worst."""
    low, high = worst["interval"]
    if high >= mean:
        return (
            "too few test units to tell which class is worst (95% CI of worst-class recall: "
            f"{100 * low:.1f} to {100 * high:.1f}%)"
        )
    recall = _with_interval(worst["recall"], low, high, percent=True)
    return f"worst-class recall {recall}, class {worst['name']}"


def _with_interval(value: float, low: float, high: float, *, percent: bool) -> str:
    """Formats a value with its interval; a wide interval precedes the value."""
    shown, least, most = (f"{100 * x:.1f}" if percent else f"{x:.3f}" for x in (value, low, high))
    sign = "%" if percent else ""
    if high - low > WIDE_INTERVAL:
        return f"between {least} and {most}{sign} (95% CI; measured with noise: {shown}{sign})"
    return f"{shown}{sign} (95% CI {least} to {most}{sign})"


READER = PartReader(
    "evaluation",
    check_evaluation,
    ("values", "plan", "facts"),
    always=True,
    values=show_result,
    wanted=list_wanted,
)
