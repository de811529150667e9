"""A step from zero against Opacus's per-example gradients and clipping."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import cell_seed, open_stream
from tests.support.linear_heads import (
    features_of,
    no_privacy,
    plan_for,
    relative,
    rows_of,
    training_set,
)
from tests.support.poisson_batches import poisson_batches

SEED = cell_seed("opacus", 0)
CLIP = 1.2

pytestmark = pytest.mark.usefixtures("one_thread")


def clipped_sum(data: TrainingSet, batch: npt.NDArray[np.int64], *, sigmoid: bool) -> torch.Tensor:
    """Opacus's clipped sum over a batch at weights of zero, [classes, d + 1]."""
    linear = torch.nn.Linear(data.dimension, data.num_classes)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    model = GradSampleModule(linear, loss_reduction="sum")
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=0.0, max_grad_norm=CLIP,
        expected_batch_size=1, loss_reduction="sum",
    )  # fmt: skip
    losses: Any = torch.nn.BCEWithLogitsLoss if sigmoid else torch.nn.CrossEntropyLoss
    targets = rows_of(data).make_targets(0, data.rows)[batch].float()
    with warnings.catch_warnings():
        # Opacus's hooks ask for inputs with gradients; only the weights have gradients.
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        losses(reduction="sum")(model(features_of(data)[batch]), targets).backward()
    optimiser.step()
    return -torch.cat([linear.weight, linear.bias[:, None]], dim=1).detach()


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "several"])
@pytest.mark.parametrize("batch_size", [100, "full"])
def test_clipped_sums_are_opacus_s(batch_size: Any, loss: str) -> None:
    """With next to no noise the step is the clipped sum over the expected batch size."""
    data, sigmoid = training_set(400, 256, 10, multi_label=loss == "several"), loss != "softmax"
    options = Options(
        batch_size=batch_size, steps=1, init="zero", max_grad_norm=CLIP, learning_rate=1.0,
        loss="sigmoid" if sigmoid else "softmax",
    )  # fmt: skip
    batch, size = np.arange(data.rows), data.rows
    if batch_size != "full":
        size = batch_size
        (batch,) = poisson_batches(data.rows, size / data.rows, 1, open_stream(SEED, "sampling"))
    actual = fit_heads(options, data, plan_for(options, data.rows, noise=1e-9), [SEED]).weights[0]
    assert relative(-actual * size, clipped_sum(data, batch, sigmoid=sigmoid)) < 5e-5
    free = fit_heads(options, data, no_privacy(options, data.rows), [SEED]).weights[0]
    assert np.linalg.norm(free) > 1.5 * np.linalg.norm(actual), "clipping was not at work"
