"""Running sums: totals and noise by the matrices, prices by brute force and by an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.running_sums import Cohort, Factorisation, RunningSums
from tests.support.mechanisms import gaussians, made_plan

ADDED, YEAR = Factorisation.make(None), Factorisation.make(12)
STEP = 2.0**-20


def release(
    running: RunningSums, sums: torch.Tensor, seed: int, *, noise: float = 2.0, step: float = STEP
) -> tuple[torch.Tensor, Releases]:
    """Releases one cohort's sums, [d] or symmetric [d, d], with sensitivity 0.5."""
    mechanism = replace(gaussians(noise, name="sum"), sensitivity=0.5)
    plan = made_plan([mechanism], running.n)
    taken = Releases(plan, (seed,), torch.device("cpu"), running=running)
    take = taken.release_gaussian if sums.ndim == 1 else taken.release_symmetric
    total = take("sum", GridSum(sums[None], step))[0]
    taken.check_counts()
    return total, taken


def run_chain(
    factorisation: Factorisation, sums: Sequence[torch.Tensor], *, noise: float = 2.0
) -> tuple[list[torch.Tensor], list[Cohort], float]:
    """Returns all totals, the cohorts, and the deviation stated for the last total."""
    kept: list[Cohort] = []
    totals = []
    for place, part in enumerate(sums):
        running = RunningSums(factorisation, kept, names=("sum",), n=100)
        total, taken = release(running, part, place, noise=noise)
        totals.append(total)
        kept.append(running.make_cohort(np.zeros((1, 1), dtype=np.float32)))
    return totals, kept, taken.noise_deviation("sum")


def column(factorisation: Factorisation, cohorts: int, place: int) -> list[int]:
    """Returns the factor of a cohort's sums in each of the first `cohorts` releases."""
    lags = range(cohorts - place)
    reach = len(factorisation.coefficients)
    return [0] * place + [factorisation.coefficients[lag] if lag < reach else 0 for lag in lags]


@pytest.mark.parametrize(
    ("horizon", "published"), [(2, 1.25), (6, 1.62), (12, 1.85), (24, 2.07), (60, 2.37)]
)
def test_the_noise_of_a_square_root_is_the_published_one(horizon: int, published: float) -> None:
    factorisation = Factorisation.make(horizon)
    growths = [factorisation.noise_growth(place + 1) for place in range(horizon)]
    assert growths == sorted(growths)
    assert max(growths) == pytest.approx(published, abs=0.008)


def test_the_noise_of_added_sums_grows_with_the_root_of_their_number() -> None:
    growths = [ADDED.noise_growth(cohorts) for cohorts in (1, 2, 12)]
    assert growths == pytest.approx([1, math.sqrt(2), math.sqrt(12)])


@pytest.mark.parametrize("factorisation", [ADDED, Factorisation.make(5), YEAR])
def test_b_times_c_adds_up(factorisation: Factorisation) -> None:
    """C has a rational inverse, and the float64 factors are its running sums."""
    c = factorisation.coefficients
    exact: list[Fraction] = []
    for k in range(12):
        known = sum((c[j] * exact[k - j] for j in range(1, min(k, len(c) - 1) + 1)), Fraction(0))
        exact.append((1 - known) / c[0])
    products = [sum(exact[k - j] * c[j] for j in range(min(k, len(c) - 1) + 1)) for k in range(12)]
    assert products == [1] * 12
    assert factorisation.decode(12) == pytest.approx([float(value) for value in exact], rel=1e-12)


def test_the_column_norm_is_not_below_its_square_root() -> None:
    for horizon in range(2, 121):
        factorisation = Factorisation.make(horizon)
        square = sum(c * c for c in factorisation.coefficients)
        assert Fraction(factorisation.column_norm) ** 2 >= square
        assert factorisation.column_norm == pytest.approx(math.sqrt(square), rel=1e-15)


@pytest.mark.parametrize("factorisation", [ADDED, YEAR])
def test_a_unit_moves_all_outputs_by_at_most_the_column_norm(factorisation: Factorisation) -> None:
    """Compares outputs with and without a unit of each cohort, under the same noise.

    Norms of a unit in several cohorts add up. With a horizon, adding their squares is not enough.
    """
    rng = np.random.default_rng(0)
    cohorts, width = 12, 5
    sums = [torch.from_numpy(rng.integers(-(2**30), 2**30, width) * 1.0) for _ in range(cohorts)]
    unit = torch.tensor([0.3, -0.4, 0.0, 0.0, 0.0], dtype=torch.float64) / STEP  # with norm 0.5
    unit = unit.trunc()
    _, before, _ = run_chain(factorisation, sums)
    for places in ((0,), (5,), (11,), (0, 1), (2, 9), (0, 1, 2)):
        moved = [part + unit * (index in places) for index, part in enumerate(sums)]
        _, after, _ = run_chain(factorisation, moved)
        change = [b.outputs["sum"] - a.outputs["sum"] for a, b in zip(before, after, strict=True)]
        columns = np.sum([column(factorisation, cohorts, place) for place in places], axis=0)
        assert np.array_equal(np.array(change), np.outer(columns, unit.numpy() * STEP))
        paid = np.linalg.norm(change) / (0.5 * factorisation.column_norm)
        assert paid <= (math.sqrt(len(places)) if factorisation is ADDED else len(places))
    if factorisation is YEAR:
        assert paid > 2.4  # three cohorts; independent releases would have 1.74


@pytest.mark.parametrize("factorisation", [ADDED, YEAR])
def test_totals_have_the_stated_noise_around_the_sums(factorisation: Factorisation) -> None:
    sums = [torch.full((20_000,), float(2**20 * (place + 1))).double() for place in range(4)]
    totals, _, deviation = run_chain(factorisation, sums)
    noise = totals[-1] - 10.0
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(noise.mean())) < 4 * deviation / math.sqrt(20_000)
    assert deviation == pytest.approx(factorisation.noise_growth(4))  # multiplier 2 times 0.5


@pytest.mark.parametrize("steps", [(STEP / 16, STEP, 4 * STEP), (STEP, STEP / 16)])
def test_a_total_has_the_stated_noise_whatever_the_grids_of_its_cohorts(steps: Any) -> None:
    kept: list[Cohort] = []
    for place, step in enumerate(steps):
        running = RunningSums(YEAR, kept, names=("sum",), n=100)
        total, taken = release(running, torch.zeros(20_000).double(), place, step=step)
        kept.append(running.make_cohort(np.zeros((1, 1), dtype=np.float32)))
        assert float(total.std()) == pytest.approx(taken.noise_deviation("sum"), rel=0.02)


def test_symmetric_totals_have_isometric_noise() -> None:
    totals, _, deviation = run_chain(YEAR, [torch.zeros((120, 120)).double()] * 3)
    matrix = totals[-1].numpy()
    assert np.array_equal(matrix, matrix.T)
    off = matrix[np.triu_indices(120, 1)]
    assert off.std() == pytest.approx(deviation * math.sqrt(0.5), rel=0.05)
    assert np.diag(matrix).std() == pytest.approx(deviation, rel=0.25)


def guess_rate(factorisation: Factorisation, *, norm: float) -> tuple[float, float]:
    """Returns how often an attacker guesses a unit of the first cohort from all twelve outputs.

    The attacker knows all other rows, and uses the likelihood ratio of all outputs together. Each
    of 4,000 entries is like a separate fit. Also returns the best rate that mu allows.
    """
    tries, noise = 4000, 1.0
    inside = np.arange(tries) % 2 == 0
    first = torch.from_numpy(np.where(inside, 0.5 / STEP, 0.0))
    chain = [first] + [torch.zeros(tries, dtype=torch.float64)] * 11
    _, kept, _ = run_chain(factorisation, chain, noise=noise * norm)
    weights = np.array(column(factorisation, 12, 0), dtype=float)
    seen = sum(w * cohort.outputs["sum"] for w, cohort in zip(weights, kept, strict=True))
    guessed = seen > 0.25 * (weights**2).sum()
    return float((guessed == inside).mean()), NormalDist().cdf(1 / noise / 2)


@pytest.mark.parametrize("factorisation", [ADDED, YEAR])
def test_an_attack_on_all_outputs_together_stays_at_its_bound(factorisation: Factorisation) -> None:
    rate, bound = guess_rate(factorisation, norm=1.0)
    assert rate == pytest.approx(bound, abs=0.022)  # within three standard errors of the bound


def test_the_attack_finds_noise_that_ignores_later_outputs() -> None:
    rate, bound = guess_rate(YEAR, norm=64 / YEAR.column_norm)
    assert rate > bound + 0.04


@pytest.mark.parametrize("horizon", [None, 2, 3, 12])
@pytest.mark.parametrize("exponents", [(-20, -20, -20), (-20, -10, -14), (-3, -12, 0)])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 2)])
def test_mixed_sums_and_totals_equal_fractions(
    horizon: int | None, exponents: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Cohorts differ in size, grid and mechanism; they share the finest grid within the horizon."""
    factorisation, rng = Factorisation.make(horizon), np.random.default_rng(1)
    kept: list[Cohort] = []
    sums: list[Any] = []
    outputs: list[Any] = []
    for place, exponent in enumerate(exponents[: horizon or 3]):
        running = RunningSums(factorisation, kept, names=("a", "b"), n=10 ** (place + 1))
        assert (running.place, running.total) == (
            place + 1,
            sum(10**k for k in range(1, place + 2)),
        )
        assert running.new_share == running.n / running.total
        assert (running.last_weights is None) == (place == 0)
        assert place == 0 or running.last_weights.item() == place - 1  # type: ignore[union-attr]
        own, total = [], []
        for name, step in (("a", 2.0**exponent), ("b", 0.5)):
            units, noise = rng.integers(-99, 99, shape).astype(float), rng.normal(size=shape)
            mixed, finest = running.mix_sums(name, units, step, sensitivity=2.0**-3)
            own.append((units * step, step))
            reach = [*reversed(sums), own][-1:] + sums[::-1]
            reach = reach[: len(factorisation.coefficients)]
            assert finest == min(each[len(own) - 1][1] for each in reach)
            wanted = sum(
                factor * each[len(own) - 1][0]
                for factor, each in zip(factorisation.coefficients, reach, strict=False)
            )
            assert mixed.dtype == np.int64
            np.testing.assert_array_equal(mixed * finest, wanted)
            output = mixed * finest + noise
            total.append(output)
            past = [*(each[len(own) - 1] for each in outputs), output]
            weights = factorisation.decode(place + 1)[::-1]
            found = running.take_output(name, output)
            np.testing.assert_allclose(found, np.tensordot(weights, past, 1), rtol=1e-9, atol=1e-9)
        sums.append(own)
        outputs.append(total)
        kept.append(running.make_cohort(np.full((1, 1), place, dtype=np.float32)))
        assert (kept[-1].n, sorted(kept[-1].outputs)) == (running.n, ["a", "b"])
        assert sorted(kept[-1].sums) == (["a", "b"] if horizon else [])


@pytest.mark.parametrize("cohorts", [1, 2, 3])
def test_sums_that_leave_int64_are_refused(cohorts: int) -> None:
    """The units' sensitivities bound the sums, here just below 2^62 and just above it."""
    empty: Any = {"sums": {"a": np.zeros(1, np.int64)}, "steps": {"a": 1.0}}
    earlier = [Cohort(n=2**50, outputs={}, **empty) for _ in range(cohorts - 1)]
    running = RunningSums(YEAR, earlier, names=("a",), n=2**50)
    most = 2**12 / sum(YEAR.coefficients[:cohorts])
    running.mix_sums("a", np.zeros(1), 1.0, sensitivity=most * (1 - 2.0**-40))
    with pytest.raises(PrivacyError, match="leave `horizon` out"):
        running.mix_sums("a", np.zeros(1), 1.0, sensitivity=most * (1 + 2.0**-40))


def test_a_horizon_is_a_number_of_cohorts_and_ends() -> None:
    with pytest.raises(ConfigError, match="horizon 1: must be a number of cohorts from 2 to 120"):
        Factorisation.make(1)
    _, kept, _ = run_chain(Factorisation.make(2), [torch.zeros(1).double()] * 2)
    with pytest.raises(PrivacyError, match="cohort 3: epsilon covers only 2"):
        RunningSums(Factorisation.make(2), kept, names=("sum",), n=1)
    RunningSums(Factorisation.make(None), kept * 100, names=("sum",), n=1)  # unlimited
