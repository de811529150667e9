"""Training by noisy gradient steps equals plain loops and the options' promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import exact_engine, gradient_steps
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.history import record_steps
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.optimiser import Sgd
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.float32_noise import GaussianNoise
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import NOT_OBSERVED, ObservedSteps, Observer, Releases
from dpprobe.privacy.sampling import Sampler
from tests.support.gpu import DEVICES, needs_gpu
from tests.support.linear_heads import (
    features_of,
    no_privacy,
    plan_for,
    relative,
    rows_of,
    training_set,
    with_units,
)
from tests.support.plain_heads import Adam, Lamb, Momentum

SEEDS = [cell_seed("test", index) for index in range(3)]
HEADS = [Options, Momentum, Adam, Lamb]


# --- noise -------------------------------------------------------------------------------------


def dead_rows(rows: int, dimension: int, classes: int, device: str = "cpu") -> TrainingSet:
    """Returns rows that contribute exactly nothing, so that only noise is released."""
    features = torch.full((rows, dimension), math.inf, device=device)
    return TrainingSet(features, torch.zeros(rows).long().to(device), classes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [1, 20, "full"])
def test_the_weights_are_the_start_less_the_planned_noise(batch_size: Any, device: str) -> None:
    data = dead_rows(50, 9, 4, device)
    common: dict[str, Any] = {"learning_rate": 0.3, "max_grad_norm": 2.0}
    options = Options(batch_size=batch_size, steps=30, **common)
    actual = fit_heads(options, data, plan_for(options, 50, noise=1.7), SEEDS).weights
    start = initial_weights(options, rows_of(data), SEEDS).cpu().double().numpy()
    expected = 50 if batch_size == "full" else batch_size
    noise = GaussianNoise(SEEDS, 40, torch.device(device))
    # Drawn in the trainer's own blocks, because the numbers on a GPU depend on them.
    stops = record_steps(30)
    parts = [stop - before for before, stop in zip([0, *stops[:-1]], stops, strict=True)]
    total = sum(noise.draw_steps(part, 1.0).cpu().double().sum(1) for part in parts)
    released = torch.as_tensor(total).numpy().reshape(3, 4, 10)
    wanted = start - 0.3 / expected * 1.7 * 2.0 * released
    assert relative(actual, wanted) < 1e-6


@pytest.mark.parametrize("seeds", [1, 7])
@pytest.mark.parametrize("batch_size", [5, "full"])
def test_blocks_do_not_depend_on_how_many_seeds_train(
    batch_size: Any, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = GaussianNoise.draw_steps

    def draw(self: GaussianNoise, steps: int, deviation: float) -> torch.Tensor:
        asked.append(steps)
        return original(self, steps, deviation)

    monkeypatch.setattr(GaussianNoise, "draw_steps", draw)
    monkeypatch.setattr(gradient_steps, "NOISE_BYTES", 4 * 40 * 7)
    options = Adam(batch_size=batch_size, steps=200)
    fit_heads(options, dead_rows(50, 9, 4), plan_for(options, 50), list(range(1, seeds + 1)))
    each = seeds if batch_size == 5 else 1  # with batches, each seed draws its noise separately
    assert asked == ([7, 3] * 20 if each == 1 else [*([7, 3] * each)] * 20)


# --- seeds, threads, streams -------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("batch_size", [12, "full"])
@pytest.mark.parametrize("noise", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["rows", "several", "units", "exact", "exact units"])
def test_threads_other_seeds_and_pytorch_s_sums_train_the_same_heads(
    head: Any, batch_size: Any, noise: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's sums are the code for a GPU, run on the CPU with the CPU's noise."""
    data = (
        with_units(2000) if "units" in kind else training_set(2000, multi_label=kind == "several")
    )
    options = head(
        batch_size=batch_size,
        steps=9,
        init="torch",
        average="ema",
        normalize="layer_norm" if "units" in kind else "l2",
        loss="sigmoid" if kind == "several" else "softmax",
        engine="exact" if "exact" in kind else "closed_form",
    )
    plan = plan_for(options, data.n, noise)
    wanted = fit_heads(options, data, plan, SEEDS).weights
    assert not np.array_equal(wanted[0], wanted[1])
    torch.set_num_threads(3)
    np.testing.assert_array_equal(fit_heads(options, data, plan, SEEDS).weights, wanted)
    (alone,) = fit_heads(options, data, plan, SEEDS[1:2]).weights
    if "exact" in kind and noise:
        np.testing.assert_array_equal(alone, wanted[1])
        return
    plain = options.model_copy(update={"engine": "closed_form"})
    np.testing.assert_array_equal(fit_heads(plain, data, plan, SEEDS).weights, wanted)
    np.testing.assert_allclose(alone, wanted[1], rtol=2e-5, atol=2e-6)
    monkeypatch.setattr(gradient_steps, "is_native", lambda _: False)
    actual = fit_heads(options, data, plan, SEEDS).weights
    np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-5)


class Replacing(Observer):
    """Replaces the samplers by one whose batches are the first rows, of the given sizes in turn."""

    def __init__(self, *sizes: int, each_step: bool) -> None:
        self.sizes, self.drawn, self.sees_each_step = sizes, 0, each_step

    def observe_release(self, *given: Any) -> torch.Tensor:
        return given[2]

    def observe_steps(self, *_: Any) -> ObservedSteps:
        return NOT_OBSERVED

    def replace_sampler(self, *_: Any) -> Sampler:
        return self

    def draw_block(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        turns = range(self.drawn, self.drawn + steps)
        self.drawn += steps
        sizes = [self.sizes[turn % len(self.sizes)] for turn in turns]
        return np.concatenate([np.arange(size) for size in sizes]), np.array(sizes)


@pytest.mark.parametrize("each_step", [True, False])
@pytest.mark.parametrize("engine", ["closed_form", "exact"])
def test_a_fit_uses_the_batches_of_the_sampler_that_an_audit_provides(
    engine: Any, each_step: bool
) -> None:
    data = training_set(60)
    options = Options(batch_size=12, steps=40, engine=engine, init="zero", learning_rate=0.5)
    observer = Replacing(7, each_step=each_step)
    plan = plan_for(options, 60, 1e-9)
    (actual,) = fit_heads(options, data, plan, SEEDS[:1], observer=observer).weights
    first = TrainingSet(features_of(data)[:7], data.labels[:7], data.num_classes)
    whole = options.model_copy(update={"batch_size": "full", "learning_rate": 7 / 12 * 0.5})
    (wanted,) = fit_heads(whole, first, plan_for(whole, 7, 1e-9), SEEDS[:1]).weights
    assert relative(actual, wanted) < 1e-4


@pytest.mark.parametrize("each_step", [True, False])
def test_every_batch_is_used_once_also_next_to_large_batches(
    each_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that are drawn again would not be the Poisson samples that epsilon assumes."""
    monkeypatch.setattr("dpprobe.heads.clipping.LARGEST_BATCH", 10)
    options = Options(batch_size=12, steps=40)
    observer = Replacing(7, 8, 11, 3, 20, each_step=each_step)
    fit_heads(options, training_set(60), plan_for(options, 60), SEEDS[:1], observer=observer)
    assert observer.drawn == 40


@pytest.mark.parametrize("normalize", ["none", "layer_norm"])
@pytest.mark.parametrize("batch_size", [32, 2000, "full"])
def test_working_memory_is_bounded(batch_size: Any, normalize: str) -> None:
    """PyTorch and NumPy need less than 60 MB at their peak, in addition to 80 MB of features."""
    import tracemalloc

    from torch.profiler import ProfilerActivity, profile

    data = training_set(20_000, 1000, 10)
    options = Momentum(batch_size=batch_size, steps=2, normalize=normalize)
    plan = plan_for(options, data.rows)
    for _ in range(2):  # the first round also traces the import of modules
        tracemalloc.start()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            fit_heads(options, data, plan, [1])
        _, in_numpy = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    held, most = 0, 0
    for event in sorted(profiled.events(), key=lambda event: event.time_range.end):
        held += event.self_cpu_memory_usage
        most = max(most, held)
    assert most + in_numpy < 60 * 2**20


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("batch_size", [12, "full"])
@pytest.mark.parametrize("engine", ["closed_form", "exact"])
def test_steps_taken_are_the_steps_priced(
    head: Any, batch_size: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps may be taken several at a time by compiled code, or one by one."""
    released: list[str] = []
    gaussian = Releases.release_gaussian

    def counted(self: Releases, name: str, sums: GridSum) -> torch.Tensor:
        released.append(name)
        return gaussian(self, name, sums)

    monkeypatch.setattr(Releases, "release_gaussian", counted)
    data = training_set()
    options = head(batch_size=batch_size, steps=50, engine=engine)
    plan = plan_for(options, data.rows)
    assert fit_heads(options, data, plan, SEEDS).steps == plan.steps == 50
    alone = engine == "exact" and (head is not Options or batch_size == "full")
    assert released == ["gradients"] * (50 if alone else 0)
    for ends in ([25, 49], [51]) if engine == "exact" else ([25, 49],):
        for module in (gradient_steps, exact_engine):
            monkeypatch.setattr(module, "record_steps", lambda _, ends=ends: ends)
        with pytest.raises((PrivacyError, IndexError)) as error:
            fit_heads(options, data, plan, SEEDS)
        if error.type is PrivacyError:
            were = "made" if ends[-1] < 50 else "asked for"
            said = f"{ends[-1]} noisy releases were {were}, but epsilon covers 50"
            assert said in str(error.value)


def test_an_optimiser_derived_from_sgd_takes_its_own_steps() -> None:
    class Slower(Sgd):
        def step(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
            super().step(weights, gradient, rate / 2)

    data = training_set()
    weights = []
    for rate, optimiser in ((0.2, Slower), (0.1, Sgd)):
        options = Options(batch_size=12, steps=30, learning_rate=rate)
        releases = Releases(plan_for(options, data.rows), SEEDS, torch.device("cpu"))
        fitted = gradient_steps.take_gradient_steps(options, rows_of(data), releases, optimiser)
        weights.append(fitted.weights)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-6)


def test_divergence_raises_an_error_that_names_the_learning_rate() -> None:
    data = training_set()
    options = Options(batch_size="full", steps=5, learning_rate=1e38)
    with pytest.raises(ConfigError, match=r"diverged at learning_rate 1e\+38"):
        fit_heads(options, data, plan_for(options, data.rows, noise=100.0), SEEDS)


@needs_gpu
@pytest.mark.parametrize("head", HEADS)
def test_cuda_gives_the_same_sums(head: Any) -> None:
    data = training_set()
    on_gpu = TrainingSet(features_of(data).cuda(), data.labels.cuda(), data.num_classes)
    for batch_size in (12, "full"):
        options = head(batch_size=batch_size, steps=20, init="torch")
        plan = no_privacy(options, data.rows)
        wanted: Heads = fit_heads(options, data, plan, SEEDS)
        actual = fit_heads(options, on_gpu, plan, SEEDS)
        np.testing.assert_allclose(actual.weights, wanted.weights, rtol=1e-3, atol=1e-4)
        noisy = fit_heads(options, on_gpu, plan_for(options, data.rows), SEEDS)
        assert np.isfinite(noisy.weights).all()


@pytest.mark.parametrize("batch_size", ["full", 30])
def test_without_privacy_the_mean_gradient_may_be_clipped(batch_size: Any) -> None:
    """A step has the same direction and at most the length learning_rate times the bound."""
    data = training_set()
    plain = Options(batch_size=batch_size, steps=1, learning_rate=2.0, init="zero")
    clipped = plain.model_copy(update={"max_batch_grad_norm": 0.01})
    free, bound = (
        fit_heads(options, data, no_privacy(options, data.rows), SEEDS).weights
        for options in (plain, clipped)
    )
    lengths = np.linalg.norm(free, axis=(1, 2), keepdims=True)
    assert (lengths > 0.02).all()
    np.testing.assert_allclose(bound, free * (0.02 / lengths), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "several", "units"])
@pytest.mark.parametrize("average", ["last", "ema"])
def test_history_follows_training(loss: str, average: Any) -> None:
    data = with_units() if loss == "units" else training_set(multi_label=loss == "several")
    weights = torch.ones(data.rows) if data.weights is None else data.weights
    chosen: Any = "sigmoid" if loss in ("sigmoid", "several") else "softmax"
    options = Options(batch_size=12, steps=50, learning_rate=0.5, loss=chosen, average=average)
    seen: list[tuple[int, torch.Tensor]] = []

    def record(step: int, weights: torch.Tensor, _: Transform) -> Mapping[str, list[float]]:
        seen.append((step, weights.clone()))
        return {"test_accuracy": [0.1, 0.2, 0.3]}

    actual = fit_heads(options, data, plan_for(options, data.n), SEEDS, record=record)
    steps = [step for step, _ in seen]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 21)
    np.testing.assert_array_equal(seen[-1][1].numpy(), actual.weights)
    assert len(actual.history) == 63
    last = actual.history[-1]
    assert (last["seed_index"], last["step"], last["test_accuracy"]) == (2, 50, 0.3)
    assert last["epoch"] == pytest.approx(50 * 12 / data.n)
    logits = torch.from_numpy(score_rows(actual, features_of(data))[2])
    targets = rows_of(data).make_targets(0, data.rows)
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    if chosen == "sigmoid":
        cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits
        losses = cross_entropy(logits, targets, reduction="none").sum(1)
    wanted = (losses * weights).sum() / weights.sum()
    assert last["train_loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert actual.history[0]["train_loss"] > last["train_loss"]
    # Recording does not change the head; without a `record`, nothing is recorded.
    silent = fit_heads(options, data, plan_for(options, data.n), SEEDS)
    np.testing.assert_array_equal(silent.weights, actual.weights)
    assert silent.history == []


@pytest.mark.parametrize("most", [41, 50, 60])
def test_the_loss_on_record_is_of_first_rows(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss covers whole blocks, here of 20 rows."""
    monkeypatch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 20 * 12 * 4)
    monkeypatch.setattr("dpprobe.heads.history.LOSS_ROWS", most)
    data, options = training_set(), Options(steps=3)
    fitted = fit_heads(options, data, plan_for(options, 120), [1], record=lambda *_: None)
    scores = torch.from_numpy(score_rows(fitted, features_of(data))[0])
    wanted = torch.nn.functional.cross_entropy(scores[:60], data.labels[:60])
    assert fitted.history[-1]["train_loss"] == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("steps", [1, 7, 20, 31, 31_250])
def test_recorded_steps_end_at_the_last(steps: int) -> None:
    points = record_steps(steps)
    assert points[-1] == steps
    assert points == sorted(set(points))
    assert points[0] >= 1
    assert len(points) <= 20
