"""Verifies and shows a release's test result."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import SCORE_COUNTS
from dpprobe.release.parts.evaluation.class_recalls import (
    CLASS_COUNTS,
    Estimate,
    estimate_recalls,
)
from dpprobe.release.parts.evaluation.measure import (
    LARGEST_SCORE,
    accuracy_estimate,
    area_estimate,
    composition_words,
    evaluation_mechanisms,
    recall_remark,
    released_words,
    worst_values,
)
from dpprobe.release.parts.part import PartReader, Words
from dpprobe.release.stated_plans import agree, read_tested
from dpprobe.release.stated_values import Values, read_real, require_same, require_true

METRICS = {"accuracy": "Accuracy", "auc": "AUC", "macro_accuracy": "Macro accuracy"}
# The widest 95% interval of a test result that is stated at all.
WIDEST_INTERVAL = 0.8
# The widest 95% interval of a result that is stated as a value; wider intervals precede the value.
WIDE_INTERVAL = 0.1
# The rule of a split: the split of the data source, or a split that dpprobe made by ids.
SPLIT_WORDS = r"(source|id, seed \d+, fraction 0\.\d+)"
# Remarks after the first sentence on an AUC: labels that `area_estimate` leaves out.
AREA_REMARK = (
    r"( Left out( of \d+ labels)?, because they are too rare to measure at this epsilon: \d+\.)?"
    r"( One of the two kinds has too few rows for any measurement\.)?"
)
_ANY = "@"

EVALUATION_KEYS = {"metric", "value", "interval", "standard_error", "released"}
RECALL_KEYS = {CLASS_COUNTS, "worst_class"}


def check_evaluation(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    if values["evaluation"] is None:
        return "no test result is published", True
    metric = values["evaluation"]["metric"]
    require_true(metric in METRICS, f"metric {metric!r}: releases do not have this metric")
    more = RECALL_KEYS if metric == "macro_accuracy" else set()
    if "calibration" in values and metric == "auc":
        more = {SCORE_COUNTS}
    wanted = evaluation_mechanisms(
        metric, classes=len(facts.class_names), multi_label=facts.multi_label
    )
    block, tested, cost = read_tested(
        "evaluation", values["evaluation"], EVALUATION_KEYS | more, plan, wanted
    )
    _check_result(block, tested, facts.class_names)
    words = re.escape(composition_words(plan, tested, split=_ANY))
    require_true(
        re.fullmatch(words.replace(re.escape(_ANY), SPLIT_WORDS), str(block["composition"]))
        is not None,
        "composition: differs from the costs of head and test result",
    )
    return f"{state_measured(block)}, epsilon {cost:.6g} on {tested.n} test units", True


def _check_result(block: Values, tested: Plan, class_names: Sequence[str]) -> None:
    low, high = (read_real("interval", end) for end in block["interval"])
    value = read_real("value", block["value"])
    error = read_real("standard_error", block["standard_error"])
    require_true(
        0 <= low <= value <= high <= 1 and low < high and error > 0,
        f"value {value:g}: impossible with interval {low:g} to {high:g}, standard error {error:g}",
    )
    stated = Estimate(value, low, high, error)
    deviation = tested.mechanisms[0].noise_scale
    if block["metric"] == "macro_accuracy":
        _check_recalls(block, tested, deviation, class_names)
        return
    if SCORE_COUNTS in block:
        edges = [read_real("edges", each) for each in block[SCORE_COUNTS]["edges"]]
        ends = [-LARGEST_SCORE, LARGEST_SCORE]
        require_true(
            edges == sorted(edges) and np.allclose([edges[0], edges[-1]], ends, rtol=1e-6),
            f"{SCORE_COUNTS}: edges must rise from {ends[0]:g} to {ends[1]:g}",
        )
        counts = np.array(block[SCORE_COUNTS]["counts"], float)[None]
        computed, remark = area_estimate(counts, tested.mechanisms[-1].noise_scale)
        require_true(
            np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
            f"value {value:g}, interval {low:g} to {high:g}: do not follow from {SCORE_COUNTS}",
        )
        words = released_words("auc", computed, tested, remark)
        require_same("released", words, block["released"])
        return
    if block["metric"] == "auc":  # only the counts, which are not published, imply a remark
        words = re.escape(released_words("auc", stated, tested, _ANY))
        require_true(
            re.fullmatch(words.replace(_ANY, AREA_REMARK), str(block["released"])) is not None,
            "released: differs from dpprobe's words on an AUC",
        )
        return
    words = released_words(block["metric"], stated, tested)
    require_same("released", words, block["released"])
    computed = accuracy_estimate(value, tested.n, deviation)
    require_true(
        np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
        f"interval {low:g} to {high:g} and standard error {error:g} are stated, but "
        f"{computed.low:g} to {computed.high:g} and {computed.standard_error:g} are computed",
    )


def _check_recalls(
    block: Values, tested: Plan, deviation: float, class_names: Sequence[str]
) -> None:
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
    words = released_words(block["metric"], computed, tested, recall_remark(worst, classes))
    require_same("released", words, block["released"])


def is_telling(evaluation: Mapping[str, Any]) -> bool:
    """Returns False for a test result whose interval contains nearly all values."""
    low, high = evaluation["interval"]
    return bool(high - low <= WIDEST_INTERVAL)


def show_result(block: Mapping[str, Any] | None, words: Words) -> dict[str, Any]:
    """Returns a test result's values for documents; `telling` is False if it excludes little."""
    if block is None:
        return {"evaluation": None, "composition": None, "measured": None, "telling": False}
    return {
        "evaluation": block,
        "composition": words(block["composition"]),
        "measured": state_measured(block),
        "telling": is_telling(block),
        "metric": METRICS[block["metric"]],
        "rounded": round_result(block),
    }


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
    """States worst-class recall; names no class if the noise may have decided which is worst."""
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
)
