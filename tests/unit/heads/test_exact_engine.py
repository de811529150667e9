"""Exact steps: how far a row can change a release, to the last bit, and what that hides."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import exact_engine
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.normalisation import GroupNorm
from dpprobe.heads.optimiser import Sgd
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.row_norms import row_lengths
from dpprobe.heads.rows import Rows
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import ExactPoissonSampler
from tests.support.gradient_sums import LOSSES, full_sum, random_weights, square, sum_over
from tests.support.linear_heads import (
    Source,
    features_of,
    normalised,
    oracle_sum,
    plan_for,
    relative,
    rows_of,
    training_set,
)

SEEDS = [cell_seed("test", index) for index in range(3)]
KINDS = ["none", "l2", "layer_norm", "centred"]


def exact(rows: Rows, clip: float, *, sigmoid: bool = False, constant: float = 1.0) -> ExactSums:
    return ExactSums(rows, clip, sigmoid=sigmoid, pool=None, constant=constant)


@pytest.mark.parametrize("weight", [1.0 + 2.0**-23, 200.0, math.nan])
def test_weights_above_one_are_refused(weight: float) -> None:
    """Larger weights would break the sensitivity and the bounds of exact products."""
    rows = normalised(training_set(9, 4, 3), "l2")
    rows.weights = torch.ones(len(rows))
    rows.weights[3] = weight
    with pytest.raises(PrivacyError, match="weights of examples must be at most 1"):
        exact(rows, 1.0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_an_oracle_s_but_for_the_grid(loss: tuple[str, bool], kind: str) -> None:
    rows = normalised(training_set(multi_label=loss[1]), kind)
    weights, sigmoid = random_weights(rows).double(), loss[0] == "sigmoid"
    batch = np.arange(1, 120, 3)
    for clip in (0.05, 1.2, 50.0):
        sums = exact(rows, clip, sigmoid=sigmoid, constant=0.7)
        for index, actual in (
            (np.arange(rows.n), sums.sum_all(weights)),
            (batch, sum_over(sums, batch, weights)),
        ):
            for head, total in zip(weights.numpy(), actual.values, strict=True):
                start = head / np.append(np.ones(head.shape[1] - 1), 0.7)
                wanted = oracle_sum(rows, start, index, clip, sigmoid=sigmoid, constant=0.7)
                # each number of each row has an error of at most 2^-17 of the clipping norm
                error = np.linalg.norm(total.numpy() - wanted)
                assert error < len(index) * max(clip, 3) * 2**-16 * wanted.size**0.5 / 4


floats = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    row=st.lists(floats, min_size=3, max_size=3),
    weights=st.lists(st.floats(allow_nan=True), min_size=16, max_size=16),
    label=st.integers(0, 3),
    clip=st.sampled_from([1e-9, 1e-4, 0.1, 1.0, 1.2, 77.0, 1e9]),
    loss=st.sampled_from(LOSSES),
    kind=st.sampled_from(KINDS),
    images=st.integers(1, 5),
    constant=st.sampled_from([0.2, 1.0, 3.0]),
)
@settings(max_examples=300)
def test_no_unit_contributes_more_than_the_clipping_norm(
    row: list[float],
    weights: list[float],
    label: int,
    clip: float,
    loss: tuple[str, bool],
    kind: str,
    images: int,
    constant: float,
) -> None:
    """Uses exact arithmetic; rows and weights include denormal and huge numbers."""
    labels = torch.tensor([label] * images)
    if loss[1]:
        several = [[label & 1, label >> 1, 1, 0]] * images
        labels = torch.tensor(several, dtype=torch.uint8)
    features = torch.tensor(row) * torch.tensor([1.0, -1.0, 1e-30, 1e20, 3.0])[:images, None]
    units = None if images == 1 else Units.number_units(["p"] * images)
    rows = normalised(TrainingSet(features, labels, 4, units=units), kind)
    sums = exact(rows, clip, sigmoid=loss[0] == "sigmoid", constant=constant)
    heads = torch.tensor(weights, dtype=torch.float64).view(1, 4, 4)
    norms = [square(sum_over(sums, np.array([image]), heads)) for image in range(images)]
    if rows.weights is not None:
        for norm, weight in zip(norms, rows.weights.tolist(), strict=True):
            assert norm <= (Fraction(clip) * Fraction(weight)) ** 2
    assert square(sums.sum_all(heads)) <= Fraction(clip) ** 2
    if not np.isfinite(weights).all():
        assert not any(norms)


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_any_blocks_any_threads_the_same_bits(kind: str) -> None:
    data = training_set(3000, 37, 5)
    rows = normalised(data, kind)
    weights = random_weights(rows).double()
    wanted = exact(rows, 0.7).sum_all(weights).units
    order = np.random.default_rng(1).permutation(3000)
    assert torch.equal(sum_over(exact(rows, 0.7), order, weights).units, wanted)
    moved = normalised(TrainingSet(features_of(data)[order], data.labels[order], 5), kind)
    assert torch.equal(exact(moved, 0.7).sum_all(weights).units, wanted)
    torch.set_num_threads(3)
    with ThreadPoolExecutor(3) as pool:
        threaded = ExactSums(rows, 0.7, sigmoid=False, pool=pool).sum_all(weights).units
    assert torch.equal(threaded, wanted)
    torch.set_num_threads(1)
    by_seed = torch.cat([exact(rows, 0.7).sum_all(head[None]).units for head in weights])
    assert torch.equal(by_seed, wanted)
    if kind != "centred":  # a stream of centred rows rounds them to float32
        streams = [
            TrainingSet(Source(features_of(data).numpy().copy(), most), data.labels, 5)
            for most in (1, 7, 1000)
        ]
        sums = [exact(normalised(one, kind), 0.7).sum_all(weights).units for one in streams]
        assert all(torch.equal(each, sums[0]) for each in sums)


@pytest.mark.parametrize("count", [1, 300, 1500])
def test_threads_without_a_slice_of_rows_sum_the_same_bits(count: int) -> None:
    rows = normalised(training_set(count, 9, 3), "l2")
    weights = random_weights(rows).double()
    torch.set_num_threads(4)
    with ThreadPoolExecutor(4) as pool:
        threaded = ExactSums(rows, 0.7, sigmoid=False, pool=pool).sum_all(weights).units
    assert torch.equal(threaded, exact(rows, 0.7).sum_all(weights).units)


@pytest.mark.parametrize("kind", ["none", "l2", "layer_norm"])
def test_a_row_in_front_changes_the_sum_by_its_own_part(kind: str) -> None:
    """The rounding of other rows stays the same, so the change is at most the sensitivity."""
    generator = torch.Generator().manual_seed(2)
    features = torch.rand(20_000, 24, generator=generator) + 0.5
    labels = torch.randint(0, 3, (20_000,), generator=generator)
    without = features.clone()
    without[0] = math.nan
    weights = torch.randn(1, 3, 25, generator=generator, dtype=torch.float64)
    whole, null = (rows_of(TrainingSet(each, labels, 3), kind) for each in (features, without))
    moved = exact(whole, 0.3).sum_all(weights).units - exact(null, 0.3).sum_all(weights).units
    assert torch.equal(
        moved, sum_over(exact(whole, 0.3), np.zeros(1, dtype=np.int64), weights).units
    )
    sums = exact(whole, 0.3).sum_all(weights)
    assert square(GridSum(moved, sums.step)) <= Fraction(0.3) ** 2
    assert square(GridSum(moved, sums.step)) > Fraction(0.29) ** 2


def test_a_row_is_normalised_alike_in_any_block() -> None:
    """Exact sums of copied rows need this: a row's bits must not depend on other rows."""
    generator = torch.Generator().manual_seed(0)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for dimension in (1, 3, 16, 100, 768, 40_000):
            block = torch.randn(64, dimension, generator=generator) * 3
            data = TrainingSet(block.clone(), torch.zeros(64).long(), 2)
            kinds = [normalised(data, kind).transform for kind in ("l2", "layer_norm", "centred")]
            for transform in [*kinds, *[Transform(GroupNorm(groups=1))] * (dimension > 1)]:
                several = transform(block.clone())
                for row in (0, 31, 63):
                    alone = transform(block[row : row + 1].clone())[0]
                    assert torch.equal(alone, several[row])
                    assert row_lengths(block)[row] == row_lengths(block[row : row + 1])[0]


def test_poisson_batches_come_from_the_keystream() -> None:
    """A step from zero equals the sum over the batch drawn by a sampler with the same keystream."""
    data = training_set()
    options = Options(
        batch_size=20, steps=1, init="zero", learning_rate=1.0, max_grad_norm=0.5, engine="exact"
    )
    actual = fit_heads(options, data, plan_for(options, 120, noise=1e-6), SEEDS)
    start = torch.zeros(1, 4, 8, dtype=torch.float64)
    for seed, weights in zip(SEEDS, actual.weights, strict=True):
        sampler = ExactPoissonSampler(120, 20 / 120, Keystream.from_seed(seed, "Poisson sampling"))
        batch, _ = sampler.draw_block(1)
        wanted = sum_over(exact(rows_of(data), 0.5), batch, start).values[0] / 20
        assert relative(-weights, wanted) < 1e-4


class StepByStep(Sgd):
    """The same optimiser as a subclass, for which the engine takes only one step at a time."""


@pytest.mark.parametrize("normalize", ["none", "l2", "centred"])
@pytest.mark.parametrize("average", ["last", "ema", "mean"])
@pytest.mark.parametrize("batch_size", [1, 33, 300])
def test_steps_at_a_time_are_single_steps(
    monkeypatch: pytest.MonkeyPatch, normalize: str, average: Any, batch_size: int
) -> None:
    """All bits are equal, with null rows, after stopping at any step, and with any threads."""
    data = training_set(601, multi_label=average == "ema")
    features = features_of(data).clone()
    features[2::9], features[3::9, 1], features[4::9], features[5::9] = math.nan, math.inf, 0, 1e-40
    patients = Units.number_units([f"{row % 450}" for row in range(601)])
    units = patients if average == "mean" else None
    rows = normalised(TrainingSet(features, data.labels, 4, units=units), normalize)
    options = Options(
        batch_size=batch_size,
        steps=21,
        average=average,
        learning_rate=0.3,
        init="torch",
        loss="sigmoid" if average == "ema" else "softmax",
        schedule="warmup_cosine",
        engine="exact",
    )
    plan, ends = plan_for(options, rows.n), [*range(1, 10), 18, 21]
    monkeypatch.setattr(exact_engine, "record_steps", lambda _: ends)

    def trained(optimiser: Sgd, threads: int = 1) -> list[bytes]:
        torch.set_num_threads(threads)
        seen: list[bytes] = []
        releases = Releases(plan, SEEDS, torch.device("cpu"))
        exact_engine.train(
            options,
            rows,
            releases,
            optimiser,
            record=lambda _, heads: seen.append(heads.numpy().tobytes()),
        )
        releases.check_counts()
        return seen

    wanted = trained(StepByStep())
    assert wanted[0] == initial_weights(options, rows, SEEDS).numpy().tobytes()
    assert len(set(wanted)) == len(ends) + 1
    assert trained(Sgd()) == trained(Sgd(), threads=2) == wanted


def test_sums_off_their_grid_are_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    data, options = training_set(), Options(batch_size=12, steps=9, engine="exact")
    rows = rows_of(data)
    sums = exact(rows, 1.2)
    assert sums.whole is not None
    batch, head = (np.arange(9), np.array([4, 5])), np.zeros((1, 4, 8))
    given = np.zeros((2, 32), np.int64), 1.0, np.ones(2), np.zeros(0), np.zeros((4, 8))
    assert sums.take_steps(batch, head.copy(), *given)
    # with such small grid steps, the factors as integers exceed 2^53
    sums._given = sums._given._replace(step=sums._given.step * 2.0**-60)
    assert not sums.take_steps(batch, head.copy(), *given)
    monkeypatch.setattr(ExactSums, "take_steps", lambda *_: False)
    with pytest.raises(PrivacyError, match="off their grid"):
        fit_heads(options, data, plan_for(options, 120), SEEDS)


def test_a_gpu_is_refused() -> None:
    rows: Any = SimpleNamespace(device=torch.device("cuda"))
    options = Options(engine="exact")
    releases = Releases(plan_for(options, 120), SEEDS, torch.device("cpu"))
    with pytest.raises(ConfigError, match="head sgd: engine exact computes on the CPU"):
        exact_engine.train(options, rows, releases, Sgd())


# --- the attack ---------------------------------------------------------------------------------

TRIALS = 400
ROWS = 64  # a power of two, like the learning rate, so the weights are the noisy sum itself


def guesses_from_low_bits(engine: Any, sigma: float) -> int:
    """Returns how many of 400 guesses are right: did one step's full batch contain a row?

    The attacker knows all other rows. A float32 noise whose sum with S rounds to the released R
    exists always for the true sum S, for a wrong S in half of the positions where both cancel.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(ROWS, 64, generator=generator) + 0.2
    labels = torch.randint(0, 4, (ROWS,), generator=generator)
    without = features.clone()
    without[0] = math.nan
    options = Options(
        batch_size="full",
        steps=1,
        init="zero",
        learning_rate=float(ROWS),
        max_grad_norm=1.0,
        normalize="l2",
        engine=engine,
    )
    plan = plan_for(options, ROWS, noise=sigma)
    sets = [TrainingSet(each, labels, 4) for each in (without, features)]
    start = torch.zeros(1, 4, 65)
    sums = [
        full_sum(rows_of(each, "l2"), 1.0, start, sigmoid=False, native=True)[0].numpy()
        for each in sets
    ]
    coins, hits = np.random.default_rng(1), 0
    for trial in range(TRIALS):
        inside = int(coins.integers(2))
        released = -fit_heads(options, sets[inside], plan, [trial]).weights[0]
        noises = [(released.astype(np.float64) - each).astype(np.float32) for each in sums]
        fits = [
            int((noise + each == released).sum()) for noise, each in zip(noises, sums, strict=True)
        ]
        guess = int(coins.integers(2)) if fits[0] == fits[1] else int(fits[1] > fits[0])
        hits += guess == inside
    return hits


@pytest.mark.parametrize("sigma", [0.75, 7.5, 33.0])  # epsilon 6.1, 0.47, 0.09 at delta 1e-5
def test_the_low_bits_of_weights_reveal_a_row_only_without_exact_steps(sigma: float) -> None:
    """With float32 steps the attack nearly always finds the row; with exact steps it guesses.

    It uses only low bits, so guessing is right half of the time, within 4 standard errors.
    """
    assert guesses_from_low_bits("closed_form", sigma) >= 380
    assert 160 <= guesses_from_low_bits("exact", sigma) <= 240
