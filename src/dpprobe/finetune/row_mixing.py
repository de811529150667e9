"""Finds layers that mix the rows of a batch, as gradients would depend on other rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpprobe.errors import ConfigError

# Relative to the largest value. Batches of the same shape round a row in the same way.
_TOLERANCE = 1e-6
# Numbers of rows beside the checked row: the fewest, and more than a small-batch branch takes.
_COMPANIES = (1, 8)
# Operations that return a number of a tensor to Python, whose code may then depend on it.
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


class RefuseBranches(TorchDispatchMode):
    """Refuses to read numbers of a batch, because no test finds all branches by them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READS and not isinstance(args[0], nn.Parameter):
            raise ConfigError(
                "tune: the network reads a number from its batch, for example to choose a branch, "
                "so it may mix rows in other batches; choose another backbone"
            )
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def check_rows_apart(model: nn.Module, example: torch.Tensor, *, name: str) -> None:
    """Passes a row with one, then with another companion; raises an error if its features change.

    The row stands first and then last, since a row may depend only on earlier rows. Then it gets
    several copies of each companion, since small batches hide some mixing. Raises ConfigError if
    the model mixes rows, naming the first layer that does, or branches by numbers of the batch.

    Args:
      model: inputs -> rows, in evaluation mode.
      example: three public inputs.
    """
    with RefuseBranches():
        model(example)
    for count in _COMPANIES:
        others = [[other] * count for other in (1, 2)]
        _check_row(model, [example[[0, *rows]] for rows in others], 0, name)
        _check_row(model, [example[[*rows, 0]] for rows in others], count, name)


def _check_row(model: nn.Module, pairs: list[torch.Tensor], row: int, name: str) -> None:
    first, second = (model(pair)[row] for pair in pairs)
    if not _rows_differ(first, second):
        return
    first_outputs, second_outputs = (_collect_outputs(model, pair, row) for pair in pairs)
    culprits = (
        path
        for (path, one), (_, other) in zip(first_outputs, second_outputs, strict=True)
        if _rows_differ(one, other)
    )
    raise ConfigError(
        f"tune: layer {next(culprits, '') or 'of its own'} of {name} mixes the rows of a batch, "
        "so a row's gradient depends on other rows; choose another backbone"
    )


def _rows_differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    bound = _TOLERANCE * one.abs().max().clamp_min(1e-30)
    return one.shape != other.shape or not bool(((one - other).abs() <= bound).all())


def _collect_outputs(
    model: nn.Module, inputs: torch.Tensor, row: int
) -> list[tuple[str, torch.Tensor]]:
    """Returns each layer's output for one row, inner layers first."""
    outputs: list[tuple[str, torch.Tensor]] = []

    def keep_output(path: str, output: object) -> None:
        # A layer whose output does not have rows as first dimension cannot be checked.
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
