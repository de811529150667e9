"""Gradient heads equal the heads of a plain float64 loop over rows, in many settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import Source, oracle_residual, plan_for

pytestmark = pytest.mark.usefixtures("several_blocks")

ROWS, DIMENSION, CLASSES = 40, 5, 3
Matrix = npt.NDArray[np.float64]


def data_of(kind: str) -> TrainingSet:
    """Returns unequal classes, with a row of NaN, a zero row, a nearly zero row and an outlier."""
    generator = torch.Generator().manual_seed(4)
    labels = (torch.arange(ROWS) ** 2 % 7).clamp(max=CLASSES - 1)
    features = torch.randn(ROWS, DIMENSION, generator=generator) + 0.5
    features[torch.arange(ROWS), labels] += 2
    features[5], features[17], features[23], features[31, 2] = torch.nan, 0, 1e-25, 1e4
    if kind == "several":
        labels = (torch.nn.functional.one_hot(labels, CLASSES) | (features[:, :CLASSES] > 2)).byte()
    units = Units.number_units([f"{row * row % 31}" for row in range(ROWS)])
    rows: Any = Source(features.numpy(), 7) if kind == "streamed" else features
    given_units = units if kind == "units" else None
    return TrainingSet(rows, labels, CLASSES, units=given_units)


def normalise(rows: Matrix, kind: str) -> Matrix:
    if kind == "l2":
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-20)
    if kind == "layer_norm":
        centred = rows - rows.mean(1, keepdims=True)
        return centred / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    return rows


class Oracle:
    """Trains a head by a plain loop, on all rows in each step and without noise."""

    def __init__(self, options: GradientOptions, kind: str) -> None:
        data = data_of(kind)
        self.options, self.several = options, kind == "several"
        source = data_of("several" if self.several else "rows").features
        assert source is not None
        rows = source.double().numpy()
        # rows that float32 cannot scale are ignored, also for biases
        lengths = np.linalg.norm(rows, axis=1)
        self.used = np.isfinite(rows).all(1) & ~((lengths > 0) & (lengths < 1e-18))
        rows = np.append(
            normalise(rows, options.normalize.kind), np.full((ROWS, 1), options.constant), axis=1
        )
        self.rows = np.where(self.used[:, None], rows, 0)
        labels = data.labels.numpy()
        self.targets = labels if self.several else np.eye(CLASSES)[labels]
        self.shares = np.ones(ROWS)
        if data.units is not None:
            unit = data.units.unit_of_rows()
            self.shares = 1 / np.bincount(unit)[unit]
        if options.class_weights:
            self.shares = self.shares * np.asarray(options.class_weights)[labels]
        self.n = data.n

    def gradient(self, weights: Matrix) -> Matrix:
        total = np.zeros_like(weights)
        for row in np.flatnonzero(self.used):
            x, target = self.rows[row], self.targets[row]
            residual = oracle_residual(weights @ x, target, sigmoid=self.options.loss == "sigmoid")
            each = np.outer(residual, x)
            length = np.linalg.norm(each)
            factor = min(1.0, self.options.max_grad_norm / length) if length else 1.0
            total += self.shares[row] * factor * each
        return total / self.n

    def train(self) -> Matrix:
        options, weights = self.options, np.zeros((CLASSES, DIMENSION + 1))
        if options.init_bias is not None:
            weights[:, -1] = options.init_bias / options.constant
        state: dict[str, Matrix] = {}
        every = []
        assert options.steps is not None
        for step in range(options.steps):
            rate = self.rate(step, options.steps)
            weights = weights - rate * self.direction(weights, self.gradient(weights), step, state)
            every.append(weights)
        if options.average == "mean":
            weights = np.mean(every, axis=0)
        if options.average == "ema":
            beta = 0.99 if options.ema_decay is None else options.ema_decay
            powers = beta ** np.arange(len(every))[::-1]
            weights = np.tensordot(powers / powers.sum(), every, 1)
        weights = weights * np.append(np.ones(DIMENSION), options.constant)  # for a constant of 1
        priors = options.class_priors
        if isinstance(priors, tuple):
            weights[:, -1] -= np.log(priors) - np.mean(np.log(priors))
        return weights

    def rate(self, step: int, steps: int) -> float:
        options = self.options
        assert options.learning_rate is not None
        warm = round(options.warmup * steps)
        if options.schedule == "constant":
            return options.learning_rate
        if step < warm:
            return options.learning_rate * (step + 1) / warm
        progress = (step - warm) / (steps - warm)
        if options.schedule == "warmup_linear":
            return options.learning_rate * (1 - progress)
        return options.learning_rate * (1 + math.cos(math.pi * progress)) / 2

    def direction(
        self, weights: Matrix, gradient: Matrix, step: int, state: dict[str, Matrix]
    ) -> Matrix:
        """Returns the step of SGD, heavy ball, Adam or LAMB (You et al. 2019, algorithm 2)."""
        options: Any = self.options
        if options.head == "sgd":
            return gradient
        if options.head == "momentum":
            state["v"] = options.beta * state.get("v", 0) + gradient
            return state["v"]
        one, two = options.beta1, options.beta2
        state["m"] = one * state.get("m", 0) + (1 - one) * gradient
        state["s"] = two * state.get("s", 0) + (1 - two) * gradient**2
        mean, square = state["m"] / (1 - one ** (step + 1)), state["s"] / (1 - two ** (step + 1))
        found = mean / (np.sqrt(square) + options.eps)
        if options.head == "lamb":
            for layer in (slice(None, -1), slice(-1, None)):
                norms = np.linalg.norm(weights[:, layer]), np.linalg.norm(found[:, layer])
                found[:, layer] *= norms[0] / norms[1] if all(norms) else 1
        return np.asarray(found)


STEPS = st.fixed_dictionaries(
    {
        "steps": st.integers(1, 6),
        "learning_rate": st.floats(0.05, 1),
        "max_grad_norm": st.sampled_from([0.05, 0.5, 20.0]),
        "loss": st.sampled_from(["softmax", "sigmoid"]),
        "normalize": st.sampled_from(["none", "l2", "layer_norm"]),
        "init_bias": st.sampled_from([None, -2.0]),
        "engine": st.sampled_from(["closed_form", "exact"]),
    }
)
SCHEDULES = st.sampled_from(
    [{}, *({"schedule": f"warmup_{end}", "warmup": 0.4} for end in ("cosine", "linear"))]
)
AVERAGES = st.sampled_from(
    [{}, {"average": "mean"}, {"average": "ema"}, {"average": "ema", "ema_decay": 0.5}]
)
CLASS_WEIGHTS = st.sampled_from([{}, {"class_weights": [1, 0.5, 0.25]}])
PRIORS = st.sampled_from([{}, {"class_priors": [4, 1, 2]}])


@pytest.mark.parametrize("kind", ["rows", "streamed", "units", "several"])
@pytest.mark.parametrize("head", ["sgd", "momentum", "adam", "lamb"])
@settings(max_examples=8, phases=[Phase.generate])
@given(values=STEPS, schedule=SCHEDULES, average=AVERAGES, weights=CLASS_WEIGHTS, priors=PRIORS)
def test_a_head_equals_a_plain_loop(
    head: str, kind: str, values: Any, schedule: Any, average: Any, weights: Any, priors: Any
) -> None:
    values = values | schedule | average | {"head": head, "batch_size": "full", "init": "zero"}
    exact = values["engine"] == "exact"
    if exact:  # grid steps are a share of this norm, so it must not be too large
        values["max_grad_norm"] = min(0.5, values["max_grad_norm"])
    if kind == "several":
        values["loss"] = "sigmoid"
    else:
        values |= weights
    if values["loss"] == "softmax":
        values |= priors
    if head in ("adam", "lamb"):
        values["noise_correction"] = None
    options = method_options(values)
    assert isinstance(options, GradientOptions)
    data = data_of(kind)
    # nearly no noise; with exactly none, gradients would not be clipped
    fitted = fit_heads(options, data, plan_for(options, data.n, noise=1e-9), [3])
    wanted = Oracle(options, kind).train()
    distance = np.linalg.norm(fitted.weights[0] - wanted) / max(1e-3, float(np.linalg.norm(wanted)))
    assert distance < (2e-2 if exact else 2e-3), (values, fitted.weights[0], wanted)
