"""Trains a network's own parameters with DP, by the noisy gradient steps of a plan.

`options` defines the releases and their sensitivities, and `gradients` computes clipped sums.
`steps` makes the gradient steps; `privacy.releases` draws the noise and counts releases. If
training is killed, it resumes from its checkpoint, with bit-identical results.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dpprobe.devices import use_full_float32
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options
from dpprobe.finetune.ranks import ALONE, Ranks
from dpprobe.finetune.steps import Training
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.history import record_steps
from dpprobe.heads.plan_check import check_plan
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import RowIndices
from dpprobe.progress import Progress

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork

logger = logging.getLogger("dpprobe")

# Each record of the history has the mean loss over the first rows, at most this many.
LOSS_ROWS = 256

Record = Callable[[int, "FineTunedNetwork"], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network's trained parameters.

    Attributes:
      state: parameters by name, on the CPU, after iterate averaging and subtraction of log priors.
      history: for each recorded step, step, epoch, train_loss (not private) and the values that
        `record` returns; empty without `record`.
      seconds: training time, including time before a restart.
    """

    state: dict[str, torch.Tensor]
    steps: int
    history: list[dict[str, Any]]
    seconds: float


def train_network(
    options: Options,
    network: FineTunedNetwork,
    inputs: Inputs,
    releases: Releases,
    *,
    checkpoint: Checkpoints | None = None,
    physical_batch: int = 64,
    public: PublicInputs = NOTHING_CHECKED,
    record: Record | None = None,
    label: str = "fine_tune",
    ranks: Ranks = ALONE,
) -> Trained:
    """Runs the plan's gradient steps, which change the network's parameters.

    A step samples units (Poisson) or uses all, adds clipped per-example gradients and noise, and
    divides by the expected batch size. A step with an empty batch also adds noise.

    Raises PrivacyError if the plan does not match these options and rows, if too many steps were
    taken, or if a public file was not compared with the private examples. Raises ConfigError if
    training diverged.

    Args:
      network: the initial network, whose trained parameters are changed.
      inputs: the private examples, with the plan's number of units.
      releases: one seed's releases, with the mechanism `gradients`. The caller must call
        `check_counts` after training.
      checkpoint: the checkpoints to write and to resume from.
      physical_batch: rows times views per pass through the network; affects only rounding.
      public: the public files that were compared with the private examples.
      record: called with (step, network) at the start, about twenty times in between, and at the
        end. During a call, the network has the parameters that training would return now.
      ranks: the processes that call this function together, with the same arguments. Only rank 0
        writes checkpoints and calls `record`. Results are the same on all ranks.
    """
    public.require_files(options)
    _check_engine(options, ranks)
    _check_releases(options, inputs, releases)
    mechanism = releases.plan.find_mechanism(GRADIENTS)
    with use_full_float32():
        training = Training(
            options,
            network,
            inputs,
            releases,
            mechanism,
            physical_batch=physical_batch,
            ranks=ranks,
        )
        run = _Run(
            options=options,
            training=training,
            mechanism=mechanism,
            loss_rows=inputs.list_kept()[:LOSS_ROWS],
            record=record if ranks.leads else None,
            leads=ranks.leads,
        )
        run.start_run(checkpoint, label)
        expected = (mechanism.count - training.taken) * mechanism.sample_rate * inputs.rows
        # Progress is counted in rows, because a single step may take long.
        with Progress(round(expected), label=f"{label}: train", unit="rows") as progress:
            run.finish_run(checkpoint, progress)
        state = training.copy_result()
        training.put_parameters(state)
    return Trained(
        state={name: one.cpu() for name, one in state.items()},
        steps=training.taken,
        history=run.history,
        seconds=run.elapsed_seconds,
    )


def _check_engine(options: Options, ranks: Ranks) -> None:
    if ranks.count > 1 and options.engine != "ghost":
        raise ConfigError(
            f"fine_tuning.processes: {ranks.count}, but engine {options.engine} adds up gradients "
            "in one process; write `processes: 1`, or `engine: ghost`"
        )


def _check_releases(options: Options, inputs: Inputs, releases: Releases) -> None:
    """Raises PrivacyError if plan, seeds or observer do not fit the training, or ConfigError if
    the method does not fit the classes or units."""
    plan = releases.plan
    if plan.n != inputs.n:
        raise PrivacyError(
            f"head {options.head}: the plan is for n = {plan.n} units of privacy, but the data "
            f"has {inputs.n}; calibrate for this dataset"
        )
    check_plan(options, plan)
    if len(releases.seeds) != 1:
        raise PrivacyError(
            f"head {options.head}: the releases have {len(releases.seeds)} seeds; train each seed "
            "separately"
        )
    if releases.observer is not None:
        raise PrivacyError(
            f"head {options.head}: an audit cannot observe the steps of a network; remove the "
            "observer"
        )
    if fault := options.class_fault(inputs.num_classes, multi_label=inputs.labels.ndim == 2):
        raise ConfigError(f"head {options.head}: {fault}")
    if inputs.units is not None and (fault := options.units_fault):
        raise ConfigError(f"head {options.head}: {fault}")


@dataclass(kw_only=True)
class _Run:
    options: Options
    training: Training
    mechanism: Mechanism
    loss_rows: RowIndices
    record: Record | None
    leads: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.started

    def start_run(self, checkpoint: Checkpoints | None, label: str) -> None:
        state = None if checkpoint is None else checkpoint.load_state()
        if state is not None:
            self.training.restore_state(state)
        self.training.check_ranks()
        if state is None:
            self._add_record()
            return
        self.history = list(state.values["history"])
        self.started -= state.values["seconds"]
        logger.info(
            "%s: resumes after step %d of %d", label, self.training.taken, self.mechanism.count
        )

    def finish_run(self, checkpoint: Checkpoints | None, progress: Progress) -> None:
        training, count = self.training, self.mechanism.count
        stops = set(record_steps(count))
        while training.taken < count:
            training.take_step(progress.advance_by)
            if training.taken in stops:
                self._check_finite()
                training.check_ranks()
                self._add_record()
            if checkpoint is not None and self.leads and checkpoint.is_due():
                self._check_finite()
                values = {"history": self.history, "seconds": self.elapsed_seconds}
                checkpoint.save_state(training.collect_state(values))
        if training.taken != count:
            raise PrivacyError(
                f"{GRADIENTS}: {training.taken} noisy steps were taken, but epsilon covers "
                f"{count}; nothing is released"
            )
        self._check_finite()
        self._warn_of_loss()

    def _warn_of_loss(self) -> None:
        """Warns if training increased the loss; does nothing if no loss was recorded."""
        losses = [each["train_loss"] for each in self.history if "train_loss" in each]
        if losses and losses[-1] > losses[0]:
            logger.warning(
                "%s: training raised the loss from %.3g to %.3g at learning_rate %g; set a "
                "smaller learning_rate",
                self.options.head,
                losses[0],
                losses[-1],
                self.options.learning_rate,
            )

    def _add_record(self) -> None:
        if self.record is None:
            return
        training = self.training
        before = training.put_parameters(training.copy_result())
        with torch.no_grad():
            further = self.record(training.taken, training.network)
        values = {
            "step": training.taken,
            "epoch": training.taken * self.mechanism.sample_rate,
            **{name: float(value) for name, value in further.items()},
        }
        if len(self.loss_rows):  # otherwise all rows are null
            values["train_loss"] = training.mean_loss(self.loss_rows)
        training.put_parameters(before)
        self.history.append(values)

    def _check_finite(self) -> None:
        if not self.training.is_finite:
            raise ConfigError(
                f"head {self.options.head}: training diverged at learning_rate "
                f"{self.options.learning_rate:g}, by step {self.training.taken}; set a smaller "
                "learning_rate"
            )
