"""The network to fine-tune: a part of a backbone with a head, and its trained parameters.

A network's parameters have the same names with and without a cut: `body.<name in the backbone's
copy>`, `head.weight`, `head.bias`. So parameters trained from stored activations fit the whole
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.network_forward import Graph
from dpprobe.errors import ConfigError
from dpprobe.finetune.options import Options
from dpprobe.finetune.trained_parameters import check_cut, network_graph, prepare_backbone
from dpprobe.heads.initial_weights import sized_weights
from dpprobe.heads.transform import Transform
from dpprobe.json_values import first_difference

_HEAD = ("head.weight", "head.bias")
# Prefix for a probe's released normalisation statistics in a network's file.
TRANSFORM = "transform."


class Network(nn.Module):
    """Inputs -> float32 scores: a body for features, a normalisation, and a linear head."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, body: nn.Module, head: nn.Linear, transform: Transform, *, graph: Graph | None
    ) -> None:
        """`graph` is the backbone's, to normalise images given as bytes."""
        super().__init__()
        self.body, self.head, self.transform = body, head, transform
        self.from_images = graph is not None
        self.flip = graph is not None and graph.flip
        if graph is not None:
            self.register_buffer("mean", graph.mean.detach().clone(), persistent=False)
            self.register_buffer("std", graph.std.detach().clone(), persistent=False)

    def compute_features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns features, float32 [m, d], normalised for the head."""
        if self.from_images:
            inputs = (inputs.to(torch.float32) / 255 - self.mean) / self.std
        rows: torch.Tensor = self.body(inputs).float()
        if self.flip:
            rows = (rows + self.body(inputs.flip(-1)).float()) / 2
        return self.transform(rows)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.compute_features(inputs)).float()
        return scores


@dataclass(frozen=True, kw_only=True)
class FineTunedNetwork:
    """A network on its device, in evaluation mode, and its trained parameters.

    Attributes:
      module: inputs -> scores [m, K] float32; only `trained` requires gradients.
      trained: parameters by name in `module`; head.weight [K, d] and head.bias [K] are last.
      shape: the shape of an input: (C, H, W) for images, an activation's shape, or (d,).
      from_images: True if inputs are uint8 images [m, C, H, W], which the module scales and
        normalises; False for float32 activations or features.
    """

    module: nn.Module
    trained: Mapping[str, nn.Parameter]
    shape: tuple[int, ...]
    from_images: bool


def build_network(
    backbone: Backbone,
    options: Options,
    *,
    classes: int,
    seed: int,
    device: str,
    transform: Transform,
) -> FineTunedNetwork:
    """Builds the initial network for a seed, from a backbone on the CPU.

    No other thread may run a network during the call: cutting traces the network, which changes
    torch's modules for all threads. Raises ConfigError if the backbone is not a network, mixes
    rows, cannot be cut, or has no parameters for `tune`.
    """
    graph = network_graph(backbone)
    if options.tune == "head" and options.cut:
        assert backbone.dimension is not None, "a network's features have one dimension"
        head = _make_head(options, classes, backbone.dimension, seed)
        module = Network(nn.Identity(), head, transform, graph=None)
        return _mark_tuned(module, [], (backbone.dimension,), device)
    if options.cut:
        check_cut(backbone)
    prepared = prepare_backbone(backbone, options, seed)
    head = _make_head(options, classes, prepared.width, seed)
    body = prepared.suffix if options.cut else prepared.model
    module = Network(body, head, transform, graph=None if options.cut else graph)
    return _mark_tuned(
        module, prepared.trained, prepared.cut if options.cut else prepared.image, device
    )


def whole_network(
    backbone: Backbone,
    options: Options,
    state: Mapping[str, torch.Tensor],
    *,
    classes: int,
    device: str,
    transform: Transform,
) -> nn.Module:
    """Returns the complete network, images (uint8) -> scores, with the parameters of `tuned_state`.

    Raises ConfigError if the state belongs to another network.
    """
    prepared = prepare_backbone(backbone, options, seed=0)
    head = nn.Linear(prepared.width, classes)
    module = Network(prepared.model, head, transform, graph=network_graph(backbone))
    network = _mark_tuned(module, prepared.trained, prepared.image, device)
    load_tuned_state(network, state)
    return module.requires_grad_(False)


def tuned_state(network: FineTunedNetwork) -> dict[str, torch.Tensor]:
    """Returns contiguous copies of the trained parameters, on the network's device."""
    return {
        name: one.detach().clone(memory_format=torch.contiguous_format)
        for name, one in network.trained.items()
    }


def transform_state(network: FineTunedNetwork) -> dict[str, torch.Tensor]:
    """Returns the statistics that normalise features before the head, by name, on the CPU."""
    assert isinstance(network.module, Network)
    arrays = network.module.transform.arrays
    return {f"{TRANSFORM}{name}": one.cpu().contiguous() for name, one in arrays.items()}


def split_state(
    tensors: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Splits the tensors of a file into trained parameters and normalisation statistics."""
    arrays = {name: one for name, one in tensors.items() if name.startswith(TRANSFORM)}
    parameters = {name: one for name, one in tensors.items() if name not in arrays}
    return parameters, {name.removeprefix(TRANSFORM): one for name, one in arrays.items()}


def load_tuned_state(network: FineTunedNetwork, state: Mapping[str, torch.Tensor]) -> None:
    """Sets the trained parameters; raises ConfigError if names or shapes do not match."""
    saved, wanted = (
        {name: list(one.shape) for name, one in each.items()} for each in (state, network.trained)
    )
    if difference := first_difference(saved, wanted):
        raise ConfigError(
            f"tuned parameters: {difference.place} is {difference.first} in the saved state but "
            f"{difference.second} in the network; train it again for these options and backbone"
        )
    with torch.no_grad():
        for name, parameter in network.trained.items():
            parameter.copy_(state[name])


def _make_head(options: Options, classes: int, width: int, seed: int) -> nn.Linear:
    start = sized_weights(options, [seed], classes=classes, dimension=width)[0]
    head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(start[:, :-1])
        head.bias.copy_(start[:, -1])
    return head


def _mark_tuned(
    module: Network, trained: list[str], shape: tuple[int, ...], device: str
) -> FineTunedNetwork:
    module = module.to(device).eval().requires_grad_(False)
    known = dict(module.named_parameters())
    marked = {name: known[name] for name in [*(f"body.{path}" for path in trained), *_HEAD]}
    for parameter in marked.values():
        parameter.requires_grad_(True)
    return FineTunedNetwork(
        module=module, trained=marked, shape=shape, from_images=module.from_images
    )
