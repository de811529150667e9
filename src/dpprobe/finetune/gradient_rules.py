"""Maps each kind of layer to the rule that computes its per-example gradients."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import norm as timm_norms
from timm.layers.conv2d_same import Conv2dSame
from torch import nn
from torch.nn import functional

from dpprobe.finetune.convolution_gradients import Conv2dRule
from dpprobe.finetune.example_gradients import AffineRule, LinearRule, ModuleRule, Rule
from dpprobe.finetune.lora import ChannelAffine


def _layer_norm(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(inputs, module.normalized_shape, None, None, module.eps)


def _layer_norm_maps(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    last = inputs.permute(0, 2, 3, 1)
    normalised = functional.layer_norm(last, module.normalized_shape, None, None, module.eps)
    return normalised.permute(0, 3, 1, 2)


def _group_norm(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    return functional.group_norm(inputs, module.num_groups, None, None, module.eps)


def _as_it_is(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    del module
    return inputs


_LINEAR, _CONVOLUTION, _MODULE = LinearRule(), Conv2dRule(), ModuleRule()
_LAYER_NORM = AffineRule(_layer_norm, maps=False)
_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _LINEAR,
    nn.modules.linear.NonDynamicallyQuantizableLinear: _LINEAR,
    nn.Conv2d: _CONVOLUTION,
    Conv2dSame: _CONVOLUTION,
    nn.LayerNorm: _LAYER_NORM,
    timm_norms.LayerNorm: _LAYER_NORM,
    timm_norms.LayerNorm2d: AffineRule(_layer_norm_maps, maps=True),
    nn.GroupNorm: AffineRule(_group_norm, maps=True),
    ChannelAffine: AffineRule(_as_it_is, scale="scale", shift="shift", maps=None),
}
# Modules that use their children's parameters without calling the children.
WHOLE = (nn.MultiheadAttention,)


def rule_of(module: nn.Module) -> Rule:
    rule = _RULES.get(type(module), _MODULE)
    if isinstance(module, nn.Conv2d) and (
        module.padding_mode != "zeros" or isinstance(module.padding, str)
    ):
        return _MODULE
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) != 1:
        return _MODULE
    return rule
