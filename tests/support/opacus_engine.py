"""An oracle for the closed form: the same plan through Opacus, seed by seed.

Opacus supplies per-example gradients, clipping, noise and the step (`GradSampleModule`,
`DPOptimizer`). Batches come from our Poisson sampler: its own loader rounds the rate to
1 / len(loader) and the divisor to a whole number of rows, and steps here are those of the plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from dpprobe.heads import gradient_steps
from dpprobe.heads.adam import Adam
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions, finite_weights
from dpprobe.heads.initial_weights import initial_weights
from dpprobe.heads.momentum import Momentum
from dpprobe.heads.optimiser import MakeOptimiser, Optimiser, Sgd
from dpprobe.heads.rows import Rows, crop_at
from dpprobe.heads.schedules import learning_rates, mixing_rates
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.randomness import open_stream, stream_seed
from dpprobe.privacy.releases import Releases
from tests.support.poisson_batches import poisson_batches

# Without clipping Opacus still wants a number; nothing is as long as this one.
_NO_CLIP = 1e30


@contextmanager
def through_opacus() -> Iterator[None]:
    """Lets heads of gradient steps train through Opacus."""
    with mock.patch.object(gradient_steps, "train_heads", train):
        yield


def train(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: MakeOptimiser,
    *,
    record: Record | None = None,
) -> Fitted:
    """Trains like `gradient_steps.train_heads`: same batches, same initial weights, Opacus's noise.

    Opacus's noise on the CPU takes 32 bits of the seed and stops at 5.77 standard deviations, and
    its norms in float32 were measured up to 4e-4 above the clipping norm.
    """
    assert record is None
    mechanism = releases.plan.find_mechanism(GRADIENTS)
    weights = initial_weights(options, rows, releases.seeds)
    with warnings.catch_warnings():
        # Its hooks want inputs that need gradients; features do not, weights do.
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        for seed, head in zip(releases.seeds, weights, strict=True):
            trainer = _Trainer(options, rows, releases, optimiser(), seed, head)
            trainer.take_steps(mechanism.count)
            head.copy_(trainer.average)
    releases.count_releases(mechanism.name, mechanism.count)
    return Fitted(weights=finite_weights(weights, options), steps=mechanism.count)


class _Trainer:
    """One head, its Opacus optimizer and its sampler.

    Attributes:
      average: [classes, d + 1], the weights that would be returned now.
    """

    def __init__(
        self,
        options: GradientOptions,
        rows: Rows,
        releases: Releases,
        optimiser: Optimiser,
        seed: int,
        start: torch.Tensor,
    ) -> None:
        mechanism = releases.plan.find_mechanism(GRADIENTS)
        self._crops, self._rate = rows.crops, mechanism.sample_rate
        self._sigmoid = options.loss == "sigmoid"
        self._batches = poisson_batches(
            rows.n, mechanism.sample_rate, mechanism.count, open_stream(seed, "sampling")
        )
        self._rates = learning_rates(options, mechanism.count)
        self._mixing = mixing_rates(options, mechanism.count)
        self._model, self._optimizer = _build_model(releases, mechanism, optimiser, seed, start)
        self.average = start.clone()
        self.taken = 0

    def take_steps(self, steps: int) -> None:
        """Takes the next `steps` steps."""
        for _ in range(steps):
            self._take_step(next(self._batches))
            mixing = 1.0 if self._mixing is None else float(self._mixing[self.taken])
            self.average.lerp_(self._present_weights(), mixing)
            self.taken += 1

    def _take_step(self, batch: npt.NDArray[np.int64]) -> None:
        crop = self._crops[crop_at(self.taken, self._rate, len(self._crops))[0]]
        rows = torch.from_numpy(batch).to(crop.device)
        for group in self._optimizer.param_groups:
            group["lr"] = float(self._rates[self.taken])
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(crop.copy_rows(rows))
        # Opacus would pass a row's NaN on to the sum: such rows are left out before the loss.
        usable = logits.isfinite().all(1) & crop.norms[rows].isfinite()
        logits = logits.masked_fill(~usable.unsqueeze(1), 0.0)
        # A sum, since the mean over an empty batch is no number.
        (self._compute_losses(logits, crop.labels[rows]) * usable).sum().backward()
        self._optimizer.step()

    def _compute_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns each row's loss, [m]."""
        if not self._sigmoid:
            return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        if labels.ndim == 1:
            labels = torch.nn.functional.one_hot(labels, logits.shape[1])
        return torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels.to(logits.dtype), reduction="none"
        ).sum(1)

    def _present_weights(self) -> torch.Tensor:
        """Returns the present weights, [classes, d + 1]."""
        linear = self._model._module
        return torch.cat([linear.weight.detach(), linear.bias.detach()[:, None]], dim=1)


def _build_model(
    releases: Releases,
    mechanism: Mechanism,
    optimiser: Optimiser,
    seed: int,
    start: torch.Tensor,
) -> tuple[GradSampleModule, DPOptimizer]:
    linear = torch.nn.Linear(start.shape[1] - 1, start.shape[0], device=start.device)
    with torch.no_grad():
        linear.weight.copy_(start[:, :-1])
        linear.bias.copy_(start[:, -1])
    model = GradSampleModule(linear.train(), loss_reduction="sum")
    generator = torch.Generator(start.device).manual_seed(stream_seed(seed, "noise"))
    optimizer = DPOptimizer(
        _make_reference(optimiser, model.parameters()),
        noise_multiplier=mechanism.noise_multiplier,
        max_grad_norm=mechanism.sensitivity if releases.plan.private else _NO_CLIP,
        expected_batch_size=mechanism.sample_rate * releases.plan.n,
        loss_reduction="mean",
        generator=generator,
    )
    return model, optimizer


def _make_reference(
    optimiser: Optimiser, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Returns PyTorch's optimiser of the same steps; its rate is set at each step."""
    if isinstance(optimiser, Sgd):
        return torch.optim.SGD(parameters, lr=1.0)
    if isinstance(optimiser, Momentum):
        return torch.optim.SGD(parameters, lr=1.0, momentum=optimiser._beta)
    assert isinstance(optimiser, Adam)
    betas = optimiser._beta1, optimiser._beta2
    return torch.optim.Adam(parameters, lr=1.0, betas=betas, eps=optimiser._eps)
