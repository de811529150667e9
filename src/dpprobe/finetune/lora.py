"""Layers that fine-tuning inserts into a network: channel-wise affine maps and adapters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from dpprobe.errors import ConfigError
from dpprobe.finetune.options import Lora
from dpprobe.heads.initial_weights import truncated_normal
from dpprobe.privacy.entropy import SEEDED

T = TypeVar("T")

# Other libraries' normalisation classes that do not inherit from torch's.
_OTHER_NORMS = ("RMSNorm", "RmsNorm", "SimpleNorm")


class ChannelAffine(nn.Module):
    """x * scale + shift per channel; channels are dimension 1 of 4-d inputs, else the last."""

    def __init__(self, scale: torch.Tensor, shift: torch.Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale.detach().clone())
        self.shift = nn.Parameter(shift.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
        scale, shift = self.scale.view(shape), self.shift.view(shape)
        # Parameters are float32 in any precision, because rounding would change the scale.
        return torch.addcmul(shift, x, scale).to(x.dtype)


class LoraLinear(nn.Module):
    """A frozen linear layer W plus a low-rank adapter: y = W x + scale * b(a(x))."""

    def __init__(self, base: nn.Linear, a: torch.Tensor, *, alpha: float) -> None:
        """`a` are the weights [rank, inputs] of a; b starts at zero, so at first y = W x."""
        super().__init__()
        rank = len(a)
        self.base = base
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        with torch.no_grad():
            self.a.weight.copy_(a)
            self.b.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.scale * self.b(self.a(x))
        return y


def insert_lora(
    model: nn.Module, blocks: Sequence[nn.Module], lora: Lora, *, seed: int, name: str
) -> None:
    """Adds low-rank adapters to a network's linear layers: `targets`, or all layers in `blocks`.

    The random weights of a depend on the seed and the layer's name. Raises ConfigError if the
    blocks have no linear layer, or no layer's name ends with a target.
    """
    rank, targets = lora.rank, lora.targets
    linear = {path: one for path, one in model.named_modules() if isinstance(one, nn.Linear)}
    inside = {id(one) for block in blocks for one in block.modules()}
    chosen = [path for path, one in linear.items() if id(one) in inside]
    if targets:
        for target in targets:
            if not any(_ends_with(path, target) for path in linear):
                raise ConfigError(
                    f"tune: lora: no linear layer of {name} ends in {target!r}; choose from "
                    f"{', '.join(_last_parts(chosen or linear)) or 'none: it has no linear layer'}"
                )
        chosen = [path for path in linear if any(_ends_with(path, target) for target in targets)]
    if not chosen:
        raise ConfigError(
            f"tune: lora: {name} has no linear layer in its blocks; use bias, norm, {{blocks: k}} "
            "or all"
        )
    for path in chosen:
        base = linear[path]
        a = truncated_normal(SEEDED.make_generator(seed, f"lora {path}"), (rank, base.in_features))
        weights = torch.from_numpy(a / math.sqrt(base.in_features)).to(torch.float32)
        replace_module(model, path, LoraLinear(base, weights, alpha=lora.alpha or rank))


def _ends_with(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _last_parts(paths: Sequence[str] | dict[str, Any]) -> list[str]:
    """Returns the last parts of names, without repeats, as suggestions for targets."""
    short = [".".join(path.split(".")[-2:]) for path in paths]
    return list(dict.fromkeys(path for path in short if not path[0].isdigit()))[:8]


def find_normalisations(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        named = type(module).__name__.startswith(_OTHER_NORMS)
        if named or isinstance(module, ChannelAffine | nn.GroupNorm | nn.LayerNorm):
            yield module


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def check_reached(model: nn.Module, run: Callable[[], T], *, name: str) -> T:
    """Runs a forward pass; raises ConfigError unless it calls each adapter."""
    reached: set[int] = set()
    layers = [(path, one) for path, one in model.named_modules() if isinstance(one, LoraLinear)]
    hooks = [
        one.register_forward_hook(lambda module, _inputs, _output: reached.add(id(module)))
        for _, one in layers
    ]
    try:
        result = run()
    finally:
        for hook in hooks:
            hook.remove()
    for path, one in layers:
        if id(one) not in reached:
            raise ConfigError(
                f"tune: {name} does not call its layer {path} directly, so an adapter there has "
                "no effect; choose other layers as targets, or another tune"
            )
    return result
