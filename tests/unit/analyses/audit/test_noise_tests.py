"""Tests of noise raise false alarms as often as stated, and detect faulty noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2, kstest, norm

from dpprobe.analyses.audit import noise_tests
from dpprobe.analyses.audit.noise_tests import TAILS, NoiseTests, smallest_caught_share
from dpprobe.analyses.audit.transcripts import Block, SeenBatches, Transcript
from tests.support.mechanisms import gaussians, made_plan

DEVIATION, STEP = 2.0, 2.0**-20
GRADIENTS = replace(gaussians(2 * DEVIATION, count=3, name="gradients"), sensitivity=0.5)
PLAN = made_plan([gaussians(DEVIATION, name="covariance"), GRADIENTS], 100)
Fault = Callable[[np.random.Generator, list[torch.Tensor]], None]


def make_run(generator: np.random.Generator, fault: Fault | None = None) -> Transcript:
    """Returns a symmetric release and three of two classes; sums depend on earlier noise."""
    upper = np.triu(generator.standard_normal((4, 4)))
    off = np.triu(upper, 1) * math.sqrt(0.5)
    noise = [torch.from_numpy(np.diag(np.diag(upper)) + off + off.T)]
    noise += [torch.from_numpy(generator.standard_normal((2, 5))) for _ in range(3)]
    if fault is not None:
        fault(generator, noise)
    transcript, sums = [], torch.ones(4, 4, dtype=torch.float64)
    for place, part in enumerate(noise):
        name = "gradients" if place else "covariance"
        if place:
            sums = torch.full((2, 5), float(place), dtype=torch.float64) + noise[place - 1].sum()
            sums = (sums / STEP).round() * STEP
        rounded = (part * DEVIATION / STEP).round() * STEP
        transcript.append(Block(name, sums[None], (sums + rounded)[None], STEP))
    return transcript


def p_values(seed: int, runs: int, fault: Fault | None = None) -> dict[str, float]:
    generator = np.random.default_rng(seed)
    tests = NoiseTests(PLAN)
    for _ in range(runs):
        tests.add_run(make_run(generator, fault))
    return {item.name: item.p_value for item in tests.list_results()}


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Counts false alarms in 300 audits, for all tests together and for each test separately."""
    seen = [p_values(seed, 12) for seed in range(300)]
    level = 0.2
    alarms = np.mean([min(values.values()) <= level / len(values) for values in seen])
    slack = 3 * math.sqrt(level * (1 - level) / len(seen))
    assert 0.02 < alarms <= level + slack
    for name in seen[0]:
        assert np.mean([values[name] <= level for values in seen]) <= level + slack, name


def silence(place: int, *index: int) -> Fault:
    def change(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
        noise[place][index] = 0.0

    return change


def lose_number(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
    noise[1][0, 0] = math.nan


def flip_coins(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
    noise[1] = noise[1].sign()


def add_even_steps(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
    noise[1] = (noise[1] * DEVIATION / STEP / 2).round() * STEP * 2 / DEVIATION


def clear_bit(bit: int) -> Fault:
    """Clears one bit of the noise, counted from the lowest bit."""

    def change(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
        whole = (noise[1] * DEVIATION / STEP).round().long()
        noise[1] = (whole & ~(1 << bit)).double() * STEP / DEVIATION

    return change


def cut(tail: float) -> Fault:
    def change(_: np.random.Generator, noise: list[torch.Tensor]) -> None:
        for place in (1, 2, 3):
            noise[place] = noise[place].clamp(-tail, tail)

    return change


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (silence(0, 3), "variance"),
        (lose_number, "variance"),
        (silence(2, 1, 4), "variance"),
        (flip_coins, "normal"),
        (add_even_steps, "low_bits"),
        (clear_bit(1), "low_bits"),
        (clear_bit(9), "low_bits"),
    ],
)
def test_a_fault_at_any_place_is_seen(fault: Fault, test: str) -> None:
    assert p_values(1, 100, fault)[test] < 1e-5


def test_cut_noise_is_seen_as_far_as_the_stated_reach() -> None:
    """A run has thirty numbers; a cut is surely refuted once enough runs let the reach include it.

    The reach follows from the normal distribution's tails alone: of N numbers none lies beyond t
    with probability (1 - 2 Phi(-t))^N.
    """
    reaches = []
    for runs in (20, 300, 2500):
        generator = np.random.default_rng(runs)
        tests = NoiseTests(PLAN)
        for _ in range(runs):
            tests.add_run(make_run(generator, cut(3.0)))
        level = 1e-3
        # the covariance has ten numbers per run, the fewest
        sure = [t for t in TAILS if 6 * (1 - 2 * norm.sf(t)) ** (10 * runs) <= level]
        reaches.append(tests.reach(level))
        assert reaches[-1] == max(sure, default=None)
        if 3.0 in sure:
            assert dict(tests.list_results())["tails"] <= level
    assert reaches == [None, None, 3.0]


def test_cut_noise_without_a_grid_is_seen_whatever_rounding_puts_above_the_cut() -> None:
    """About half of the float32 sums with noise of 3 deviations exceed 3 after rounding.

    Of 9,000 normal numbers, none lies beyond 3 with probability (1 - 2 Phi(-3))^9000 = 3e-11.
    """

    def test_tails(tail: float) -> float:
        generator = np.random.default_rng(5)
        tests = NoiseTests(PLAN)
        for _ in range(300):
            sums = torch.from_numpy(100 * generator.standard_normal((3, 2, 5))).float()
            noise = torch.from_numpy(generator.standard_normal((3, 2, 5))).clamp(-tail, tail)
            tests.add_run([Block("gradients", sums, sums + (DEVIATION * noise).float())])
        return dict(tests.list_results())["tails"]

    assert test_tails(math.inf) > 1e-3
    assert test_tails(3.0) < 6 * (1 - 2 * norm.sf(3.0)) ** 9000 * 1.1


def see_batches(joined: np.ndarray) -> SeenBatches:
    """Counts batches from a table, bool [steps, units], of the units that join each step."""
    drawn = np.nonzero(joined)[1], joined.sum(1)
    seen = SeenBatches(SimpleNamespace(draw_block=lambda _: drawn))
    seen.draw_block(len(joined))
    return seen


def test_batches_must_be_poisson_at_the_promised_rate() -> None:
    rate, steps, runs = 0.1, 200, 3
    sampled = tuple(replace(item, sample_rate=rate) for item in PLAN.mechanisms)
    plan = replace(PLAN, mechanisms=sampled)
    generator = np.random.default_rng(4)
    right = generator.random((runs, steps, plan.n)) < rate
    turns = np.zeros_like(right)
    turns.reshape(-1)[:: round(1 / rate)] = True
    shuffled = generator.permuted(turns, axis=2)
    favoured = right.copy()
    favoured[:, :, 7] |= generator.random((runs, steps)) < 2 * rate
    twice = generator.random(right.shape) < 2 * rate
    served = right.repeat(2, axis=1)[:, :steps]
    paired = right.copy()
    paired[:, :, 1::2] = right[:, :, ::2]
    seen: dict[str, float] = {}
    for name, batches in (
        ("right", right),
        ("shuffled", shuffled),
        ("favoured", favoured),
        ("twice", twice),
        ("served twice", served),
        ("paired", paired),
    ):
        tests = NoiseTests(plan)
        tests.add_run(make_run(generator))
        for run in batches:
            tests.add_batches([see_batches(run)])
        seen[name] = dict(tests.list_results())["batches"]
    assert seen.pop("right") > 0.001
    assert max(seen.values()) < 1e-6, seen


# p-values against SciPy, and the numbers that enter each statistic


@pytest.mark.parametrize("freedom", [1, 3, 50])
def test_sums_of_squares_are_chi_square_at_both_ends(freedom: int) -> None:
    for values in ([0.5, 3.0, 7.5], [60.0, 50.0], [2e-9, 1.0]):
        ends = chi2.cdf(min(values), freedom), chi2.sf(max(values), freedom)
        wanted = min(1.0, 2 * len(values) * min(ends))
        assert noise_tests.test_squares(np.array(values), freedom) == pytest.approx(wanted)


@pytest.mark.parametrize("counts", [[6], [0, 6], [6, 15], [20], [3, 5, 8]])
def test_counts_are_binomial_at_both_ends(counts: list[int]) -> None:
    """Both tails include the observed count."""
    ends = binom.cdf(min(counts), 20, 0.3), 1 - binom.cdf(max(counts) - 1, 20, 0.3)
    wanted = min(1.0, 2 * len(counts) * min(ends))
    assert noise_tests._test_counts(np.array(counts), 20, 0.3) == pytest.approx(wanted)


def test_the_worse_of_both_ends_counts_for_all_statistics_and_nan_refutes() -> None:
    assert noise_tests._test_extremes(3, 0.02, 0.1) == pytest.approx(2 * 3 * 0.02)
    assert noise_tests._test_extremes(3, 0.1, 0.02) == pytest.approx(2 * 3 * 0.02)
    assert noise_tests._test_extremes(9, 0.4, 0.6) == 1.0
    assert noise_tests._test_extremes(1, math.nan, 0.5) == 0.0


@pytest.mark.parametrize(
    "values", [np.array([0.5, 3.0, 7.5]), np.linspace(-2, 2, 50), np.zeros(9), -np.ones(4)]
)
def test_a_distance_from_the_normal_is_kolmogorov_s_with_massart_s_bound(
    values: np.ndarray,
) -> None:
    distance = kstest(values, "norm").statistic
    wanted = min(1.0, 2 * math.exp(-2 * len(values) * distance**2))
    assert noise_tests._compare_with_normal(values) == pytest.approx(wanted)


@pytest.mark.parametrize("tail", TAILS)
def test_numbers_beyond_a_tail_are_binomial_up_to_a_step_of_the_grid(tail: float) -> None:
    for count in (0, 2, 40):
        for spacing in (0.0, 0.01):
            least, most = 2 * norm.sf(tail + spacing), 2 * norm.sf(tail - spacing)
            ends = binom.cdf(count, 9000, least), binom.sf(count - 1, 9000, most)
            found = noise_tests._test_tails(count, tail, 9000, spacing)
            assert found == pytest.approx(min(1.0, 2 * min(ends)))


def test_the_share_that_is_caught_solves_the_power_s_equation() -> None:
    for freedom, statistics, level, power in ((40, 500, 1e-4, 0.95), (400, 5, 1e-3, 0.5)):
        share = smallest_caught_share(freedom, statistics, level, power)
        least = chi2.ppf(level / statistics / 2, freedom)
        assert chi2.cdf(least / share, freedom) == pytest.approx(power)


def squares_of(transcripts: list[Transcript], deviation: float) -> np.ndarray:
    """Returns the squared noise in deviations, [runs, releases, numbers]."""
    return np.array(
        [
            [((out - sums) / deviation).square().flatten().numpy() for out, sums in pairs]
            for run in transcripts
            for pairs in [
                [(o, s) for block in run for o, s in zip(block.outputs, block.sums, strict=True)]
            ]
        ]
    )


@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_variance_is_of_each_number_each_release_each_run_and_all(scale: float) -> None:
    """Each of the four statistics is corrected for the number of its values."""
    generator = np.random.default_rng(7)
    plan = made_plan([gaussians(DEVIATION, count=3, name="rows")], 100)
    runs = []
    for _ in range(6):
        sums = torch.from_numpy(generator.normal(size=(3, 2, 4)))
        noise = torch.from_numpy(generator.normal(size=(3, 2, 4))) * DEVIATION * scale
        # the releases of a mechanism are joined, in whatever blocks they come
        runs.append([Block("rows", sums[:1], (sums + noise)[:1], None)])
        runs[-1].append(Block("rows", sums[1:], (sums + noise)[1:], None))
    tests = NoiseTests(plan)
    for run in runs:
        tests.add_run(run)
    squares = squares_of(runs, DEVIATION)

    def p_value(values: np.ndarray, freedom: int) -> float:
        ends = chi2.cdf(values.min(), freedom), chi2.sf(values.max(), freedom)
        return float(min(1.0, 2 * values.size * min(ends)))

    wanted = 4 * min(
        p_value(squares.sum(0), 6),
        p_value(squares.sum((0, 2)), 6 * 8),
        p_value(squares.sum((1, 2)), 3 * 8),
        p_value(squares.sum(keepdims=True), 6 * 3 * 8),
    )
    found = dict(tests.list_results())
    assert found["variance"] == pytest.approx(min(1.0, wanted))
    first = np.concatenate(
        [((run[0].outputs - run[0].sums) / DEVIATION).flatten().numpy() for run in runs]
    )
    assert found["normal"] == pytest.approx(noise_tests._compare_with_normal(first))
    assert set(found) == {"variance", "normal", "tails"}, "no grid, no batches"


def test_only_some_numbers_of_a_large_release_are_compared_with_the_normal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise_tests, "_MOST_NUMBERS", 4)
    plan = made_plan([gaussians(1.0, name="vector")], 100)
    noise = torch.arange(10.0, dtype=torch.float64)
    tests = NoiseTests(plan)
    tests.add_run([Block("vector", torch.zeros(1, 10).double(), noise[None], None)])
    spread = np.array([0.0, 3.0, 6.0, 9.0])
    assert tests.list_results()[1].p_value == pytest.approx(
        noise_tests._compare_with_normal(spread)
    )


@pytest.mark.parametrize("step", [2.0**-3, 2.0**-30])
def test_low_bits_that_deviations_cover_are_tested(step: float) -> None:
    """At 16 steps per deviation, two bits are fair coins; at many more, all 16 bits are."""
    plan = made_plan([gaussians(2.0, name="vector")], 100)
    generator, tests = np.random.default_rng(3), NoiseTests(plan)
    counts = np.zeros(16, dtype=np.int64)
    for _ in range(5):
        noise = torch.from_numpy(np.rint(generator.normal(size=(1, 40)) * 2 / step) * step)
        tests.add_run([Block("vector", torch.zeros_like(noise), noise, step)])
        whole = (noise / step).long().numpy()
        counts += [int((whole >> bit & 1).sum()) for bit in range(16)]
    bits = 2 if step > 0.01 else 16
    wanted = noise_tests._test_counts(counts[:bits], 200, 0.5)
    assert dict(tests.list_results())["low_bits"] == pytest.approx(wanted)
    tests.add_run([Block("vector", torch.zeros(1, 40).double(), noise + step / 3, step)])
    assert dict(tests.list_results())["low_bits"] == 0.0, "off the grid"


@pytest.mark.parametrize(("steps", "bits"), [(16, 1), (24, 2)])
def test_off_the_diagonal_of_a_symmetric_matrix_deviations_are_shorter(
    steps: int, bits: int
) -> None:
    """Off the diagonal, 16 steps are only 11.3 and cover one bit; 24 are 17 and cover two."""
    # the lowest bit is set in every other number, the second bit in all
    upper = np.triu(2.0 + np.indices((4, 4))[1] % 2)
    noise = torch.from_numpy(upper + np.triu(upper, 1).T)[None]
    tests = NoiseTests(made_plan([gaussians(float(steps), name="square")], 100))
    tests.add_run([Block("square", torch.zeros_like(noise), noise, 1.0)])
    whole = upper[np.triu_indices(4)].astype(np.int64)
    counts = np.array([int((whole >> bit & 1).sum()) for bit in range(bits)])
    assert counts.tolist() == [6, 10][:bits]
    wanted = noise_tests._test_counts(counts, 10, 0.5)
    assert dict(tests.list_results())["low_bits"] == pytest.approx(wanted)
