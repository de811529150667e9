"""The closed-form clipped sum, and training with it, against what it must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe import heads
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import first_order
from dpprobe.heads.first_order import FullBatch, PoissonBatches, clip_bounds, clipped_residuals
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import Heads, TrainingSet
from dpprobe.privacy.noise import GaussianNoise
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed, stream
from dpprobe.privacy.sampling import PoissonSampler, poisson_batches

SEEDS = [cell_seed("test", index) for index in range(3)]


def training_set(rows: int = 120, dimension: int = 7, classes: int = 4) -> TrainingSet:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(rows, dimension, generator=generator) * 2
    labels = torch.randint(0, classes, (rows,), generator=generator)
    return TrainingSet(features, labels, classes)


def plan_for(options: Options, n: int, noise: float = 0.8, epsilon: float = 1.0) -> Plan:
    return Plan(
        mechanisms=tuple(item.scaled(noise) for item in options.mechanisms(n)),
        n=n,
        epsilon=epsilon,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=epsilon,
    )


def no_privacy(options: Options, n: int) -> Plan:
    return plan_for(options, n, noise=0.0, epsilon=math.inf)


def oracle_sum(data: TrainingSet, weights: np.ndarray, rows: np.ndarray, clip: float) -> np.ndarray:
    """Every row's gradient, one by one, in float64: clipped, summed."""
    total = np.zeros(weights.shape)
    for row in rows:
        x = np.append(data.features[row].double().numpy(), 1.0)
        logits = weights @ x
        p = np.exp(logits - logits.max())
        p /= p.sum()
        p[int(data.labels[row])] -= 1
        gradient = np.outer(p, x)
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


def relative(found: Any, wanted: Any) -> float:
    found, wanted = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def random_weights(data: TrainingSet, seeds: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(seeds, data.num_classes, data.dimension + 1, generator=generator) / 4


def poisson(data: TrainingSet, clip: float, weights: torch.Tensor, rate: float) -> PoissonBatches:
    samplers = [PoissonSampler(data.rows, rate, stream(seed, "sampling")) for seed in SEEDS]
    return PoissonBatches(data, data.normalised("none"), clip, weights, samplers[: len(weights)])


# --- the clipped sum -----------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.05, 1.2, 50.0, math.inf])
def test_full_batch_sum_equals_a_float64_oracle(clip: float) -> None:
    data = training_set()
    weights = random_weights(data)
    release = torch.zeros_like(weights)
    FullBatch(data, data.normalised("none"), clip, weights).add_clipped_sum_(release)
    for index in range(3):
        wanted = oracle_sum(data, weights[index].double().numpy(), np.arange(data.rows), clip)
        assert relative(release[index], wanted) < 1e-6


@pytest.mark.parametrize("clip", [0.05, 1.2, math.inf])
@pytest.mark.parametrize("piece_bytes", [2**25, 300])
def test_poisson_sums_equal_a_float64_oracle(
    clip: float, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_order, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(first_order, "_GROUP_BYTES", 50 * 32)
    data = training_set()
    weights = random_weights(data)
    batches = poisson(data, clip, weights, rate=0.2)
    drawn = [list(poisson_batches(data.rows, 0.2, 6, stream(seed, "sampling"))) for seed in SEEDS]
    for start in (0, 3):
        batches.prepare(3)
        for step in range(start, start + 3):
            release = torch.zeros_like(weights)
            batches.add_clipped_sum_(release)
            for index in range(3):
                own = weights[index].double().numpy()
                wanted = oracle_sum(data, own, drawn[index][step], clip)
                assert relative(release[index], wanted) < 1e-6


def test_full_batch_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = training_set()
    weights = random_weights(data)
    whole, parts = torch.zeros_like(weights), torch.zeros_like(weights)
    FullBatch(data, data.normalised("none"), 1.0, weights).add_clipped_sum_(whole)
    monkeypatch.setattr("dpprobe.heads.training_set._CHUNK_BYTES", 3000)
    FullBatch(data, data.normalised("none"), 1.0, weights).add_clipped_sum_(parts)
    assert relative(parts, whole) < 1e-6


floats = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    logits=st.lists(floats, min_size=4, max_size=4),
    row=st.lists(floats, min_size=3, max_size=3),
    label=st.integers(0, 3),
    clip=st.sampled_from([1e-4, 0.1, 1.0, 1.2, 77.0]),
)
@settings(max_examples=400, deadline=None)
def test_no_row_contributes_more_than_the_clipping_norm(
    logits: list[float], row: list[float], label: int, clip: float
) -> None:
    data = TrainingSet(torch.tensor([row]), torch.tensor([label]), 4)
    rows = data.normalised("none")
    residual = clipped_residuals(
        torch.tensor(logits).unsqueeze(1), data.labels.unsqueeze(0), clip_bounds(rows.norms, clip)
    )
    x = torch.cat([rows.features[0], torch.ones(1)])
    gradient = residual.double() * x.double()
    assert torch.isfinite(gradient).all()
    assert float(gradient.norm()) <= clip
    if not np.isfinite(row).all() or not np.isfinite(logits).all():
        finite_softmax = torch.softmax(torch.tensor(logits), 0).isfinite().all()
        if not np.isfinite(row).all() or not finite_softmax:
            assert not gradient.any()


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6), classes=st.integers(2, 300))
@settings(max_examples=100, deadline=None)
def test_rounding_never_lifts_a_norm_above_the_bound(seed: int, scale: float, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    data = TrainingSet(
        torch.randn(64, 33, generator=generator) * scale,
        torch.randint(0, classes, (64,), generator=generator),
        classes,
    )
    rows = data.normalised("none")
    logits = torch.randn(classes, 64, generator=generator) * 5
    residuals = clipped_residuals(logits, data.labels.unsqueeze(0), clip_bounds(rows.norms, 1.2))
    x = torch.cat([rows.features, torch.ones(64, 1)], dim=1).double()
    norms = residuals.double().norm(dim=0) * x.norm(dim=1)
    assert float(norms.max()) <= 1.2
    assert float(norms.max()) > 1.2 * (1 - 1e-6) or scale < 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("full", [True, False])
def test_rows_that_are_not_finite_contribute_exactly_nothing(bad: float, full: bool) -> None:
    features = torch.full((5, 3), bad)
    data = TrainingSet(features, torch.tensor([0, 1, 0, 1, 1]), 2)
    weights = random_weights(data)
    release = torch.zeros_like(weights)
    batches: FullBatch | PoissonBatches
    if full:
        batches = FullBatch(data, data.normalised("none"), 1.0, weights)
    else:
        batches = poisson(data, 1.0, weights, 0.9)
    batches.prepare(1)
    batches.add_clipped_sum_(release)
    assert not release.any()


def test_logits_that_overflow_contribute_exactly_nothing() -> None:
    data = TrainingSet(torch.full((4, 2), 1e17), torch.tensor([0, 1, 0, 1]), 2)
    weights = torch.full((1, 2, 3), 1e30)
    weights[0, 1] *= -1
    release = torch.zeros_like(weights)
    FullBatch(data, data.normalised("none"), 1.0, weights).add_clipped_sum_(release)
    assert not release.any()


@pytest.mark.parametrize("full", [True, False])
def test_removing_a_row_moves_the_sum_by_at_most_the_sensitivity(full: bool) -> None:
    data = training_set()
    features = data.features * torch.logspace(-3, 3, data.rows).unsqueeze(1)
    weights = random_weights(data, 1)
    (own,) = Options(batch_size="full").mechanisms(data.rows)

    def total(keep: torch.Tensor) -> torch.Tensor:
        part = TrainingSet(features[keep], data.labels[keep], data.num_classes)
        release = torch.zeros_like(weights)
        batches: FullBatch | PoissonBatches
        if full:
            batches = FullBatch(part, part.normalised("none"), own.sensitivity, weights)
        else:
            batches = poisson(part, own.sensitivity, weights, 1.0)
        batches.prepare(1)
        batches.add_clipped_sum_(release)
        return release.double()

    whole = total(torch.ones(data.rows, dtype=torch.bool))
    moves = []
    for row in range(0, data.rows, 7):
        keep = torch.ones(data.rows, dtype=torch.bool)
        keep[row] = False
        moves.append(float((whole - total(keep)).norm()))
    assert max(moves) <= own.sensitivity + 1e-4  # float32 sums of 120 rows
    assert max(moves) > 0.99 * own.sensitivity


# --- training ------------------------------------------------------------------------------------


def plain_sgd(options: Options, data: TrainingSet, seed: int) -> np.ndarray:
    """PyTorch's own gradients on the same batches, divided by the expected batch size."""
    (own,) = options.mechanisms(data.rows)
    start = first_order.initial_weights(options.init, data, [seed])[0]
    linear = torch.nn.Linear(data.dimension, data.num_classes).double()
    with torch.no_grad():
        linear.weight.copy_(start[:, :-1])
        linear.bias.copy_(start[:, -1])
    optimizer = torch.optim.SGD(linear.parameters(), lr=options.learning_rate)
    for batch in poisson_batches(data.rows, own.sample_rate, own.count, stream(seed, "sampling")):
        optimizer.zero_grad()
        rows = torch.from_numpy(batch)
        loss = torch.nn.functional.cross_entropy(
            linear(data.features[rows].double()), data.labels[rows], reduction="sum"
        )
        (loss / (own.sample_rate * data.rows)).backward()
        optimizer.step()
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach().numpy()


@pytest.mark.parametrize(
    "options",
    [
        Options(batch_size=12, steps=40, max_grad_norm=0.01),
        Options(batch_size="full", steps=15, init="zero", max_grad_norm=0.01),
        Options(batch_size=2, steps=60, max_grad_norm=0.01),  # empty batches among them
    ],
)
def test_infinite_epsilon_is_plain_sgd(options: Options) -> None:
    data = training_set()
    found = heads.fit(options, data, no_privacy(options, data.rows), SEEDS[:2])
    for index, seed in enumerate(SEEDS[:2]):
        assert relative(found.weights[index], plain_sgd(options, data, seed)) < 1e-5


@pytest.mark.parametrize("batch_size", [1, 50, "full"])
def test_noise_has_the_planned_size_in_every_step(batch_size: Any) -> None:
    """On rows that contribute nothing, the weights are the noise: T steps of (lr sigma C / B)^2."""
    rows, steps = 50, 40
    data = TrainingSet(torch.full((rows, 99), math.nan), torch.zeros(rows).long(), 20)
    options = Options(
        batch_size=batch_size, steps=steps, init="zero", learning_rate=0.3, max_grad_norm=2.0
    )
    plan = plan_for(options, rows, noise=1.7)
    found = heads.fit(options, data, plan, SEEDS).weights.astype(np.float64)
    expected = rows if batch_size == "full" else batch_size
    deviation = 0.3 * 1.7 * 2.0 / expected * steps**0.5
    for weights in found:  # with batches of 1 expected row, a third of the steps are empty
        assert weights.std() == pytest.approx(deviation, rel=5 / (2 * weights.size) ** 0.5)
        assert abs(weights.mean()) < 5 * deviation / weights.size**0.5
    # Neither seeds nor classes share noise.
    vectors = found.reshape(-1, 100)
    correlation = np.asarray(np.corrcoef(vectors))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5.5 / 100**0.5


def dead_rows(rows: int, dimension: int, classes: int, device: str = "cpu") -> TrainingSet:
    """Rows that contribute exactly nothing, so that what is released is the noise."""
    features = torch.full((rows, dimension), math.inf, device=device)
    return TrainingSet(features, torch.zeros(rows).long().to(device), classes)


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [1, 20, "full"])
def test_the_weights_are_the_start_less_the_planned_noise(batch_size: Any, device: str) -> None:
    data = dead_rows(50, 9, 4, device)
    own: dict[str, Any] = {"learning_rate": 0.3, "max_grad_norm": 2.0}
    options = Options(batch_size=batch_size, steps=30, **own)
    found = heads.fit(options, data, plan_for(options, 50, noise=1.7), SEEDS).weights
    start = first_order.initial_weights("torch", data, SEEDS).cpu().double().numpy()
    expected = 50 if batch_size == "full" else batch_size
    noise = GaussianNoise(SEEDS, 40, torch.device(device))
    # In the trainer's own blocks: on a GPU the numbers depend on them.
    stops = first_order.record_steps(30)
    parts = [stop - before for before, stop in zip([0, *stops[:-1]], stops, strict=True)]
    total = sum(noise.draw(part, 1.0).cpu().double().sum(1) for part in parts)
    released = torch.as_tensor(total).numpy().reshape(3, 4, 10)
    wanted = start - 0.3 / expected * 1.7 * 2.0 * released
    assert relative(found, wanted) < 1e-6


@pytest.mark.parametrize("batch_size", [2, "full"])
def test_pooled_noise_is_right_to_half_a_per_cent(batch_size: Any) -> None:
    data = dead_rows(4, 1999, 250)
    options = Options(batch_size=batch_size, steps=3, init="zero", learning_rate=0.3)
    found = heads.fit(options, data, plan_for(options, 4, noise=1.7), [*SEEDS, 4, 5]).weights
    expected = 4 if batch_size == "full" else 2
    variance = 3 * (0.3 / expected * 1.7 * 1.2) ** 2
    # 2.5 million numbers: 5.6 standard errors.
    assert np.mean(np.square(found, dtype=np.float64)) == pytest.approx(variance, rel=0.005)


@pytest.mark.parametrize("seeds", [1, 7])
def test_blocks_do_not_depend_on_how_many_seeds_train(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = GaussianNoise.draw

    def draw(self: GaussianNoise, steps: int, deviation: float) -> torch.Tensor:
        asked.append(steps)
        return original(self, steps, deviation)

    monkeypatch.setattr(GaussianNoise, "draw", draw)
    monkeypatch.setattr(first_order, "_NOISE_BYTES", 4 * 40 * 7)
    data = dead_rows(50, 9, 4)
    options = Options(batch_size=5, steps=200)
    heads.fit(options, data, plan_for(options, 50), list(range(1, seeds + 1)))
    assert asked == [7, 3] * 20


def test_blocks_are_bounded_in_rows() -> None:
    """Tiny heads and large batches: the noise is small, the rows drawn at a time are not."""
    (own,) = Options(batch_size=4096, steps=50_000).mechanisms(1_300_000)
    assert first_order.block_steps(34, own, 1_300_000) * 4096 <= first_order._BLOCK_ROWS
    (own,) = Options(batch_size=100_000, steps=5).mechanisms(1_300_000)
    assert first_order.block_steps(34, own, 1_300_000) == 1


def test_a_seed_does_not_depend_on_the_others() -> None:
    data = training_set()
    for options in (Options(batch_size=12, steps=50), Options(batch_size="full", steps=10)):
        plan = plan_for(options, data.rows)
        together = heads.fit(options, data, plan, SEEDS)
        alone = heads.fit(options, data, plan, SEEDS[1:2])
        np.testing.assert_allclose(together.weights[1], alone.weights[0], rtol=2e-5, atol=2e-6)
        again = heads.fit(options, data, plan, SEEDS)
        np.testing.assert_array_equal(together.weights, again.weights)


def test_a_sum_is_divided_by_the_expected_batch_size() -> None:
    data = training_set()
    options = Options(batch_size=10, steps=1, learning_rate=0.5, init="zero")
    (batch,) = poisson_batches(data.rows, 10 / data.rows, 1, stream(SEEDS[0], "sampling"))
    assert len(batch) != 10
    start = np.zeros((data.num_classes, data.dimension + 1))
    total = oracle_sum(data, start, batch, math.inf)
    found = heads.fit(options, data, no_privacy(options, data.rows), SEEDS[:1])
    assert relative(found.weights[0], -0.5 * total / 10) < 1e-6


@pytest.mark.parametrize("normalize", ["l2", "layer_norm"])
def test_normalisation_reaches_training_and_scores(normalize: Any) -> None:
    data = training_set()
    plain = Options(batch_size=12, steps=30)
    options = Options(batch_size=12, steps=30, normalize=normalize)
    found = heads.fit(options, data, plan_for(options, data.rows), SEEDS)
    same = TrainingSet(data.normalised(normalize).features, data.labels, data.num_classes)
    wanted = heads.fit(plain, same, plan_for(plain, data.rows), SEEDS)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        heads.scores(found, data.features), heads.scores(wanted, same.features), atol=1e-5
    )


def test_torchs_default_initialisation() -> None:
    data = training_set(dimension=400, classes=50)
    weights = first_order.initial_weights("torch", data, SEEDS).numpy()
    assert np.abs(weights).max() <= 1 / 20
    assert weights.std() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert np.abs(np.corrcoef(weights.reshape(3, -1)) - np.eye(3)).max() < 0.05
    linear = torch.nn.Linear(400, 50)
    assert linear.weight.std().item() == pytest.approx(weights[..., :-1].std(), rel=0.05)
    assert linear.bias.abs().max().item() <= 1 / 20
    assert not first_order.initial_weights("zero", data, SEEDS).any()


def test_history_follows_training() -> None:
    data = training_set()
    options = Options(batch_size=12, steps=50, learning_rate=0.5)
    seen: list[tuple[int, torch.Tensor]] = []

    def record(step: int, weights: torch.Tensor, info: dict[str, Any]) -> Mapping[str, list[float]]:
        seen.append((step, weights.clone()))
        assert len(info["train_loss"]) == 3
        return {"test_accuracy": [0.1, 0.2, 0.3]}

    found = heads.fit(options, data, plan_for(options, data.rows), SEEDS, record=record)
    steps = [step for step, _ in seen]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 21)
    np.testing.assert_array_equal(seen[-1][1].numpy(), found.weights)
    assert len(found.history) == 63
    last = found.history[-1]
    assert (last["seed_index"], last["step"], last["test_accuracy"]) == (2, 50, 0.3)
    assert last["epoch"] == pytest.approx(5.0)
    logits = torch.from_numpy(heads.scores(found, data.features)[2])
    loss = torch.nn.functional.cross_entropy(logits, data.labels)
    assert last["train_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found.history[0]["train_loss"] > last["train_loss"]
    # Recording changes nothing, and nothing is recorded for nobody.
    silent = heads.fit(options, data, plan_for(options, data.rows), SEEDS)
    np.testing.assert_array_equal(silent.weights, found.weights)
    assert silent.history == []


def test_steps_taken_are_the_steps_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    data = training_set()
    options = Options(batch_size=12, steps=50)
    plan = plan_for(options, data.rows)
    assert heads.fit(options, data, plan, SEEDS).steps == plan.steps == 50
    monkeypatch.setattr(first_order, "record_steps", lambda _: [25, 49])
    with pytest.raises(PrivacyError, match="49 noisy steps were taken, 50 were priced"):
        heads.fit(options, data, plan, SEEDS)


@pytest.mark.parametrize("steps", [1, 7, 20, 31, 31_250])
def test_recorded_steps_end_at_the_last(steps: int) -> None:
    points = first_order.record_steps(steps)
    assert points[-1] == steps
    assert points == sorted(set(points))
    assert points[0] >= 1
    assert len(points) <= 20


def test_divergence_is_an_error_that_says_so() -> None:
    data = training_set()
    options = Options(batch_size="full", steps=5, learning_rate=1e38)
    with pytest.raises(ConfigError, match=r"diverged at learning_rate 1e\+38"):
        heads.fit(options, data, plan_for(options, data.rows, noise=100.0), SEEDS)


def test_private_training_learns() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (900,), generator=generator)
    centres = torch.randn(3, 10, generator=generator) * 2
    features = centres[labels] + torch.randn(900, 10, generator=generator)
    data = TrainingSet(features[:600], labels[:600], 3)
    for options in (Options(batch_size=60, steps=60), Options(batch_size="full", steps=20)):
        found = heads.fit(options, data, plan_for(options, 600, noise=2.0), SEEDS)
        accuracy = (heads.scores(found, features[600:]).argmax(2) == labels[600:].numpy()).mean(1)
        assert accuracy.min() > 0.8


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_cuda_gives_the_same_sums() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    data = training_set()
    on_gpu = TrainingSet(data.features.cuda(), data.labels.cuda(), data.num_classes)
    for options in (Options(batch_size=12, steps=40), Options(batch_size="full", steps=10)):
        plan = no_privacy(options, data.rows)
        wanted: Heads = heads.fit(options, data, plan, SEEDS)
        found = heads.fit(options, on_gpu, plan, SEEDS)
        np.testing.assert_allclose(found.weights, wanted.weights, rtol=1e-4, atol=1e-5)
        noisy = heads.fit(options, on_gpu, plan_for(options, data.rows), SEEDS)
        assert np.isfinite(noisy.weights).all()
