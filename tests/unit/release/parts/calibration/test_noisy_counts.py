"""Noisy counts yield probabilities, prediction sets that cover, intervals and cut-offs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit, softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from dpprobe.release.parts.calibration import noisy_counts as calibration
from dpprobe.release.probabilities import TOP_EDGES

Floats = npt.NDArray[np.float64]
CLASSES = 5


def draw_rows(n: int, generator: np.random.Generator) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Returns probabilities [n, classes], and labels drawn from them."""
    values = softmax(2.0 * generator.normal(size=(n, CLASSES)), axis=1)
    labels = (values.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    return values, labels


def count_labels(own: Floats) -> Floats:
    place = np.searchsorted(calibration.LABEL_EDGES[1:-1], own, side="right")
    return np.bincount(place, minlength=len(calibration.LABEL_EDGES) - 1).astype(float)


def threshold_of(own: Floats, noise: Floats, deviation: float, coverage: float) -> float:
    top = np.zeros((len(TOP_EDGES) - 1, 2))
    described = calibration.describe_classes(
        top, count_labels(own) + noise, n=len(own), deviation=deviation
    )
    found = {one["coverage"]: one["threshold"] for one in described["sets"]}
    return float(found.get(coverage, 0.0))


@pytest.mark.parametrize(("n", "deviation"), [(200, 3.0), (1000, 5.9)])
def test_sets_of_ten_thousand_releases_cover(
    n: int, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 10% of sets miss the true class; each release draws a unit, test units and noise."""
    for other in ("join_ranges", "list_abstention"):  # slow, and irrelevant for sets
        monkeypatch.setattr(calibration, other, lambda *_: [])
    generator, releases = np.random.default_rng(3), 10_000
    values, labels = draw_rows(200_000, generator)
    own = values[np.arange(len(labels)), labels]
    missed, useful = 0, 0
    for _ in range(releases):
        tested = own[generator.integers(0, len(own), n)]
        noise = generator.normal(0, deviation, len(calibration.LABEL_EDGES) - 1)
        threshold = threshold_of(tested, noise, deviation, 0.9)
        missed += own[generator.integers(0, len(own))] < threshold
        useful += threshold > 0
    # binomial bound with an error rate of 0.001
    assert missed <= 0.1 * releases + 3.1 * math.sqrt(0.09 * releases)
    assert missed > 0.005 * releases, "sets are not simply large"
    assert useful > 0.9 * releases


def test_sets_without_noise_equal_split_conformal_prediction() -> None:
    """The threshold is the highest edge that covers at the usual quantile, ceil((n + 1)(1 - a))."""
    generator = np.random.default_rng(4)
    values, labels = draw_rows(2000, generator)
    own = values[np.arange(len(labels)), labels]
    for coverage in calibration.COVERAGES:
        by_units = coverage / (1 - calibration.NOISE_SHARE * (1 - coverage))
        wanted = math.ceil(by_units * (len(own) + 1))
        least = np.sort(own)[::-1][wanted - 1]
        edges = [edge for edge in calibration.LABEL_EDGES if edge <= least]
        noise = np.zeros(len(calibration.LABEL_EDGES) - 1)
        assert threshold_of(own, noise, 0.0, coverage) == pytest.approx(max(edges), rel=2e-6)


def binned(
    n: int, slope: float, generator: np.random.Generator, power: float = 1.0
) -> tuple[Floats, Floats, Any]:
    """Returns edges and counts of 40 bins, equal in size if `power` is 1, with the rows."""
    scores = generator.normal(size=n)
    labels = generator.random(n) < expit(slope * scores - 0.7)
    edges = np.quantile(scores, np.linspace(0, 1, 41) ** power)
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, 39)
    counts = np.stack([np.bincount(place[labels == kind], minlength=40) for kind in (1, 0)])
    middles = np.array([scores[place == each].mean() for each in range(40)])
    return edges, counts.astype(float), (middles, scores, labels)


def test_the_logistic_regression_on_counts_equals_that_on_rows() -> None:
    _, counts, (middles, scores, labels) = binned(200_000, 2.0, np.random.default_rng(6))
    slope, offset = calibration.fit_logistic(middles, *counts, n=200_000, deviation=0.0)
    usual = LogisticRegression(C=np.inf).fit(scores[:, None], labels)
    assert slope == pytest.approx(float(usual.coef_[0, 0]), rel=0.03)
    assert offset == pytest.approx(float(usual.intercept_[0]), abs=0.03)


@pytest.mark.parametrize("deviation", [1.0, 4.0, 12.0])
def test_noise_leaves_probabilities_within_reason(deviation: float) -> None:
    """Noisy ranges leave far, empty bins, which must not flip the slope."""
    generator = np.random.default_rng(7)
    errors = []
    for _ in range(20):
        _, counts, (middles, scores, _) = binned(1000, 2.0, generator)
        places = np.concatenate([[-500.0, -90.0], middles, [40.0, 700.0]])
        table = np.pad(counts, ((0, 0), (2, 2)))
        noisy = table + generator.normal(0, deviation, table.shape)
        slope, offset = calibration.fit_logistic(places, *noisy, n=1000, deviation=deviation)
        truth = expit(2.0 * scores - 0.7)
        errors.append(np.abs(expit(slope * scores + offset) - truth).mean())
    assert np.mean(errors) < (0.25 if deviation > 10 else 0.08)


def test_two_classes_are_described_as_their_rows_are() -> None:
    """With zero noise drawn, shares equal those of the rows, but errors still allow for noise."""
    n, deviation = 20_000, 2.0
    edges, counts, (middles, scores, labels) = binned(n, 3.0, np.random.default_rng(9), power=1.5)
    largest = int(counts.sum(axis=0).max())
    slope, offset = calibration.fit_logistic(middles, *counts, n=n, deviation=deviation)
    said = calibration.describe_two(
        edges, middles, counts, scale=slope, offset=offset, n=n, deviation=deviation
    )
    chances, ends = (expit(slope * each + offset) for each in (scores, edges))
    surest, low, high = np.maximum(chances, 1 - chances), ends[:-1], ends[1:]

    def share(part: Any, whole: Any, bins: Any, rest: Any) -> Any:
        noise = [deviation * math.sqrt(each.sum()) for each in (bins, rest)]
        return pytest.approx(
            calibration.estimate_share(float(part.sum()), float(whole.sum()), *noise)
        )

    rates: dict[str, Any] = {
        "sensitivity": (max, lambda end: (chances[labels] >= end).mean()),
        "specificity": (min, lambda end: (chances[~labels] < end).mean()),
    }
    offered = [(row["wanted"], row["rate"]) for row in said["cut_offs"]]
    assert offered == [(name, rate) for name in rates for rate in calibration.WANTED_RATES]
    for row in said["cut_offs"]:
        above, over = chances >= row["from"], low >= row["from"]
        assert row["sensitivity"] == share(above & labels, labels, over, ~over)
        assert row["specificity"] == share(~above & ~labels, ~labels, ~over, over)
        choose, rate = rates[row["wanted"]]
        assert row["from"] == choose(end for end in ends[1:-1] if rate(end) >= row["rate"])
    for row in said["reliability"]:
        inside = (chances >= row["from"]) & ((chances < row["to"]) | (row["to"] == 1))
        bins = (high > row["from"]) & (low < row["to"])
        ends_of_share = row["observed"], row["low"], row["high"]
        assert ends_of_share == share(inside & labels, inside, bins, bins)
        assert row["predicted"] == pytest.approx(chances[inside].mean(), abs=0.002)
    assert [row["from"] for row in said["abstention"]] == [*calibration.ABSTAIN_BELOW]
    for row in said["abstention"]:  # each limit divides one bin per class
        sure = surest >= row["from"]
        right = ((chances >= 0.5) == labels)[sure].mean()
        assert row["answered"] <= sure.mean() <= row["answered"] + 2 * largest / n
        assert row["low"] < right < row["high"]
    treated_from = [row["from"] for row in said["net_benefit"]]
    assert treated_from == pytest.approx(calibration.TREATED_FROM, abs=0.05)
    for row in said["net_benefit"]:
        treated, odds = chances >= row["from"], row["from"] / (1 - row["from"])
        gained, lost = (treated & labels).sum(), odds * (treated & ~labels).sum()
        noise = deviation * math.sqrt((1 + odds**2) * (low >= row["from"]).sum())
        assert n * row["benefit"] == pytest.approx(gained - lost)
        assert n * row["all"] == pytest.approx(labels.sum() - odds * (~labels).sum())
        assert n * row["error"] == pytest.approx(math.hypot(noise, math.sqrt(gained + odds * lost)))
    for row in said["sets"]:
        most, z = calibration.allowed_misses(n, row["coverage"])
        missed = np.where(labels, chances, 1 - chances) < row["threshold"]
        assert most - 4 * largest < missed.sum() < most - z * deviation


def test_the_share_of_answered_rows_never_rises_with_the_limit() -> None:
    """Noisy counts may be negative, but shares are made monotone."""
    random, edges = np.random.default_rng(0), np.linspace(0.5, 1.0, 40)
    least, most = edges[:-1], edges[1:]
    for _ in range(50):
        right, wrong = random.normal(2.0, 40.0, (2, len(least)))
        rows = calibration.list_abstention(least, most, right, wrong, 300, 40.0)
        shares = [row["answered"] for row in rows]
        assert shares == sorted(shares, reverse=True)
        assert 0 <= min(shares) <= max(shares) <= 1


# The numbers of a calibration, compared with plain loops, and in edge cases.


Z = norm.ppf(0.975)


@given(signs=st.lists(st.sampled_from([-3.0, 1.0]), min_size=6, max_size=6))
def test_a_temperature_is_found_by_halving(signs: list[float]) -> None:
    """The search goes up if the head is overconfident, else down, and ends by interpolation."""
    low, high, ends = -8.0, 8.0, {}
    for place, answer in enumerate(signs):
        middle = (low + high) / 2
        assert calibration.search_temperature(signs[:place]) == middle
        if answer > 0:
            low = ends["low"] = middle
        else:
            high = ends["high"] = middle
    if len(ends) < 2:
        assert calibration.search_temperature(signs) == (low + high) / 2
    else:  # 1 at the low end, -3 at the high end: a quarter of the way
        assert calibration.search_temperature(signs) == pytest.approx(low + (high - low) / 4)


def test_allowed_misses_follow_the_documented_formula() -> None:
    """(1 - b)(1 - g) is the coverage; noise gets a tenth of the misses."""
    for n, coverage in itertools.product((50, 99, 2000), calibration.COVERAGES):
        most, z = calibration.allowed_misses(n, coverage)
        g = norm.sf(z)
        assert g == pytest.approx(0.1 * (1 - coverage))
        b = (most + 1) / (n + 1)
        assert (1 - b) * (1 - g) == pytest.approx(coverage)


@pytest.mark.parametrize("coverage", calibration.COVERAGES)
@pytest.mark.parametrize("n", [99, 2000])
def test_a_threshold_stays_below_the_limit_by_its_margin(n: int, coverage: float) -> None:
    most, z = calibration.allowed_misses(n, coverage)

    def find(*candidates: tuple[float, float, float]) -> float | None:
        return calibration.find_threshold(candidates, n, coverage)

    assert find() is None
    if most <= 0:
        assert find((0.1, 0.0, 1e-6)) is None
        return
    assert find((0.1, most, 0.0), (0.2, most, 0.0), (0.3, most, 0.0)) == 0.3
    assert find((0.1, most, 0.0), (0.2, most + 1e-9, 0.0), (0.3, 0.0, 0.0)) == 0.1
    assert find((0.1, most + 1e-9, 0.0), (0.2, 0.0, 0.0)) is None
    assert find((0.1, 0.001 * most, 0.998 * most / z)) == 0.1
    assert find((0.1, 0.003 * most, 0.998 * most / z)) is None, "misses and margin together"
    # such a set is published only by chance: its noise exceeds the limit
    assert find((0.1, -most, 0.999 * most / z)) == 0.1
    assert find((0.1, -most, 1.001 * most / z)) is None
    assert find((0.1, -most, 0.5 * most / z), (0.2, -most, 1.9 * most / z)) == 0.2


@pytest.mark.parametrize("coverage", calibration.COVERAGES)
def test_the_fewest_units_hold_the_noise_of_four_counts(coverage: float) -> None:
    n = calibration.fewest_units(2.0, coverage)
    z = calibration.allowed_misses(n, coverage)[1]
    by_units = 1 - coverage / (1 - 0.1 * (1 - coverage))
    assert n - 1 < (1 + z * 2.0 * math.sqrt(4)) / by_units <= n


def covers(p: float, part: float, whole: float, part_noise: float, rest_noise: float) -> bool:
    variance = whole * p * (1 - p) + ((1 - p) * part_noise) ** 2 + (p * rest_noise) ** 2
    return abs(part - p * whole) <= Z * math.sqrt(variance)


@pytest.mark.parametrize(
    ("part", "whole"), [(30, 100), (0, 100), (100, 100), (5, 40), (-7, 100), (130, 100)]
)
@pytest.mark.parametrize("noise", [(1.0, 2.0), (4.0, 0.5), (0.0, 0.0)])
def test_the_interval_of_a_share_holds_what_is_not_rejected(
    part: float, whole: float, noise: tuple[float, float]
) -> None:
    """Fieller 1954: the interval has all p for which r - p m is within 1.96 deviations of 0."""
    share = calibration.estimate_share(part, whole, *noise)
    clipped = min(max(part, 0), whole)
    assert share.value == clipped / whole
    held = [p for p in np.linspace(0, 1, 2001) if covers(p, clipped, whole, *noise)]
    assert share.low == pytest.approx(min(held[0], share.value))
    assert share.high == pytest.approx(max(held[-1], share.value))


def test_a_share_within_the_noise_has_the_interval_0_to_1() -> None:
    limit = 2 * math.hypot(3.0, 4.0)
    assert calibration.estimate_share(4, limit, 3.0, 4.0) == (0.5, 0.0, 1.0)
    assert calibration.estimate_share(4, limit + 0.01, 3.0, 4.0) != (0.5, 0.0, 1.0)
    assert calibration.estimate_share(-4, -9, 0.0, 0.0) == (0.5, 0.0, 1.0)


PLACES = np.linspace(-2, 2, 9)


@given(seed=st.integers(0, 10**6), shift=st.floats(-20, 20), scale=st.floats(0.01, 100))
def test_a_logistic_regression_follows_its_scores(seed: int, shift: float, scale: float) -> None:
    """Rescaled scores change slope and offset, but not the probabilities."""
    generator = np.random.default_rng(seed)
    table = generator.integers(5, 60, (2, 9)).astype(float)
    table[0] += 20 * np.arange(9)
    slope, offset = calibration.fit_logistic(PLACES, *table, n=2000, deviation=1.0)
    moved = scale * PLACES + shift
    other, constant = calibration.fit_logistic(moved, *table, n=2000, deviation=1.0)
    chances = expit(slope * PLACES + offset)
    np.testing.assert_allclose(expit(other * moved + constant), chances, atol=1e-4)


def test_a_share_of_the_labels_counts_as_the_other_in_proportion_to_the_noise() -> None:
    """Classes that do not overlap: one deviation from the centre, at most 1 - `mixed`."""
    positives = np.where(PLACES > 0, 100.0, 0.0)
    negatives = np.where(PLACES < 0, 100.0, 0.0)
    positives[4] = negatives[4] = 50.0
    totals = positives + negatives
    low, high = np.interp([0.1, 0.9], (np.cumsum(totals) - totals / 2) / totals.sum(), PLACES)
    places = np.clip(PLACES, low - (high - low) / 2, high + (high - low) / 2)
    spread = math.sqrt(np.average(places**2, weights=totals))
    for deviation in (0.5, 3.0):
        mixed = 2 * (1 + deviation) / 900
        slope, offset = calibration.fit_logistic(
            PLACES, positives, negatives, n=900, deviation=deviation
        )
        share = (1 - mixed) * positives + mixed * negatives

        def loss(value: float, share: Any = share) -> float:
            eta = value * places
            return float((totals * np.log1p(np.exp(eta)) - share * eta).sum())

        best = minimize_scalar(loss, bounds=(0, 50), method="bounded").x
        limit = logit(1 - mixed) / spread
        assert slope == pytest.approx(min(best, limit), rel=1e-3)
        assert offset == pytest.approx(0, abs=1e-3)


def test_a_head_that_ranks_backwards_has_slope_0() -> None:
    falling = np.arange(90.0, 0, -10)
    slope, offset = calibration.fit_logistic(PLACES, falling, 100 - falling, n=900, deviation=0.5)
    mixed = 2 * 1.5 / 900
    positive = ((1 - mixed) * falling + mixed * (100 - falling)).sum()
    assert slope == pytest.approx(0, abs=1e-9)
    assert offset == pytest.approx(logit(positive / 900), abs=1e-3)


@pytest.mark.parametrize("n", [9, 99])
@pytest.mark.parametrize("other", [-20.0, 0.0, 7.0, 300.0])
def test_one_bin_gives_only_an_offset(n: int, other: float) -> None:
    one = np.array([0.0, 300.0, 0.0])
    few = one * other / 300
    mixed = min(0.25, 2 * 1.5 / n)
    for positives, negatives in ((one, few), (few, one)):
        slope, offset = calibration.fit_logistic(
            np.arange(3.0), positives, negatives, n=n, deviation=0.5
        )
        share = ((1 - mixed) * positives.sum() + mixed * negatives.sum()) / (300 + other)
        assert slope == 0
        assert offset == pytest.approx(logit(min(max(share, mixed), 1 - mixed)))


def test_calibration_ignores_bins_within_their_noise() -> None:
    limit = 3 * 2.0 * math.sqrt(2)
    table = np.full((2, 3), limit / 2 * 0.999)
    assert calibration.fit_logistic(np.arange(3.0), *table, n=99, deviation=2.0) == (0.0, 0.0)
    noisy = np.array([[400.0, 5.0, 90.0], [100.0, 3.0, 400.0]])
    clear = noisy[:, [0, 2]]
    found = calibration.fit_logistic(np.array([3.0, 0, 1]), *noisy, n=999, deviation=2.0)
    assert found == calibration.fit_logistic(np.array([3.0, 1]), *clear, n=999, deviation=2.0)


def test_pure_noise_gives_no_prediction_sets() -> None:
    made = calibration.describe_classes(np.ones((11, 2)), np.ones(16), n=40, deviation=50.0)
    assert made["sets"] == []
    (row,) = made["reliability"]
    assert (row["from"], row["to"]) == (0.0, 1.0)
    assert (row["observed"], row["low"], row["high"]) == (0.5, 0.0, 1.0)
    assert [each["observed"] for each in made["abstention"]] == [0.5] * 6


def test_sets_of_several_classes_count_the_true_class_below_each_edge() -> None:
    label = np.array([1.0] * 8 + [0.0] * 7 + [992.0])
    made = calibration.describe_classes(np.ones((11, 2)), label, n=1000, deviation=0.0)
    thresholds = {row["coverage"]: row["threshold"] for row in made["sets"]}
    # 8 of 1,000 units have a true-class probability below 0.15, and none from 0.15 to 0.9
    highest = calibration.LABEL_EDGES[-2]
    assert thresholds[0.9] == pytest.approx(highest * (1 - 1e-6), rel=1e-12)
    most = calibration.allowed_misses(1000, 0.99)[0]
    assert 8 < most < 10
    assert thresholds[0.99] == thresholds[0.9]
    made = calibration.describe_classes(np.ones((11, 2)), label * 1.3, n=1000, deviation=0.0)
    below = {row["coverage"]: row["threshold"] for row in made["sets"]}
    place = math.floor(most / 1.3)  # edges with this few units below
    assert below[0.99] == pytest.approx(calibration.LABEL_EDGES[place], rel=2e-6)


def test_answered_images_are_in_ranges_above_the_limit() -> None:
    """A limit never divides a range, so the interval is that of a single share."""
    top = np.stack([30.0 * np.arange(1, 12), 30.0 * np.arange(11, 0, -1)], axis=1)
    made = calibration.describe_classes(top, np.ones(16), n=9000, deviation=2.0)["abstention"]
    for row in made:
        kept = top[np.array(TOP_EDGES[:-1]) >= row["from"]]
        right, wrong = kept.sum(axis=0)
        share = calibration.estimate_share(right, right + wrong, *[2 * math.sqrt(len(kept))] * 2)
        assert (row["observed"], row["low"], row["high"]) == pytest.approx(share)
        assert row["answered"] == pytest.approx((right + wrong) / 9000)


def test_ranges_of_the_diagram_are_joined_until_they_exceed_their_noise() -> None:
    """Ranges are joined from the highest probability down; the rest joins the last group."""
    low, high = np.arange(0, 1, 0.1), np.arange(0.1, 1.05, 0.1)
    middle = (low + high) / 2
    hits, others = np.full(10, 30.0), np.full(10, 10.0)

    def ends(deviation: float) -> list[tuple[float, float]]:
        rows = calibration.join_ranges(low, high, middle, hits, others, deviation)
        return [(round(row["from"], 6), round(row["to"], 6)) for row in rows]

    each = [(round(a, 6), round(b, 6)) for a, b in zip(low, high, strict=True)]
    assert ends(1.0) == each, "40 rows are more than 8 times sqrt(2)"
    pairs = [(round(0.2 * k, 6), round(0.2 * k + 0.2, 6)) for k in range(5)]
    assert ends(4.0) == pairs, "80 rows exceed 8 * 4 * sqrt(4), and 40 not 8 * 4 * sqrt(2)"
    assert ends(100.0) == [(0.0, 1.0)]
    hits[:3] = others[:3] = 0.1
    assert ends(1.0) == [(0.0, 0.4), *each[4:]]
    (first, *_) = calibration.join_ranges(low, high, middle, hits, others, 1.0)
    totals = hits + others
    assert first["predicted"] == pytest.approx(np.average(middle[:4], weights=totals[:4]))
    share = calibration.estimate_share(hits[:4].sum(), totals[:4].sum(), 2.0, 2.0)
    assert (first["observed"], first["low"], first["high"]) == pytest.approx(share)


def test_the_candidates_of_two_classes_count_a_divided_bin_as_missed() -> None:
    ends = np.array([0.0, 0.2, 0.7, 1.0])
    positives, negatives = np.array([1.0, 10, 100]), np.array([1000.0, 10_000, 100_000])
    found = calibration.list_thresholds(ends, positives, negatives, 2.0)
    # thresholds 0.2 and 1 - 0.7 miss second-class rows below t and first-class rows above 1 - t
    expected = [(0.2, 1 + 100_000, 2), (0.3, 11 + 100_000, 3)]
    for (threshold, misses, deviation), (edge, count, bins) in zip(found, expected, strict=True):
        assert threshold == pytest.approx(edge)
        assert misses == count
        assert deviation == pytest.approx(2.0 * math.sqrt(bins))


def test_the_interval_of_a_share_follows_its_variance() -> None:
    few = np.array(calibration.estimate_share(30.0, 1e5, 2.0, 3.0))
    most = np.array(calibration.estimate_share(1e5 - 30.0, 1e5, 3.0, 2.0))
    for end in few[1:]:  # nearly the Poisson variance plus the noise variance
        assert abs(30 - end * 1e5) == pytest.approx(1.96 * math.sqrt(end * 1e5 + 4), rel=1e-3)
    assert few[1] < few[0] < few[2] == pytest.approx(1 - most[1])
