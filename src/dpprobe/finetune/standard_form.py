"""Copies a network, replacing layers so that gradients can be computed per row.

A batch norm with running statistics becomes a fixed affine map per channel, with the statistics as
public constants. A batch norm without running statistics mixes rows and is refused. Multi-head
attention, and projections whose weights are not in layers, become linear layers.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dpprobe.backbones import network_forward
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.lora import ChannelAffine, replace_module


class SelfAttention(nn.Module):
    """torch's multi-head self-attention, rewritten with separate linear layers."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        width = attention.embed_dim
        self.heads, self.batch_first = attention.num_heads, attention.batch_first
        bias = attention.in_proj_bias is not None
        self.in_proj = nn.Linear(width, 3 * width, bias=bias, device="meta")
        self.in_proj.weight = attention.in_proj_weight
        if bias:
            self.in_proj.bias = attention.in_proj_bias
        out = attention.out_proj
        self.out_proj = nn.Linear(width, width, bias=out.bias is not None, device="meta")
        self.out_proj.weight, self.out_proj.bias = out.weight, out.bias

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        if key is not query or value is not query or attn_mask is not None:
            raise ValueError("a block has attention to another sequence, or with a mask")
        if options.get("need_weights", False) or options.get("key_padding_mask") is not None:
            raise ValueError(
                "a block has attention that returns its weights, or has a padding mask"
            )
        rows = query if self.batch_first else query.transpose(0, 1)
        batch, length, width = rows.shape
        projected = self.in_proj(rows).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = projected.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y = self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return (y if self.batch_first else y.transpose(0, 1)), None


class Projected(nn.Module):
    """An image tower of open_clip with the last projection as a linear layer."""

    def __init__(self, tower: nn.Module, weight: nn.Parameter) -> None:
        super().__init__()
        self.tower = tower
        inputs, outputs = weight.shape
        self.projection = nn.Linear(inputs, outputs, bias=False, device="meta")
        turned = weight.detach().T.contiguous()
        self.projection.weight = nn.Parameter(turned, requires_grad=weight.requires_grad)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.projection(self.tower(images))
        return y


def standard_form(graph: nn.Module, *, name: str) -> nn.Module:
    """Returns a copy of a backbone's network in evaluation mode.

    The copy's parameters require gradients if the network's library trains them. Raises
    ConfigError, naming the layer, if a layer mixes the rows of a batch.
    """
    assert isinstance(graph, network_forward.Graph), graph
    model = copy.deepcopy(graph.model).eval()
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(path in graph.learned and parameter.is_floating_point())
    for module in model.modules():
        _drop_taps(module)
        # If a layer overwrote its input in place, the input's gradient would not be available.
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    made: dict[int, nn.Module | None] = {}  # one layer may have several names
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if id(module) not in made:
            made[id(module)] = _change_module(module, path, name)
        changed = made[id(module)]
        if changed is not None:
            replace_module(model, path, changed)
    _replace_attention(model, name)
    visual: Any = getattr(model, "visual", None)
    projection = getattr(visual, "proj", None)
    if isinstance(projection, nn.Parameter) and projection.ndim == 2:
        visual.proj = None
        model = Projected(model, projection)
    return model.eval()


def _drop_taps(module: nn.Module) -> None:
    """Removes hooks copied from the backbone, because they would write into the backbone."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if getattr(hook, "__module__", None) == network_forward.__name__:
                del hooks[key]


def _change_module(module: nn.Module, path: str, name: str) -> nn.Module | None:
    """Returns the replacement of a module; None to keep the module."""
    kind = type(module).__name__
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or kind.startswith("FrozenBatchNorm"):
        return _fold_norm(module, path, name)
    if kind == "GroupNormAct" and isinstance(module, nn.GroupNorm):
        plain = nn.GroupNorm(module.num_groups, module.num_channels, module.eps, device="meta")
        plain.weight, plain.bias = module.weight, module.bias
        return _with_activation(plain, module)
    return None


def _fold_norm(norm: Any, path: str, name: str) -> nn.Module:
    """Returns a batch norm's affine map per channel, followed by its activation, if any."""
    if norm.running_mean is None or norm.running_var is None:
        raise ConfigError(
            f"tune: batch norm {path} of {name} has no running statistics: it mixes the rows of a "
            "batch, so a row's gradient depends on other rows; choose another backbone"
        )
    if isinstance(norm, nn.BatchNorm3d):
        raise ConfigError(
            f"tune: batch norm {path} of {name} works on volumes, not images; choose another "
            "backbone"
        )
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    learned = norm.weight is not None and norm.weight.requires_grad
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    affine = ChannelAffine(scale.float(), shift.float()).requires_grad_(learned)
    return _with_activation(affine, norm)


def _with_activation(norm: nn.Module, before: nn.Module) -> nn.Module:
    """Returns `norm`, followed by dropout and activation if `before`, a timm layer, has them."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(norm=norm)
    for part in ("drop", "act"):
        layer = getattr(before, part, None)
        if isinstance(layer, nn.Module) and not isinstance(layer, nn.Identity):
            parts[part] = layer
    return nn.Sequential(parts) if len(parts) > 1 else norm


def _replace_attention(model: nn.Module, name: str) -> None:
    """Replaces torch's multi-head attention in blocks, where it is self-attention."""
    attentions = {
        path: one for path, one in model.named_modules() if type(one) is nn.MultiheadAttention
    }
    if not attentions:
        return
    inside = {id(one) for block in blocks_of(model, name) for one in block.modules()}
    for path, one in attentions.items():
        plain = one.bias_k is None and not one.add_zero_attn and one.in_proj_weight is not None
        if plain and id(one) in inside:
            replace_module(model, path, SelfAttention(one))
