"""No row contributes more than the clipping norm, whatever its values are.

Clipped sums, compiled and by PyTorch, equal each other and a float64 oracle.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.heads import clipping
from dpprobe.heads.clipping import ClippedGradients, NativeFullBatchSum, TorchSum, drawn_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.sampling import PoissonSampler
from tests.support.gpu import DEVICES
from tests.support.gradient_sums import (
    LOSSES,
    SEEDS,
    full_sum,
    padded,
    poisson_sums,
    random_weights,
    unpadded,
)
from tests.support.linear_heads import (
    features_of,
    oracle_residual,
    oracle_sum,
    relative,
    rows_of,
    training_set,
    whole,
    with_units,
)
from tests.support.poisson_batches import poisson_batches

floats = st.floats(allow_nan=True, allow_infinity=True, width=32)
rows_and_weights = {
    "rows": st.lists(st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=20),
    "weights": st.lists(floats, min_size=16, max_size=16),
    "label": st.integers(0, 3),
    "clip": st.sampled_from([1e-9, 1e-4, 0.1, 1.0, 1.2, 77.0, math.inf]),
    "loss": st.sampled_from(LOSSES),
    "kind": st.sampled_from(["none", "l2", "layer_norm"]),
    "native": st.booleans(),
}


@given(**rows_and_weights)
@settings(max_examples=250)
def test_no_unit_contributes_more_than_the_clipping_norm(
    rows: list[list[float]],
    weights: list[float],
    label: int,
    clip: float,
    loss: tuple[str, bool],
    kind: str,
    native: bool,
) -> None:
    """Adds up norms of a unit's rows, for any rows and weights; overflowing rows add nothing."""
    labels, several = torch.tensor([label] * len(rows)), [[label & 1, label >> 1, 1, 0]]
    if loss[1]:
        labels = torch.tensor(several * len(rows), dtype=torch.uint8)
    units = Units.number_units(["p"] * len(rows)) if len(rows) > 1 else None
    heads, total = torch.tensor(weights).view(1, 4, 4), 0.0
    for index, row in enumerate(rows):
        features = torch.full((len(rows), 3), math.nan)
        features[index] = torch.tensor(row)
        one = rows_of(TrainingSet(features, labels, 4, units=units), kind)
        part = full_sum(one, clip, heads, sigmoid=loss[0] == "sigmoid", native=native).double()
        assert part.isfinite().all()
        total += float(part.norm())
        if not np.isfinite(row).all() or not np.isfinite(weights).all():
            assert not part.any()
    assert total <= clip


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6), classes=st.integers(2, 40))
@settings(max_examples=40)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["none", "l2"])
def test_rounding_never_lifts_a_norm_above_the_bound(
    kind: str, native: bool, seed: int, scale: float, classes: int
) -> None:
    """The sum over a single row is that row's clipped gradient."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(1, 33, generator=generator) * scale
    rows = rows_of(TrainingSet(features, torch.tensor([seed % classes]), classes), kind)
    weights = torch.randn(8, classes, 34, generator=generator) * 3
    actual = full_sum(rows, 0.1, weights, sigmoid=False, native=native).double()
    norms = actual.flatten(1).norm(dim=1)
    assert float(norms.max()) <= 0.1
    reached = norms > 0.1 * (1 - 1e-6)
    x = torch.cat([whole(rows), torch.ones(1, 1)], dim=1).double().numpy()[0]
    targets = rows.make_targets(0, 1).double().numpy()[0]
    for index in range(8):
        residual = oracle_residual(weights[index].double().numpy() @ x, targets, sigmoid=False)
        if np.linalg.norm(residual) * np.linalg.norm(x) > 0.101:
            assert reached[index]


# --- the sums -----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [0.05, 1.2, 50.0, math.inf])
def test_full_batch_sum_equals_a_float64_oracle(
    clip: float, loss: tuple[str, bool], native: bool
) -> None:
    rows = rows_of(training_set(multi_label=loss[1]))
    weights, sigmoid = random_weights(rows), loss[0] == "sigmoid"
    actual = full_sum(rows, clip, weights, sigmoid=sigmoid, native=native)
    for index in range(3):
        wanted = oracle_sum(rows, weights[index].numpy(), np.arange(rows.n), clip, sigmoid=sigmoid)
        assert relative(actual[index], wanted) < 1e-6


@pytest.mark.parametrize("kind", ["none", "l2", "layer_norm"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("native", [True, False])
def test_poisson_sums_equal_a_float64_oracle(
    kind: str, loss: tuple[str, bool], native: bool
) -> None:
    rows = rows_of(training_set(multi_label=loss[1]), kind)
    weights, sigmoid = random_weights(rows), loss[0] == "sigmoid"
    sums = poisson_sums(rows, 0.9, weights, 0.2, sigmoid=sigmoid, native=native)
    drawn = [list(poisson_batches(rows.n, 0.2, 6, open_stream(seed, "sampling"))) for seed in SEEDS]
    for step in range(6):
        actual = next(sums)
        for index in range(3):
            batch = drawn[index][step]
            wanted = oracle_sum(rows, weights[index].numpy(), batch, 0.9, sigmoid=sigmoid)
            assert relative(actual[index], wanted) < 1e-6


@pytest.mark.parametrize("kind", ["none", "layer_norm"])
@pytest.mark.parametrize("native", [True, False])
def test_batches_in_pieces_are_the_same(
    kind: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(training_set(), kind)
    weights = random_weights(rows)
    whole_sums = poisson_sums(rows, 1.0, weights, 0.4, sigmoid=False, native=native)
    wanted = [next(whole_sums) for _ in range(6)]
    monkeypatch.setattr(clipping, "PIECE_BYTES", 300)
    pieces = poisson_sums(rows, 1.0, weights, 0.4, sigmoid=False, native=native)
    for own_wanted in wanted:
        assert relative(next(pieces), own_wanted) < 1e-6


def test_a_sum_over_many_rows_does_not_depend_on_threads() -> None:
    rows = rows_of(training_set(5000, 40, 3))
    weights = padded(random_weights(rows))
    gradients = ClippedGradients(rows, 1.0, sigmoid=False)
    alone, together = torch.zeros_like(weights), torch.zeros_like(weights)
    NativeFullBatchSum(gradients, weights, None).add_to(alone)
    with ThreadPoolExecutor(4) as pool:
        NativeFullBatchSum(gradients, weights, pool).add_to(together)
    assert torch.equal(alone, together)
    reference = random_weights(rows)
    wanted = full_sum(rows, 1.0, reference, sigmoid=False, native=False)
    assert relative(unpadded(alone, reference), wanted) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["none", "l2"])
def test_repeated_steps_see_the_weights_of_their_time(device: str, kind: str) -> None:
    """Crops may take turns; on a GPU all steps after the first replay a recorded graph."""
    data = [training_set(), training_set(60)]
    crops = [
        rows_of(TrainingSet(features_of(one).to(device), one.labels.to(device), 4), kind)
        for one in data
    ]
    gradients = [ClippedGradients(rows, 0.9, sigmoid=False) for rows in crops]
    weights = random_weights(crops[0]).to(device)
    sums = TorchSum(gradients[0], weights)
    for step in range(8):
        turn = step // 2 % 2
        sums.gradients = gradients[turn]
        release = torch.ones_like(weights)
        sums.add_to(release)
        wanted = full_sum(
            rows_of(data[turn], kind), 0.9, weights.cpu(), sigmoid=False, native=False
        )
        assert relative(release.cpu() - 1, wanted) < 1e-5
        weights.mul_(-1.3)


# --- units of several rows ----------------------------------------------------------------------


def test_batches_are_of_whole_units_at_the_rate() -> None:
    rows, steps, rate = rows_of(with_units()), 4000, 0.1
    units = rows.units
    assert units is not None
    sampler = PoissonSampler(rows.n, rate, open_stream(1, "sampling"))
    drawn, sizes = drawn_rows(rows, sampler, steps)
    assert sizes.sum() == len(drawn)
    joined = np.zeros((steps, len(rows)), dtype=np.int64)
    np.add.at(joined, (np.repeat(np.arange(steps), sizes), drawn), 1)
    by_unit = []
    for unit in range(rows.n):
        of_unit = joined[:, units.members[units.starts[unit] : units.starts[unit + 1]]]
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
    sampler = PoissonSampler(rows.n, 0.3, open_stream(SEEDS[0], "sampling"))
    drawn, sizes = drawn_rows(rows, sampler, 6)
    features = rows.copy_rows(torch.arange(len(rows)))
    for batch in np.split(drawn, np.cumsum(sizes)[:-1]):
        wanted = torch.zeros_like(weights)
        for row in batch:
            one = TrainingSet(features[row : row + 1].clone(), rows.labels[row : row + 1], 4)
            part = full_sum(rows_of(one), 0.9, weights, sigmoid=False, native=native)
            wanted += part * rows.weights[row]
        assert relative(next(sums), wanted) < 2e-6
