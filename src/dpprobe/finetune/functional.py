"""Per-example gradients of a network by torch.func: right for every layer, and slow."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from dpprobe.devices import use_precision
from dpprobe.finetune.ghost import BatchGradients, name_reached
from dpprobe.finetune.losses import row_losses


class Functional:
    """Per-example gradients of a network's trained parameters; see `ghost.Ghost`."""

    def __init__(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        names = {id(parameter): name for name, parameter in trained.items()}
        self._module = module
        self._trained = {
            inner: names[id(parameter)]
            for inner, parameter in module.named_parameters()
            if id(parameter) in names
        }

    def find_other_uses(self, inputs: torch.Tensor) -> list[str]:
        """Names the trained parameters that scores depend on by another way than their module's."""
        parameters = {inner: self._module.get_parameter(inner) for inner in self._trained}
        values = {inner: parameter.detach() for inner, parameter in parameters.items()}
        with torch.enable_grad():
            scores = functional_call(self._module, values, (inputs,))
        named = {self._trained[inner]: parameter for inner, parameter in parameters.items()}
        return name_reached(scores, named)

    def compute_gradients(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *,
        sigmoid: bool,
        precision: torch.dtype | None,
    ) -> BatchGradients:
        """Returns the examples' gradients of a batch; see `ghost.Ghost.compute_gradients`."""
        rows = len(labels)
        device = inputs.device
        parameters = {inner: self._module.get_parameter(inner).detach() for inner in self._trained}

        def row_loss(
            values: dict[str, torch.Tensor], views: torch.Tensor, label: torch.Tensor
        ) -> torch.Tensor:
            with use_precision(device, precision):
                scores = functional_call(self._module, values, (views,))
            return row_losses(scores, label.unsqueeze(0), sigmoid=sigmoid)[0]

        batch = BatchGradients(rows, device)
        views = inputs.reshape(rows, -1, *inputs.shape[1:])
        gradients, batch.losses = vmap(
            grad_and_value(row_loss), in_dims=(None, 0, 0), randomness="error"
        )(parameters, views, labels)
        for inner, gradient in gradients.items():
            batch.keep_gradient(self._trained[inner], gradient.detach().float())
        return batch
