"""Finds networks that mix the rows of a batch, because then the effect of one row is not bounded.

A network may mix rows only in batches of some sizes, so each caller passes the sizes that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from dpprobe.devices import use_full_float32
from dpprobe.errors import ConfigError

# Tolerances relative to the largest value. In batches of equal shape, a row's rounding is equal (on
# a GPU only with deterministic algorithms, else up to two roundings apart). Batches of different
# sizes are compared in float64, because their sums may be rounded differently. In float64, 100
# layers of 10,000 terms have rounding errors of at most 1e-10.
TOLERANCES = {"float64": 1e-9, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}
# Batch sizes of the check on the CPU: the smallest, and one too large for small-batch branches.
_SMALL_BATCHES = (2, 9)
# Operations that reveal a tensor's numbers to Python, directly or by a result's shape.
_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_COPIES = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)

Run = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def refuse_branches() -> Iterator[None]:
    """Raises ConfigError if a network's Python code reads a batch's numbers, as it may branch."""
    with _RefuseReads(), _RefuseCopies():
        yield


class _RefuseReads(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        reads = not _READS.isdisjoint(func.tags) and not isinstance(args[0], nn.Parameter)
        if reads and func is torch.ops.aten.index.Tensor:  # only indexing by a mask reveals numbers
            reads = any(one is not None and one.dtype == torch.bool for one in args[1])
        if reads:
            raise _make_error()
        return func(*args, **(kwargs or {}))


class _RefuseCopies(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _COPIES and not isinstance(args[0], nn.Parameter):
            raise _make_error()
        return func(*args, **(kwargs or {}))


def _make_error() -> ConfigError:
    return ConfigError(
        "tune: the network reads a number from its batch, for example to choose a branch. "
        "The network may therefore mix rows in other batches; choose another backbone"
    )


class ComputeInFloat64(TorchFunctionMode):
    """Runs a network in float64, including parts that request float32."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map(_double_value, (args, kwargs or {}))
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return tree_map(_double_value, func(*args, **kwargs))


def _double_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype == torch.float32 else value
    return torch.float64 if value is torch.float32 else value


def make_public_rows(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns three random public rows [3, *shape]: a row to check, and two companions.

    The companions differ in mean, deviation, length, minimum and maximum, and the first companion
    has larger extremes than the row. So if a network uses a batch's mean, deviation or extremes,
    the row's features change with the companion.
    """
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.uint8:
        noise = torch.randint(0, 256, (3, *shape), generator=generator, dtype=dtype)
        return torch.stack([64 + noise[0] // 4, noise[1], 96 + noise[2] // 32])
    values = torch.randn((3, *shape), generator=generator)
    return torch.stack([values[0], 3 * values[1], 1 + values[2] / 10]).to(dtype)


@torch.no_grad()
@use_full_float32()
def find_mixed_row(
    run: Run,
    rows: torch.Tensor,
    count: int,
    *,
    precision: str = "float32",
    alone: torch.Tensor | None = None,
) -> tuple[int, list[torch.Tensor]] | None:
    """Runs a row among copies of one companion, then of the other, in batches of `count` rows.

    The row is tested as first and as last row, because its result may depend only on rows before or
    after it. The compared batches differ in all other rows, because possibly only the first or last
    row changes others. Returns the position where the row's result changes with the companions, and
    both batches; None if the result never changes.

    Args:
      rows: the row and the two companions.
      alone: the row's result in a batch of one row, as a further comparison; only in float64.
    """
    results: dict[tuple[int, ...], torch.Tensor] = {}
    for place, *pair in _arrange_batches(count):
        batches = [rows[torch.tensor(each, device=rows.device)] for each in pair]
        for each, batch in zip(pair, batches, strict=True):
            if each not in results:
                results[each] = run(batch).double()
        first, second = (results[each][place] for each in pair)
        others = [second, *(() if alone is None else (alone.double(),))]
        if any(_rows_differ(first, other, TOLERANCES[precision]) for other in others):
            return place, batches
    return None


def _arrange_batches(count: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Lists positions of the row (0), each with the rows of two batches to compare there."""
    if count < 2:
        return []
    if count == 2:
        return [(0, (0, 1), (0, 2)), (1, (1, 0), (2, 0))]
    # one batch with the row at both ends serves both comparisons, as a batch may take seconds
    both, companions = (0, *(1,) * (count - 2), 0), (2,) * (count - 1)
    return [(0, both, (0, *companions)), (count - 1, both, (*companions, 0))]


@torch.no_grad()
def check_rows_apart(model: nn.Module, example: torch.Tensor, *, name: str) -> None:
    """Raises ConfigError if a network mixes rows of small batches, or reads their numbers."""
    with refuse_branches():
        model(example)
    for count in _SMALL_BATCHES:
        if mixed := find_mixed_row(model, example, count):
            layer = find_layer(model, *mixed)
            raise ConfigError(
                f"tune: layer {layer or 'of its own'} of {name} mixes the rows of a batch, so a "
                "row's gradient depends on other rows; choose another backbone"
            )


def find_layer(model: nn.Module, row: int, batches: list[torch.Tensor]) -> str:
    """Names the first layer whose output for a row differs between two batches; "" if none."""
    first, second = (_collect_outputs(model, batch, row) for batch in batches)
    culprits = (
        path
        for (path, one), (_, other) in zip(first, second, strict=True)
        if _rows_differ(one, other, TOLERANCES["float32"])
    )
    return next(culprits, "")


def _rows_differ(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    if one.shape != other.shape:
        return True
    bound = tolerance * one.abs().nan_to_num(0.0, 0.0).max().clamp_min(1e-30)
    return not torch.isclose(one, other, rtol=0, atol=float(bound), equal_nan=True).all()


def _collect_outputs(
    model: nn.Module, inputs: torch.Tensor, row: int
) -> list[tuple[str, torch.Tensor]]:
    """Returns each layer's output for one row, inner layers first."""
    outputs: list[tuple[str, torch.Tensor]] = []

    def keep_output(path: str, output: object) -> None:
        # A layer cannot be checked if its output's first dimension is not rows.
        if isinstance(output, torch.Tensor) and output.ndim and len(output) % len(inputs) == 0:
            outputs.append((path, output.chunk(len(inputs))[row].clone()))

    hooks = [
        one.register_forward_hook(
            lambda _module, _inputs, output, path=path: keep_output(path, output)
        )
        for path, one in model.named_modules()
    ]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs
