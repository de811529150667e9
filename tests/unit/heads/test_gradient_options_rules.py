"""Rates by rule, the constant, the noise's correction, and the weights that heads start from."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from dpprobe.errors import ConfigError
from dpprobe.heads import adam, feature_covariance, gradient_steps, lamb, momentum, sgd
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.privacy.releases import Releases
from tests.support.gradient_sums import sum_over
from tests.support.linear_heads import (
    no_privacy,
    oracle_sum,
    plan_for,
    relative,
    rows_of,
    training_set,
)
from tests.support.poisson_batches import poisson_batches

SEEDS = [cell_seed("test", index) for index in range(2)]


def test_momentum_s_step_converges_where_one_direction_holds_all() -> None:
    """v = beta v + h w, w - rate v, at the largest curvature that unit rows can have."""
    for classes in (2, 10):
        for loss, curvature in (("softmax", 1 / classes), ("sigmoid", 0.25)):
            options = momentum.Options(loss=loss)
            step = options.choose_rate(40, noise=0.0, classes=classes)
            largest = curvature * (1 + options.intercept**2)
            for factor, converges in ((1.0, True), (1.2, False)):
                weight, velocity = 1.0, 0.0
                for _ in range(500):
                    velocity = options.beta * velocity + largest * weight
                    weight -= factor * step * velocity
                assert (abs(weight) < 1e-3) == converges


@pytest.mark.parametrize("batch_size", [25, "full"])
@pytest.mark.parametrize(("classes", "bound"), [(2, 1.0), (30, 0.5 * math.log(30))])
def test_momentum_s_noise_in_the_logits_is_bounded(
    batch_size: Any, classes: int, bound: float
) -> None:
    """On rows that contribute nothing the weights are the noise, and so are unit rows' logits."""
    options = momentum.Options(normalize="l2", batch_size=batch_size, steps=400)
    dead = TrainingSet(torch.full((50, 299), math.inf), torch.zeros(50).long(), classes)
    weights = fit_heads(options, dead, plan_for(options, 50, noise=30.0), SEEDS).weights
    assert weights[..., :-1].std() == pytest.approx(bound, rel=0.1)


# --- the constant -------------------------------------------------------------------------------


def descent(options: Any, data: TrainingSet, seed: int, clip: float = math.inf) -> np.ndarray:
    """Heavy-ball steps of sums in float64, on rows with the constant: weights and biases."""
    (mechanism,) = options.list_mechanisms(data.rows)
    rows, batches = rows_of(data), (mechanism.sample_rate, mechanism.count)
    weights = np.zeros((data.num_classes, data.dimension + 1))
    velocity = np.zeros_like(weights)
    for batch in poisson_batches(data.rows, *batches, open_stream(seed, "sampling")):
        total = oracle_sum(rows, weights, batch, clip, constant=options.constant)
        velocity = options.beta * velocity + total / (mechanism.sample_rate * data.rows)
        weights -= options.learning_rate * velocity
    weights[:, -1] *= options.intercept
    return weights


@pytest.mark.parametrize("intercept", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("batch_size", [12, "full"])
@pytest.mark.parametrize("path", ["native", "pytorch", "exact"])
def test_steps_are_those_on_rows_with_the_constant(
    intercept: float, batch_size: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = training_set()
    options = momentum.Options(
        normalize="none",
        learning_rate=0.2,
        steps=15,
        intercept=intercept,
        batch_size=batch_size,
        max_grad_norm=0.8,
        engine="exact" if path == "exact" else "closed_form",
    )
    if path == "pytorch":
        monkeypatch.setattr(gradient_steps, "is_native", lambda _: False)
        monkeypatch.setattr("dpprobe.heads.training_set._CACHE_BLOCK", 1_000)
        monkeypatch.setattr("dpprobe.heads.clipping._PIECE_BYTES", 300)
    plan = no_privacy(options, data.rows)
    actual = fit_heads(options, data, plan, SEEDS).weights
    for weights, seed in zip(actual, SEEDS, strict=True):
        assert relative(weights, descent(options, data, seed)) < 2e-5
    if path == "exact" and batch_size != "full":
        return  # its batches are others
    plan = plan_for(options, data.rows, noise=1e-9)
    clipped = fit_heads(options, data, plan, SEEDS[:1]).weights[0]
    wanted = descent(options, data, SEEDS[0], clip=0.8)
    assert relative(clipped, wanted) < (1e-3 if path == "exact" else 2e-5)
    assert relative(wanted, descent(options, data, SEEDS[0])) > 0.1


@pytest.mark.parametrize("constant", [0.2, 1.0, 0.7])
def test_an_exact_sum_has_the_constant_and_stays_below_the_norm(constant: float) -> None:
    data = training_set()
    rows = rows_of(data)
    weights = torch.randn((1, 4, 8), generator=torch.Generator().manual_seed(1)).double()
    clip = 0.31
    sums = ExactSums(rows, clip, sigmoid=False, pool=None, constant=constant)
    head = weights[0].numpy().copy()
    head[:, -1] /= constant
    for row in range(rows.n):
        total = sum_over(sums, np.array([row]), weights)
        assert torch.equal(total.units, total.units.round())
        assert float(total.values.square().sum().sqrt()) <= clip
        wanted = oracle_sum(rows, head, np.array([row]), clip, constant=constant)
        np.testing.assert_allclose(total.values[0].numpy(), wanted, atol=clip * 2**-13)
    if constant == 1.0:
        whole = oracle_sum(rows, weights[0].numpy(), np.arange(rows.n), clip)
        assert relative(sums.sum_all(weights).values[0].numpy(), whole) < 1e-3


def test_what_is_released_holds_the_constant() -> None:
    """The noise on the last number of each class is as large as on the others."""
    options = momentum.Options(
        normalize="none", learning_rate=1.0, steps=1, intercept=0.25, max_grad_norm=2.0
    )
    dead = TrainingSet(torch.full((50, 99), math.inf), torch.zeros(50).long(), 2000)
    weights = fit_heads(options, dead, plan_for(options, 50, noise=3.0), SEEDS).weights
    assert weights[..., :-1].std() == pytest.approx(3 * 2 / 50, rel=0.01)
    assert weights[..., -1].std() == pytest.approx(0.25 * 3 * 2 / 50, rel=0.06)


# --- the noise's correction ---------------------------------------------------------------------


def test_the_noise_s_variance_is_taken_off_the_mean_square() -> None:
    constants = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-12}
    optimiser = adam.Adam(**constants, noise=0.5, floor=0.1)
    first, second = torch.tensor([3.0, 0.1]), torch.tensor([1.0, -0.4])
    one = optimiser.compute_direction(first.clone())
    torch.testing.assert_close(one, first / torch.tensor([9 - 0.25, 0.025]).sqrt())
    square = (0.99 * first**2 + second**2) / 1.99
    mean = (0.9 * first + second) / 1.9
    wanted = mean / (square - 0.25).clamp(min=0.025).sqrt()
    torch.testing.assert_close(optimiser.compute_direction(second.clone()), wanted)


@pytest.mark.parametrize("cls", [adam.Options, lamb.Options])
@pytest.mark.parametrize("batch_size", [25, "full"])
def test_the_variance_is_the_plan_s(cls: Any, batch_size: Any) -> None:
    options = cls(noise_correction=0.4, max_grad_norm=2.0, batch_size=batch_size)
    plan = plan_for(options, 100, noise=3.0)
    releases = Releases(plan, SEEDS, torch.device("cpu"))
    multiplier = plan.find_mechanism(GRADIENTS).noise_multiplier
    expected = 100 if batch_size == "full" else 25
    constants = adam.moment_constants(options, releases)
    assert constants["noise"] == pytest.approx(multiplier * 2 / expected)
    assert constants["floor"] == 0.4
    off = adam.moment_constants(options.model_copy(update={"noise_correction": None}), releases)
    assert (off["noise"], off["floor"]) == (0, 0)


# --- initial weights ----------------------------------------------------------------------------


def start_of(**values: Any) -> np.ndarray:
    rows = rows_of(training_set(4, 400, 50))
    return initial_weights(sgd.Options(**values), rows, SEEDS).numpy()


def test_torchs_default_initialisation() -> None:
    weights = start_of()
    assert np.abs(weights).max() <= 1 / 20
    assert weights.std() == pytest.approx(1 / 20 / 3**0.5, rel=0.02)
    assert np.abs(np.corrcoef(weights.reshape(2, -1)) - np.eye(2)).max() < 0.05
    linear = torch.nn.Linear(400, 50)
    assert linear.weight.std().item() == pytest.approx(weights[..., :-1].std(), rel=0.05)
    assert linear.bias.abs().max().item() <= 1 / 20


def test_other_initialisations() -> None:
    assert not start_of(init="zero").any()
    scaled = start_of(init="scaled", init_scale=0.3)
    assert scaled[..., :-1].std() == pytest.approx(0.3, rel=0.02)
    assert abs(scaled[..., :-1].mean()) < 5 * 0.3 / scaled.size**0.5
    assert not scaled[..., -1].any()
    assert start_of(init="scaled").std() == pytest.approx(0.01, rel=0.02)
    lecun = start_of(init="lecun_normal")
    assert lecun[..., :-1].std() == pytest.approx(1 / 20, rel=0.02)
    assert np.abs(lecun).max() == pytest.approx(2 / 20 / 0.87962566, rel=0.01)
    assert not lecun[..., -1].any()
    for values in (scaled, lecun):
        assert np.abs(np.corrcoef(values.reshape(2, -1)) - np.eye(2)).max() < 0.05
    for init in ("zero", "torch", "scaled", "lecun_normal"):
        biased = start_of(init=init, init_bias=-10.0)
        assert (biased[..., -1] == -10).all()
        np.testing.assert_array_equal(biased[..., :-1], start_of(init=init)[..., :-1])


@pytest.mark.parametrize(("columns", "mark"), [(400, "no JSON"), (401, "[]"), (400, "{}")])
def test_public_weights_from_a_file(columns: int, mark: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(size=(50, columns)).astype(np.float32)
    path = str(tmp_path / "text.safetensors")
    save_file({"weights": weights}, path, metadata={"dpprobe": mark})
    file: dict[str, Any] = {"init": "file", "init_file": path, "init_scale": 3.0}
    actual = start_of(**file)
    for head in actual:
        np.testing.assert_allclose(head[:, :columns], 3 * weights, rtol=1e-6)
        assert not head[:, columns:].any()
    for bias in (None, 0.0, 1.5):
        started = start_of(init="file", init_file=path, init_bias=bias)[0, :, -1]
        assert bias is None or (started == bias).all()
        method = feature_covariance.Options(**file, init_bias=bias)
        public = feature_covariance.public_start(method, rows_of(training_set(4, 400, 50)))
        np.testing.assert_allclose(public[:, :400], 3 * weights[:, :400], rtol=1e-6)
        np.testing.assert_array_equal(public[:, -1], actual[0, :, -1] if bias is None else bias)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"

    def refused(message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            start_of(init="file", init_file=str(path))
        assert "\n" not in str(caught.value)

    refused("cannot be read")
    path.write_bytes(b"nothing of the kind")
    refused("cannot be read")
    save_file({"other": np.zeros(3)}, path)
    refused(re.escape("it contains ['other']; add a tensor \"weights\""))
    save_file({"weights": np.zeros((50, 399))}, path)
    refused(re.escape("weights have shape [50, 399]; write [50, 400]"))
    save_file({"weights": np.full((50, 400), np.nan)}, path)
    refused("not finite")
