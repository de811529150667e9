"""Head `tuned` over `fine_tune`: a priced random search whose trials train networks.

Releases, prices and reasons are as in `heads.tuned`: a trial is the base's mechanisms with a noisy
score beside them, and only the best of a random number of trials leaves. Here the score is the
number of training examples whose label the trial's network gets right, each row by itself through
the network as its training left it: a unit adds a number in [0, 1], a null row nothing.

**What leaves**: the best trial's network, options and noisy score. The number of trials,
the place of the best and the time they took do not: trials log nothing, and `seconds` is 0. Until a
job's results are published a checkpoint holds all of that: it is of benchmark mode, hidden, and
removed by who publishes.

**A trial whose training diverges** gets no label right. That its numbers are not finite follows
from noisy sums, so it costs nothing more; its releases were fewer than were priced.

**No trial**, which a Poisson number allows: the network as it starts, which no data decides.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from dpprobe.artifacts import hash_value
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.finetune.checkpoint import Checkpoints, State
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options as FineTuneOptions
from dpprobe.finetune.train import Trained, train_network
from dpprobe.finetune.tuned_network import TunedNetwork, load_tuned_state, tuned_state
from dpprobe.heads import tuned
from dpprobe.heads.tuned import NOTHING_CHOSEN, SCORE, Trial, draw_trials, trial_plan
from dpprobe.privacy.grid import Grid, GridSum
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.releases import Releases
from dpprobe.progress import silent_progress

logger = logging.getLogger("dpprobe")

_TRIAL_FOLDER = "trial"

MakeNetwork = Callable[[FineTuneOptions, int], TunedNetwork]
# Fits a trial's probe, from the trial's own releases, and starts the network from it.
Start = Callable[[FineTuneOptions, TunedNetwork, Releases], None]


class Tuned(NamedTuple):
    """The best trial's training, and its options beside its noisy score."""

    trained: Trained
    chosen: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Best:
    score: float
    trial: Trial
    state: dict[str, torch.Tensor] | None  # None where training diverged
    fault: str | None = None  # where it did


def tuned_network(
    options: tuned.Options,
    make_network: MakeNetwork,
    inputs: Inputs,
    releases: Releases,
    *,
    seed: int,
    physical_batch: int,
    checkpoint: Checkpoints | None = None,
    label: str = "tuned",
    start: Start | None = None,
) -> Tuned:
    """Runs a seed's trials and keeps the best.

    Args:
      make_network: of a trial's options and seed.
      releases: of this seed alone; each trial's are counted against what was priced for one.
      physical_batch: rows that pass through the network together.
      checkpoint: where a job that was killed continues from; None for none.
      start: of a base with a probe.

    Raises:
      PrivacyError: when a trial released more or less than was priced.
      ConfigError: when the training of the best trial diverged.
    """
    if releases.seeds != (seed,):
        raise PrivacyError(
            f"{label}: releases of seeds {releases.seeds}; trials are of one, {seed}"
        )
    if checkpoint is not None and releases.entropy.secret:
        raise PrivacyError(f"{label}: the random numbers of a release are in no checkpoint")
    selection = options.priced_selection(inputs.n)
    trials = _Trials(options, make_network, inputs, releases, selection, physical_batch, start)
    logger.info("%s: trials train; nothing is told of them before the best is chosen", label)
    with _silence_log():
        best = trials.run_all(seed, checkpoint)
    repeated = [releases.plan.find_mechanism(name) for name in selection.repeated]
    for mechanism in repeated:  # of one trial, as each of them has been checked
        releases.count_releases(mechanism.name, mechanism.count)
    if best is not None and best.state is None:
        raise ConfigError(f"{label}: in the best trial: {best.fault}")
    network = make_network(_base_options(options, best.trial.values if best else {}), seed)
    if best is not None and best.state is not None:
        load_tuned_state(network, best.state)
    steps = sum(mechanism.count for mechanism in repeated if mechanism.name != SCORE)
    trained = Trained(
        state={name: one.cpu() for name, one in tuned_state(network).items()},
        steps=steps,
        history=[],
        seconds=0.0,
    )
    choice = tuned.describe_choice(best.score, best.trial, inputs.n) if best else NOTHING_CHOSEN
    return Tuned(trained, dict(choice))


@dataclass(frozen=True)
class _Trials:
    """The trials of one seed."""

    options: tuned.Options
    make_network: MakeNetwork
    inputs: Inputs
    releases: Releases
    selection: Selection
    physical_batch: int
    start: Start | None

    def run_all(self, seed: int, checkpoint: Checkpoints | None) -> _Best | None:
        trials = draw_trials(self.options, self.selection, 0, seed, self.releases.entropy)
        done, best = _resume_trials(checkpoint, trials)
        for trial in trials[done:]:
            outcome = self._run_trial(trial, _of_trial(checkpoint, trial))
            if best is None or (outcome.score, -trial.number) > (best.score, -best.trial.number):
                best = outcome
            _save_progress(checkpoint, trial.number + 1, best)
        if checkpoint is not None:  # nothing of a trial stays, however the job was killed
            shutil.rmtree(checkpoint.folder / _TRIAL_FOLDER, ignore_errors=True)
        return best

    def _run_trial(self, trial: Trial, checkpoint: Checkpoints | None) -> _Best:
        """Trains and scores one trial, on releases of its own."""
        method = _base_options(self.options, trial.values)
        plan = trial_plan(self.releases.plan, method, self.selection)
        releases = self.releases.make_part(plan, [trial.seed])
        network = self.make_network(method, trial.seed)
        if self.start is not None:
            self.start(method, network, releases)
        try:
            trained = train_network(
                method,
                network,
                self.inputs,
                releases,
                checkpoint=checkpoint,
                physical_batch=self.physical_batch,
                record=None,
                label="trial",
            )
        except ConfigError as error:  # diverged: what else may be wrong is checked beforehand
            hits = GridSum(torch.zeros(1, 1, dtype=torch.float64, device=releases.device))
            score = float(releases.release_gaussian(SCORE, hits)[0, 0])
            return _Best(score=score, trial=trial, state=None, fault=str(error))
        load_tuned_state(network, trained.state)
        hits = count_hits(method, network, self.inputs, self.physical_batch, releases.device)
        score = float(releases.release_gaussian(SCORE, hits)[0, 0])
        releases.check_counts()
        return _Best(score=score, trial=trial, state=trained.state)


def count_hits(
    method: FineTuneOptions,
    network: TunedNetwork,
    inputs: Inputs,
    physical_batch: int,
    device: torch.device,
) -> GridSum:
    """Counts the rows that a network labels correctly, by their weights: [1, 1].

    A unit adds a number in [0, 1], and null rows nothing. For a multi-label row, the number is 1
    minus the mean squared error of the probabilities, rounded down to the grid, as in
    `heads.tuned`.
    """
    grid = Grid.make_grid(1.0, inputs.n, whole=True)
    weights = None if inputs.units is None else torch.from_numpy(inputs.units.weights).to(device)
    total = torch.zeros(1, 1, dtype=torch.float64, device=device)
    with torch.inference_mode():
        for first in range(0, inputs.rows, physical_batch):
            index = np.arange(first, min(first + physical_batch, inputs.rows))
            scores = network.module(inputs.read_batch(index, step=None).to(device)).double()
            hits = _score_hits(method, scores, inputs.labels[torch.from_numpy(index)].to(device))
            if weights is not None:
                hits = hits * weights[first : first + len(index)]
            if inputs.kept is not None:
                hits = hits * torch.from_numpy(inputs.kept[index]).to(device)
            total += grid.round_to_steps(hits).sum()
    return GridSum(total.clone(), grid.step)


def _score_hits(
    method: FineTuneOptions, scores: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Returns what each row adds to the score before its weight, float64 [m], from 0 to 1."""
    if labels.ndim == 2:
        estimates = scores.sigmoid() if method.link == "sigmoid" else scores.clamp(0, 1)
        errors = (estimates - labels.double()).square().mean(1)
        hits = (1 - errors).nan_to_num(0.0).clamp(0, 1)
    else:
        hits = (scores.argmax(1) == labels).double()
    return hits * scores.isfinite().all(1)


def _base_options(options: tuned.Options, values: Any) -> FineTuneOptions:
    method = options.make_trial(values)
    assert isinstance(method, FineTuneOptions), method.head
    return method


def _of_trial(checkpoint: Checkpoints | None, trial: Trial) -> Checkpoints | None:
    """Returns the checkpoints of one trial's training, in the place of the trial before."""
    if checkpoint is None:
        return None
    of = {"trial": trial.number, "of": checkpoint.fingerprint}
    return Checkpoints(
        folder=checkpoint.folder / _TRIAL_FOLDER,
        fingerprint=hash_value(of),
        minutes=checkpoint.minutes,
    )


def _save_progress(checkpoint: Checkpoints | None, done: int, best: _Best) -> None:
    if checkpoint is None:
        return
    values = {
        "done": done,
        "best": best.trial.number,
        "score": best.score,
        "fault": best.fault,
    }
    checkpoint.save_state(State(tensors=best.state or {}, values=values))


def _resume_trials(checkpoint: Checkpoints | None, trials: list[Trial]) -> tuple[int, _Best | None]:
    """Returns how many trials an earlier run has finished, and the best of them."""
    state = None if checkpoint is None else checkpoint.load_state()
    if state is None:
        return 0, None
    values = state.values
    best = _Best(
        score=values["score"],
        trial=trials[values["best"]],
        state=dict(state.tensors) if values["fault"] is None else None,
        fault=values["fault"],
    )
    return int(values["done"]), best


@contextmanager
def _silence_log() -> Iterator[None]:
    """Keeps trials out of the log: its lines would tell how many there were."""

    def drop_record(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop_record)
    try:
        with silent_progress(), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.removeFilter(drop_record)
