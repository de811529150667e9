"""The records of a fit: at which steps, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.history import record_steps
from dpprobe.heads.rows import Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.sgd import Options
from dpprobe.privacy.randomness import cell_seed
from tests.support.linear_heads import features_of, plan_for, rows_of, training_set

SEEDS = [cell_seed("test", index) for index in range(3)]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "several"])
@pytest.mark.parametrize("average", ["last", "ema"])
def test_history_follows_training(loss: str, average: Any) -> None:
    data = training_set(multi_label=loss == "several")
    chosen: Any = "softmax" if loss == "softmax" else "sigmoid"
    options = Options(batch_size=12, steps=50, learning_rate=0.5, loss=chosen, average=average)
    seen: list[tuple[int, torch.Tensor]] = []

    def record(step: int, weights: torch.Tensor, _: Transform) -> Mapping[str, list[float]]:
        seen.append((step, weights.clone()))
        return {"test_accuracy": [0.1, 0.2, 0.3]}

    actual = fit_heads(options, data, plan_for(options, data.rows), SEEDS, record=record)
    steps = [step for step, _ in seen]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 21)
    np.testing.assert_array_equal(seen[-1][1].numpy(), actual.weights)
    assert len(actual.history) == 63
    last = actual.history[-1]
    assert (last["seed_index"], last["step"], last["test_accuracy"]) == (2, 50, 0.3)
    assert last["epoch"] == pytest.approx(5.0)
    logits = torch.from_numpy(score_rows(actual, features_of(data))[2])
    targets = rows_of(data).make_targets(0, data.rows)
    if chosen == "softmax":
        wanted = torch.nn.functional.cross_entropy(logits, targets)
    else:
        wanted = data.num_classes * torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets
        )
    assert last["train_loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert actual.history[0]["train_loss"] > last["train_loss"]
    # Recording changes nothing, and nothing is recorded for nobody.
    silent = fit_heads(options, data, plan_for(options, data.rows), SEEDS)
    np.testing.assert_array_equal(silent.weights, actual.weights)
    assert silent.history == []


@pytest.mark.parametrize("steps", [1, 7, 20, 31, 31_250])
def test_recorded_steps_end_at_the_last(steps: int) -> None:
    points = record_steps(steps)
    assert points[-1] == steps
    assert points == sorted(set(points))
    assert points[0] >= 1
    assert len(points) <= 20
