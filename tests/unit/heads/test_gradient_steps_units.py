"""Units of privacy of several rows, in heads that take noisy gradient steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.heads import gradient_steps
from dpprobe.heads.clipping import drawn_rows
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.privacy.sampling import PoissonSampler
from tests.support.gradient_sums import full_sum, poisson_sums, random_weights
from tests.support.linear_heads import features_of, no_privacy, plan_for, relative, rows_of
from tests.support.linear_heads import training_set as single_rows
from tests.support.plain_heads import Adam, Momentum

SEEDS = [cell_seed("units", index) for index in range(3)]
SIZES = (1, 2, 3, 7, 20)


def names_of(count: int) -> list[str]:
    """The unit of each of `count` rows: units of 1, 2, 3, 7 and 20 rows, not side by side."""
    names = [f"{turn}-{size}" for turn in range(count) for size in SIZES for _ in range(size)][
        :count
    ]
    return [names[place] for place in np.random.default_rng(0).permutation(count)]


def with_units(rows: int = 120, *, multi_label: bool = False) -> TrainingSet:
    data = single_rows(rows, multi_label=multi_label)
    return TrainingSet(
        features_of(data), data.labels, data.num_classes, units=Units.number_units(names_of(rows))
    )


def part_of(rows: Rows, unit: int) -> np.ndarray:
    assert rows.units is not None
    return rows.units.members[rows.units.starts[unit] : rows.units.starts[unit + 1]]


@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=3, max_size=3),
        min_size=1,
        max_size=40,
    ),
    weights=st.lists(st.floats(-(2.0**66), 2.0**66, width=32), min_size=16, max_size=16),
    clip=st.sampled_from([1e-9, 0.1, 1.2, 77.0]),
    kind=st.sampled_from(["none", "l2", "layer_norm"]),
    native=st.booleans(),
    sigmoid=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_unit_adds_at_most_the_clipping_norm(
    rows: list[list[float]], weights: list[float], clip: float, kind: str, native: bool,
    sigmoid: bool,
) -> None:  # fmt: skip
    """For NaN, infinite, zero, huge and vanishing rows, by the rows' parts one by one."""
    units = Units.number_units(["p"] * len(rows))
    labels = torch.arange(len(rows)) % 4
    heads = torch.tensor(weights).view(1, 4, 4)
    parts = []
    for index in range(len(rows)):
        features = torch.zeros(len(rows), 3)
        features[index] = torch.tensor(rows[index])
        features[:index] = features[index + 1 :] = math.nan
        one = rows_of(TrainingSet(features, labels, 4, units=units), kind)
        parts.append(full_sum(one, clip, heads, sigmoid=sigmoid, native=native).double())
    assert all(bool(part.isfinite().all()) for part in parts)
    assert float(sum(part.norm() for part in parts)) <= clip


def test_batches_are_of_whole_units_at_the_rate() -> None:
    rows, steps, rate = rows_of(with_units()), 4000, 0.1
    assert rows.units is not None
    sampler = PoissonSampler(rows.n, rate, open_stream(1, "sampling"))
    drawn, sizes = drawn_rows(rows, sampler, steps)
    assert sizes.sum() == len(drawn)
    joined = np.zeros((steps, len(rows)), dtype=np.int64)
    np.add.at(joined, (np.repeat(np.arange(steps), sizes), drawn), 1)
    by_unit = []
    for unit in range(rows.n):
        of_unit = joined[:, part_of(rows, unit)]
        assert (of_unit == of_unit[:, :1]).all()
        assert of_unit.max() <= 1
        by_unit.append(of_unit[:, 0])
    means = np.mean(by_unit, axis=1)
    assert np.abs(means - rate).max() < 5 * (rate * (1 - rate) / steps) ** 0.5
    between = np.corrcoef(by_unit) - np.eye(rows.n)
    assert np.abs(between).max() < 5.5 / steps**0.5


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["none", "layer_norm"])
def test_poisson_sums_are_the_weighted_sums_of_their_units(native: bool, kind: str) -> None:
    rows = rows_of(with_units(), kind)
    assert rows.units is not None
    assert rows.weights is not None
    weights = random_weights(rows, 1)
    sums = poisson_sums(rows, 0.9, weights, 0.3, sigmoid=False, native=native)
    sampler = PoissonSampler(rows.n, 0.3, open_stream(SEEDS_OF_SUMS, "sampling"))
    drawn, sizes = drawn_rows(rows, sampler, 6)
    features = rows.copy_rows(torch.arange(len(rows)))
    for batch in np.split(drawn, np.cumsum(sizes)[:-1]):
        wanted = torch.zeros_like(weights)
        for row in batch:
            one = TrainingSet(features[row : row + 1].clone(), rows.labels[row : row + 1], 4)
            part = full_sum(rows_of(one), 0.9, weights, sigmoid=False, native=native)
            wanted += part * rows.weights[row]
        assert relative(next(sums), wanted) < 2e-6


SEEDS_OF_SUMS = cell_seed("test", 0)  # of `poisson_sums`


@pytest.mark.parametrize("head", [Options, Momentum, Adam])
@pytest.mark.parametrize("batch_size", [12, "full"])
@pytest.mark.parametrize("private", [True, False])
def test_heads_train_on_units(
    head: Any, batch_size: Any, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both ways and any number of threads; at epsilon inf as well, where nothing is clipped."""
    data = with_units()
    options = head(batch_size=batch_size, steps=20, average="ema")
    plan = plan_for(options, data.n) if private else no_privacy(options, data.n)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fit_heads(options, data, plan, SEEDS).weights
        torch.set_num_threads(3)
        threaded = fit_heads(options, data, plan, SEEDS).weights
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(alone, threaded)
    monkeypatch.setattr(gradient_steps, "is_native", lambda _: False)
    np.testing.assert_allclose(
        fit_heads(options, data, plan, SEEDS).weights, alone, rtol=2e-4, atol=2e-5
    )


def test_without_clipping_a_step_goes_along_the_weighted_mean() -> None:
    data = with_units()
    options = Options(batch_size="full", steps=1, learning_rate=0.5, init="zero")
    actual = fit_heads(options, data, no_privacy(options, data.n), SEEDS[:1]).weights[0]
    rows = rows_of(data)
    assert rows.weights is not None
    x = torch.cat([features_of(data), torch.ones(len(rows), 1)], 1).double()
    residuals = (0.25 - rows.make_targets(0, len(rows)).double()) * rows.weights[:, None]
    assert relative(actual, -0.5 * residuals.T @ x / data.n) < 1e-6


def test_the_loss_on_record_is_weighted() -> None:
    data = with_units()
    options = Options(batch_size="full", steps=3)
    history = fit_heads(
        options, data, plan_for(options, data.n), SEEDS[:1], record=lambda *_: None
    ).history
    rows = rows_of(data)
    assert rows.weights is not None
    heads = fit_heads(options, data, plan_for(options, data.n), SEEDS[:1]).weights[0]
    logits = features_of(data) @ torch.from_numpy(heads[:, :-1].T) + torch.from_numpy(heads[:, -1])
    losses = torch.nn.functional.cross_entropy(logits, data.labels, reduction="none")
    wanted = float((losses * rows.weights).sum() / rows.weights.sum())
    assert history[-1]["train_loss"] == pytest.approx(wanted, rel=1e-5)
    assert wanted != pytest.approx(float(losses.mean()), rel=1e-3)


def test_units_of_one_row_are_rows() -> None:
    data = single_rows()
    same = TrainingSet(
        features_of(data),
        data.labels,
        4,
        units=Units.number_units([f"{row:03}" for row in range(120)]),
    )
    options = Options(batch_size=12, steps=30)
    plan = plan_for(options, 120)
    np.testing.assert_array_equal(
        fit_heads(options, same, plan, SEEDS).weights, fit_heads(options, data, plan, SEEDS).weights
    )
