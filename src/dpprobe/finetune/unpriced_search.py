"""Searches over options by Optuna's TPE, as in the representation-law paper, without privacy.

**Not private.** Trials are scored on private examples without noise, so no epsilon covers the
choice. The record of a search has the warning `NOT_PRICED`.

**Deterministic.** The options of a trial depend only on the seed, the trial's number and earlier
scores. Each trial fits a new tree-structured Parzen estimator to earlier scores (Bergstra et al.
2011). So a killed search resumes from its log, with the same results, and a longer search reuses
the log.

**Diverged trials** score below all others, so that the search avoids similar options.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from dpprobe.errors import ConfigError, DataError, StoreError
from dpprobe.files.records import Record, RecordPart
from dpprobe.finetune.options import Options, Search
from dpprobe.heads.search_space import Range, spell_options
from dpprobe.json_values import hash_value
from dpprobe.wrong_keys_and_values import explain_first

logger = logging.getLogger("dpprobe")

NOT_PRICED = (
    "Chosen on private rows, without any epsilon for the choice. Do not release these trials, nor "
    "a network that was trained with their best options."
)
# The number of random trials before the search uses earlier scores.
_RANDOM_TRIALS = 10


class Trial(RecordPart):
    """One trial of a search, numbered from 0.

    `score` is the metric on held-out rows (larger is better); None if training diverged.
    """

    number: int
    values: dict[str, bool | int | float | str]
    score: float | None


class SearchLog(Record):
    """The log of a search's finished trials, saved after each trial; not private."""

    format: Literal["dpprobe-search-log"] = "dpprobe-search-log"
    format_version: Literal[1] = 1
    fingerprint: str
    trials: tuple[Trial, ...]


Objective = Callable[[Options, int], float]


def run_trials(
    options: Options,
    objective: Objective,
    *,
    log: Path,
    seed: int,
    identity: Mapping[str, Any] | None = None,
) -> tuple[Trial, ...]:
    """Runs the trials that are not in the log yet; returns all trials, in order.

    Raises ConfigError if values in the space conflict, StoreError if the search is running.

    Args:
      objective: trains with a trial's options and number, and returns the held-out score, which is
        not finite if training diverged.
      log: the file of finished trials. The log of another search is replaced.
      identity: other inputs that affect scores, such as data and plan; JSON-compatible.
    """
    search = options.search
    assert search is not None
    values = options.identity_options()
    wanted = hash_value(
        {
            "options": {**values, "search": {**values["search"], "trials": None}},
            "seed": seed,
            "optuna": version("optuna"),
            "identity": dict(identity or {}),
        }
    )
    log.parent.mkdir(parents=True, exist_ok=True)
    # A lock file that a killed job left must not block the next job.
    lock = FileLock(log.with_name(f"{log.name}.lock"), blocking=False, fallback_to_soft=False)
    try:
        with lock:
            return _run_trials(options, search, objective, log, seed, wanted)
    except Timeout:
        raise StoreError(
            f"{log}: another process is running this search; wait until it ends"
        ) from None


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Returns the first trial with the largest score; raises ConfigError if all diverged."""
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        raise ConfigError(
            f"search: all {len(trials)} trials diverged; set smaller learning rates in search.space"
        )
    return max(scored, key=_trial_value)


def _run_trials(
    options: Options, search: Search, objective: Objective, log: Path, seed: int, wanted: str
) -> tuple[Trial, ...]:
    trials = list(_read_finished(log, wanted)[: search.trials])
    if trials:
        logger.info("search: %d of %d trials were already finished", len(trials), search.trials)
    for number in range(len(trials), search.trials):
        digest = hashlib.sha256(f"search {seed} {number}".encode()).digest()
        drawn = int.from_bytes(digest[:4], "big")  # NumPy's older generators take 32 bits
        values = suggest_values(search, trials, drawn)
        score = float(objective(_trial_options(options, values), number))
        trials.append(
            Trial(number=number, values=values, score=score if math.isfinite(score) else None)
        )
        SearchLog(fingerprint=wanted, trials=tuple(trials)).write(log)
        said = f"{score:.4f}" if math.isfinite(score) else "diverged"
        logger.info("search: trial %d of %d, %s: %s", number + 1, search.trials, values, said)
    return tuple(trials)


def _read_finished(log: Path, wanted: str) -> tuple[Trial, ...]:
    if not log.exists():
        return ()
    try:
        record = SearchLog.read(log)
    except DataError:
        logger.warning(
            "%s: unreadable log of a search; the search starts from its first trial", log
        )
        return ()
    if record.fingerprint != wanted:
        logger.warning(
            "%s: made with other options, data or another device; the search starts from its first "
            "trial",
            log,
        )
        return ()
    return record.trials


def _trial_options(options: Options, values: Mapping[str, Any]) -> Options:
    try:
        return options.make_trial(dict(values))
    except ValidationError as error:
        reason = explain_first(error)
        raise ConfigError(f"search.space: {spell_options(values)}: {reason}") from None


def suggest_values(search: Search, trials: Sequence[Trial], seed: int) -> dict[str, Any]:
    """Returns the next trial's values, which depend only on the arguments.

    If all options have lists of values, no combination repeats before all are tried.
    """
    import optuna  # late, because planning reads options without Optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(space.low, space.high, log=space.log)
        if isinstance(space, Range)
        # indices in place of values, because 1 and true are equal
        else optuna.distributions.CategoricalDistribution(range(len(space)))
        for name, space in search.space.items()
    }
    sampler = optuna.samplers.TPESampler(n_startup_trials=_RANDOM_TRIALS, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        params = {
            name: _find_place(search.space[name], each) for name, each in trial.values.items()
        }
        study.add_trial(
            optuna.create_trial(params=params, distributions=spaces, value=_trial_value(trial))
        )
    drawn = study.ask(spaces).params
    values = {
        name: space.round_value(drawn[name]) if isinstance(space, Range) else space[drawn[name]]
        for name, space in search.space.items()
    }
    tried = [trial.values for trial in trials]
    lists = [space for space in search.space.values() if not isinstance(space, Range)]
    if values in tried and len(lists) == len(search.space):  # Optuna may repeat a combination
        grid = (dict(zip(search.space, chosen, strict=True)) for chosen in product(*lists))
        left = [combination for combination in grid if combination not in tried]
        return left[seed % len(left)] if left else values
    return values


def _find_place(space: Any, value: Any) -> Any:
    if isinstance(space, Range):
        return value
    return next(
        place for place, each in enumerate(space) if type(each) is type(value) and each == value
    )


def _trial_value(trial: Trial) -> float:
    return -math.inf if trial.score is None else trial.score
