"""Small networks to train, and brute-force sums of their clipped gradients in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import nn

from dpprobe.devices import use_full_float32
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
from dpprobe.finetune.gradients import ClippedSums
from dpprobe.finetune.lora import ChannelAffine


def every(name: str) -> bool:
    """Chooses all parameters."""
    return bool(name)


class Small(FineTunedNetwork):
    """A network made of any module."""

    @classmethod
    def of(
        cls, module: nn.Module, shape: tuple[int, ...], chosen: Callable[[str], bool] = every
    ) -> Small:
        """Makes a network that trains the parameters whose names are chosen."""
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(chosen(name))
        trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
        return cls(module=module.eval(), shape=shape, trained=trained, from_images=False)


def with_head(body: nn.Module, shape: tuple[int, ...], classes: int = 4) -> Small:
    """Returns a network of a body, pooled activations and a linear head."""
    torch.manual_seed(1)
    module = nn.Sequential(body, Pooled(), nn.LazyLinear(classes))
    module(torch.randn(2, *shape))
    return Small.of(module, shape)


class Pooled(nn.Module):
    """Pools numbers [m, c, ...] to [m, features], so that gradients differ between positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        return torch.cat([flat.sin(), flat[:, ::3].square().tanh()], 1)


def frozen_norms(module: nn.Module) -> None:
    """Replaces batch norms by scales and shifts that differ from the identity."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            affine = ChannelAffine(torch.rand(channels) + 0.5, 0.1 * torch.randn(channels))
            rest = [getattr(child, part) for part in ("drop", "act") if hasattr(child, part)]
            setattr(module, name, nn.Sequential(affine, *rest))
        else:
            frozen_norms(child)


def of_timm(name: str, size: int, chosen: Callable[[str], bool] = every, **options: Any) -> Small:
    """Returns a timm model with random weights; no parameter is zero."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    frozen_norms(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    return Small.of(model, (3, size, size), chosen)


def gradients(
    network: Small, inputs: torch.Tensor, labels: torch.Tensor, *, sigmoid: bool = False
) -> torch.Tensor:
    """Returns each row's gradient, [m, size], by a float64 copy that sees one row at a time."""
    module = copy.deepcopy(network.module).double()
    parameters = [module.get_parameter(name) for name in network.trained]
    rows = []
    for row in range(len(inputs)):
        one = inputs[row] if inputs.ndim == len(network.shape) + 2 else inputs[row : row + 1]
        loss = _loss(module(one.double()), labels[row], sigmoid)
        taken = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in taken]))
    return torch.stack(rows)


def _loss(scores: torch.Tensor, label: torch.Tensor, sigmoid: bool) -> torch.Tensor:
    """Computes the mean cross-entropy over views by its formula."""
    if sigmoid:
        probabilities = scores.sigmoid()
        terms = label * probabilities.log() + (1 - label) * (1 - probabilities).log()
        return -terms.sum(1).mean()
    logs = scores - scores.logsumexp(1, keepdim=True)
    return -(logs * label).sum(1).mean() if label.ndim else -logs[:, label].mean()


def clipped(
    rows: torch.Tensor, limit: float = math.inf, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Clips each of the gradients [m, size] to `limit`, weights them, and returns their sum."""
    factors = (limit / rows.norm(dim=1)).clamp(max=1)
    return (factors if weights is None else factors * weights) @ rows


def sums(network: Small, limit: float = math.inf, **options: Any) -> ClippedSums:
    """Returns `ClippedSums` with default options."""
    defaults = {"sigmoid": False, "clipping": "fixed", "precision": "float32"}
    return ClippedSums(network, max_grad_norm=limit, **{**defaults, **options})


def added(clipped_sums: ClippedSums, *arguments: Any) -> torch.Tensor:
    """Returns the sum of a batch, on the CPU."""
    total = torch.zeros(clipped_sums.size, device=arguments[0].device)
    with use_full_float32():
        clipped_sums.add_rows(total, *arguments)
    return total.cpu()
