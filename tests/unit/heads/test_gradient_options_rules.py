"""Learning rates by rule, the constant, the noise correction, and initial weights."""

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
from dpprobe.heads import adam, feature_covariance, lamb, momentum, sgd
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import (
    plan_for,
    rows_of,
    training_set,
)

SEEDS = [cell_seed("test", index) for index in range(2)]


def test_momentum_s_step_converges_where_one_direction_holds_all() -> None:
    """Iterates v = beta v + h w and w = w - rate v; h is the largest curvature of unit rows."""
    for classes, more in ((2, {}), (10, {}), (10, {"intercept": 1.0}), (10, {"beta": 0.5})):
        for loss, curvature in (("softmax", 1 / classes), ("sigmoid", 0.25)):
            options = momentum.Options.model_validate({"loss": loss, **more})
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
    """Rows that contribute nothing leave only noise in the weights, and in logits of unit rows."""
    options = momentum.Options(normalize="l2", batch_size=batch_size, steps=400)
    dead = TrainingSet(torch.full((50, 299), math.inf), torch.zeros(50).long(), classes)
    weights = fit_heads(options, dead, plan_for(options, 50, noise=30.0), SEEDS).weights
    assert weights[..., :-1].std() == pytest.approx(bound, rel=0.1)


# --- the constant -------------------------------------------------------------------------------


def test_what_is_released_holds_the_constant() -> None:
    """The released number for each class's constant has as much noise as its other numbers."""
    options = momentum.Options(
        normalize="none", learning_rate=1.0, steps=1, intercept=0.25, max_grad_norm=2.0
    )
    dead = TrainingSet(torch.full((50, 99), math.inf), torch.zeros(50).long(), 2000)
    weights = fit_heads(options, dead, plan_for(options, 50, noise=3.0), SEEDS).weights
    assert weights[..., :-1].std() == pytest.approx(3 * 2 / 50, rel=0.01)
    assert weights[..., -1].std() == pytest.approx(0.25 * 3 * 2 / 50, rel=0.06)


# --- the noise correction -----------------------------------------------------------------------


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
