"""`engine: opacus`: noisy gradient steps in which Opacus forms, clips, adds and averages gradients.

The engine repeats benchmarks with a library that others audit. Everything else is the code of the
default engine: plan, Poisson batches, noise, learning rates, optimisers and averages. So with the
same seed both engines train the same weights, up to float32 rounding.

**Released** in each step: the sum of the sampled rows' clipped gradients plus noise, divided by the
public expected batch size. `GradSampleModule` forms each row's gradient g. `DPOptimizer` multiplies
g by min(1, C / (|g| + 1e-6)), adds the products and noise, and divides.

**Sensitivity**: C = `max_grad_norm`. A row adds at most one clipped gradient, and a null row adds
nothing. With Opacus a NaN would spread to all weights. So a gradient that is not finite, or too
long for float32, is set to zeros before Opacus clips it. Opacus sums the squares of a gradient in
float32. On a CPU the norm of a tensor of 1e8 normal numbers comes out 1.1% too small, so the
clipped tensor is longer than C by as much. The engine is therefore only for benchmarks.

**Noise**: the plan's normals, drawn by `privacy.float32_noise` instead of torch's generator.

**Price**: the plan's accountant, which assumes Poisson samples. Opacus computes no epsilon here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from dpprobe.errors import PrivacyError
from dpprobe.heads.clipping import ClippedGradients, drawn_rows
from dpprobe.privacy.sampling import Sampler

AddNoise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Per-row gradients of a linear head are formed together up to PIECE_BYTES, which fit a cache.
PIECE_BYTES = 2**23


class _Receiver(torch.optim.Optimizer):
    """Takes the place of torch's optimiser, and receives released gradients without a step."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(list(parameters), {})
        self.released: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        (group,) = self.param_groups
        self.released = [parameter.grad for parameter in group["params"]]


class OpacusSteps(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimiser with the plan's noise, for some or all parameters of a model.

    Attributes:
      model: the model with Opacus's hooks; call it before `add_rows`.

    Args:
      parameters: the trained parameters, in the order of the noise.
      max_grad_norm: the clipping norm C; infinite for no clipping.
      noise_multiplier: the plan's noise multiplier, for Opacus's accountants; the caller passes
        noise of this deviation, times C.
      divisor: the public expected batch size.
      add: a function that returns a sum plus noise, or an audit observer's replacement.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        divisor: float,
        add: AddNoise = torch.add,
    ) -> None:
        self.model = GradSampleModule(model, loss_reduction="sum")
        self._receiver, self._add = _Receiver(parameters), add
        self._sizes = [parameter.numel() for parameter in parameters]
        self._noise: tuple[torch.Tensor, ...] | None = None
        super().__init__(
            self._receiver,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=divisor,
            loss_reduction="mean",  # divides the noisy sum by the expected batch size
        )

    def form_gradients(self, losses: torch.Tensor) -> None:
        """Computes per-row gradients from the losses [m]; Opacus keeps them as `grad_samples`."""
        with warnings.catch_warnings():
            # torch warns that inputs need no gradients.
            warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
            losses.sum().backward()

    def add_rows(self, losses: torch.Tensor) -> None:
        """Adds the clipped per-row gradients, from the losses [m], to the step's sum."""
        self.form_gradients(losses)
        self.signal_skip_step(do_skip=True)  # the step needs noise, see `release_mean`
        self.step()
        self.zero_grad(set_to_none=True)

    def release_mean(self, noise: torch.Tensor) -> list[torch.Tensor]:
        """Returns the noisy mean gradients of a step, by parameter; `noise` is flat.

        Raises PrivacyError if Opacus released gradients without the noise.
        """
        self._noise, self._receiver.released = noise.split(self._sizes), []
        for parameter in self.params:  # no further rows belong to the step
            parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
        self.step()
        self.zero_grad(set_to_none=True)
        if self._noise is not None or not self._receiver.released:
            raise PrivacyError("Opacus took a step without the plan's noise; nothing is released")
        return self._receiver.released

    def clip_and_accumulate(self) -> None:
        norms = [gradient.flatten(1).norm(dim=1) for gradient in self.grad_samples]
        unusable = ~torch.stack(norms).isfinite().all(0)
        if unusable.any():
            for gradient in self.grad_samples:
                gradient[unusable] = 0
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        assert self._noise is not None, "one step's noise was used twice"
        for parameter, noise in zip(self.params, self._noise, strict=True):
            parameter.grad = self._add(parameter.summed_grad, noise.view_as(parameter))
        self._noise = None


class OpacusHead:
    """One seed's steps on a linear head, whose inputs are rows with the constant appended.

    Between batches, `gradients` may be replaced by gradients of as many other rows.

    Args:
      parameters: [1, classes, d + 1], which the caller changes between steps.
      sampler: draws Poisson batches; None for all rows in each step.
    """

    def __init__(
        self,
        gradients: ClippedGradients,
        parameters: torch.Tensor,
        sampler: Sampler | None,
        *,
        noise_multiplier: float,
        divisor: float,
        add: AddNoise,
    ) -> None:
        self.gradients = gradients
        self._parameters, self._sampler = parameters, sampler
        self._batches: Iterator[torch.Tensor | None] = iter(())
        classes, columns = parameters.shape[1:]
        self._most = max(1, PIECE_BYTES // (4 * classes * columns))
        with torch.inference_mode(False):
            linear = nn.Linear(columns, classes, bias=False, device=parameters.device)
            self._weight = linear.weight
            self._steps = OpacusSteps(
                linear,
                list(linear.parameters()),
                max_grad_norm=gradients.clip,
                noise_multiplier=noise_multiplier,
                divisor=divisor,
                add=lambda sums, noise: add(sums[None], noise[None])[0],
            )

    def draw_batches(self, steps: int) -> None:
        """Draws the next `steps` steps' batches."""
        self._batches = iter([None] * steps)
        if self._sampler is not None:
            rows, sizes = drawn_rows(self.gradients.rows, self._sampler, steps)
            chosen = torch.from_numpy(rows).to(self._parameters.device)
            self._batches = iter(chosen.split_with_sizes(sizes.tolist()))

    def release_mean(self, noise: torch.Tensor) -> torch.Tensor:
        """Returns the noisy mean gradient of the next batch, [1, classes, d + 1]."""
        rows = self.gradients.rows
        with torch.inference_mode(False):
            self._weight.data.copy_(self._parameters[0])
            for features, index in self._read_pieces():
                usable = rows.lengths[index].isfinite()
                kept = features[usable]
                given = torch.cat([kept, kept.new_full((len(kept), 1), self.gradients.constant)], 1)
                self._steps.add_rows(self._compute_losses(given, rows.labels[index[usable]]))
            (released,) = self._steps.release_mean(noise.flatten())
        return released[None]

    def _read_pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields the next batch in pieces: normalised rows [m, d] with their indices."""
        rows, batch = self.gradients.rows, next(self._batches)
        if batch is not None:
            for index in batch.split(self._most):
                yield rows.copy_rows(index), index
            return
        for start, stop, block in rows.read_blocks():
            index = torch.arange(start, stop, device=block.device)
            yield from zip(block.split(self._most), index.split(self._most), strict=True)

    def _compute_losses(self, given: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self._steps.model(given)
        if not self.gradients.sigmoid:
            return nn.functional.cross_entropy(logits, labels, reduction="none")
        if labels.ndim == 1:
            labels = nn.functional.one_hot(labels, logits.shape[1])
        losses = nn.functional.binary_cross_entropy_with_logits
        return losses(logits, labels.to(logits.dtype), reduction="none").sum(1)
