"""Per-example gradients of convolutions, for inputs in any memory format."""

from __future__ import annotations

from collections.abc import Collection

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import nn
from torch.nn import functional

from dpprobe.devices import use_full_float32
from dpprobe.finetune.example_gradients import Call, Gradients, Rule, by_rows, channels_last

# From this many positions on, a convolution per row is faster than one with rows as groups.
_POSITIONS_BY_ROW = 1024
# Up to this many numbers in a row's patches, a matrix product is faster than a convolution.
PATCH_NUMBERS = 2**15
# Bytes of patches in one matrix product; GPUs are efficient only for large products.
PIECE_BYTES = {"cpu": 2**22, "cuda": 2**28}


class Conv2dRule(Rule):
    """Convolutions with any stride, dilation and groups, padded with zeros."""

    weight = "weight"

    def compute_gradients(self, call: Call, names: Collection[str]) -> Gradients:
        gradients: Gradients = {}
        module = _convolution(call)
        if "weight" in names:
            if self._is_pointwise(module):
                inputs, outputs = self.unfold_positions(call)
                weight = torch.bmm(outputs.transpose(1, 2), inputs)
            else:
                weight = self._kernel_gradients(call, module)
            gradients["weight"] = weight.view(call.rows, *module.weight.shape)
        if "bias" in names:
            outputs = call.output_gradient
            gradients["bias"] = outputs.sum((2, 3)).view(call.rows, -1, outputs.shape[1]).sum(1)
        return gradients

    def measure_sizes(self, call: Call) -> tuple[int, int, int]:
        module = _convolution(call)
        outputs = call.gradient.shape[1]
        positions = call.gradient.numel() // (call.rows * outputs)
        # 10^6 positions rule out products over pairs of positions, which would mix groups.
        return (positions if module.groups == 1 else 10**6), module.weight[0].numel(), outputs

    def unfold_positions(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        module = _convolution(call)
        outputs = channels_last(call.output_gradient, call.rows)
        inputs, padding = self._pad_inputs(module, call.input)
        if self._is_pointwise(module):
            inputs = functional.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
            strides = module.stride
            return channels_last(inputs[:, :, :: strides[0], :: strides[1]], call.rows), outputs
        patches = functional.unfold(
            inputs, module.kernel_size, module.dilation, padding, module.stride
        ).transpose(1, 2)
        if len(patches) != call.rows:
            patches = by_rows(patches, call.rows)
        return patches, outputs

    def add_weight(self, total: torch.Tensor, call: Call, factors: torch.Tensor) -> None:
        module = _convolution(call)
        if self._is_pointwise(module) or total.device.type != "cpu":
            # On GPUs, sums use the same products as norms, so that rounding agrees.
            super().add_weight(total, call, factors)
            return
        outputs = call.output_gradient
        scaled = outputs * factors.repeat_interleave(len(outputs) // call.rows).view(-1, 1, 1, 1)
        inputs, padding = self._pad_inputs(module, call.input)
        gradient = _weight_gradient(module, module.weight.shape, inputs, scaled, padding, 1)
        total.add_(gradient.reshape(-1))

    def _kernel_gradients(self, call: Call, module: nn.Conv2d) -> torch.Tensor:
        outputs = call.output_gradient
        inputs, padding = self._pad_inputs(module, call.input)
        count, groups = len(outputs), module.groups
        positions = outputs[0, 0].numel() * count // call.rows
        dense = groups == 1 or positions >= _POSITIONS_BY_ROW
        shape = module.weight.shape
        on_cpu = outputs.device.type == "cpu"
        is_small = not on_cpu or positions * shape[1:].numel() <= PATCH_NUMBERS
        if groups == 1 and is_small:
            return _patch_gradients(module, inputs, outputs, padding, call.rows)
        if dense and on_cpu:
            pairs = zip(inputs.chunk(call.rows), outputs.chunk(call.rows), strict=True)
            return torch.stack(
                [_weight_gradient(module, shape, a, g, padding, groups) for a, g in pairs]
            )
        gradients = _weight_gradient(
            module,
            (count * shape[0], *shape[1:]),
            _as_channels(inputs),
            _as_channels(outputs),
            padding,
            count * groups,
        )
        return gradients.view(call.rows, -1, *shape).sum(1)

    @staticmethod
    def _pad_inputs(
        module: nn.Conv2d, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[int, int]]:
        """Returns inputs, padded if needed, and the (height, width) of padding yet to be added."""
        if isinstance(module, Conv2dSame):
            padded = pad_same(
                inputs, list(module.kernel_size), list(module.stride), list(module.dilation)
            )
            return padded, (0, 0)
        assert isinstance(module.padding, tuple)
        height, width = module.padding
        return inputs, (height, width)

    @staticmethod
    def _is_pointwise(module: nn.Conv2d) -> bool:
        return module.kernel_size == (1, 1) and module.groups == 1


def _convolution(call: Call) -> nn.Conv2d:
    assert isinstance(call.module, nn.Conv2d)
    return call.module


def _as_channels(maps: torch.Tensor) -> torch.Tensor:
    """Returns maps [m, c, h, w] as one map of m * c channels, in the maps' memory format."""
    rows, channels, height, width = maps.shape
    if maps.is_contiguous():
        return maps.view(1, rows * channels, height, width)
    last = maps.permute(2, 3, 0, 1).reshape(1, height, width, rows * channels)
    return last.permute(0, 3, 1, 2)


def _patch_gradients(
    module: nn.Conv2d,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    padding: tuple[int, int],
    rows: int,
) -> torch.Tensor:
    """Returns per-example gradients of the weight, as products with patches of the input."""
    filters, channels, *kernel = module.weight.shape
    gradients = inputs.new_empty(rows, *module.weight.shape)
    views, numbers = len(inputs) // rows, outputs[0, 0].numel() * module.weight[0].numel()
    piece = max(1, PIECE_BYTES[inputs.device.type] // (4 * views * numbers))
    pairs = zip(inputs.split(piece * views), outputs.split(piece * views), strict=True)
    for part, (maps, map_gradients) in zip(gradients.split(piece), pairs, strict=True):
        windows = functional.pad(maps, (padding[1], padding[1], padding[0], padding[0]))
        for axis, dilation in enumerate(module.dilation):
            span = dilation * (kernel[axis] - 1) + 1
            windows = windows.unfold(2 + axis, span, module.stride[axis])[..., ::dilation]
        # Patches get channels last, which is the order of channels_last images in memory.
        patches = windows.permute(0, 2, 3, 4, 5, 1).reshape(len(part), -1, part[0, 0].numel())
        products = torch.bmm(channels_last(map_gradients, len(part)).transpose(1, 2), patches)
        part.copy_(products.view(-1, filters, *kernel, channels).permute(0, 1, 4, 2, 3))
    return gradients


def _weight_gradient(
    module: nn.Conv2d,
    shape: tuple[int, ...] | torch.Size,
    inputs: torch.Tensor,
    outputs: torch.Tensor,
    padding: tuple[int, int],
    groups: int,
) -> torch.Tensor:
    """Returns the gradient of a convolution's weight, summed over all inputs."""
    # TF32 is off, because the sum would differ from the gradients whose norms were computed.
    with use_full_float32():
        gradient: torch.Tensor = torch.ops.aten.convolution_backward(
            outputs,
            inputs,
            inputs.new_empty(()).expand(shape),
            None,
            module.stride,
            padding,
            module.dilation,
            False,
            [0, 0],
            groups,
            [False, True, False],
        )[1]
    return gradient
