"""Runs the forward pass of networks of all libraries, and takes the features of inner blocks.

Images arrive as uint8. The device scales and normalises images in float32, with torchvision's
arithmetic. Images in uint8 need a quarter of float32's bytes, and spare the CPU the normalisation.

Reduced precision uses autocast, which keeps norms and sums in float32 for every network. On an
H200, autocast reaches 8,930 images/s for ViT-B/16; float16 weights would be 1.16 times as fast,
with 1.4 times the rounding error. `torch.compile` would make autocast 1.2 times (ViT-B/16) or 1.5
times (MobileNetV2) as fast. Compiling takes 15 to 20 s, while 10,000 images need one second.
Decoding images takes longer than the forward pass.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from dpprobe.backbones.backbone import Runtime
from dpprobe.devices import is_gpu, use_full_float32, use_precision
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    from dpprobe.backbones.network_options import NetworkOptions

# Pixels per pass on a CPU (16 images of 128 x 128). With more pixels, malloc maps new memory for
# each large activation, and MobileNetV2 is two to three times slower.
CPU_PIXELS = 16 * 128 * 128
# A network's blocks: the attribute `blocks` in ViTs and MobileNets, `stages` in ConvNeXts, NFNets.
_SEQUENCES = (torch.nn.Sequential, torch.nn.ModuleList)
_BLOCK_LISTS = ("blocks", "stages")

Outputs = tuple[torch.Tensor, dict[str, torch.Tensor]]
Token = Literal["class", "pooled"]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network on its device, with the fields that `Backbone` needs."""

    dimension: int
    layers: dict[str, int]
    forward: Callable[[torch.Tensor], torch.Tensor]
    forward_layers: Callable[[torch.Tensor], Outputs] | None
    graph: Graph


def prepare_network(
    model: torch.nn.Module,
    options: NetworkOptions,
    runtime: Runtime,
    *,
    name: str,
    channels: int,
    size: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    flip: bool,
) -> Network:
    """Moves a network that returns feature rows to its device, and tests it on one blank image.

    Args:
      options: the network's options; only `layers` and `token` are read.
      size: height and width of the blank image.
      mean, std: mean and standard deviation per channel, for values in 0..1.
      flip: True to average the features of the image and of its mirror image.

    Raises ConfigError if the network does not take images of this size, returns no feature rows, or
    lacks the layers of the options.
    """
    learned = frozenset(path for path, one in model.named_parameters() if one.requires_grad)
    tapped: torch.nn.Module = _tap_layers(model, options, name)
    tapped = tapped.to(runtime.device).to(memory_format=torch.channels_last)
    tapped = tapped.eval().requires_grad_(False)
    run = _Pass(tapped, runtime, mean=mean, std=std, flip=flip)
    blank = torch.zeros(1, channels, *size, dtype=torch.uint8)
    try:
        features, layers = run(blank)
    except Exception as error:  # networks raise errors of any kind
        raise ConfigError(
            f"model: {name} does not take images of {[channels, *size]} in precision "
            f"{runtime.precision} ({one_line(error)}); change preprocessing.size, the model's "
            "arguments, or features.precision"
        ) from error
    if features.ndim != 2:
        raise ConfigError(
            f"model: {name} gives features of shape {list(features.shape[1:])} per image instead "
            "of one vector; choose a pooling in model_args (global_pool)"
        )
    return Network(
        dimension=features.shape[1],
        layers={block: value.shape[1] for block, value in layers.items()},
        forward=lambda batch: run(batch)[0],
        forward_layers=run if layers else None,
        graph=Graph(model, mean=mean, std=std, flip=flip, learned=learned),
    )


def forward_pass(
    model: torch.nn.Module,
    runtime: Runtime,
    *,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns `Backbone.forward` for a (part of a) network that is already on its device."""
    tapped = Tapped(model, name).eval()
    run = _Pass(tapped, runtime, mean=mean, std=std, flip=False)
    return lambda batch: run(batch)[0]


class Graph(torch.nn.Module):
    """Maps uint8 [batch, channels, height, width] to features, and can be exported to ONNX.

    The graph computes the forward pass in float32. `learned` names the parameters that the library
    trains, without constants such as sinusoidal position embeddings.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        flip: bool,
        learned: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.model, self.flip, self.learned = model, flip, learned
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = (images.to(torch.float32) / 255 - self.mean) / self.std
        features: torch.Tensor = self.model(values)
        return (features + self.model(values.flip(-1))) / 2 if self.flip else features


class _Pass:
    def __init__(
        self,
        model: Callable[[torch.Tensor], Outputs],
        runtime: Runtime,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        flip: bool,
    ) -> None:
        self.model, self.runtime, self.flip = model, runtime, flip
        self._mean = torch.tensor(mean, device=runtime.device).view(-1, 1, 1)
        self._std = torch.tensor(std, device=runtime.device).view(-1, 1, 1)
        self._on_gpu = is_gpu(runtime.device)
        name = runtime.precision
        self._dtype = None if name == "float32" else getattr(torch, name)

    @torch.inference_mode()
    def __call__(self, batch: torch.Tensor) -> Outputs:
        batch = batch.to(self.runtime.device, non_blocking=True)
        pieces = 1
        if not self._on_gpu:
            pieces = math.ceil(len(batch) / max(1, CPU_PIXELS // batch[0, 0].numel()))
        in_full = use_full_float32() if self._dtype is None else nullcontext()
        with in_full, use_precision(self.runtime.device, self._dtype):
            parts = [
                self._average_views(self._normalise_images(part))
                for part in batch.tensor_split(pieces)
            ]
        if len(parts) == 1:
            return parts[0]
        return (
            torch.cat([features for features, _ in parts]),
            {name: torch.cat([layers[name] for _, layers in parts]) for name in parts[0][1]},
        )

    def _normalise_images(self, images: torch.Tensor) -> torch.Tensor:
        """Scales and normalises uint8 images; float images are normalised already."""
        if images.dtype != torch.uint8:
            return images.contiguous(memory_format=torch.channels_last)
        values = images.to(torch.float32, memory_format=torch.channels_last)
        return values.div_(255).sub_(self._mean).div_(self._std)

    def _average_views(self, images: torch.Tensor) -> Outputs:
        features, layers = self._run_once(images)
        if not self.flip:
            return features, layers
        mirrored, others = self._run_once(images.flip(-1))
        return (
            (features + mirrored) / 2,
            {name: (value + others[name]) / 2 for name, value in layers.items()},
        )

    def _run_once(self, images: torch.Tensor) -> Outputs:
        features, layers = self.model(images)
        return features.float(), layers


# features of inner blocks


@dataclass(frozen=True)
class Blocks:
    """A network's blocks, the number of tokens before the patches, and if one is a class token."""

    modules: list[torch.nn.Module]
    prefix: int
    class_token: bool


class Tapped(torch.nn.Module):
    """A network that returns its features and the features of some blocks in one pass.

    Layer 0 is the first block's input, layer k the output of block k. If a network calls a block
    twice, for example for mirrored images, the block's features are the mean of both calls.

    Attributes:
      token: which features of a block of tokens to return: the class token, or the mean over
        patches. Maps of convolutions are always pooled.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        name: str,
        blocks: Blocks | None = None,
        layers: Sequence[int] = (),
        *,
        token: Token | None = None,
        fault: str = "layers: block {} of {} {}; remove layers",
    ) -> None:
        super().__init__()
        blocks = blocks or Blocks([], 0, False)
        self.model, self._name, self._fault = model, name, fault
        self.token: Token = (token or "class") if blocks.class_token else "pooled"
        self._prefix, self._layers = blocks.prefix, layers
        # Hooks run in the thread of their forward pass; on a CPU several passes run at once.
        self._taken = threading.local()
        for layer in self._layers:
            if layer == 0:
                blocks.modules[0].register_forward_pre_hook(
                    lambda _module, inputs: self._take_features(0, inputs[0])
                )
            else:
                blocks.modules[layer - 1].register_forward_hook(
                    lambda _module, _inputs, output, layer=layer: self._take_features(layer, output)
                )

    def forward(self, images: torch.Tensor) -> Outputs:
        self._taken.calls = calls = dict[int, list[torch.Tensor]]()
        features = self.model(images)
        if missing := [layer for layer in self._layers if layer not in calls]:
            raise ConfigError(self._fault.format(max(1, missing[0]), self._name, "is not called"))
        return features, {
            str(layer): rows[0] if len(rows) == 1 else torch.stack(rows).mean(dim=0)
            for layer, rows in calls.items()
        }

    def _take_features(self, layer: int, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or value.ndim not in (3, 4):
            words = "gives neither tokens nor maps"
            raise ConfigError(self._fault.format(layer, self._name, words))
        if value.ndim == 4:  # [batch, channels, height, width]
            rows = value.float().mean((2, 3))
        elif self.token == "class":
            rows = value[:, 0].float()
        else:
            rows = value[:, self._prefix :].float().mean(1)
        self._taken.calls.setdefault(layer, []).append(rows)


def _tap_layers(model: torch.nn.Module, options: NetworkOptions, name: str) -> Tapped:
    if not options.layers:
        return Tapped(model, name)
    blocks = find_blocks(model)
    if blocks is None:
        raise ConfigError(f"layers: {name} gives no access to its blocks; remove layers")
    if options.token == "class" and not blocks.class_token:
        raise ConfigError(f"token: {name} has no class token; write `token: pooled`")
    depth = len(blocks.modules)
    wanted = range(depth + 1) if options.layers == "all" else options.layers
    for block in wanted:
        if block > depth:
            raise ConfigError(f"layers: {name} has no block {block}; use numbers from 0 to {depth}")
    return Tapped(model, name, blocks, wanted, token=options.token)


def find_blocks(model: torch.nn.Module) -> Blocks | None:
    """Finds a ViT's blocks in order, or a convolutional network's stages; None if not found."""
    model = getattr(model, "visual", model)  # the image tower of open_clip
    model = getattr(model, "trunk", model)  # the timm model inside some image towers
    if getattr(model, "output_fmt", "NCHW") == "NHWC":
        return None
    transformer: Any = getattr(model, "transformer", None)
    if hasattr(transformer, "resblocks"):  # open_clip's own ViT, always with a class token
        return Blocks(list(transformer.resblocks), 1, True)
    for attribute in _BLOCK_LISTS:
        blocks = getattr(model, attribute, None)
        if isinstance(blocks, _SEQUENCES) and len(blocks):
            prefix = int(getattr(model, "num_prefix_tokens", 0))
            class_token = prefix > 0 and getattr(model, "cls_token", None) is not None
            return Blocks(list(blocks), prefix, class_token)
    stages = [
        stage
        for index in range(1, 9)
        if isinstance(stage := getattr(model, f"layer{index}", None), torch.nn.Module)
    ]
    return Blocks(stages, 0, False) if stages else None


def list_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Lists all blocks in order, also blocks inside stages; empty if blocks are not accessible."""
    shown = find_blocks(model)
    if shown is None:
        return []
    return [block for stage in shown.modules for block in _flatten_stage(stage)]


def _flatten_stage(stage: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yields the blocks of a stage; a stage without blocks counts as a block."""
    inner = getattr(stage, "blocks", None)
    if isinstance(stage, _SEQUENCES):
        for child in stage:
            yield from _flatten_stage(child)
    elif isinstance(inner, _SEQUENCES):
        yield from _flatten_stage(inner)
    else:
        yield stage


def describe_network(network: Network) -> dict[str, int]:
    """Returns the numbers of features and blocks; 0 blocks if blocks are not accessible."""
    return {"dimension": network.dimension, "blocks": len(list_blocks(network.graph.model))}


# hashes of weights, and errors on one line


def state_sha256(model: torch.nn.Module) -> str:
    """Hashes the names, types, shapes and values of all weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def one_line(error: Exception) -> str:
    """Returns an error's text on one line, cut at 200 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
