"""`engine: opacus` equals the other engine, and Opacus's accountants price its steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.optimizers import DPOptimizer

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import opacus_engine
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.opacus_engine import OpacusSteps
from dpprobe.heads.registry import method_options
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.target import Target
from tests.support.gpu import needs_gpu
from tests.support.linear_heads import features_of, no_privacy, plan_for, training_set, with_units

SEEDS = [cell_seed("test", index) for index in range(2)]
# Tolerances relative to the largest weight. Subtracting the noise's variance from mean squares
# amplifies float32 rounding in their roots.
TOLERANCES = {"sgd": 1e-6, "momentum": 3e-6, "adam": 1e-4, "lamb": 1e-4}


def both(values: dict[str, Any], data: TrainingSet, noise: float = 0.8) -> list[np.ndarray]:
    """Returns the heads by `closed_form` and by `opacus`, with equal seeds."""
    heads = []
    for engine in ("closed_form", "opacus"):
        options = method_options({**values, "engine": engine})
        plan = plan_for(options, data.n, noise)
        fitted = fit_heads(options, data, plan, SEEDS)
        assert fitted.steps == plan.find_mechanism("gradients").count
        heads.append(fitted.weights)
    return heads


@pytest.mark.parametrize("head", TOLERANCES)
@pytest.mark.parametrize("batch_size", [12, 1, "full"])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_weights_equal_those_of_the_other_engine(head: str, batch_size: Any, steps: int) -> None:
    """Batches with one expected row are often empty."""
    values = {"head": head, "batch_size": batch_size, "steps": steps, "init": "torch"}
    wanted, actual = both(values, training_set(300, 40, 6))
    assert not np.array_equal(wanted[0], wanted[1])
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=TOLERANCES[head] * np.abs(wanted).max())


@pytest.mark.parametrize(
    "values",
    [
        {"loss": "sigmoid", "average": "ema", "schedule": "warmup_cosine", "warmup": 0.2},
        {"loss": "sigmoid", "average": "mean"},
        {"normalize": "whitened", "class_priors": "released"},
        {"intercept": 0.5, "init_bias": -1.0, "max_grad_norm": 0.05},
    ],
)
def test_options_mean_what_they_mean_elsewhere(values: dict[str, Any]) -> None:
    several = values.get("average") == "ema"
    data = training_set(200, 12, multi_label=several)
    wanted, actual = both({"head": "momentum", "steps": 12, "batch_size": 50, **values}, data)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_only_the_mean_gradient_is_clipped_without_privacy() -> None:
    values = {"head": "sgd", "steps": 8, "batch_size": 40, "max_batch_grad_norm": 0.1}
    wanted, actual = both(values, training_set(), noise=0.0)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-6)


def test_large_batches_are_formed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = both({"head": "sgd", "steps": 3, "batch_size": "full"}, training_set())[1]
    monkeypatch.setattr(opacus_engine, "PIECE_BYTES", 4 * 8 * 4 * 7)
    monkeypatch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 20 * 7 * 4)
    pieces = both({"head": "sgd", "steps": 3, "batch_size": "full"}, training_set())[1]
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-6)
    assert not np.array_equal(pieces, whole)


# --- rows without a gradient --------------------------------------------------------------------


def faulty_rows() -> TrainingSet:
    """Returns rows including zeros, NaN, infinity and numbers whose squares overflow."""
    data = training_set(60)
    features = features_of(data).clone()
    features[[3, 17], [1, 2]] = math.nan
    features[20, 0], features[21, 4], features[22] = math.inf, -math.inf, 3e38
    features[30:33] = 0
    return TrainingSet(features, data.labels, data.num_classes)


@pytest.mark.parametrize("batch_size", [20, "full"])
def test_examples_without_a_finite_gradient_contribute_zero(batch_size: Any) -> None:
    wanted, actual = both(
        {"head": "sgd", "steps": 10, "batch_size": batch_size, "max_grad_norm": 0.5}, faulty_rows()
    )
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-6)


def clipped_sum(kind: Any, gradients: torch.Tensor, clip: float) -> torch.Tensor:
    """Returns a class's sum of clipped gradients, [size], given each row's gradient."""
    weight: Any = torch.nn.Parameter(torch.zeros(gradients.shape[1]))
    if kind is OpacusSteps:
        linear = torch.nn.Linear(gradients.shape[1], 1, bias=False)
        weight = linear.weight
        steps = OpacusSteps(linear, [weight], max_grad_norm=clip, noise_multiplier=0.0, divisor=1.0)
        gradients = gradients[:, None]
    else:
        steps = kind(
            torch.optim.SGD([weight]),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=1,
        )
    weight.grad_sample = gradients.clone()
    steps.clip_and_accumulate()
    return torch.as_tensor(weight.summed_grad).flatten()


def test_clipped_rows_are_opacus_s_except_those_that_would_spoil_the_sum() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(40, 30, generator=generator)
    gradients[3] = 0
    kept = clipped_sum(DPOptimizer, gradients, 0.7)
    rows = gradients.double().numpy()
    factors = np.minimum(1, 0.7 / (np.linalg.norm(rows, axis=1) + 1e-6))
    np.testing.assert_allclose(kept, factors @ rows, rtol=0, atol=1e-5)
    assert torch.equal(clipped_sum(OpacusSteps, gradients, 0.7), kept)
    # 1e30 is finite, but its square is not.
    for spoilt in (math.nan, math.inf, -math.inf, 1e30):
        more = torch.cat([gradients, torch.full((1, 30), 0.1)])
        more[-1, 4] = spoilt
        assert torch.equal(clipped_sum(OpacusSteps, more, 0.7), kept)
        assert clipped_sum(DPOptimizer, more, 0.7).isfinite().all() == (spoilt == 1e30)


# --- noise and price ----------------------------------------------------------------------------


def test_a_step_without_the_plan_s_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(steps=3, batch_size=12, engine="opacus")
    data = training_set()
    fit_heads(options, data, plan_for(options, data.n), SEEDS)
    monkeypatch.setattr(OpacusSteps, "add_noise", DPOptimizer.add_noise)
    with pytest.raises(PrivacyError, match="without the plan's noise; nothing is released"):
        fit_heads(options, data, plan_for(options, data.n), SEEDS)
    monkeypatch.setattr(OpacusSteps, "pre_step", lambda *_: False)
    with pytest.raises(PrivacyError, match="without the plan's noise; nothing is released"):
        fit_heads(options, data, plan_for(options, data.n), SEEDS)


def test_divisor_and_noise_follow_the_plan() -> None:
    """Without gradients only noise is left, and its sum of squares follows a chi-square law."""
    from scipy.stats import chi2

    data = TrainingSet(torch.full((50, 99), math.nan), torch.zeros(50).long(), 10)
    options = Options(
        steps=20, batch_size=5, learning_rate=0.3, init="zero", max_grad_norm=2.0, engine="opacus"
    )
    weights = fit_heads(options, data, plan_for(options, 50, noise=1.7), SEEDS).weights
    deviation = 0.3 / 5 * 1.7 * 2.0 * math.sqrt(20)
    squares = np.square(weights.astype(np.float64) / deviation).sum()
    assert 1e-6 < chi2.cdf(squares, weights.size) < 1 - 1e-6


class Stepped:
    """Runs all of Opacus's accountants on every step of the fits."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "GDP accounting", UserWarning)
            self.accountants = [RDPAccountant(), PRVAccountant(), GaussianAccountant()]

    def epsilons(self, delta: float) -> list[float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [float(each.get_epsilon(delta=delta)) for each in self.accountants]


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Stepped]:
    def watch(rate: float) -> Stepped:
        seen, start = Stepped(), OpacusSteps.__init__

        def attach(self: OpacusSteps, *arguments: Any, **options: Any) -> None:
            start(self, *arguments, **options)
            hooks = [each.get_optimizer_hook_fn(sample_rate=rate) for each in seen.accountants]
            self.attach_step_hook(lambda optimizer: [hook(optimizer) for hook in hooks])

        monkeypatch.setattr(OpacusSteps, "__init__", attach)
        return seen

    return watch


@pytest.mark.parametrize(("batch_size", "epsilon"), [(30, 2.0), ("full", 1.0)])
def test_opacus_s_accountants_price_the_steps_that_opacus_took(
    batch_size: Any, epsilon: float, stepped: Callable[[float], Stepped], tmp_path: Path
) -> None:
    """PRV's epsilon has an error of 0.01. RDP is an upper bound, at most a third too high.

    GDP's central limit is exact for full batches, and too low for samples.
    """
    data = training_set(600, 20)
    options = Options(steps=60, batch_size=batch_size, engine="opacus", average="mean")
    target = Target(n=data.n, unit="image", epsilon=epsilon, delta=1e-5, accountant="pld")
    plan = calibrate(options.list_mechanisms(data.n), target, cache=tmp_path, checked=False)
    seen = stepped(plan.mechanisms[0].sample_rate)
    fit_heads(options, data, plan, SEEDS[:1])
    for accountant in seen.accountants:
        ((noise, rate, steps),) = accountant.history
        (mechanism,) = plan.mechanisms
        assert (noise, rate, steps) == (
            mechanism.noise_multiplier,
            mechanism.sample_rate,
            mechanism.count,
        )
    rdp, prv, gdp = seen.epsilons(1e-5)
    assert prv == pytest.approx(plan.realised_epsilon, abs=0.03)
    assert plan.realised_epsilon <= rdp <= 4 / 3 * plan.realised_epsilon
    if batch_size == "full":
        assert gdp == pytest.approx(plan.realised_epsilon, rel=1e-3)
    else:
        assert gdp < plan.realised_epsilon


# --- what is refused ----------------------------------------------------------------------------


def test_a_release_is_refused() -> None:
    options, data = Options(steps=3, engine="opacus"), training_set()
    assert not options.is_exact
    assert options.engine_limits == "opacus"
    with pytest.raises(PrivacyError, match="a release needs exact sums.*write `engine: exact`"):
        fit_heads(options, data, plan_for(options, data.n), SEEDS, entropy=SystemEntropy())


@pytest.mark.parametrize("head", ["sgd", "tuned"])
def test_patients_with_several_images_are_refused(head: str) -> None:
    values: dict[str, Any] = {"head": "sgd", "steps": 3, "batch_size": "full", "engine": "opacus"}
    if head == "tuned":
        values = {"head": "tuned", "base": values, "search": {"learning_rate": [0.1, 0.2]}}
    options, data = method_options(values), with_units()
    with pytest.raises(ConfigError, match="not the means of a patient's images; write `engine: c"):
        fit_heads(options, data, plan_for(options, data.n), SEEDS)
    assert method_options({"head": "sgd"}).units_fault is None


def test_class_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="class_weights: Opacus does not weigh clipped gradients"):
        Options(engine="opacus", class_weights=(1.0, 0.5))


@needs_gpu
def test_a_gpu_trains_the_other_engine_s_weights() -> None:
    data = training_set(300, 40, 6)
    moved = TrainingSet(features_of(data).cuda(), data.labels.cuda(), data.num_classes)
    for values in ({"batch_size": 12}, {"batch_size": "full"}):
        wanted, actual = both({"head": "momentum", "steps": 20, **values}, moved)
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-4)
    options = Options(steps=3, engine="opacus")
    free = fit_heads(options, moved, no_privacy(options, 300), SEEDS).weights
    assert np.isfinite(free).all()
