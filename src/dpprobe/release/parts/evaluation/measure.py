"""Measures a released head on the private test units with noise, for a separate epsilon.

**Units.** The number n of test units is public. Two neighbouring test splits differ in one unit,
whose rows are null rows in one split. If patients are units, a row of a patient with m test
examples has weight 1 / m, rounded down. The weights of a unit's rows therefore sum to at most 1. A
null row has NaN as scores and is not counted. A row's scores depend on the row and on the head,
which may be any earlier release, because composition is adaptive.

**Accuracy.** The sum over rows of weight times hit is released; a row's hit is the share of its
labels that are predicted correctly, in [0, 1]. A unit adds at most 1 and null rows add 0, so the
sum has sensitivity 1. The accuracy is the noisy sum divided by n, clamped to [0, 1].

**AUC.** The AUC of two classes, or the mean AUC of several labels, comes from two released tables:

- `score_ranges`: for each label, the weight of rows in 64 fixed ranges of asinh(score / unit). A
  row adds a vector with one 1 per label, of norm sqrt(labels), times the row's weight. A unit adds
  a vector of norm at most sqrt(labels), which is the sensitivity.
- `score_counts`: for each label, the weight of rows with and without the label, per bin of the
  score. Bin edges are quantiles of the noisy `score_ranges`, and therefore fixed. A row adds one 1
  per label, times the row's weight, so the sensitivity is sqrt(labels).

An AUC, its standard error and its interval are functions of the noisy counts, n and the plan.

**Macro accuracy** and worst-class recall come from one released table: see `class_recalls`.

All sums are whole numbers of steps of a public grid. Weights are rounded towards zero, which never
lengthens a vector, so the epsilon is exact (`privacy.releases`).

**Interval.** The 95% interval covers both the choice of test units and the noise, and has a width
above 0. An accuracy's interval contains each p that the noisy sum does not reject at 2.5% on
either side, if hits are coin tosses. An accuracy's interval is exact for hits of 0 and 1, for any
n; other hits vary less. An AUC's interval contains the areas within 1.96 standard deviations of the
value. An area's variance is the sampling variance (Newcombe 2006, method 5, from Hanley and McNeil
1982) plus the simulated variance of the noise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom, norm

from dpprobe.data.options import headline_metric
from dpprobe.errors import PrivacyError
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.noisy_totals import RESULT_CHANCE, least_total, units_for_result
from dpprobe.privacy.plan import Mechanism, Plan, full_batch, split_budget
from dpprobe.privacy.releases import Releases
from dpprobe.release.counted_units import (
    SCORE_COUNTS,
    SCORE_UNIT,
    count_steps,
    find_usable,
    label_counts,
    open_releases,
    priced_values,
    score_test_rows,
    weights_of_rows,
)
from dpprobe.release.parts.evaluation.class_recalls import (
    CLASS_COUNTS,
    Estimate,
    Worst,
    class_deviation,
    count_answers,
    estimate_recalls,
    recall_mechanisms,
)
from dpprobe.release.parts.part import PartSteps
from dpprobe.release.probabilities import Calibration
from dpprobe.release.transport import Block, Draw
from dpprobe.release.usefulness import check_metric
from dpprobe.results.bootstrap import CONFIDENCE
from dpprobe.results.metrics import Link, right_predictions

logger = logging.getLogger("dpprobe")

Metric = Literal["accuracy", "auc", "macro_accuracy"]
Floats = npt.NDArray[np.float64]

# The largest standard deviation of noise for which an accuracy is worth measuring.
MOST_NOISE = 0.2
ACCURACY, RANGES = "accuracy", "score_ranges"
# The number of labels that an AUC leaves out, because they are too rare to measure.
LEFT_OUT = "labels_left_out"
RANGES_SHARE = 0.2
# The outermost ranges also count scores beyond the largest.
LARGEST_SCORE, RANGES_COUNT = 1000.0, 64
FEWEST_BINS, MOST_BINS = 16, 128
# Counts of ranges below EMPTY standard deviations of their noise are taken as 0.
EMPTY = 2.0
SIMULATIONS = 4000  # number of noise draws that simulate an area's error
# Logit of the outermost quantile that is a bin edge: quantiles are dense at both ends, for rare
# labels.
_TAIL = 4.5
_Z = float(norm.ppf((1 + CONFIDENCE) / 2))


class ScoreCounts(NamedTuple):
    """Noisy counts of test examples by label and score.

    Attributes:
      edges: each label's increasing bin edges, [labels, bins + 1], in asinh(score / SCORE_UNIT).
      counts: [labels, 2, bins], rows with the label first.
      deviation: the standard deviation of each count's noise.
    """

    edges: Floats
    counts: Floats
    deviation: float


def evaluation_mechanisms(
    metric: Metric, *, classes: int, multi_label: bool
) -> tuple[Mechanism, ...]:
    """Returns the mechanisms of a test result, with noise multipliers up to a common factor.

    Raises ConfigError for a metric that the labels do not allow.
    """
    headline_metric(metric, num_classes=classes, multi_label=multi_label)
    if metric == "macro_accuracy":
        return recall_mechanisms()
    if metric == "accuracy":
        hit = "the share of its labels that is right" if multi_label else "1 if its label is right"
        return (full_batch(ACCURACY, f"sum over the test rows, of each {hit}", 1.0),)
    longest = math.sqrt(classes) if multi_label else 1.0
    each = "of each label, " if multi_label else ""
    ranges = full_batch(
        RANGES, f"{each}numbers of test rows per range of the score, in fixed ranges", longest
    )
    counts = full_batch(
        SCORE_COUNTS,
        f"{each}numbers of test rows with and without the label, per bin of the score; the bins "
        f"come from {RANGES}"
        if multi_label
        else "numbers of test rows of each class, per bin of the score; the bins come from "
        f"{RANGES}",
        longest,
    )
    return split_budget([(RANGES_SHARE, (ranges,)), (1 - RANGES_SHARE, (counts,))])


def evaluate_heads(
    draw: Draw,
    plan: Plan,
    *,
    metric: Metric,
    link: Link,
    calibration: Calibration | None = None,
    keep_counts: bool = False,
) -> dict[str, Any]:
    """Measures one released head on the test units; returns a statement's block `evaluation`.

    Args:
      plan: has the noise of `evaluation_mechanisms` on n = test units.
      calibration: changes the answers of a head of two classes, and so its accuracy.
      keep_counts: True to publish an AUC's counts too, for a calibration.
    """
    features, names = draw.features, draw.features.class_names
    wanted = evaluation_mechanisms(metric, classes=len(names), multi_label=features.multi_label)
    releases = open_releases(draw, plan, wanted)
    weights = weights_of_rows(features, plan)
    scores = score_test_rows(draw.heads, features)
    if calibration is not None:
        scores = calibration.rescale(scores)
    counted: dict[str, Any] = {}
    if metric == "accuracy":
        estimate = _release_accuracy(scores, features.test_labels, weights, link, releases)
    elif metric == "macro_accuracy":
        counts = _release_answers(scores, features.test_labels, weights, link, releases)
        estimate, worst = estimate_recalls(counts, releases.noise_deviation(CLASS_COUNTS))
        counted = {CLASS_COUNTS: counts, "worst_class": worst_values(worst, names)}
    else:
        table = release_score_counts(scores, features.test_labels, weights, releases)
        estimate, left_out = area_estimate(table.counts, table.deviation)
        counted = {LEFT_OUT: left_out}
        if keep_counts:
            edges = SCORE_UNIT * np.sinh(table.edges[0])
            values = {"edges": edges.tolist(), "counts": table.counts[0].tolist()}
            counted[SCORE_COUNTS] = values
    releases.check_counts()
    return {
        "metric": metric,
        "value": estimate.value,
        "interval": [estimate.low, estimate.high],
        "standard_error": estimate.standard_error,
        **priced_values(plan),
        **counted,
    }


def check_telling(plan: Plan, *, classes: int = 2) -> None:
    """Checks, by public numbers, that noise does not hide a test result.

    Raises PrivacyError if accuracy noise has a standard deviation above `MOST_NOISE`, or if over 5%
    of releases would have no AUC or macro accuracy even with classes of equal size. `classes` is 2
    for several labels.
    """
    if [mechanism.name for mechanism in plan.mechanisms] == [ACCURACY]:
        noise = plan.mechanisms[0].noise_multiplier / plan.n
        if noise > MOST_NOISE:
            raise PrivacyError(
                f"evaluate.epsilon {plan.epsilon:g}: on {plan.n} test units the accuracy would "
                f"have noise of {100 * noise:.0f} points and would be useless; set a larger "
                "epsilon, use more test units, or remove evaluate"
            )
    elif classes * (enough := enough_of_a_class(plan, classes=classes)) > plan.n:
        name = "macro accuracy" if plan.mechanisms[0].name == CLASS_COUNTS else "AUC"
        raise PrivacyError(
            f"evaluate.epsilon {plan.epsilon:g}: the {name} needs {math.ceil(enough)} test units "
            f"of each class for a result in {RESULT_CHANCE:.0%} of releases, but there are "
            f"{plan.n} test units in total; set a larger epsilon, use more test units, or remove "
            "evaluate"
        )


def enough_of_a_class(plan: Plan, *, classes: int) -> float:
    """Returns the number of test units per class for which 95% of releases have a result.

    For several labels, `classes` is 2: rows with and without a label.
    """
    counts = plan.mechanisms[-1]
    deviation = counts.noise_scale
    if counts.name == CLASS_COUNTS:
        return units_for_result(class_deviation(deviation), classes)
    bins = count_bins(plan.n, deviation)
    return units_for_result(deviation * math.sqrt(bins), classes)


def worst_values(worst: Worst | None, names: Sequence[str]) -> dict[str, Any] | None:
    if worst is None:
        return None
    place, recall, *interval = worst
    return {"name": names[place], "recall": recall, "interval": interval}


def _release_accuracy(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: Floats,
    link: Link,
    releases: Releases,
) -> Estimate:
    n = releases.plan.n
    total = hit_sum(scores, labels, weights, link, n)
    noisy = float(releases.release_gaussian(ACCURACY, total)[0, 0])
    deviation = releases.noise_deviation(ACCURACY)
    return accuracy_estimate(min(max(noisy / n, 0.0), 1.0), n, deviation)


def _release_answers(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: Floats,
    link: Link,
    releases: Releases,
) -> list[list[float]]:
    """Releases the numbers of right and wrong predictions of each class, [classes, 2]."""
    units, step = count_steps(weights * find_usable(scores), releases.plan.n)
    right, classes = right_predictions(scores, labels, link=link), scores.shape[1]
    table = torch.from_numpy(count_answers(right, labels, units, classes))
    noisy = releases.release_gaussian(CLASS_COUNTS, GridSum(table[None], step))
    return noisy[0].reshape(classes, 2).tolist()


def hit_sum(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], weights: Floats, link: Link, n: int
) -> GridSum:
    """Sums the weighted hits of rows, [1, 1]: sensitivity 1, since null rows add 0."""
    right = right_predictions(scores, labels, link=link)
    each = right.reshape(len(right), -1).mean(axis=1) * weights * find_usable(scores)
    units, step = count_steps(each, n)
    return GridSum(torch.tensor([[units.sum()]], dtype=torch.float64), step)


def accuracy_estimate(value: float, n: int, deviation: float) -> Estimate:
    """Returns an accuracy's interval from a noisy sum of n hits: the exact inverse of a test.

    Args:
      value: the noisy sum over n, clamped into [0, 1]; the interval accounts for clamping.
      deviation: the noise's standard deviation, in hits.
    """
    tail, hit = (1 - CONFIDENCE) / 2, value * n
    low = high = value
    if value > 0:
        low = _find_root(lambda p: 1 - _chance_below(hit, p, n, deviation) - tail)
    if value < 1:
        high = _find_root(lambda p: _chance_below(hit, p, n, deviation) - tail)
    error = math.sqrt(value * (1 - value) / n + (deviation / n) ** 2)
    return Estimate(value, min(low, value), max(high, value), error)


def _chance_below(hit: float, p: float, n: int, deviation: float) -> float:
    """Returns the probability that n noisy coin tosses of chance p sum to at most `hit`."""
    reach = 9 * math.sqrt(n * p * (1 - p)) + 40  # more distant counts have probability below 1e-15
    counts = np.arange(max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach)) + 1)
    return float(binom.pmf(counts, n, p) @ ndtr((hit - counts) / deviation))


def _find_root(function: Any) -> float:
    """Returns where a function on [0, 1] changes sign, or the nearer end if it never does."""
    ends = function(0.0), function(1.0)
    if ends[0] * ends[1] > 0:
        return 0.0 if abs(ends[0]) < abs(ends[1]) else 1.0
    return float(brentq(function, 0.0, 1.0, xtol=1e-9))


def release_score_counts(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], weights: Floats, releases: Releases
) -> ScoreCounts:
    """Releases `score_ranges`, then `score_counts` in bins at quantiles of the noisy ranges."""
    n, usable = releases.plan.n, find_usable(scores)
    margins, present = _rank_rows(scores, labels)
    places = np.arcsinh(np.where(usable[:, None], margins, 0.0) / SCORE_UNIT)
    units, step = count_steps(weights * usable, n)

    def release_counts(name: str, counts: Floats) -> Floats:
        total = GridSum(torch.from_numpy(counts)[None], step)
        return np.asarray(releases.release_gaussian(name, total)[0])

    end = math.asinh(LARGEST_SCORE / SCORE_UNIT)
    fixed = np.linspace(-end, end, RANGES_COUNT + 1)
    noisy = release_counts(RANGES, label_counts(places, None, units, [fixed] * places.shape[1]))
    bins = count_bins(n, releases.noise_deviation(SCORE_COUNTS))
    edges = [place_edges(of, fixed, releases.noise_deviation(RANGES), bins) for of in noisy]
    counts = release_counts(SCORE_COUNTS, label_counts(places, present, units, edges))
    return ScoreCounts(
        np.stack(edges), counts.reshape(len(edges), 2, -1), releases.noise_deviation(SCORE_COUNTS)
    )


def _rank_rows(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Returns margins that rank rows by each label, and which rows have it: [rows, labels]."""
    wide = scores.astype(np.float64)
    if labels.ndim == 2:
        return wide, labels != 0
    return wide[:, 1:] - wide[:, :1], (labels == 1)[:, None]


def count_bins(n: int, deviation: float) -> int:
    """Returns the number of score bins that suits n test units and the noise's deviation."""
    return min(max(round(math.sqrt(n / deviation)), FEWEST_BINS), MOST_BINS)


def place_edges(noisy: Floats, fixed: Floats, deviation: float, bins: int) -> Floats:
    """Returns the edges of bins, [bins + 1]: quantiles of the noisy counts in fixed ranges."""
    full = np.where(noisy > EMPTY * deviation, noisy, 0.0)
    if not full.any():
        full = np.maximum(noisy, 0.0)
    filled = full + 1e-6 * full.sum() + 1e-12  # above 0, so that each quantile is unique
    parts = np.concatenate([[0.0], np.cumsum(filled)]) / filled.sum()
    levels = 1 / (1 + np.exp(-np.linspace(-_TAIL, _TAIL, bins - 1)))
    inner = np.interp(levels, parts, fixed)
    return np.concatenate([fixed[:1], inner, fixed[-1:]])


def area_estimate(counts: Floats, deviation: float) -> tuple[Estimate, int]:
    """Returns the mean area under the ROC curve over labels, and the number of labels left out.

    Negative counts stay negative, so that noise cancels in sums. A label is left out if the rows
    with it, or without it, do not clearly exceed the noise. If all labels are left out, the area is
    1/2 with interval [0, 1].

    Args:
      counts: noisy counts [labels, 2, bins], rows with the label first, bins by rising score.
      deviation: the standard deviation of each count's noise.
    """
    totals = counts.sum(axis=2)
    enough = (totals > least_total(deviation * math.sqrt(counts.shape[2]))).all(axis=1)
    kept = counts[enough]
    left_out = len(counts) - len(kept)
    if not len(kept):
        return Estimate(0.5, 0.0, 1.0, 0.5), left_out
    areas = compute_areas(kept)
    value = float(np.clip(areas.mean(), 0, 1))
    noise = simulate_noise(kept, deviation)

    def area_spread(area: float) -> float:
        # labels share rows, so errors of all labels may have the same sign
        shifted = np.clip(areas + (area - areas.mean()), 0, 1)
        sampling = np.sqrt(_sampling_variance(shifted, *totals[enough].T)).mean()
        return math.hypot(sampling, noise)

    low, high = (_interval_end(value, bound, area_spread) for bound in (0.0, 1.0))
    return Estimate(value, low, high, area_spread(value)), left_out


def compute_areas(counts: Floats) -> Floats:
    """Returns the Mann-Whitney areas of histograms [..., 2, bins], with ties counted as a half."""
    positive, negative = counts[..., 0, :], counts[..., 1, :]
    below = np.cumsum(negative, axis=-1) - negative / 2
    wins = (positive * below).sum(axis=-1)
    return np.asarray(wins / (positive.sum(axis=-1) * negative.sum(axis=-1)))


def simulate_noise(counts: Floats, deviation: float) -> float:
    """Simulates the standard deviation of a mean area caused by noise on the counts.

    The deviation comes from percentiles, since errors of a ratio are unbounded. A fixed seed gives
    equal intervals for equal counts, and the simulated noise protects nothing.
    """
    generator = np.random.default_rng(0)
    block = max(1, SIMULATIONS // 16)
    drawn = [
        compute_areas(counts + generator.normal(0, deviation, (block, *counts.shape))).mean(axis=-1)
        for _ in range(16)
    ]
    ends = np.percentile(np.concatenate(drawn), [100 * ndtr(-_Z), 100 * ndtr(_Z)])
    return float(ends[1] - ends[0]) / (2 * _Z)


def _sampling_variance(area: Floats, positives: Floats, negatives: Floats) -> Floats:
    """Returns the sampling variance of true areas under the ROC curve.

    Newcombe 2006 (Statistics in Medicine 25, 559-573), method 5: the variance of Hanley and McNeil
    1982 for exponential scores, with both numbers of rows replaced by their mean in the bracket.
    """
    extra = (positives + negatives) / 2 - 1
    bracket = 1 + extra * ((1 - area) / (2 - area) + area / (1 + area))
    return np.asarray(area * (1 - area) * bracket / (positives * negatives))


def _interval_end(value: float, bound: float, spread: Any) -> float:
    """Returns an end of the interval: the area nearest to `bound` that the value allows."""

    def distance_to_bound(area: float) -> float:
        return float(abs(value - area) - _Z * spread(area))

    if value == bound or distance_to_bound(bound) <= 0:
        return bound
    return float(brentq(distance_to_bound, value, bound, xtol=1e-9))


class Steps(PartSteps):
    def plan_test_units(self) -> Plan:
        store = self.release.stores[1]
        mechanisms = evaluation_mechanisms(
            self.asked.published, classes=store.num_classes, multi_label=store.multi_label
        )
        return self.planned.plan_test(mechanisms, self.asked.epsilon)

    def check(self) -> None:
        name, store = self.release.name, self.release.stores[1]
        check_metric(name, self.asked.published, self.release.stores[0].labels)
        plan = self.planned.plans["evaluation"]
        classes = 2 if store.multi_label else store.num_classes
        check_telling(plan, classes=classes)
        if self.asked.published != "accuracy":
            logger.warning(
                "release %s: with %d of the %d test %s in each class, %s of releases have a test "
                "result. With fewer in a class, epsilon may be spent without a result. Class "
                "counts are private, so dpprobe does not check them here: compare the counts of "
                "`dpprobe check`, in which a patient with images of several classes counts in "
                "parts",
                name,
                math.ceil(enough_of_a_class(plan, classes=classes)),
                plan.n,
                f"{plan.unit}s",
                f"{RESULT_CHANCE:.0%}",
            )

    def needs(self) -> tuple[str, ...]:
        """Names `calibrate` if its counts are separate, because it must be measured first."""
        return ("calibration",) if "calibration" in self.planned.plans else ()

    def measure(self, draw: Draw) -> Block:
        plan, calibrated = self.planned.plans["evaluation"], draw.blocks.get("calibration")
        return evaluate_heads(
            draw,
            plan,
            metric=self.asked.published,
            link=self.planned.method.link_on(draw.features.multi_label),
            calibration=Calibration.from_block(calibrated) if calibrated else None,
            keep_counts="calibration" in self.planned.steps and not calibrated,
        )
