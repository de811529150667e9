"""What is done with a privatised gradient, against PyTorch and against the papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from dpprobe.errors import ConfigError
from dpprobe.heads.adam import Options as AdamOptions
from dpprobe.heads.first_order_options import FirstOrderOptions
from dpprobe.heads.lamb import Options as LambOptions
from dpprobe.heads.momentum import Options as MomentumOptions
from dpprobe.heads.optimisers import (
    Adam,
    Lamb,
    Momentum,
    Optimiser,
    Sgd,
    learning_rates,
    mixing_rates,
)
from dpprobe.heads.registry import HEADS
from dpprobe.heads.sgd import Options
from dpprobe.options import options_class

SHAPE = (3, 4, 6)


def gradients(steps: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(steps, *SHAPE, generator=generator, dtype=torch.float64)


def start() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SHAPE, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("own", "reference"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, lr=1)),
        (Momentum(beta=0.8), lambda p: torch.optim.SGD(p, lr=1, momentum=0.8)),
        (
            Adam(beta1=0.8, beta2=0.95, eps=1e-3),
            lambda p: torch.optim.Adam(p, lr=1, betas=(0.8, 0.95), eps=1e-3),
        ),
    ],
)
def test_steps_are_pytorch_s(own: Optimiser, reference: Any) -> None:
    weights, wanted = start(), torch.nn.Parameter(start())
    optimisers = [reference([wanted])]
    again = torch.nn.Parameter(start())
    optimisers.append(own.reference([again]))
    for step, gradient in enumerate(gradients()):
        rate = 0.1 / (step + 1)
        own.step(weights, gradient.clone(), rate)
        for parameter, optimiser in zip((wanted, again), optimisers, strict=True):
            parameter.grad = gradient.clone()
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
        torch.testing.assert_close(weights, wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(weights, again.detach(), rtol=1e-12, atol=1e-12)


def lamb_of_the_paper(weights: np.ndarray, steps: np.ndarray, rate: float) -> np.ndarray:
    """You et al. 2019, algorithm 2, one layer at a time; weight decay 0, phi the identity."""
    beta1, beta2, eps = 0.9, 0.99, 1e-6
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t, gradient in enumerate(steps, start=1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        direction = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        length = np.linalg.norm(weights)
        ratio = length / np.linalg.norm(direction) if length > 0 else 1.0
        weights = weights - rate * ratio * direction
    return weights


@pytest.mark.parametrize("zero", [False, True])
def test_lamb_is_the_paper_s(zero: bool) -> None:
    own = Lamb(beta1=0.9, beta2=0.99, eps=1e-6)
    weights = torch.zeros(SHAPE, dtype=torch.float64) if zero else start()
    first = weights.clone()
    for gradient in gradients():
        own.step(weights, gradient.clone(), 0.07)
    steps = gradients().numpy()
    for seed in range(3):
        for layer in (slice(None, -1), slice(-1, None)):
            wanted = lamb_of_the_paper(
                first[seed, :, layer].numpy(), steps[:, seed, :, layer], 0.07
            )
            np.testing.assert_allclose(weights[seed, :, layer].numpy(), wanted, rtol=1e-11)


def test_lamb_is_adam_on_the_first_step_from_zero() -> None:
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}
    found, wanted = torch.zeros(SHAPE, dtype=torch.float64), torch.zeros(SHAPE, dtype=torch.float64)
    Lamb(**settings).step(found, gradients()[0], 1e-3)
    Adam(**settings).step(wanted, gradients()[0], 1e-3)
    assert torch.equal(found, wanted)
    assert found.abs().max() > 0


def test_lamb_s_layers_are_weights_and_biases() -> None:
    """Zero weights take Adam's step while biases of -10 take one of their own length."""
    weights = torch.zeros(SHAPE, dtype=torch.float64)
    weights[..., -1] = -10
    Lamb(beta1=0.9, beta2=0.999, eps=1e-12).step(weights, gradients()[0], 0.01)
    torch.testing.assert_close(weights[..., :-1].abs(), torch.full((3, 4, 5), 0.01).double())
    torch.testing.assert_close((weights[..., -1] + 10).abs(), torch.full((3, 4), 0.1).double())


def test_a_gradient_of_zero_moves_nothing() -> None:
    for own in (Adam(beta1=0.9, beta2=0.9, eps=1e-8), Lamb(beta1=0.9, beta2=0.9, eps=1e-8)):
        weights = start()
        own.step(weights, torch.zeros(SHAPE, dtype=torch.float64), 0.1)
        assert torch.equal(weights, start())


# --- learning rates and averages ----------------------------------------------------------------


def test_schedules() -> None:
    assert learning_rates(Options(learning_rate=0.3), 4).tolist() == [0.3] * 4
    linear = Options(learning_rate=0.4, schedule="warmup_linear", warmup=0.4)
    np.testing.assert_allclose(
        learning_rates(linear, 10),
        np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.4 * 5 / 6, 0.4 * 4 / 6, 0.2, 0.4 / 3, 0.4 / 6]),
    )
    cosine = Options(learning_rate=0.4, schedule="warmup_cosine", warmup=0.2)
    found = learning_rates(cosine, 10)
    np.testing.assert_allclose(found[:3], [0.2, 0.4, 0.4])
    np.testing.assert_allclose(found[6], 0.2)  # half way through the eight that fall
    np.testing.assert_allclose(found[9], 0.2 * (1 + math.cos(math.pi * 7 / 8)))
    assert np.all(np.diff(found[2:]) < 0)


@pytest.mark.parametrize("schedule", ["constant", "warmup_cosine", "warmup_linear"])
@pytest.mark.parametrize("warmup", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_every_step_has_a_positive_learning_rate(schedule: Any, warmup: float, steps: int) -> None:
    if schedule == "constant":
        warmup = 0.0
    found = learning_rates(Options(schedule=schedule, warmup=warmup, learning_rate=2.0), steps)
    assert found.shape == (steps,)
    assert found.min() > 0
    assert found.max() == pytest.approx(2.0)


def averaged(options: FirstOrderOptions, values: np.ndarray) -> list[float]:
    mixing = mixing_rates(options, len(values))
    assert mixing is not None
    average, seen = 123.0, []
    for value, rate in zip(values, mixing, strict=True):
        average += rate * (value - average)
        seen.append(average)
    return seen


def test_averages() -> None:
    values = np.random.default_rng(1).normal(size=50)
    assert mixing_rates(Options(), 50) is None
    mean = averaged(Options(average="mean"), values)
    np.testing.assert_allclose(mean, np.cumsum(values) / np.arange(1, 51))
    for decay in (0.5, 0.9, 0.9999):
        raw, wanted = 0.0, []
        for taken, value in enumerate(values, start=1):
            raw = decay * raw + (1 - decay) * value
            wanted.append(raw / (1 - decay**taken))
        found = averaged(Options(average="ema", ema_decay=decay), values)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    # Debiased, a constant is its own average from the first step on.
    np.testing.assert_allclose(averaged(Options(average="ema"), np.full(5, 3.0)), 3.0)


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["sgd", "momentum", "adam", "lamb"])
def test_heads_are_registered_and_release_the_same(head: str) -> None:
    cls: Any = options_class(HEADS, head)
    (own,) = cls(head=head, batch_size=100, steps=7, max_grad_norm=0.5).releases(1000)
    assert (own.sensitivity, own.sample_rate, own.count) == (0.5, 0.1, 7)
    (full,) = cls(head=head, batch_size="full", epochs=3).releases(1000)
    assert (full.sample_rate, full.count) == (1.0, 3)
    assert cls(head=head).releases(1000)[0].count >= 1
    assert not cls(head=head).multi_label
    assert cls(head=head).link == "softmax"
    several = cls(head=head, loss="sigmoid")
    assert several.multi_label
    assert several.link == "sigmoid"


def test_the_foundation_features_recipe_is_sgd_s_default() -> None:
    options = Options()
    assert (options.batch_size, options.learning_rate, options.max_grad_norm) == (32, 0.1, 1.2)
    assert (options.init, options.average, options.schedule) == ("torch", "last", "constant")
    assert options.releases(50_000)[0].count == 31_250


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (Options, {"epochs": 2, "steps": 3}, "epochs 2 and steps 3: write one of them"),
        (Options, {"batch_size": 0}, "must be at least 1"),
        (Options, {"init": "file"}, "write init: file and the file's path"),
        (Options, {"init_file": "a.safetensors"}, "write init: file and the file's path"),
        (Options, {"init_scale": 0.1}, "init_scale 0.1 says nothing to init torch"),
        (Options, {"warmup": 0.1}, "warmup 0.1 says nothing to schedule constant"),
        (Options, {"ema_decay": 0.9}, "ema_decay 0.9 says nothing to average last"),
        (LambOptions, {"engine": "opacus"}, "no optimiser for head lamb; write engine: closed"),
        (MomentumOptions, {"beta": 1.0}, "less than 1"),
        (AdamOptions, {"beta2": -0.1}, "greater than or equal to 0"),
        (AdamOptions, {"learning_rate": math.inf}, "finite"),
    ],
)
def test_options_that_say_nothing_are_refused(cls: Any, values: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        cls(**values)


def test_batches_larger_than_the_data_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size 200 is above the 100 training rows"):
        AdamOptions(batch_size=200).releases(100)


def test_initial_weights_are_a_public_file_of_the_head() -> None:
    options = Options(init="file", init_file="{dataset}/{backbone}.safetensors")
    located = options.located(dataset="digits", backbone="pixels")
    assert located.input_files() == ("digits/pixels.safetensors",)
    assert Options().input_files() == ()
