"""Tests of the noise of all released numbers; the tests do not depend on the data.

An audit knows the noise, because it knows each sum before noise and each released value. If a
mechanism is correct, its noise divided by the planned standard deviation consists of independent
standard normal numbers, in an orthonormal basis of each release. Correct noise is normal for each
coordinate, release and run, with and without canaries, for any sums and any dependence on earlier
releases. So tests of noise also find faults in numbers that no canary changes.

Statistics of correct noise have known distributions. Sums of squares are chi-square, the share of
one sum of squares in a total of two is beta, and sums of noise are normal. The product of noise
with a vector of length 1 that is independent of the noise is normal too; the tests use other rows
of noise, and sums before noise. The Kolmogorov-Smirnov distance has the bound of Dvoretzky, Kiefer,
Wolfowitz and Massart. A test with several statistics multiplies the smallest p-value by the number
of statistics (Bonferroni), so false alarms are not more frequent than stated.

Rounding noise to a grid raises its variance by a twelfth of the squared step, too little for an
audit's runs to detect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.transcripts import Block, SeenBatches, Transcript, join_blocks
from dpprobe.privacy.plan import Plan

Numbers = npt.NDArray[np.float64]

# The most numbers of a mechanism's first release, and the most rows, compared pair by pair.
_MOST_NUMBERS, _MOST_ROWS = 1500, 2048
# The most runs whose releases are compared pair by pair, and the most products for comparisons.
_PAIRED_RUNS, _PAIRED_PRODUCTS = 64, 5 * 10**8
_OFF_GRID = 1e-3
# The most low bits of noise that are tested; a bit is a fair coin, up to 1e-130, if the deviation
# is at least _FAIR times the bit's value.
_MOST_BITS, _FAIR = 16, 8
# Deviations beyond which noise is counted.
TAILS = (3.0, 4.0, 5.0)
# A unit with this probability or less joins that many batches of one run.
_OFTEN = 0.05


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
        self._samplers = self._often = 0

    def add_run(self, transcript: Transcript, *, present: bool) -> None:
        first = []
        for block in join_blocks(transcript):
            if block.name not in self._tallies:
                scale = self._plan.find_mechanism(block.name).noise_scale
                self._tallies[block.name] = _Tally(block, scale)
            first.append(self._tallies[block.name].add_releases(block, int(present)))
        self._first.append(np.concatenate(first))

    def add_batches(self, batches: Sequence[SeenBatches]) -> None:
        for seen in batches:
            steps = len(seen.sizes)
            self._sizes += seen.sizes
            self._joined[: len(seen.unit_counts)] += seen.unit_counts
            self._again += seen.again
            self._beside += seen.beside
            self._pairs += [steps // 2, max(steps - 1, 0) // 2]
            self._samplers += 1
            self._often += int((seen.unit_counts >= self._many(steps)).sum())

    def _many(self, steps: int) -> int:
        """Returns the number of batches of a run that few units join, and at least 1."""
        from scipy.stats import binom

        return max(1, int(binom.isf(_OFTEN, steps, self._rate)) + 1)

    @property
    def _rate(self) -> float:
        return min(mechanism.sample_rate for mechanism in self._plan.mechanisms)

    @property
    def reach(self) -> Callable[[float], float | None]:
        """Maps a level to the largest of `TAILS` at which cutting any mechanism's noise refutes."""
        tallies = self._tallies.values()
        return lambda level: max(
            (tail for tail in TAILS if all(tally.catches_cut(tail, level) for tally in tallies)),
            default=None,
        )

    def list_results(self) -> list[Outcome]:
        """Returns results of all tests that apply; some need Poisson batches, or sums on a grid."""
        levels: dict[str, list[float]] = {
            "variance": [], "both_worlds": [], "steps": [], "runs": [], "numbers": [], "sums": [],
            "normal": [], "tails": [], "low_bits": [], "batches": [],
        }  # fmt: skip
        for tally in self._tallies.values():
            tally.test_levels(levels)
        first = np.stack(self._first)
        levels["runs"].append(_compare_pairs(first))
        levels["numbers"].append(_compare_pairs(first.T))
        levels["normal"].append(_compare_with_normal(first.ravel()))
        if self._sizes:
            levels["batches"] += self._test_batches()
        return [
            Outcome(name, min(1.0, len(values) * min(values)))
            for name, values in levels.items()
            if values
        ]

    def _test_batches(self) -> list[float]:
        """Returns p-values of batch sizes, of units' shares of batches, and of pairs in batches.

        Disjoint pairs of draws are independent, so the number of pairs in which a unit joins both
        of two consecutive batches is binomial, like the number of two units that join one batch.
        """
        from scipy.stats import binom

        sizes, n, rate = np.array(self._sizes), len(self._joined), self._rate
        middle = math.floor(n * rate)
        below = binom.cdf(middle, n, rate)
        steps = sizes.size // self._samplers
        often = binom.sf(self._many(steps) - 1, steps, rate)
        return [
            _test_counts(np.array([sizes.sum()]), sizes.size * n, rate),
            _test_counts(self._joined, sizes.size, rate),
            _test_counts(np.array([(sizes <= middle).sum()]), sizes.size, below),
            _test_counts(np.array([self._often]), self._samplers * n, often),
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
    """Sums a mechanism's noise over runs, by release and coordinate; `block` gives shapes."""

    def __init__(self, block: Block, deviation: float) -> None:
        releases, sums = len(block.sums), block.sums[0]
        square = sums.ndim == 2 and sums.shape[0] == sums.shape[1]
        self._symmetric = square and bool(torch.equal(sums, sums.T))
        self._deviation = deviation
        numbers = _to_coordinates(sums[None], symmetric=self._symmetric).shape[1]
        rows = len(sums) if sums.ndim == 2 and not self._symmetric else 1
        self._shape = releases, rows, numbers // rows
        kept = min(numbers, _MOST_NUMBERS)
        self._kept = np.linspace(0, numbers - 1, kept).astype(np.int64)
        # Axis 0 of the sums has two entries: runs without canaries, and runs with canaries.
        self._runs = np.zeros(2, dtype=np.int64)
        self._totals = np.zeros((2, releases, numbers))
        self._squares = np.zeros((2, releases, numbers))
        self._of_runs: list[float] = []
        self._over_steps: list[float] = []
        self._over_rows, self._over_columns = np.zeros(releases), np.zeros(releases)
        self._along: list[Numbers] = []
        self._paired: list[npt.NDArray[np.float32]] = []
        self._bits = np.zeros(1, dtype=np.int64)
        self._whole, self._off_grid = 0, False
        self._beyond, self._spacing = np.zeros(len(TAILS), dtype=np.int64), 1e-6

    def add_releases(self, block: Block, world: int) -> Numbers:
        """Adds one run's releases; returns the selected noise numbers of the first release."""
        noise = block.outputs - block.sums
        z = _to_coordinates(noise, symmetric=self._symmetric) / self._deviation
        sums_ = _to_coordinates(block.sums, symmetric=self._symmetric)
        squares = z * z
        self._beyond += [int((squares > tail**2).sum()) for tail in TAILS]
        self._runs[world] += 1
        self._totals[world] += z
        self._squares[world] += squares
        self._of_runs.append(float(squares.sum()))
        table = z.reshape(self._shape)
        _, rows, columns = self._shape
        self._over_rows += np.square(table.sum(1)).sum(1) / rows
        self._over_columns += np.square(table.sum(2)).sum(1) / columns
        lengths = np.sqrt(np.einsum("tc,tc->t", sums_, sums_))
        products = np.einsum("tc,tc->t", z, sums_)
        self._along.append(products[lengths > 0] / lengths[lengths > 0])
        if len(z) > 1:
            self._over_steps.append(float(np.square(z.sum(0)).sum()) / len(z))
            products = min(len(z), _MOST_ROWS) ** 2 * z.shape[1]
            if len(self._paired) < max(1, min(_PAIRED_RUNS, _PAIRED_PRODUCTS // products)):
                self._paired.append(z.astype(np.float32))
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
        integers = whole.astype(np.int64)
        self._bits += [int((integers >> bit & 1).sum()) for bit in bits]
        self._whole += steps.size

    def catches_cut(self, tail: float, level: float) -> bool:
        """Returns True if the test of tails refutes noise that is cut at `tail` deviations."""
        numbers = int(self._runs.sum()) * self._shape[0] * self._shape[1] * self._shape[2]
        return _test_tails(0, tail, numbers, self._spacing) * len(TAILS) <= level

    def test_levels(self, levels: dict[str, list[float]]) -> None:
        """Appends p-values of the mechanism's noise to `levels`, by the name of the test."""
        runs = int(self._runs.sum())
        releases, rows, columns = self._shape
        numbers = rows * columns
        totals, squares = self._totals.sum(0), self._squares.sum(0)
        levels["variance"] += [
            test_squares(squares, runs),
            test_squares(squares.sum(1), runs * numbers),
            test_squares(np.array(self._of_runs), releases * numbers),
            test_squares(squares.sum(keepdims=True), runs * releases * numbers),
        ]
        if self._runs.min() > 0:
            outside, inside = self._runs.tolist()
            without, with_ = self._squares
            means = self._totals / self._runs[:, None, None]
            levels["both_worlds"] += [
                _test_normals((means[1] - means[0]) / math.sqrt(1 / outside + 1 / inside)),
                _test_ratios(without, with_, outside, inside),
                _test_ratios(without.sum(1), with_.sum(1), outside * numbers, inside * numbers),
            ]
        if self._over_steps:
            steps = np.array(self._over_steps)
            levels["steps"] += [
                test_squares(steps, numbers),
                test_squares(steps.sum(keepdims=True), runs * numbers),
                _compare_pairs(np.concatenate(self._paired, axis=1)),
            ]
        levels["runs"] += [
            _test_normals(totals / math.sqrt(runs)),
            test_squares(np.square(totals).sum(1) / runs, numbers),
        ]
        levels["numbers"] += [
            test_squares(self._over_rows, runs * columns),
            test_squares(self._over_columns, runs * rows),
        ]
        along = np.concatenate(self._along)
        if along.size:
            levels["sums"] += [
                _test_normals(along.sum(keepdims=True) / math.sqrt(along.size)),
                test_squares(np.square(along).sum(keepdims=True), along.size),
            ]
        levels["tails"] += [
            _test_tails(count, tail, runs * releases * numbers, self._spacing)
            for count, tail in zip(self._beyond.tolist(), TAILS, strict=True)
        ]
        if self._whole:
            bits = _test_counts(self._bits, self._whole, 0.5)
            levels["low_bits"].append(0.0 if self._off_grid else bits)


def smallest_caught_share(freedom: int, statistics: int, level: float, power: float) -> float:
    """Computes the share of planned variance below which noise is caught with probability `power`.

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
    """Tests sums of squares of a given number of standard normal values."""
    from scipy.special import chdtr, chdtrc

    return _test_extremes(values.size, chdtr(freedom, values.min()), chdtrc(freedom, values.max()))


def _test_normals(values: Numbers) -> float:
    """Tests standard normal numbers, which need not be independent."""
    from scipy.special import ndtr

    return _test_extremes(values.size, ndtr(values.min()), ndtr(-values.max()))


def _test_ratios(first: Numbers, second: Numbers, freedom: int, other: int) -> float:
    """Tests, for each pair of sums of squares, the first sum's share of the total."""
    from scipy.special import betainc, betaincc

    total = first + second
    shares = np.divide(first, total, out=np.full_like(first, 0.5), where=total > 0)
    a, b = freedom / 2, other / 2
    return _test_extremes(shares.size, betainc(a, b, shares.min()), betaincc(a, b, shares.max()))


def _test_counts(counts: npt.NDArray[np.int64], trials: int, rate: float) -> float:
    from scipy.stats import binom

    least, most = binom.cdf(counts.min(), trials, rate), binom.sf(counts.max() - 1, trials, rate)
    return _test_extremes(counts.size, least, most)


def _test_tails(count: int, tail: float, numbers: int, spacing: float) -> float:
    """Tests how many normal numbers exceed `tail` deviations, in either direction.

    The numbers are rounded to a grid of `spacing` deviations, so the probability that one exceeds
    `tail` lies between those of `tail` plus and minus one step.
    """
    from scipy.special import ndtr
    from scipy.stats import binom

    least, most = (2 * ndtr(-tail - side * spacing) for side in (1, -1))
    return _test_extremes(1, binom.cdf(count, numbers, least), binom.sf(count - 1, numbers, most))


def _compare_pairs(rows: npt.NDArray[np.floating[Any]]) -> float:
    """Tests that rows of standard normal numbers are independent of each other, pair by pair.

    The product of two rows, divided by the length of the second row, is standard normal. At most
    `_MOST_ROWS` rows are compared.
    """
    if len(rows) > _MOST_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, _MOST_ROWS).astype(np.int64)]
    if len(rows) < 2:
        return 1.0
    rows = rows.astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    products = np.triu(rows @ rows.T, 1) / np.where(lengths > 0, lengths, np.inf)
    pairs = len(rows) * (len(rows) - 1) // 2
    return min(1.0, pairs * _test_normals(np.array([products.min(), products.max()])) / 2)


def _compare_with_normal(values: Numbers) -> float:
    """Bounds the p-value of the distance between values and the normal distribution."""
    from scipy.special import ndtr

    ranks = np.arange(values.size + 1) / values.size
    expected = ndtr(np.sort(values))
    distance = max((ranks[1:] - expected).max(), (expected - ranks[:-1]).max())
    return min(1.0, 2 * math.exp(-2 * values.size * distance**2))
