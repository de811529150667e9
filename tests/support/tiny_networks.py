"""A small network, rows and plans for it, and a reference for its clipped sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options
from dpprobe.heads.patient_groups import Units
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from tests.support.mechanisms import made_plan

CPU = torch.device("cpu")
DIMENSION, HIDDEN, CLASSES = 5, 6, 3
SEED = 2**100 + 7


class Mlp(nn.Module):
    """Computes scores [m, 3] of rows [m, 5], with a hidden layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(DIMENSION, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.hidden(rows.float().flatten(1)).tanh())
        return scores


def mlp_network() -> FineTunedNetwork:
    module = Mlp().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return FineTunedNetwork(
        module=module,
        trained=dict(module.named_parameters()),
        shape=(DIMENSION,),
        from_images=False,
    )


def mlp_inputs(rows: int = 40, *, several: bool = False, units: bool = False) -> Inputs:
    """Returns rows with random labels, in units of one, two or four rows if `units`."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(rows, DIMENSION, generator=generator)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    if several:
        shape = (rows, CLASSES)
        labels = torch.randint(0, 2, shape, generator=generator).to(torch.uint8)
    names = [f"p{row * 7 % (rows // 2)}" for row in range(rows - 4)] + ["last"] * 4
    return Inputs(
        features,
        labels,
        CLASSES,
        shape=(DIMENSION,),
        units=Units.number_units(names) if units else None,
    )


def network_options(**values: Any) -> Options:
    """Returns options of fine_tune; by default with a few steps."""
    defaults = {"tune": {"blocks": 1}, "steps": 6, "learning_rate": 0.5, "max_grad_norm": 0.3}
    return Options.model_validate({**defaults, **values})


def plan_of(options: Options, n: int, noise: float) -> Plan:
    """Returns a plan with arbitrary noise, without calibration; noise 0 gives no guarantee."""
    return made_plan(options.list_mechanisms(n), n, noise)


def releases_of(options: Options, n: int, noise: float, seed: int = SEED) -> Releases:
    return Releases(plan_of(options, n, noise), [seed], CPU)


class NaiveSums:
    """Computes the sums of `ClippedSums` with one backward pass per row, in float64."""

    def __init__(
        self,
        network: FineTunedNetwork,
        *,
        sigmoid: bool,
        max_grad_norm: float,
        clipping: str,
        precision: str = "float32",
    ) -> None:
        del precision
        self._network, self._sigmoid = network, sigmoid
        self._limit, self._clipping = max_grad_norm, clipping
        self.size = sum(one.numel() for one in network.trained.values())

    def add_rows(
        self,
        total: torch.Tensor,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> None:
        for row in range(len(inputs)):
            gradient = self.clipped(inputs[row], labels[row])
            total += (gradient * (1 if weights is None else weights[row])).to(total.dtype)

    def clipped(self, row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Returns one row's clipped gradient."""
        views = row[None] if row.ndim == len(self._network.shape) else row
        scores = self._network.module(views)
        if self._sigmoid:
            targets = label.expand_as(scores)
            losses = nn.functional.binary_cross_entropy_with_logits(
                scores, targets, reduction="none"
            ).sum(1)
        else:
            losses = nn.functional.cross_entropy(scores, label.expand(len(views)), reduction="none")
        parts = torch.autograd.grad(losses.mean(), list(self._network.trained.values()))
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        norm = float(gradient.norm())
        if self._clipping == "automatic" and not math.isinf(self._limit):
            return gradient * (self._limit / (norm + 0.01))
        return gradient * min(1.0, self._limit / max(norm, 1e-300))


def flat(state: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Returns all parameters as one float64 vector."""
    return torch.cat([one.detach().reshape(-1) for one in state.values()]).double().numpy()
