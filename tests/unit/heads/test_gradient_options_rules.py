"""The defaults of momentum, adam and lamb: rates by rule, the constant, the noise's correction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads import adam, gradient_steps, lamb, momentum, sgd
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions
from dpprobe.heads.schedules import rate_of
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed, open_stream
from dpprobe.privacy.releases import Releases
from tests.support.gradient_sums import sum_over
from tests.support.linear_heads import (
    features_of,
    no_privacy,
    oracle_sum,
    plan_for,
    relative,
    rows_of,
    training_set,
)
from tests.support.poisson_batches import poisson_batches

SEEDS = [cell_seed("test", index) for index in range(2)]
RULED: list[Any] = [momentum.Options, adam.Options, lamb.Options]

pytestmark = pytest.mark.usefixtures("one_thread")


def rate(options: GradientOptions, *, n: int = 1000, noise: float, **sizes: int) -> float:
    """The rate of a fit on n rows of these sizes, with this noise multiplier."""
    epsilon = 1.0 if noise else math.inf
    plan = plan_for(options, n, noise, epsilon)
    shape: dict[str, Any] = {"rows": n, "dimension": 7, "classes": 4, **sizes}
    data = training_set(**shape)
    return rate_of(options, rows_of(data), Releases(plan, SEEDS, torch.device("cpu")))


def appended(data: TrainingSet, constant: float) -> np.ndarray:
    rows = features_of(data).double().numpy()
    return np.hstack([rows, np.full((len(rows), 1), constant)])


# --- rates --------------------------------------------------------------------------------------


def test_a_rate_that_is_written_is_taken() -> None:
    for cls in RULED:
        assert rate(cls(learning_rate=0.37), noise=5.0) == 0.37
    assert rate(sgd.Options(), noise=5.0) == 0.1


def test_momentum_s_step_converges_where_one_direction_holds_all() -> None:
    """v = beta v + h w, w - rate v, at the largest curvature that unit rows can have."""
    for classes in (2, 10):
        for loss, curvature in (("softmax", 1 / classes), ("sigmoid", 0.25)):
            options = momentum.Options(loss=loss)
            step = rate(options, noise=0, classes=classes)
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


def test_adam_s_and_lamb_s_rates() -> None:
    wide, short = {"dimension": 300, "rows": 100, "n": 100}, {"dimension": 30}
    assert rate(adam.Options(), noise=5.0, **wide) == pytest.approx(1 / 40**0.5)
    wide["dimension"] = 1444
    assert rate(adam.Options(), noise=0, **wide) == pytest.approx(0.5 / 40**0.5)
    assert rate(adam.Options(steps=160), noise=5.0, **wide) == pytest.approx(0.25 / 40**0.5)
    assert rate(lamb.Options(), noise=5.0, **short) == pytest.approx(0.1)
    assert rate(lamb.Options(steps=1), noise=5.0, **short) == pytest.approx(0.5)


# --- the constant -------------------------------------------------------------------------------


def descent(
    options: GradientOptions, data: TrainingSet, seed: int, clip: float = math.inf
) -> np.ndarray:
    """Heavy-ball steps of sums in float64, on rows with the constant: weights and biases."""
    (mechanism,) = options.list_mechanisms(data.rows)
    rows = appended(data, options.constant)
    labels = np.eye(data.num_classes)[data.labels.numpy()]
    weights = np.zeros((data.num_classes, rows.shape[1]))
    velocity = np.zeros_like(weights)
    assert options.learning_rate is not None
    assert isinstance(options, momentum.Options)
    for batch in poisson_batches(
        data.rows, mechanism.sample_rate, mechanism.count, open_stream(seed, "sampling")
    ):
        logits = rows[batch] @ weights.T
        shares = np.exp(logits - logits.max(1, keepdims=True))
        residuals = shares / shares.sum(1, keepdims=True) - labels[batch]
        lengths = np.linalg.norm(residuals, axis=1) * np.linalg.norm(rows[batch], axis=1)
        factors = np.minimum(1, clip / np.maximum(lengths, 1e-300))
        gradient = (residuals * factors[:, None]).T @ rows[batch]
        velocity = options.beta * velocity + gradient / (mechanism.sample_rate * data.rows)
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
        normalize="none", learning_rate=0.2, steps=15, intercept=intercept, batch_size=batch_size,
        max_grad_norm=0.8, engine="exact" if path == "exact" else "closed_form",
    )  # fmt: skip
    if path == "pytorch":
        monkeypatch.setattr(gradient_steps, "is_native", lambda _: False)
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
        wanted = clipped_gradient(appended(data, constant)[row], head, data.labels[row], clip)
        np.testing.assert_allclose(total.values[0].numpy(), wanted, atol=clip * 2**-13)
    if constant == 1.0:
        whole = oracle_sum(rows, weights[0].numpy(), np.arange(rows.n), clip)
        assert relative(sums.sum_all(weights).values[0].numpy(), whole) < 1e-3


def clipped_gradient(row: np.ndarray, head: np.ndarray, label: Any, clip: float) -> np.ndarray:
    logits = head @ row
    residual = np.exp(logits - logits.max())
    residual /= residual.sum()
    residual[int(label)] -= 1
    gradient = np.outer(residual, row)
    return np.asarray(gradient * min(1, clip / np.linalg.norm(gradient)))


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


@pytest.mark.parametrize("cls", [adam.Options, lamb.Options])
def test_without_noise_a_correction_changes_nothing(cls: Any) -> None:
    data = training_set()
    weights = []
    for correction in (None, 0.3):
        options = cls(noise_correction=correction, steps=5, normalize="l2")
        weights.append(fit_heads(options, data, no_privacy(options, data.rows), SEEDS).weights)
    np.testing.assert_array_equal(weights[0], weights[1])
    noisy = []
    for correction in (None, 0.3):
        options = cls(noise_correction=correction, steps=5, normalize="l2")
        noisy.append(fit_heads(options, data, plan_for(options, data.rows), SEEDS).weights)
    assert relative(noisy[0], noisy[1]) > 1e-3
