"""Random search over a head's options, covered by epsilon: the best of a random number of trials.

A *trial* draws options from a public search space, fits the base head with these options, and
releases a noisy score on the training examples. The number of trials is also random. Only the best
trial's head, options and noisy score are published: repeat-and-select (Papernot and Steinke 2022).

**Privacy cost.** One trial is a composition Q of the mechanisms of the base head and of the score.
Options are drawn independently of the data, so they are part of a trial's randomness. Searched
options may change how a release is used and clipped, but not the mechanisms, their sampling, counts
and noise multipliers. Only these determine privacy costs, so every trial has the same cost.
Checking a study raises `ConfigError` for a searched option that changes epsilon. The result is the
trial with the best score among a random number of trials; `plan.Selection` describes its cost.

**Score.** The number of training examples that the head classifies correctly; if units have several
rows, rows count by their weights. A multi-label row counts 1 minus the mean over labels of the
squared distance between probability and label (Brier 1950), because most labels are 0, so the
fraction of correct labels would hardly distinguish heads. In all cases a unit adds a number in [0,
1] to the score of a fixed head, and a null row adds nothing, so the score has sensitivity 1. The
head is an earlier release of the trial, and composition is adaptive.

**Normalisation.** A priced normalisation of the base is released once per fit, before the first
trial, and every trial uses the normalised rows. So its cost is added once to the cost of the
selection, whose bound holds for any released statistics (adaptive composition).

**Not released**, because epsilon does not cover them: the number of trials, the index of the best
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

# The largest number of trials with equal options that are fitted together.
_AT_ONCE = 8


@dataclass(frozen=True)
class Trial:
    """One fit of the base head with randomly drawn options, for the seed with index `owner`."""

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
    """Runs the trials of every seed, and returns the best trial per seed.

    Raises PrivacyError if a trial's releases differ from the plan of one trial.
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
            # if scores are equal, the earlier trial wins
            if now is None or (score, -trial.number) > (now.score, -now.trial.number):
                best[trial.owner] = _Best(score, trial, head)
    for mechanism in priced:  # counts one trial; `_fit_trials` checked all trials
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
        # The best trials' scores and options are also published. Scores are rounded to whole rows,
        # because with float32 noise the low bits of a sum could reveal the count.
        chosen=tuple({"score": round(each.score) / rows.n, **each.trial.values} for each in chosen),
    )


def draw_trials(options: Options, owner: int, seed: int, entropy: Entropy) -> list[Trial]:
    """Draws the number of trials of a seed, and options for each, from separate random streams."""
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
    """Yields groups of trials with equal options, to be fitted in the same passes over the rows."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(json_values.canonical_json(dict(trial.values)), []).append(trial)
    for group in groups.values():
        for start in range(0, len(group), _AT_ONCE):
            yield group[start : start + _AT_ONCE]


def _fit_trials(
    method: MethodOptions, group: list[Trial], rows: Rows, releases: Releases, selection: Selection
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fits trials with equal options; returns weights [trials, K, d + 1], noisy scores [trials]."""
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
    """Returns a plan with other sensitivities, by name, but the same noise multipliers and cost."""
    mechanisms = tuple(
        replace(item, sensitivity=norms.get(item.name, item.sensitivity))
        for item in plan.mechanisms
    )
    return replace(plan, mechanisms=mechanisms)


def score_heads(method: MethodOptions, rows: Rows, weights: torch.Tensor) -> GridSum:
    """Sums the rows' scores for each head, rounded down to the grid: [trials, 1]."""
    # late imports: planning imports this module without torch
    import torch

    from dpprobe.heads.scoring import compute_scores
    from dpprobe.privacy.grid import Grid, GridSum

    # Counts are whole if each unit has one row; otherwise weights are rounded down to the grid.
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
            # null rows do not count, even if the biases predict their labels
            hits = hits * rows.lengths[start:stop].isfinite()
            if rows.weights is not None:
                hits = hits * rows.weights[start:stop]
            total += grid.round_to_steps(hits).sum(1)
    return GridSum(total[:, None], grid.step)
