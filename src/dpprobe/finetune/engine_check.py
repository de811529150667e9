"""Checks that a network treats rows independently and that its per-example gradients are right.

The check runs before training, on random rows. A clipped sum protects a row only if no other row's
scores depend on the row, and if the row's own gradient is clipped. Known engines for per-example
gradients were silently wrong for unexpected memory layouts and layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import torch

from dpprobe.backbones.network_forward import one_line
from dpprobe.backbones.row_mixing import (
    ComputeInFloat64,
    find_mixed_row,
    make_public_rows,
    refuse_branches,
)
from dpprobe.devices import use_full_float32, use_precision
from dpprobe.errors import ConfigError
from dpprobe.finetune.ghost import Ghost
from dpprobe.finetune.gradients import PRECISIONS, ClippedSums, Precision, lay_inputs
from dpprobe.finetune.losses import row_losses

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork

Engine = Literal["ghost", "opacus"]
ROWS = 3
_SEED = 16
# Relative tolerances for a parameter's gradient. Engine and autograd use the same activations and
# gradients of outputs, so only the rounding of a layer's product differs. In bfloat16 torch rounds
# the product by 2^-9, and a GPU also rounds the product's parts. Observed differences of whole
# networks on a CPU were 6e-7 (float32) and 3e-3 (bfloat16).
_TOLERANCES: dict[Precision, float] = {"float32": 2e-3, "bfloat16": 0.05}
# A parameter's gradient below this fraction of the whole gradient may be only rounding error.
_SMALLEST: dict[Precision, float] = {"float32": 1e-4, "bfloat16": 0.05}
_ABOVE = 0.05
_NEARLY_0 = 1e-2
_SUMMED = 1 + 1e-4  # allowance for rounding errors of summed gradients


@use_full_float32()
def check_network(
    network: FineTunedNetwork,
    *,
    sigmoid: bool,
    precision: Precision,
    engine: Engine = "ghost",
    example: torch.Tensor,
    classes: int,
    views: int = 1,
    together: int = ROWS,
) -> None:
    """Compares a network's per-example gradients with autograd's, one example at a time.

    Of `example`, inputs [r, ...], only shape, type and device are used. In training, `together`
    rows pass through the network at once.

    Raises ConfigError if rows depend on each other, the network's code branches on tensor values, a
    parameter is used outside its layer, or a gradient is wrong.
    """
    generator = torch.Generator().manual_seed(_SEED)
    inputs = _draw_inputs(example, views, generator)
    if sigmoid:
        labels = torch.randint(0, 2, (ROWS, classes), generator=generator).float()
    else:
        labels = torch.arange(ROWS) % classes
    labels = labels.to(example.device)
    with move_parameters(network, generator):
        flat = inputs.flatten(0, 1) if inputs.ndim == len(network.shape) + 2 else inputs
        with refuse_branches():
            _compute_scores(network, flat, precision)
        many = flat[torch.arange(max(together * views, len(flat))) % len(flat)]
        _check_rows_apart(network, many, precision)
        if others := Ghost(network.module, network.trained).find_other_uses(many):
            raise ConfigError(
                f"parameter {others[0]}: it is used outside its layer, so its gradient would be "
                "incomplete; choose another backbone"
            )
        _check_gradients(network, inputs, labels, sigmoid, precision, engine)
        if precision != "float32":
            # A wrong gradient is easier to detect in float32, where rounding is smaller.
            _check_gradients(network, inputs, labels, sigmoid, "float32", engine)


def _draw_inputs(example: torch.Tensor, views: int, generator: torch.Generator) -> torch.Tensor:
    """Returns random rows like `example`: [ROWS, ...], or [ROWS, views, ...] with views."""
    shape = (ROWS, *((views,) if views > 1 else ()), *example.shape[1:])
    if example.dtype == torch.uint8:
        values = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    else:
        values = torch.randn(shape, generator=generator, dtype=example.dtype)
    return values.to(example.device)


@contextmanager
def move_parameters(network: FineTunedNetwork, generator: torch.Generator) -> Iterator[None]:
    """Replaces zero or nearly zero parameters by random numbers during a network's check.

    A zero parameter stops gradients to earlier layers, and a small scale hides a branch's wrong
    gradient. Such errors would appear once training makes these parameters larger.
    """
    small = [one for one in network.trained.values() if not (one.detach().abs() > _NEARLY_0).any()]
    before = [value.detach().clone() for value in small]
    with torch.no_grad():
        for value in small:
            length = value[0].numel() if value.ndim > 1 else 100
            noise = torch.randn(value.shape, generator=generator) / math.sqrt(length)
            value.copy_(noise)
    try:
        yield
    finally:
        with torch.no_grad():
            for value, one in zip(small, before, strict=True):
                value.copy_(one)


def _compute_scores(
    network: FineTunedNetwork, inputs: torch.Tensor, precision: str
) -> torch.Tensor:
    with torch.no_grad():
        if precision == "float64":
            try:
                with ComputeInFloat64():
                    return cast("torch.Tensor", network.module(inputs))
            except RuntimeError as error:
                raise ConfigError(
                    f"the network does not run in float64 ({one_line(error)}), where its rows are "
                    "checked; choose another backbone"
                ) from error
        with use_precision(inputs.device, PRECISIONS[cast("Precision", precision)]):
            return cast("torch.Tensor", network.module(inputs))


def _check_rows_apart(
    network: FineTunedNetwork, inputs: torch.Tensor, precision: Precision
) -> None:
    """Raises ConfigError if a row's scores change with the batch's other rows, or their number.

    Tries batches of 2, 4, 8, ... up to len(inputs) rows, because a step's last batch is small.
    """
    most, shape = len(inputs), _compute_scores(network, inputs, precision).shape
    if len(shape) != 2 or shape[0] != most:
        raise ConfigError(
            f"the network's scores have shape {tuple(shape)} for {most} rows; choose another "
            "backbone"
        )
    rows = make_public_rows(inputs.shape[1:], inputs.dtype).to(inputs.device)
    alone = _compute_scores(network, rows[:1], "float64")[0]
    sizes = {most, *(2**power for power in range(1, most.bit_length()) if 2**power < most)}
    for used in (precision, "float64"):
        run = partial(_compute_scores, network, precision=used)
        for count in sorted(sizes):
            single = alone if used == "float64" else None
            if find_mixed_row(run, rows, count, precision=used, alone=single):
                raise ConfigError(
                    f"the network mixes the rows of a batch: in a batch of {count} rows, a row's "
                    "scores change with the other rows, so clipping cannot bound the contribution "
                    "of one row; choose another backbone"
                )


def _check_gradients(
    network: FineTunedNetwork,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    sigmoid: bool,
    precision: Precision,
    engine: Engine,
) -> None:
    """Raises ConfigError if a row's gradient or its norm is wrong."""
    # Both use the same batch, so that rounding turns off the same activations in both.
    laid = lay_inputs(inputs, len(network.shape), PRECISIONS[precision])
    with torch.enable_grad():
        with use_precision(inputs.device, PRECISIONS[precision]):
            scores = network.module(laid)
        losses = row_losses(scores, labels, sigmoid=sigmoid)
    form = _form_by_opacus if engine == "opacus" else partial(_form_by_ghost, precision=precision)
    gradients = form(network, inputs, labels, sigmoid=sigmoid)
    for row in range(ROWS):
        truth = _differentiate_loss(network, losses[row])
        try:
            gradient, norm = next(gradients)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(
                f"engine {engine}: this network's gradients cannot be computed per row ({error}); "
                "choose another backbone or engine"
            ) from error
        _compare_gradients(truth, gradient, norm, precision, engine)


def _form_by_ghost(
    network: FineTunedNetwork,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    sigmoid: bool,
    precision: Precision,
) -> Iterator[tuple[torch.Tensor, float]]:
    """Yields the gradient [size] of each row, as a sum over only this row, and its norm."""
    sums = ClippedSums(
        network, sigmoid=sigmoid, max_grad_norm=math.inf, clipping="fixed", precision=precision
    )
    for row, chosen in enumerate(torch.eye(ROWS, device=inputs.device)):
        total = torch.zeros(sums.size, device=inputs.device)
        yield total, float(sums.add_rows(total, inputs, labels, chosen)[row])


def _form_by_opacus(
    network: FineTunedNetwork, inputs: torch.Tensor, labels: torch.Tensor, *, sigmoid: bool
) -> Iterator[tuple[torch.Tensor, float]]:
    """Yields the gradient [size] of each row, by Opacus, and its norm."""
    from dpprobe.finetune.opacus_sums import OpacusSums  # slow: imports Opacus

    sums = OpacusSums(
        network, sigmoid=sigmoid, max_grad_norm=math.inf, noise_multiplier=0.0, divisor=1.0
    )
    with torch.enable_grad():
        gradients = sums.form_gradients(inputs, labels)
    yield from ((gradient, float(gradient.double().norm())) for gradient in gradients)


def _differentiate_loss(network: FineTunedNetwork, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    gradients = torch.autograd.grad(
        loss,
        list(network.trained.values()),
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return {
        name: gradient.detach().float().reshape(-1)
        for name, gradient in zip(network.trained, gradients, strict=True)
    }


def _compare_gradients(
    truth: dict[str, torch.Tensor],
    total: torch.Tensor,
    norm: float,
    precision: Precision,
    engine: Engine,
) -> None:
    tolerance, smallest = _TOLERANCES[precision], _SMALLEST[precision]
    length = float(torch.cat(list(truth.values())).norm())
    if not length > 0:
        raise ConfigError(
            "the trained parameters get no gradient, so they cannot be checked; choose "
            "another backbone or tune"
        )
    parts = total.split([len(value) for value in truth.values()])
    for (name, value), part in zip(truth.items(), parts, strict=True):
        scale = max(float(value.norm()), smallest * length)
        off = float((part - value).norm())
        if not off <= tolerance * scale:
            raise ConfigError(
                f"engine {engine} gives a wrong gradient of {name}, off by {off:.1e} of "
                f"{scale:.1e}; choose another backbone or engine"
            )
    # The norm that decides a row's clipping must not be below the norm of the row's gradient.
    norm = norm if float(total.double().norm()) <= norm * _SUMMED else math.nan
    # The engine's norm may exceed the true norm by the margin for rounding, but not be smaller.
    if not -tolerance * length <= norm - length <= (tolerance + _ABOVE) * length:
        raise ConfigError(
            f"engine {engine} gives a wrong gradient norm, {norm:.6g} instead of {length:.6g}; "
            "choose another backbone or engine"
        )
