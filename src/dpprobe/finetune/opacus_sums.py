"""`engine: opacus` for networks: Opacus computes gradients, clipped sums and noisy means.

`heads.opacus_engine` documents releases, sensitivities, noise and privacy cost.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from opacus.utils.module_utils import trainable_modules
from torch import nn

from dpprobe.backbones.network_forward import one_line
from dpprobe.errors import ConfigError
from dpprobe.finetune.gradients import join_views
from dpprobe.finetune.lora import replace_module
from dpprobe.finetune.losses import row_losses
from dpprobe.heads.opacus_engine import OpacusSteps

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork

# Opacus stores the gradients of all rows in a pass.
_GRADIENT_BYTES = 2**30


class _Cloned(nn.Module):
    """A layer whose output may be changed in place, which torch otherwise forbids after a hook."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **options: Any) -> Any:
        output = self.layer(*inputs, **options)
        return output.clone() if isinstance(output, torch.Tensor) else output


class OpacusSums:
    """Computes clipped sums of a network's gradients with Opacus's optimiser.

    Opacus's hooks are added to a copy of the network's modules that shares the parameters.

    Raises ConfigError if Opacus has no gradients for a layer.
    """

    def __init__(
        self,
        network: FineTunedNetwork,
        *,
        sigmoid: bool,
        max_grad_norm: float,
        noise_multiplier: float,
        divisor: float,
    ) -> None:
        parameters = list(network.trained.values())
        shared = {id(one): one for one in network.module.parameters()}
        module = copy.deepcopy(network.module, shared)
        for path, child in reversed(list(trainable_modules(module))):  # children first
            child.training = True  # Opacus ignores layers in evaluation mode
            if path:
                replace_module(module, path, _Cloned(child))
        try:
            self._steps = OpacusSteps(
                module,
                parameters,
                max_grad_norm=max_grad_norm,
                noise_multiplier=noise_multiplier,
                divisor=divisor,
            )
        except NotImplementedError as error:
            raise ConfigError(
                f"engine opacus: this network has a layer without gradients of rows "
                f"({one_line(error)}); write `engine: ghost`"
            ) from error
        self._sigmoid, self._dimensions = sigmoid, len(network.shape)
        self.size = sum(one.numel() for one in parameters)
        self.most_rows = max(1, _GRADIENT_BYTES // (4 * self.size))

    def add_rows(
        self,
        total: torch.Tensor,  # noqa: ARG002
        inputs: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> None:
        """Adds clipped per-example gradients to Opacus's own sum; see `ClippedSums.add_rows`."""
        assert weights is None, "Opacus does not weigh clipped gradients"
        self._steps.add_rows(self._compute_losses(inputs, labels))

    def release_mean(self, noise: torch.Tensor) -> torch.Tensor:
        """Returns the step's noisy mean gradient, float32 [size]."""
        return torch.cat([one.flatten() for one in self._steps.release_mean(noise)])

    def form_gradients(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns per-example gradients before clipping, float32 [m, size]."""
        self._steps.form_gradients(self._compute_losses(inputs, labels))
        gradients = torch.cat([one.flatten(1) for one in self._steps.grad_samples], 1)
        self._steps.zero_grad(set_to_none=True)
        return gradients

    def _compute_losses(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # In other memory formats, Opacus computes wrong gradients of convolutions.
        flat = join_views(inputs, self._dimensions)
        scores = self._steps.model(flat.contiguous())
        return row_losses(scores, labels, sigmoid=self._sigmoid)
