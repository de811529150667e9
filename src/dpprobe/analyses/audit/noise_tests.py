"""Tests of the distribution of noise and of Poisson batches; they do not depend on the data.

An audit knows the noise, because it knows each sum before noise and each released value. The noise
of a correct mechanism, divided by its planned deviation, consists of independent standard normal
numbers in an orthonormal basis of each release. So tests of noise find faults in numbers that
no canary changes. `replay` finds dependent noise: it computes each number from the seed's words.

Statistics of correct noise have known distributions. Sums of squares are chi-square. Numbers beyond
some deviations, and low bits that are set, are binomial. The Kolmogorov-Smirnov distance has the
bound of Dvoretzky, Kiefer, Wolfowitz and Massart. A test with several statistics multiplies the
smallest p-value by the number of statistics (Bonferroni), so false alarms are not more frequent
than stated.

Rounding noise to a grid raises its variance by a twelfth of the squared step, too little for an
audit's runs to detect. With a deviation of s steps, the bit of value v is 1 with probability 1/2,
up to exp(-2 pi^2 (s / 2v)^2) (Poisson's summation formula).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.transcripts import Block, SeenBatches, Transcript, join_blocks
from dpprobe.privacy.plan import Plan

Numbers = npt.NDArray[np.float64]

# The largest number of noise numbers, from a mechanism's first release, that are tested.
_MOST_NUMBERS = 1500
_OFF_GRID = 1e-3
# The most low bits of noise that are tested. A bit is a fair coin, up to 1e-130, if the deviation
# is at least _FAIR times the bit's value.
_MOST_BITS, _FAIR = 16, 8
# Standard deviations at which noise may be cut. Counts begin _MARGIN above them, because a sum's
# rounding moves about half of the numbers that are cut at 3 deviations to just above 3.
TAILS, _MARGIN = (3.0, 4.0, 5.0), 1e-3


class Outcome(NamedTuple):
    """A test's name, and its p-value under a correct mechanism (exact or too large)."""

    name: str
    p_value: float


class NoiseTests:
    """Collects noise and batches of runs, and tests a plan's noise scales and sampling rates."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tallies: dict[str, _Tally] = {}
        self._first: list[Numbers] = []
        self._sizes: list[int] = []
        self._joined = np.zeros(plan.n, dtype=np.int64)
        self._again, self._beside = (np.zeros(2, dtype=np.int64) for _ in range(2))
        self._pairs = np.zeros(2, dtype=np.int64)

    def add_run(self, transcript: Transcript) -> None:
        first = []
        for block in join_blocks(transcript):
            if block.name not in self._tallies:
                scale = self._plan.find_mechanism(block.name).noise_scale
                self._tallies[block.name] = _Tally(block, scale)
            first.append(self._tallies[block.name].add_releases(block))
        self._first.append(np.concatenate(first))

    def add_batches(self, batches: Sequence[SeenBatches]) -> None:
        for seen in batches:
            steps = len(seen.sizes)
            self._sizes += seen.sizes
            self._joined[: len(seen.unit_counts)] += seen.unit_counts
            self._again += seen.again
            self._beside += seen.beside
            self._pairs += [steps // 2, max(steps - 1, 0) // 2]

    @property
    def _rate(self) -> float:
        return min(mechanism.sample_rate for mechanism in self._plan.mechanisms)

    @property
    def reach(self) -> Callable[[float], float | None]:
        """Maps a test level to the largest of `TAILS` at which cut noise is refuted."""
        tallies = self._tallies.values()
        return lambda level: max(
            (tail for tail in TAILS if all(tally.catches_cut(tail, level) for tally in tallies)),
            default=None,
        )

    def list_results(self) -> list[Outcome]:
        """Returns results of all tests that apply; some need Poisson batches, or sums on a grid."""
        levels: dict[str, list[float]] = {
            "variance": [],
            "normal": [],
            "tails": [],
            "low_bits": [],
            "batches": [],
        }
        for tally in self._tallies.values():
            tally.test_levels(levels)
        levels["normal"].append(_compare_with_normal(np.concatenate(self._first)))
        if self._sizes:
            levels["batches"] += self._test_batches()
        return [
            Outcome(name, min(1.0, len(values) * min(values)))
            for name, values in levels.items()
            if values
        ]

    def _test_batches(self) -> list[float]:
        """Returns p-values of batch sizes, of units' shares of batches, and of pairs in batches.

        Disjoint pairs of draws are independent. So two counts are binomial: how often a unit joins
        both of two consecutive batches, and how often two units join one batch.
        """
        from scipy.stats import binom

        sizes, n, rate = np.array(self._sizes), len(self._joined), self._rate
        middle = math.floor(n * rate)
        below = binom.cdf(middle, n, rate)
        return [
            _test_counts(np.array([sizes.sum()]), sizes.size * n, rate),
            _test_counts(self._joined, sizes.size, rate),
            _test_counts(np.array([(sizes <= middle).sum()]), sizes.size, below),
            *(
                _test_counts(np.array([count]), n * pairs, rate**2)
                for count, pairs in zip(self._again, self._pairs.tolist(), strict=True)
            ),
            *(
                _test_counts(np.array([count]), sizes.size * pairs, rate**2)
                for count, pairs in zip(self._beside, (n // 2, (n - 1) // 2), strict=True)
            ),
        ]


class _Tally:
    """Sums a mechanism's noise over runs, by release and coordinate; `block` defines the shapes."""

    def __init__(self, block: Block, deviation: float) -> None:
        releases, sums = len(block.sums), block.sums[0]
        square = sums.ndim == 2 and sums.shape[0] == sums.shape[1]
        self._symmetric = square and bool(torch.equal(sums, sums.T))
        self._deviation = deviation
        numbers = _to_coordinates(sums[None], symmetric=self._symmetric).shape[1]
        kept = min(numbers, _MOST_NUMBERS)
        self._kept = np.linspace(0, numbers - 1, kept).astype(np.int64)
        self._runs = 0
        self._squares = np.zeros((releases, numbers))
        self._of_runs: list[float] = []
        self._bits = np.zeros(1, dtype=np.int64)
        self._whole, self._off_grid = 0, False
        self._beyond, self._spacing = np.zeros(len(TAILS), dtype=np.int64), 1e-6

    def add_releases(self, block: Block) -> Numbers:
        """Adds one run's releases; returns the selected noise numbers of the first release."""
        noise = block.outputs - block.sums
        z = _to_coordinates(noise, symmetric=self._symmetric) / self._deviation
        squares = z * z
        self._runs += 1
        self._squares += squares
        self._of_runs.append(float(squares.sum()))
        self._beyond += [int((squares > (tail + _MARGIN) ** 2).sum()) for tail in TAILS]
        if block.step is not None:
            self._count_bits(noise, block.step)
        kept: Numbers = z[0, self._kept]
        return kept

    def _count_bits(self, noise: torch.Tensor, step: float) -> None:
        """Counts the set low bits of noise numbers in grid steps; detects non-multiples."""
        values = noise.numpy()
        upper = np.triu_indices(values.shape[1]) if self._symmetric else ()
        steps = (values[:, *upper] if upper else values).ravel() / step
        whole = np.rint(steps)
        self._off_grid |= bool((np.abs(steps - whole) > _OFF_GRID).any())
        smallest = self._deviation / step * (math.sqrt(0.5) if self._symmetric else 1)
        self._spacing = 1 / smallest
        fair = 1 + max(0, math.floor(math.log2(smallest / _FAIR)))
        bits = np.arange(min(_MOST_BITS, fair))
        if len(self._bits) < len(bits):
            self._bits = np.zeros(len(bits), dtype=np.int64)
        integers = np.nan_to_num(whole).astype(np.int64)
        self._bits += [int((integers >> bit & 1).sum()) for bit in bits]
        self._whole += steps.size

    def catches_cut(self, tail: float, level: float) -> bool:
        """Returns True if the test of tails refutes noise that is cut at `tail` deviations."""
        numbers = self._runs * self._squares.size
        return len(TAILS) * _test_tails(0, tail + _MARGIN, numbers, self._spacing) <= level

    def test_levels(self, levels: dict[str, list[float]]) -> None:
        """Appends p-values of the mechanism's noise to `levels`, by the name of the test."""
        runs, squares = self._runs, self._squares
        numbers = squares.shape[1]
        levels["variance"] += [
            test_squares(squares, runs),
            test_squares(squares.sum(1), runs * numbers),
            test_squares(np.array(self._of_runs), squares.size),
            test_squares(squares.sum(keepdims=True), runs * squares.size),
        ]
        levels["tails"] += [
            _test_tails(count, tail + _MARGIN, runs * squares.size, self._spacing)
            for count, tail in zip(self._beyond.tolist(), TAILS, strict=True)
        ]
        if self._whole:
            bits = _test_counts(self._bits, self._whole, 0.5)
            levels["low_bits"].append(0.0 if self._off_grid else bits)


def smallest_caught_share(freedom: int, statistics: int, level: float, power: float) -> float:
    """Computes the share of the planned variance below which the test has power `power`.

    Args:
      freedom: degrees of freedom of the sum of squares; the number of runs for a single number.
      statistics: the number of statistics, each tested two-sided at `level` / `statistics`.
    """
    from scipy.stats import chi2

    least = chi2.ppf(level / (2 * statistics), freedom)
    return float(least / chi2.ppf(power, freedom))


def _to_coordinates(values: torch.Tensor, *, symmetric: bool) -> Numbers:
    """Flattens [releases, ...] to [releases, numbers]; uses an orthonormal basis if symmetric."""
    if not symmetric:
        flat: Numbers = values.flatten(1).numpy()
        return flat
    rows, columns = torch.triu_indices(values.shape[1], values.shape[1])
    weights = torch.where(rows == columns, 1.0, math.sqrt(2)).double()
    upper: Numbers = (values[:, rows, columns] * weights).numpy()
    return upper


# Functions `_test_...` return two-sided p-values of the most extreme of several statistics.


def _test_extremes(size: int, below: float, above: float) -> float:
    """Returns the p-value from the tails of the smallest and largest statistic; 0 for NaN."""
    tail = min(float(below), float(above))
    return 0.0 if math.isnan(below + above) else min(1.0, 2 * size * tail)


def test_squares(values: Numbers, freedom: int) -> float:
    """Tests sums of squares, each of `freedom` standard normal values."""
    from scipy.special import chdtr, chdtrc

    return _test_extremes(values.size, chdtr(freedom, values.min()), chdtrc(freedom, values.max()))


def _test_counts(counts: npt.NDArray[np.int64], trials: int, rate: float) -> float:
    from scipy.stats import binom

    least, most = binom.cdf(counts.min(), trials, rate), binom.sf(counts.max() - 1, trials, rate)
    return _test_extremes(counts.size, least, most)


def _test_tails(count: int, tail: float, numbers: int, spacing: float) -> float:
    """Tests how many normal numbers exceed `tail` deviations, in either direction.

    The numbers are rounded to a grid of `spacing` deviations. So the probability of exceeding
    `tail` is between the normal distribution's values at `tail` plus and minus one step.
    """
    from scipy.special import ndtr
    from scipy.stats import binom

    least, most = (2 * ndtr(-tail - side * spacing) for side in (1, -1))
    return _test_extremes(1, binom.cdf(count, numbers, least), binom.sf(count - 1, numbers, most))


def _compare_with_normal(values: Numbers) -> float:
    """Bounds the p-value of the distance between values and the normal distribution."""
    from scipy.special import ndtr

    ranks = np.arange(values.size + 1) / values.size
    expected = ndtr(np.sort(values))
    distance = max((ranks[1:] - expected).max(), (expected - ranks[:-1]).max())
    return min(1.0, 2 * math.exp(-2 * values.size * distance**2))
