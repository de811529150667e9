"""The same plan through Opacus, seed by seed: the reference that the closed form is held to.

Opacus supplies per-example gradients, clipping, noise and the step (`GradSampleModule`,
`DPOptimizer`). Batches come from our Poisson sampler: its own loader rounds the rate to
1 / len(loader) and the divisor to a whole number of rows, and steps here are those of the plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from dpprobe.heads import Record
from dpprobe.heads import sgd as sgd_module
from dpprobe.heads.first_order import (
    History,
    check_steps,
    finite_weights,
    initial_weights,
    record_steps,
)
from dpprobe.heads.training_set import Heads, TrainingSet
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.randomness import stream, stream_seed
from dpprobe.privacy.sampling import poisson_batches
from dpprobe.progress import Progress

# Without clipping Opacus still wants a number; nothing is as long as this one.
_NO_CLIP = 1e30


def fit(
    options: sgd_module.Options,
    data: TrainingSet,
    plan: Plan,
    seeds: Sequence[int],
    *,
    record: Record | None = None,
) -> Heads:
    """Trains like `first_order.fit`: same batches, same initial weights, Opacus's noise.

    Opacus's noise on the CPU takes 32 bits of the seed and stops at 5.77 standard deviations:
    one more reason why this is a reference and not the default.

    Raises:
      PrivacyError: when the steps taken are not the steps priced.
      ConfigError: when training diverged.
    """
    mechanism = plan.mechanism(sgd_module.GRADIENTS)
    history = History(data, options.normalize, mechanism.sample_rate, record)
    weights = initial_weights(options.init, data, seeds)
    trainers = [
        _Trainer(options, data, plan, seed, start)
        for seed, start in zip(seeds, weights, strict=True)
    ]
    history.add(0, weights)
    taken = 0
    with (
        Progress(mechanism.count, label="sgd, opacus: train", unit="steps") as progress,
        warnings.catch_warnings(),
    ):
        # Its hooks want inputs that need gradients; features do not, weights do.
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        for stop in record_steps(mechanism.count):
            for trainer, head in zip(trainers, weights, strict=True):
                trainer.advance(stop - taken)
                head.copy_(trainer.weights())
            progress.advance(stop - taken)
            taken = stop
            history.add(taken, weights)
    for trainer in trainers:
        check_steps(trainer.taken, mechanism.count)
    return Heads(
        weights=finite_weights(weights, options),
        seeds=tuple(seeds),
        normalize=options.normalize,
        steps=taken,
        history=history.rows,
    )


class _Trainer:
    """One head, its Opacus optimizer and its sampler."""

    def __init__(
        self,
        options: sgd_module.Options,
        data: TrainingSet,
        plan: Plan,
        seed: int,
        start: torch.Tensor,
    ) -> None:
        mechanism = plan.mechanism(sgd_module.GRADIENTS)
        rows = data.normalised(options.normalize)
        self._features, self._labels = rows.features, data.labels
        self._usable = rows.norms.isfinite()
        self._batches = poisson_batches(
            data.rows, mechanism.sample_rate, mechanism.count, stream(seed, "sampling")
        )
        self._model, self._optimizer = _build(options, plan, mechanism, seed, start)
        self.taken = 0

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step(torch.from_numpy(next(self._batches)).to(self._features.device))

    def _step(self, rows: torch.Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        logits = self._model(self._features[rows])
        # Opacus would pass a row's NaN on to the sum: such rows are left out before the loss.
        usable = logits.isfinite().all(1) & self._usable[rows]
        logits = logits.masked_fill(~usable.unsqueeze(1), 0.0)
        losses = torch.nn.functional.cross_entropy(logits, self._labels[rows], reduction="none")
        # A sum, since the mean over an empty batch is no number.
        (losses * usable).sum().backward()
        self._optimizer.step()
        self.taken += 1

    def weights(self) -> torch.Tensor:
        """[classes, d + 1]."""
        linear = self._model._module
        return torch.cat([linear.weight.detach(), linear.bias.detach()[:, None]], dim=1)


def _build(
    options: sgd_module.Options,
    plan: Plan,
    mechanism: Mechanism,
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
        torch.optim.SGD(model.parameters(), lr=options.learning_rate),
        noise_multiplier=mechanism.noise_multiplier,
        max_grad_norm=mechanism.sensitivity if plan.private else _NO_CLIP,
        expected_batch_size=mechanism.sample_rate * plan.n,
        loss_reduction="mean",
        generator=generator,
    )
    return model, optimizer
