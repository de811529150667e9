"""Per-example gradients of layers, from a layer's input and the gradient of its output.

A row may have several positions (pixels, tokens) and several views, adjacent in the first
dimension. An example's gradient is the sum over positions and views. Norms of per-example gradients
of linear layers and convolutions do not need the gradients (Goodfellow 2015; Bu et al. 2022). Let
a_t be the input and g_t the gradient of the output at position t. The gradient sum_t g_t a_t^T has
the squared norm sum_ts (a_t . a_s)(g_t . g_s). If this sum is faster than forming gradients, only
the clipped sum over rows is computed, as a single product.

Norms and sums are computed in float32 from the same tensors, whatever the layer's precision. Inputs
may be in any memory format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

Gradients = dict[str, torch.Tensor]  # gradients per row, [m, ...], by the parameter's name
PIECE_BYTES = 2**22  # for inputs that a CPU multiplies by gradients at a time
_PART = 1024  # the number of squares added in float32 before sums continue in float64
_TINY = 2.0**-126  # smaller float32 products may be rounded to zero


@dataclass(frozen=True)
class Call:
    """One call of a layer: its arguments (the batch first), and the gradient of its output."""

    module: nn.Module
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    gradient: torch.Tensor
    rows: int

    @property
    def input(self) -> torch.Tensor:
        tensor: torch.Tensor = self.inputs[0]
        return tensor.detach().float()

    @property
    def output_gradient(self) -> torch.Tensor:
        return self.gradient.float()


class Rule:
    """Computes per-example gradients of one kind of layer.

    `weight` is the parameter for which `unfold_positions` and `add_weight` are defined.
    """

    weight: str | None = None

    def compute_gradients(self, call: Call, names: Collection[str]) -> Gradients:
        """Returns per-example gradients, float32 [m, ...], of the named parameters."""
        raise NotImplementedError

    def measure_sizes(self, call: Call) -> tuple[int, int, int]:
        """Returns the positions per row, and the input and output size per position."""
        raise NotImplementedError

    def unfold_positions(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs [m, t, in] and gradients of outputs [m, t, out]."""
        raise NotImplementedError

    def add_weight(self, total: torch.Tensor, call: Call, factors: torch.Tensor) -> None:
        """Adds per-example gradients of the weight, each times its factor, to `total`."""
        inputs, outputs = self.unfold_positions(call)
        scaled = outputs * factors.view(-1, 1, 1)
        flat = total.view(outputs.shape[2], inputs.shape[2])
        if scaled.is_contiguous() and inputs.is_contiguous():
            flat.addmm_(scaled.flatten(0, 1).T, inputs.flatten(0, 1))
        else:
            torch.addbmm(flat, scaled.transpose(1, 2), inputs, out=flat)


def forms_gradients(sizes: tuple[int, int, int]) -> bool:
    """Returns True if forming per-example gradients is cheaper than products over positions.

    Products over pairs of t positions take t^2 (in + out) steps. Writing a formed gradient once and
    reading it twice costs about sixteen steps per number. A formed gradient should also need little
    more memory than the layer's input and output.
    """
    positions, inputs, outputs = sizes
    half = inputs * outputs / (inputs + outputs)
    return positions**2 > 16 * half and 4 * positions > half


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Returns the L2 norms of rows [m, n] in float64, with an error of a few float32 roundings.

    Squares are added in parts, because PyTorch accumulates a row's squares in a few float32
    numbers: on a CPU a sum of ten million squares could be 1% too small.
    """
    whole = rows.shape[1] // _PART * _PART
    squares = torch.linalg.vector_norm(rows[:, whole:].contiguous(), dim=1).double().square()
    if whole:
        parts = rows[:, :whole].unflatten(1, (-1, _PART)).contiguous()
        squares += torch.linalg.vector_norm(parts, dim=2).double().square().sum(1)
    return squares.sqrt()


def squared_norms(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Returns tight upper bounds on |sum_t g_t a_t^T|^2 for each row, float64 [m].

    If terms cancel, float32 rounding could make a norm too small, and clip a row too little. So a
    bound on rounding errors is added, which grows with the size of a product's terms. The largest
    observed rounding error was half of the bound. A second bound covers underflow.
    """
    numbers = inputs.shape[2], outputs.shape[2]
    if inputs.shape[1] == 1:
        pair = [
            torch.linalg.vector_norm(one[:, 0], dim=1, dtype=torch.float64)
            for one in (inputs, outputs)
        ]
        return (pair[0] * pair[1]).square()
    left = torch.bmm(inputs, inputs.transpose(1, 2))
    right = torch.bmm(outputs, outputs.transpose(1, 2))
    # Squared norms at each position, plus a bound on the squares lost to underflow.
    squares = [
        torch.diagonal(products, dim1=1, dim2=2).double() + count * _TINY
        for products, count in zip((left, right), numbers, strict=True)
    ]
    magnitudes = (squares[0] * squares[1]).sqrt().sum(1).square()
    rounding = magnitudes * max(2.0**-21, sum(numbers) * 2.0**-27)
    lost = torch.full_like(rounding, inputs.shape[1] ** 2 * _TINY)
    for square, count in zip(squares, reversed(numbers), strict=True):
        lost += square.sqrt().sum(1).square() * count * _TINY
    return left.mul_(right).sum((1, 2), dtype=torch.float64).clamp_(min=0) + rounding + lost


def by_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshapes a tensor whose last dimension is the channels to [m, t, channels]."""
    return tensor.reshape(rows, -1, tensor.shape[-1])


def channels_last(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshapes maps [m * v, channels, height, width] to [m, t, channels]."""
    if len(tensor) == rows and tensor.is_contiguous():
        return tensor.flatten(2).transpose(1, 2)
    return by_rows(tensor.permute(0, 2, 3, 1), rows)


def _sum_products(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    piece = max(1, PIECE_BYTES // max(1, 4 * inputs[0].numel()))
    if piece >= len(inputs) or inputs.device.type != "cpu":
        return (inputs * outputs).sum(1)
    pairs = zip(inputs.split(piece), outputs.split(piece), strict=True)
    return torch.cat([(a * g).sum(1) for a, g in pairs])


class LinearRule(Rule):
    """y = W x + b at each position."""

    weight = "weight"

    def compute_gradients(self, call: Call, names: Collection[str]) -> Gradients:
        gradients = {}
        if "weight" in names:
            inputs, outputs = self.unfold_positions(call)
            gradients["weight"] = torch.bmm(outputs.transpose(1, 2), inputs)
        if "bias" in names:
            gradients["bias"] = by_rows(call.output_gradient, call.rows).sum(1)
        return gradients

    def measure_sizes(self, call: Call) -> tuple[int, int, int]:
        inputs, outputs = call.inputs[0].shape[-1], call.gradient.shape[-1]
        return call.gradient.numel() // (call.rows * outputs), inputs, outputs

    def unfold_positions(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        return by_rows(call.input, call.rows), by_rows(call.output_gradient, call.rows)


class AffineRule(Rule):
    """y = n(x) * weight + bias, where n (`normalised`) has no parameters.

    `maps`: True if channels are dimension 1; None if they are only for maps [m, c, h, w].
    """

    def __init__(
        self,
        normalised: Callable[[nn.Module, torch.Tensor], torch.Tensor],
        *,
        scale: str = "weight",
        shift: str = "bias",
        maps: bool | None,
    ) -> None:
        self._normalised, self._maps = normalised, maps
        self._scale, self._shift = scale, shift

    def compute_gradients(self, call: Call, names: Collection[str]) -> Gradients:
        outputs = self._lay_channels(call.output_gradient, call.rows)
        gradients = {}
        if self._scale in names:
            inputs = self._lay_channels(self._normalised(call.module, call.input), call.rows)
            gradients[self._scale] = _sum_products(inputs, outputs)
        if self._shift in names:
            gradients[self._shift] = outputs.sum(1)
        return {
            name: value.view(call.rows, *call.module.get_parameter(name).shape)
            for name, value in gradients.items()
        }

    def _lay_channels(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        maps = tensor.ndim == 4 if self._maps is None else self._maps
        if maps and tensor.ndim == 4:
            return channels_last(tensor, rows)
        return by_rows(tensor.movedim(1, -1) if maps else tensor, rows)


class ModuleRule(Rule):
    """Differentiates any kind of module row by row: always correct, but slow."""

    def compute_gradients(self, call: Call, names: Collection[str]) -> Gradients:
        module, first = call.module, len(call.inputs[0])
        values = {name: module.get_parameter(name).detach() for name in names}
        arguments = [*call.inputs, *call.options.values()]
        batched = [
            index
            for index, value in enumerate(arguments)
            if isinstance(value, torch.Tensor) and value.ndim and len(value) == first
        ]
        keys = list(call.options)

        def of_row(gradient: torch.Tensor, *row: torch.Tensor) -> Gradients:
            given = list(arguments)
            for index, value in zip(batched, row, strict=True):
                given[index] = value
            count = len(given) - len(keys)
            options = dict(zip(keys, given[count:], strict=True))

            def output(parameters: Gradients) -> torch.Tensor:
                result = functional_call(module, parameters, tuple(given[:count]), options)
                result = result if isinstance(result, torch.Tensor) else result[0]
                return result.float()

            pulled: Gradients = vjp(output, values)[1](gradient)[0]
            return pulled

        split = [_as_float32(arguments[index].detach()) for index in batched]
        split = [value.reshape(call.rows, -1, *value.shape[1:]) for value in split]
        outputs = call.output_gradient
        result: Gradients = vmap(of_row)(outputs.reshape(call.rows, -1, *outputs.shape[1:]), *split)
        return result


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
