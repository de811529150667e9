"""Random search over a head's options that epsilon covers: the best of a random number of trials.

A *trial* draws options from a public search space, fits the base head with them, and releases a
noisy score on the training examples. The number of trials is random too. Only the best trial's
head, options and noisy score are published: repeat-and-select (Papernot and Steinke 2022).

**Privacy cost.** One trial is a composition Q of the mechanisms of the base head and of the score.
Options are drawn independently of the data, so they are part of a trial's randomness. Searched
options may change how a release is used and clipped, but not the mechanisms, their sampling, counts
and
noise multipliers, which alone decide privacy costs: every trial has an equal cost. Checking a study
  raises `ConfigError` for a searched option that changes epsilon. The result is the best of a
  random number of trials, ordered by score; `plan.Selection` describes its cost.

**Score.** The number of training examples that the head classifies correctly; each row of a unit of
several rows counts by its weight. To the score of a fixed head, a unit adds at most 1 and a null
row nothing. The head is an earlier release of the trial, and composition is adaptive. A multi-label
row counts 1 minus the mean over labels of the squared distance between probability and label (Brier
1950). A unit's score lies in [0, 1] in all cases, so the score has sensitivity 1. With several
labels, of which most are 0, the fraction of correct labels would hardly distinguish heads.

**Normalisation.** A priced normalisation of the base is released once per fit, before the first
trial, and every trial works on the normalised rows. So a priced normalisation composes with the
selection once: given the released statistics, the selection's bound holds (adaptive composition).

**Not released**, since epsilon does not cover them: the number of trials, the index of the best
trial, and all other trials' heads and scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpprobe import json_values
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.search_space import Range
from dpprobe.heads.tuned_options import SCORE
from dpprobe.heads.tuned_options import Options as Options
from dpprobe.privacy.plan import Plan, Selection

if TYPE_CHECKING:
    import numpy as np
    import torch

    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.entropy import Entropy
    from dpprobe.privacy.grid import GridSum
    from dpprobe.privacy.releases import Releases

# The most trials of equal options that are fitted together.
_AT_ONCE = 8


@dataclass(frozen=True)
class Trial:
    """One fit of the base head with randomly drawn options, for the seed at position `owner`."""

    owner: int
    number: int
    seed: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class _Best:
    score: float
    trial: Trial
    weights: torch.Tensor


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    """Runs every seed's trials and keeps each seed's best trial.

    Each trial's releases are counted against the plan of one trial. Raises PrivacyError if a trial
    released more or less.
    """
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.history import History

    selection = options.priced_selection(rows.n)
    trials = [
        trial
        for owner, seed in enumerate(releases.seeds)
        for trial in draw_trials(options, owner, seed, releases.entropy)
    ]
    best: dict[int, _Best] = {}
    priced = [releases.plan.find_mechanism(name) for name in selection.repeated]
    for group in _group_trials(trials):
        weights, scores = _fit_trials(
            options.make_trial(group[0].values), group, rows, releases, selection
        )
        for trial, head, score in zip(group, weights, scores.tolist(), strict=True):
            now = best.get(trial.owner)
            # of equal scores, the earlier trial's wins
            if now is None or (score, -trial.number) > (now.score, -now.trial.number):
                best[trial.owner] = _Best(score, trial, head)
    for mechanism in priced:  # one trial's releases; `_fit_trials` checked all
        releases.count_releases(mechanism.name, mechanism.count)
    chosen = [best[owner] for owner in range(len(releases.seeds))]
    kept = torch.stack([each.weights for each in chosen])
    last = priced[-1]
    history = History(rows, last.sample_rate, record, options.link)
    history.add_record(last.count, kept)
    return Fitted(
        weights=kept.cpu().numpy(),
        steps=sum(mechanism.count for mechanism in priced if mechanism.name != SCORE),
        history=history.records,
        # The best trials' scores and options are published too. Scores are rounded to whole rows:
        # with float32 noise, the low bits of a sum reveal the count.
        chosen=tuple({"score": round(each.score) / rows.n, **each.trial.values} for each in chosen),
    )


def draw_trials(options: Options, owner: int, seed: int, entropy: Entropy) -> list[Trial]:
    """Draws a seed's number of trials, and each trial's options, from separate random streams."""
    # imports NumPy, which planning does without
    from dpprobe.privacy.random_run_count import draw_runs, runs_at

    generator = entropy.make_generator(seed, "trials")
    if entropy.secret:
        at = entropy.open_keystream(seed, "number of trials").draw_uniform()
        count = runs_at(options.trials, at)
    else:
        count = draw_runs(options.trials, generator)
    return [
        Trial(
            owner=owner,
            number=number,
            seed=entropy.part_seed(seed, f"trial {number}"),
            values={name: _draw_value(space, generator) for name, space in options.search.items()},
        )
        for number in range(count)
    ]


def _draw_value(space: tuple[Any, ...] | Range, generator: np.random.Generator) -> Any:
    if isinstance(space, Range):
        return space.value_at(float(generator.random()))
    return space[int(generator.integers(len(space)))]


def _group_trials(trials: list[Trial]) -> Iterator[list[Trial]]:
    """Yields trials of equal options, which share passes over the rows."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(json_values.canonical_json(dict(trial.values)), []).append(trial)
    for group in groups.values():
        for start in range(0, len(group), _AT_ONCE):
            yield group[start : start + _AT_ONCE]


def _fit_trials(
    method: MethodOptions, group: list[Trial], rows: Rows, releases: Releases, selection: Selection
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fits trials of equal options; returns weights [trials, K, d + 1], noisy scores [trials]."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.balance import fit_balanced

    norms = {item.name: item.sensitivity for item in method.list_releases(releases.plan.n)}
    repeated = [item for item in releases.plan.mechanisms if item.name in selection.repeated]
    plan = replace(releases.plan, mechanisms=tuple(repeated), selection=None)
    plan = with_norms(plan, norms)
    seeds = [trial.seed for trial in group]
    trial_releases = releases.make_part(plan, seeds)
    fitted = fit_balanced(method, rows, trial_releases)
    weights = torch.from_numpy(fitted.weights).to(rows.device)
    noisy = trial_releases.release_gaussian(SCORE, score_heads(method, rows, weights))[:, 0]
    trial_releases.check_counts()
    return weights, noisy


def with_norms(plan: Plan, norms: Mapping[str, float]) -> Plan:
    """Returns a plan with other sensitivities by name; noise multipliers, and so costs, stay."""
    mechanisms = tuple(
        replace(item, sensitivity=norms.get(item.name, item.sensitivity))
        for item in plan.mechanisms
    )
    return replace(plan, mechanisms=mechanisms)


def score_heads(method: MethodOptions, rows: Rows, weights: torch.Tensor) -> GridSum:
    """Sums the scores of the rows by each head, rounded down to the grid: [trials, 1]."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.scoring import compute_scores
    from dpprobe.privacy.grid import Grid, GridSum

    # Counts are whole if each unit has one row; other rows' weights are rounded down to the grid.
    grid = Grid.make_grid(1.0, rows.n, whole=True)
    total = torch.zeros(len(weights), dtype=torch.float64, device=rows.device)
    with torch.inference_mode():
        for start, stop, block in rows.read_blocks(16 * len(weights) * rows.num_classes):
            scores = compute_scores(weights, block)
            if rows.multi_label:
                estimates = scores.sigmoid() if method.link == "sigmoid" else scores.clamp(0, 1)
                errors = (estimates - rows.make_targets(start, stop)).square_().mean(2)
                hits = (1 - errors).nan_to_num_(0.0).clamp_(0, 1)
            else:
                hits = (scores.argmax(2) == rows.labels[start:stop]).double()
            # null rows do not count, though the biases alone may predict them
            hits = hits * rows.lengths[start:stop].isfinite()
            if rows.weights is not None:
                hits = hits * rows.weights[start:stop]
            total += grid.round_to_steps(hits).sum(1)
    return GridSum(total[:, None], grid.step)
