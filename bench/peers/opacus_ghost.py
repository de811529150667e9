"""Opacus with ghost clipping: two backward passes, and norms without per-example gradients."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from peers import Run, Task
from peers.opacus_hooks import looped, private
from peers.opacus_hooks import version as version


def trainer(task: Task, features: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Run:
    import torch
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    linear = torch.nn.Linear(features.shape[1], task.classes, device=task.device)
    model = GradSampleModuleFastGradientClipping(
        linear, max_grad_norm=task.clip, use_ghost_clipping=True, loss_reduction="mean"
    )
    optimizer = private(DPOptimizerFastGradientClipping, task, model)
    criterion = DPLossFastGradientClipping(
        model, optimizer, torch.nn.CrossEntropyLoss(), loss_reduction="mean"
    )
    return looped(task, model, optimizer, criterion, features, labels)
