"""Learning rates over steps equal PyTorch's schedulers; averages equal plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, PolynomialLR

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.schedules import learning_rates, mixing_rates


def options_of(**values: Any) -> GradientOptions:
    options = method_options({"head": "sgd", "learning_rate": 0.4, **values})
    assert isinstance(options, GradientOptions)
    return options


def rates_of_torch(kind: type[LRScheduler], steps: int, highest: float) -> list[float]:
    """Returns the learning rates of a PyTorch scheduler for the given number of steps."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=highest)
    scheduler = kind(optimiser, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@given(
    steps=st.integers(1, 40),
    warmup=st.floats(0, 0.99),
    falling=st.sampled_from(["warmup_cosine", "warmup_linear"]),
)
def test_a_rate_rises_in_equal_steps_then_falls_as_pytorch_s(
    steps: int, warmup: float, falling: str
) -> None:
    rates = learning_rates(options_of(schedule=falling, warmup=warmup), steps)
    warm = min(round(warmup * steps), steps - 1)
    assert rates[:warm] == pytest.approx([0.4 * (t + 1) / warm for t in range(warm)])
    kind = CosineAnnealingLR if falling == "warmup_cosine" else PolynomialLR
    wanted = rates_of_torch(kind, steps - warm, 0.4)
    assert rates[warm:] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert rates.max() == pytest.approx(0.4), "the highest is the rate that is written"


@given(steps=st.integers(1, 40), rate=st.floats(1e-3, 10))
def test_a_constant_rate_is_constant_and_a_rule_s_rate_replaces_it(steps: int, rate: float) -> None:
    assert learning_rates(options_of(), steps).tolist() == [0.4] * steps
    assert learning_rates(options_of(), steps, rate).tolist() == [rate] * steps
    by_rule = learning_rates(options_of(schedule="warmup_linear"), steps, rate)
    assert by_rule == pytest.approx(
        learning_rates(options_of(schedule="warmup_linear"), steps) * rate / 0.4
    )


@given(values=st.lists(st.floats(-5, 5), min_size=1, max_size=20), decay=st.floats(0.01, 0.99))
def test_averages_cover_all_weights(values: list[float], decay: float) -> None:
    """Compares with the mean, and the moving average of Kingma and Ba 2015, section 3."""

    def moved(options: GradientOptions) -> float:
        rates = mixing_rates(options, len(values))
        assert rates is not None
        average = 0.0
        for rate, value in zip(rates, values, strict=True):
            average += rate * (value - average)
        return average

    assert moved(options_of(average="mean")) == pytest.approx(np.mean(values), abs=1e-9)
    total = sum(
        (1 - decay) * decay ** (len(values) - 1 - t) * value for t, value in enumerate(values)
    )
    found = moved(options_of(average="ema", ema_decay=decay))
    assert found == pytest.approx(total / (1 - decay ** len(values)), rel=1e-6, abs=1e-9)
    default, written = options_of(average="ema"), options_of(average="ema", ema_decay=0.99)
    assert mixing_rates(default, 4) == pytest.approx(mixing_rates(written, 4))
    assert mixing_rates(options_of(), 4) is None, "the last weights are no average"
