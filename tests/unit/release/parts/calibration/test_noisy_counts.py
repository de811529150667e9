"""Noisy counts give probabilities, sets that cover, intervals and cut-offs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from dpprobe.release.parts.calibration import noisy_counts as calibration
from dpprobe.release.probabilities import TOP_EDGES

Floats = npt.NDArray[np.float64]
CLASSES = 5


def draw_rows(n: int, generator: np.random.Generator) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Probabilities [n, classes], and labels with these probabilities."""
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
    """New units, test units and noise anew each time: at most 10% of sets miss the true class."""
    for other in ("_join_ranges", "_list_abstention"):  # most of the time, and no part of sets
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
    # the bound of a binomial at one in a thousand
    assert missed <= 0.1 * releases + 3.1 * math.sqrt(0.09 * releases)
    assert missed > 0.005 * releases, "sets are not simply large"
    assert useful > 0.9 * releases


def test_without_noise_the_sets_are_those_of_split_conformal_prediction() -> None:
    """The highest edge at which the usual quantile, ceil((n + 1)(1 - a)) of n, still covers."""
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
    """Bins of equal size, save with another power."""
    scores = generator.normal(size=n)
    labels = generator.random(n) < expit(slope * scores - 0.7)
    edges = np.quantile(scores, np.linspace(0, 1, 41) ** power)
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, 39)
    counts = np.stack([np.bincount(place[labels == kind], minlength=40) for kind in (1, 0)])
    middles = np.array([scores[place == each].mean() for each in range(40)])
    return edges, counts.astype(float), (middles, scores, labels)


def test_the_logistic_regression_is_that_of_the_rows() -> None:
    _, counts, (middles, scores, labels) = binned(200_000, 2.0, np.random.default_rng(6))
    slope, offset = calibration.fit_logistic(middles, *counts, n=200_000, deviation=0.0)
    usual = LogisticRegression(C=np.inf).fit(scores[:, None], labels)
    assert slope == pytest.approx(float(usual.coef_[0, 0]), rel=0.03)
    assert offset == pytest.approx(float(usual.intercept_[0]), abs=0.03)


@pytest.mark.parametrize("deviation", [1.0, 4.0, 12.0])
def test_noise_leaves_probabilities_within_reason(deviation: float) -> None:
    """Bins without rows and far away, as noisy ranges make them, must not turn the slope."""
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
    """The counts happen to have no noise: shares are the rows', and errors still allow for it."""
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
    for row in said["abstention"]:  # the limits divide one bin of either class
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
    """Although noisy counts, which may be negative, say so."""
    random, edges = np.random.default_rng(0), np.linspace(0.5, 1.0, 40)
    least, most = edges[:-1], edges[1:]
    for _ in range(50):
        right, wrong = random.normal(2.0, 40.0, (2, len(least)))
        rows = calibration._list_abstention(least, most, right, wrong, 300, 40.0)
        shares = [row["answered"] for row in rows]
        assert shares == sorted(shares, reverse=True)
        assert 0 <= min(shares) <= max(shares) <= 1
