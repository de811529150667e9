"""Derives calibrated probabilities, sets of classes and cut-offs from noisy counts.

Every number in `noisy_counts` is a function of the noisy counts of `measure`. The published numbers
therefore cost no privacy, and anybody can recompute them from the bundle.

**Probabilities** are the softmax of scale times score, plus an offset for the second class. More
than two classes have a temperature T: the scale is 1 / T, and the offset is 0. Two classes have a
logistic regression of the label on the difference of scores (Platt 1999).

**Sets.** The set of a row contains the most probable class, and each class with a probability of at
least q. Sets of coverage 1 - a contain the true class with probability at least 1 - a, over test
units, a new unit and noise.

- Split conformal prediction by patients (Dunn, Wasserman and Ramdas 2023) gives sets without noise.
  The misses of a threshold q are the weight of rows whose true class has a probability below q. For
  n test units and miss rate b, the highest q with misses(q) <= b (n + 1) - 1 is chosen.
- With noise, misses must remain z standard deviations below the limit. Thresholds are tried from
  q = 0 up, and the first failing threshold ends the search. Only the lowest q with too many misses
  can therefore pass wrongly, with probability g = 1 - Phi(z). The sets have coverage (1 - b)(1 - g)
  = 1 - a by fixed sequence testing (Angelopoulos et al. 2021, arXiv 2110.01052).
- The proof of coverage assumes scores that do not depend on the test units. Here the temperature,
  or slope and offset, comes from the test units too. Simulations of whole releases show that sets
  still reach their coverage, down to the smallest number of units.
- A row without usable scores is not counted. An image without usable scores gets no prediction, so
  all classes stay possible.

**Intervals (95%)** of shares r / m of noisy counts contain all p with r - p m within 1.96 standard
deviations of 0. The variance of r - p m, for noisy counts r and m, is the noise's variance plus
m p (1 - p) (Fieller 1954).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit, ndtri

from dpprobe.release.probabilities import TOP_EDGES
from dpprobe.results.bootstrap import CONFIDENCE

Floats = npt.NDArray[np.float64]

COVERAGES = (0.8, 0.9, 0.95, 0.99)
# Share of the allowed probability of missing the true class that is reserved for noise.
NOISE_SHARE = 0.1
# PROBABILITY_EDGES divide the second class's probability into ranges, LABEL_EDGES the true class's
# probability. Fewer ranges have less total noise; sets need fine ranges of small probabilities.
_TENTHS = tuple(step / 10 for step in range(1, 10))
PROBABILITY_EDGES = (0.0, 0.01, 0.02, 0.05, *_TENTHS, 0.95, 0.98, 0.99, 1.0)
_SMALL = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.07)
LABEL_EDGES = (0.0, *_SMALL, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
# Base-2 logarithms of the lowest and highest temperature, and the number of temperatures tried.
COLDEST, HOTTEST, QUERIES = -8.0, 8.0, 6
ABSTAIN_BELOW = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
WANTED_RATES = (0.8, 0.9, 0.95)
TREATED_FROM = (0.05, 0.1, 0.2, 0.3, 0.5)
DIAGRAM_EDGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# Ranges of the reliability diagram are joined until rows exceed JOINED deviations of noise.
JOINED = 8.0
# The logistic regression uses bins whose rows exceed FILLED standard deviations of their noise.
FILLED = 3.0
# Largest offset of the logistic regression, for scores of standard deviation 1.
_FARTHEST = 15.0
Z = float(ndtri((1 + CONFIDENCE) / 2))


class Share(NamedTuple):
    """A ratio of two noisy counts, with a 95% interval."""

    value: float
    low: float
    high: float


def search_temperature(answers: Sequence[float]) -> float:
    """Returns log2 of the next temperature to try; after the last answer, log2 of the result.

    The result interpolates between the last two temperatures whose answers differ in sign.

    Args:
      answers: per temperature tried so far, the noisy sum of the largest probability minus hit. A
        positive sum means that the head is overconfident, so the temperature must rise.
    """
    cold, hot = COLDEST, HOTTEST
    too_sure = unsure = None
    for answer in answers:
        middle = (cold + hot) / 2
        if answer > 0:
            cold, too_sure = middle, answer
        else:
            hot, unsure = middle, answer
    if len(answers) < QUERIES or too_sure is None or unsure is None:
        return (cold + hot) / 2
    return cold + (hot - cold) * too_sure / (too_sure - unsure)


def fit_logistic(
    places: Floats, positives: Floats, negatives: Floats, *, n: int, deviation: float
) -> tuple[float, float]:
    """Fits slope and offset of a logistic regression to noisy counts at places [bins].

    Noise may make counts negative. Counts enter the likelihood linearly, so that their noise
    cancels. Bins that do not exceed their noise are ignored, because they may be empty. Places are
    clipped to twice the range of the middle 80% of rows, because bins may be far from the rows.

    As in Platt 1999, a share `mixed` of each label's rows counts as the other label, here in
    proportion to the noise. For classes that do not overlap, noisy counts cannot distinguish high
    probabilities from certainty. The probability one standard deviation from the centre is
    therefore at most 1 - `mixed`. The slope is never negative: a head that ranks no better than
    chance has slope 0.

    Args:
      n: the number of test units.
      deviation: the standard deviation of each count's noise.
    """
    clear = positives + negatives > FILLED * deviation * math.sqrt(2)
    if not clear.any():
        return 0.0, 0.0
    places, positives, negatives = places[clear], positives[clear], negatives[clear]
    totals = positives + negatives
    low, high = np.interp([0.1, 0.9], (np.cumsum(totals) - totals / 2) / totals.sum(), places)
    places = np.clip(places, low - (high - low) / 2, high + (high - low) / 2)
    mixed = min(0.25, 2 * (1 + deviation) / n)
    positives = (1 - mixed) * positives + mixed * negatives
    centre = float(np.average(places, weights=totals))
    spread = math.sqrt(float(np.average((places - centre) ** 2, weights=totals)))
    if not spread:  # a single bin does not determine a slope
        share = min(max(float(positives.sum() / totals.sum()), mixed), 1 - mixed)
        return 0.0, float(logit(share))
    x = (places - centre) / spread

    def loss(values: Floats) -> tuple[float, Floats]:
        eta = values[0] * x + values[1]
        gap = totals * expit(eta) - positives
        value = -(totals * log_expit(-eta) + positives * eta).sum()
        return float(value), np.array([gap @ x, gap.sum()])

    fitted = minimize(
        loss,
        np.array([1.0, 0.0]),
        jac=True,
        bounds=[(0, math.log(1 / mixed - 1)), (-_FARTHEST, _FARTHEST)],
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    slope = float(fitted.x[0]) / spread
    return slope, float(fitted.x[1]) - slope * centre


def _solve_ends(part: float, whole: float, part_variance: float, rest_variance: float) -> Floats:
    """Solves (part - p whole)^2 = z^2 (sampling + noise) for p; returns both solutions."""
    z = Z * Z
    square = whole * whole + z * (whole - part_variance - rest_variance)
    middle = part * whole + z * (whole / 2 - part_variance)
    half = np.sqrt(middle * middle - square * (part * part - z * part_variance))
    return np.clip([(middle - half) / square, (middle + half) / square], 0.0, 1.0)


def estimate_share(part: float, whole: float, part_noise: float, rest_noise: float) -> Share:
    """Estimates part / whole from noisy counts.

    Args:
      part_noise: the standard deviation of the noise of `part`.
      rest_noise: the standard deviation of the independent noise of `whole` - `part`.
    """
    part = min(max(part, 0.0), max(whole, 0.0))  # noise may make a part larger than the whole
    p = np.linspace(0, 1, 2001)
    sampling = max(whole, 0.0) * p * (1 - p)
    noise = ((1 - p) * part_noise) ** 2 + (p * rest_noise) ** 2
    kept = p[np.abs(part - p * whole) <= Z * np.sqrt(sampling + noise)]
    if whole <= 2 * math.hypot(part_noise, rest_noise):
        return Share(0.5, 0.0, 1.0)
    if not len(kept):  # the interval of many rows may be between two neighbouring values of p
        kept = _solve_ends(part, whole, part_noise * part_noise, rest_noise * rest_noise)
    value = min(max(part / whole, 0.0), 1.0)
    return Share(value, min(value, float(kept[0])), max(value, float(kept[-1])))


def allowed_misses(n: int, coverage: float) -> tuple[float, float]:
    """Returns the most misses at a coverage without noise, and the margin z in deviations."""
    missed = 1 - coverage
    by_noise = NOISE_SHARE * missed
    by_units = 1 - coverage / (1 - by_noise)
    return by_units * (n + 1) - 1, float(-ndtri(by_noise))


def find_threshold(
    candidates: Sequence[tuple[float, float, float]], n: int, coverage: float
) -> float | None:
    """Returns the highest threshold whose sets reach a coverage; None if only all classes do.

    Args:
      candidates: increasing thresholds, each with noisy misses and the deviation of their noise.
    """
    most, z = allowed_misses(n, coverage)
    highest = None
    if not candidates or z * candidates[0][2] > most:  # only chance would publish a set
        return None
    for threshold, misses, deviation in candidates:
        if misses + z * deviation > most:
            break
        highest = threshold
    return highest


def fewest_units(deviation: float, coverage: float = 0.9) -> int:
    """Returns the number of test units below which noise leaves no useful set at a coverage.

    `deviation` is the noise of each count; the margin must cover the noise of four counts.
    """
    _, z = allowed_misses(0, coverage)
    by_units = allowed_misses(1, coverage)[0] - allowed_misses(0, coverage)[0]
    return math.ceil((1 + 2 * z * deviation) / by_units)


def describe_classes(top: Floats, label: Floats, *, n: int, deviation: float) -> dict[str, Any]:
    """Derives the published numbers of a head of three or more classes from two noisy tables.

    Args:
      top: noisy counts [ranges of the largest probability, 2], right predictions first.
      label: noisy counts [ranges of the probability of the true class].
      deviation: the standard deviation of each number's noise.
    """
    below = np.cumsum(label)
    candidates = [
        (edge, float(below[place]), deviation * math.sqrt(place + 1))
        for place, edge in enumerate(LABEL_EDGES[1:-1])
    ]
    low, high = np.array(TOP_EDGES[:-1]), np.array(TOP_EDGES[1:])
    return {
        "sets": _list_sets(candidates, n),
        "reliability": join_ranges(low, high, (low + high) / 2, top[:, 0], top[:, 1], deviation),
        "abstention": list_abstention(low, low, top[:, 0], top[:, 1], n, deviation),
    }


def describe_two(
    edges: Floats,
    places: Floats,
    counts: Floats,
    *,
    scale: float,
    offset: float,
    n: int,
    deviation: float,
) -> dict[str, Any]:
    """Derives the published numbers of a head of two classes from noisy counts by score and class.

    Args:
      edges: [bins + 1], increasing, of the second score minus the first score.
      places: [bins], a score in each bin.
      counts: noisy counts [2, bins], rows of the second class first.
      deviation: the standard deviation of each count's noise.
    """
    positives, negatives = counts
    ends = probability_ends(edges, scale, offset)
    middle = expit(scale * places + offset)
    sides = np.stack([np.maximum(each, 1 - each) for each in (ends[:-1], ends[1:], middle)])
    least = np.where((ends[:-1] < 0.5) & (ends[1:] > 0.5), 0.5, sides.min(axis=0))
    right = np.where(middle >= 0.5, positives, negatives)
    wrong = positives + negatives - right
    told: dict[str, Any] = (
        {} if scale else {"cut_offs": [], "net_benefit": []}
    )  # with scale 0, all rows have equal probabilities
    return {
        "sets": _list_sets(list_thresholds(ends, positives, negatives, deviation), n),
        "reliability": join_ranges(ends[:-1], ends[1:], middle, positives, negatives, deviation),
        "abstention": list_abstention(least, sides.max(axis=0), right, wrong, n, deviation),
        "cut_offs": _list_cut_offs(ends, positives, negatives, deviation),
        "net_benefit": _list_benefits(ends, positives, negatives, n, deviation),
        **told,
    }


def probability_ends(edges: Floats, scale: float, offset: float) -> Floats:
    """Returns the second class's probability at edges of scores; the outer ranges are open."""
    ends = np.asarray(expit(scale * edges + offset))
    ends[0], ends[-1] = 0.0, 1.0
    return ends


def list_thresholds(
    ends: Floats, positives: Floats, negatives: Floats, deviation: float
) -> list[tuple[float, float, float]]:
    """Lists thresholds at edges; a bin divided by a threshold counts as missed."""
    candidates = []
    for threshold in sorted({*ends[1:-1], *(1 - ends[1:-1])}):
        if not 0 < threshold <= 0.5:
            continue
        missed = ends[:-1] < threshold  # of rows of the second class
        missed_too = ends[1:] > 1 - threshold
        misses = positives[missed].sum() + negatives[missed_too].sum()
        number = int(missed.sum() + missed_too.sum())
        candidates.append((float(threshold), float(misses), deviation * math.sqrt(number)))
    return candidates


def _list_sets(candidates: Sequence[tuple[float, float, float]], n: int) -> list[dict[str, float]]:
    thresholds = {coverage: find_threshold(candidates, n, coverage) for coverage in COVERAGES}
    return [
        # slightly below the edge, because other software may round down probabilities at an edge
        {"coverage": coverage, "threshold": threshold * (1 - 1e-6)}
        for coverage, threshold in thresholds.items()
        if threshold is not None
    ]


def join_ranges(
    low: Floats, high: Floats, middle: Floats, hits: Floats, others: Floats, deviation: float
) -> list[dict[str, float]]:
    """Compares probabilities with shares of right predictions, in ranges with enough rows.

    Ranges are joined from high probabilities down, until joined rows exceed the noise and the next
    range belongs to another part of the diagram. Remaining ranges join the last joined range.
    """
    totals, parts = hits + others, np.searchsorted(DIAGRAM_EDGES, middle)

    def has_enough(group: list[int]) -> bool:
        noise = deviation * math.sqrt(2 * len(group))
        return bool(totals[group].sum() > JOINED * noise)

    groups = [[len(totals) - 1]]
    for place in reversed(range(len(totals) - 1)):
        if has_enough(groups[-1]) and parts[place] != parts[groups[-1][0]]:
            groups.append([])
        groups[-1].append(place)
    if len(groups) > 1 and not has_enough(groups[-1]):
        last = groups.pop()
        groups[-1] += last
    rows = []
    for group in reversed(groups):
        noise = deviation * math.sqrt(len(group))
        share = estimate_share(float(hits[group].sum()), float(totals[group].sum()), noise, noise)
        weights = np.maximum(totals[group], 0) + 1e-9
        rows.append(
            {
                "from": float(low[group[-1]]),
                "to": float(high[group[0]]),
                "predicted": float(np.average(middle[group], weights=weights)),
                **_observed(share),
            }
        )
    return rows


def _observed(share: Share) -> dict[str, float]:
    return {"observed": share.value, "low": share.low, "high": share.high}


def list_abstention(
    least: Floats, most: Floats, right: Floats, wrong: Floats, n: int, deviation: float
) -> list[dict[str, float]]:
    """Lists shares of answered rows and of right answers, per limit of the largest probability.

    A limit may divide a range with probabilities from `least` to `most`. The interval of right
    answers covers the intervals with and without the divided range. The share of answered rows
    never rises with the limit, although noisy counts may.
    """

    def estimate_answers(answered: npt.NDArray[np.bool_]) -> tuple[float, Share]:
        noise = deviation * math.sqrt(int(answered.sum()))
        hits, misses = float(right[answered].sum()), float(wrong[answered].sum())
        return (hits + misses) / n, estimate_share(hits, hits + misses, noise, noise)

    rows: list[dict[str, float]] = []
    for limit in reversed(ABSTAIN_BELOW):
        part, share = estimate_answers(least >= limit)
        _, other = estimate_answers(most >= limit)
        stricter = rows[-1]["answered"] if rows else 0.0
        both = Share(share.value, min(share.low, other.low), max(share.high, other.high))
        answered = min(max(part, stricter), 1.0)
        rows.append({"from": limit, "answered": answered, **_observed(both)})
    return rows[::-1]


def _list_cut_offs(
    ends: Floats, positives: Floats, negatives: Floats, deviation: float
) -> list[dict[str, Any]]:
    """Lists cut-offs of the second class's probability with a wanted sensitivity or specificity."""
    bins = len(positives)
    places = range(1, bins)
    rates = {
        place: (
            estimate_rate(positives, slice(place, None), deviation),
            estimate_rate(negatives, slice(0, place), deviation),
        )
        for place in places
    }
    rows = []
    for wanted in WANTED_RATES:
        reaching = [place for place in places if rates[place][0].value >= wanted]
        rows.append(("sensitivity", wanted, max(reaching, default=None)))
    for wanted in WANTED_RATES:
        reaching = [place for place in places if rates[place][1].value >= wanted]
        rows.append(("specificity", wanted, min(reaching, default=None)))
    return [
        {
            "wanted": name,
            "rate": wanted,
            "from": float(ends[place]),
            "sensitivity": list(rates[place][0]),
            "specificity": list(rates[place][1]),
        }
        for name, wanted, place in rows
        if place is not None
    ]


def estimate_rate(counts: Floats, chosen: slice, deviation: float) -> Share:
    number = len(counts[chosen])
    rest = len(counts) - number
    return estimate_share(
        float(counts[chosen].sum()),
        float(counts.sum()),
        deviation * math.sqrt(number),
        deviation * math.sqrt(rest),
    )


def _list_benefits(
    ends: Floats, positives: Floats, negatives: Floats, n: int, deviation: float
) -> list[dict[str, float]]:
    """Lists net benefits per unit: right treatments, minus wrong treatments times the odds.

    Net benefits follow Vickers and Elkin 2006, "Decision curve analysis". Treatment begins at the
    bin edges nearest to `TREATED_FROM`. An edge at probability 1 has no odds, and no row.
    """
    rows = {}
    for wanted in TREATED_FROM:
        place = 1 + int(np.argmin(np.abs(ends[1:-1] - wanted)))
        threshold = float(ends[place])
        if threshold == 1:
            continue
        odds = threshold / (1 - threshold)
        treated = positives[place:].sum() - odds * negatives[place:].sum()
        noise = deviation * math.sqrt((1 + odds**2) * len(positives[place:]))
        sampling = math.sqrt(
            max(float(positives[place:].sum() + odds**2 * negatives[place:].sum()), 0.0)
        )
        rows[place] = {
            "from": threshold,
            "benefit": float(treated) / n,
            "error": math.hypot(noise, sampling) / n,
            "all": float(positives.sum() - odds * negatives.sum()) / n,
        }
    return list(rows.values())
