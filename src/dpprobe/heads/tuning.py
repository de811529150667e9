"""The trials of a `tuned` head: drawn, fitted, scored; the best of each seed is kept."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dpprobe import artifacts
from dpprobe.heads import Fitted, Record
from dpprobe.heads.first_order import History, without_loss
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import products
from dpprobe.heads.tuned import SCORE, Options, Range
from dpprobe.privacy.plan import Plan, Selection
from dpprobe.privacy.randomness import derived_seed, stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.selection import draw_runs

# Trials of the same options are fitted together, at most so many.
_AT_ONCE = 8


@dataclass(frozen=True)
class Trial:
    """One fit: whose, which of that seed's, with what seed of its own and what options."""

    owner: int
    number: int
    seed: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class _Best:
    score: float
    trial: Trial
    weights: torch.Tensor

    def beaten_by(self, score: float, number: int) -> bool:
        """Equal scores go to the earlier trial: trials are exchangeable, so this is a toss."""
        return (score, -number) > (self.score, -self.trial.number)


def fit(
    options: Options, rows: Rows, releases: Releases, *, record: Record | None = None
) -> Fitted:
    """Runs every seed's trials and keeps the best; see `dpprobe.heads.tuned`.

    Each trial's releases are counted against what was priced for one trial.

    Raises:
      PrivacyError: when a trial released more or less than that.
    """
    selection = options.selection(rows.n)
    trials = [
        trial
        for owner, seed in enumerate(releases.seeds)
        for trial in draw_trials(options, selection, owner, seed)
    ]
    best: dict[int, _Best] = {}
    priced = [releases.plan.mechanism(name) for name in selection.repeated]
    for group in _groups(trials):
        weights, found = _run(options.trial(group[0].values), group, rows, releases, selection)
        for trial, own, score in zip(group, weights, found.tolist(), strict=True):
            if trial.owner not in best or best[trial.owner].beaten_by(score, trial.number):
                best[trial.owner] = _Best(score, trial, own)
    for mechanism in priced:  # of one trial, as each of them has been checked
        releases.count(mechanism.name, mechanism.count)
    zeros = torch.zeros(rows.num_classes, rows.dimension + 1, device=rows.device)
    owners = range(len(releases.seeds))
    kept = torch.stack([best[owner].weights if owner in best else zeros for owner in owners])
    last = priced[-1]
    if options.link == "none":  # such a head descends no loss
        history = without_loss(kept, record, step=last.count, epoch=last.count * last.sample_rate)
    else:
        own = History(rows, last.sample_rate, record, sigmoid=options.link == "sigmoid")
        own.add(last.count, kept)
        history = own.rows
    return Fitted(
        weights=kept.cpu().numpy(),
        steps=sum(mechanism.count for mechanism in priced if mechanism.name != SCORE),
        history=history,
        chosen=tuple(_chosen(best.get(owner), rows.n) for owner in owners),
    )


def _chosen(best: _Best | None, n: int) -> dict[str, Any]:
    """What leaves beside the weights: the options, and the noisy score as a part of n.

    In whole rows: the last bits of a count plus float32 noise would tell the count.
    """
    return {"score": round(best.score) / n, **best.trial.values} if best else {"score": None}


def draw_trials(options: Options, selection: Selection, owner: int, seed: int) -> list[Trial]:
    """A seed's trials: how many, and each one's options, from a stream of their own."""
    generator = stream(seed, "trials")
    count = draw_runs(selection, generator)
    return [
        Trial(
            owner=owner,
            number=number,
            seed=derived_seed(seed, f"trial {number}"),
            values={name: _draw(space, generator) for name, space in options.search.items()},
        )
        for number in range(count)
    ]


def _draw(space: tuple[Any, ...] | Range, generator: np.random.Generator) -> Any:
    if isinstance(space, Range):
        return space.at(float(generator.random()))
    return space[int(generator.integers(len(space)))]


def _groups(trials: list[Trial]) -> Iterator[list[Trial]]:
    """Trials of equal options, which share passes over the rows."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(artifacts.canonical_json(dict(trial.values)), []).append(trial)
    for group in groups.values():
        for start in range(0, len(group), _AT_ONCE):
            yield group[start : start + _AT_ONCE]


def _run(
    method: MethodOptions,
    group: list[Trial],
    rows: Rows,
    releases: Releases,
    selection: Selection,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights [trials, classes, d + 1] and noisy scores [trials] of trials of equal options."""
    plan = trial_plan(releases.plan, method, selection)
    own = Releases(plan, [trial.seed for trial in group], rows.device)
    fitted = importlib.import_module(HEADS[method.head]).fit(method, rows, own)
    weights = torch.from_numpy(fitted.weights).to(rows.device)
    noisy = own.gaussian(SCORE, score(method, rows, weights)[:, None])[:, 0]
    own.check()
    return weights, noisy


def trial_plan(plan: Plan, method: MethodOptions, selection: Selection) -> Plan:
    """What one trial may release: the repeated mechanisms, clipped as its options say.

    Noise multipliers are the plan's, and the noise is in proportion to the trial's own sensitivity:
    the price is a function of the former alone.
    """
    clipped = {item.name: item.sensitivity for item in method.releases(plan.n)}
    mechanisms = tuple(
        replace(item, sensitivity=clipped.get(item.name, item.sensitivity))
        for item in plan.mechanisms
        if item.name in selection.repeated
    )
    return replace(plan, mechanisms=mechanisms, selection=None)


def score(method: MethodOptions, rows: Rows, weights: torch.Tensor) -> torch.Tensor:
    """Float64 [trials]: of how many rows each head gets the label right.

    A row adds a number in [0, 1], so one row more or less changes each by at most 1. Of a
    multi-label row it is 1 minus the mean squared error of the probabilities.
    """
    total = torch.zeros(len(weights), dtype=torch.float64, device=rows.device)
    with torch.inference_mode():
        for start, stop, block in rows.blocks(16 * len(weights) * rows.num_classes):
            scores = products(weights, block)
            if rows.multi_label:
                own = scores.sigmoid() if method.link == "sigmoid" else scores.clamp(0, 1)
                errors = (own - rows.targets(start, stop)).square_().mean(2)
                hits = (1 - errors).nan_to_num_(0.0).clamp_(0, 1)
            else:
                hits = scores.argmax(2) == rows.labels_block(start, stop)
            total += hits.sum(1, dtype=torch.float64)
    return total
