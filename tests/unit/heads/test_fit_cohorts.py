"""Heads of several cohorts: a single cohort gives the usual head, later cohorts add rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.running_sums import Cohort, Factorisation, RunningSums
from tests.support.linear_heads import plan_for
from tests.support.second_order_data import accuracy, classes_of

HEADS = ("least_squares", "prototypes", "feature_covariance")
ADDED, HALF_A_YEAR = Factorisation.make(None), Factorisation.make(6)


def options_of(head: str, **more: object) -> MethodOptions:
    return method_options({"head": head, "normalize": "l2", **more})


def train(
    options: MethodOptions,
    rows: tuple[torch.Tensor, torch.Tensor],
    *,
    noise: float,
    running: RunningSums | None = None,
    seed: int = 3,
) -> tuple[Heads, Plan]:
    data = TrainingSet(rows[0].clone(), rows[1], 4)
    plan = plan_for(options, data.rows, noise)
    return fit_heads(options, data, plan, (seed,), running=running), plan


def chain(
    head: str, factorisation: Factorisation, *, noise: float, cohorts: int
) -> tuple[list[Heads], list[Cohort]]:
    """Trains a head for each cohort; each has 120 rows from the same distribution."""
    options = options_of(head)
    features, labels = classes_of(120 * cohorts)
    heads: list[Heads] = []
    kept: list[Cohort] = []
    for place in range(cohorts):
        part = slice(120 * place, 120 * (place + 1))
        running = RunningSums(factorisation, kept, names=options.running_sums or (), n=120)
        fitted, _ = train(
            options, (features[part], labels[part]), noise=noise, running=running, seed=place
        )
        heads.append(fitted)
        kept.append(running.make_cohort(fitted.weights[0]))
    return heads, kept


@pytest.mark.parametrize("head", HEADS)
def test_a_first_cohort_has_the_bits_of_a_single_release(head: str) -> None:
    options = options_of(head)
    alone, _ = train(options, classes_of(), noise=0.5)
    running = RunningSums(ADDED, [], names=options.running_sums or (), n=400)
    first, _ = train(options, classes_of(), noise=0.5, running=running)
    assert np.array_equal(alone.weights, first.weights)


@pytest.mark.parametrize("factorisation", [ADDED, HALF_A_YEAR], ids=["added", "factorised"])
def test_sums_of_cohorts_are_the_sums_of_all_rows(factorisation: Factorisation) -> None:
    """With nearly no noise, the last head equals a head trained on all rows together."""
    heads, kept = chain("least_squares", factorisation, noise=1e-6, cohorts=4)
    pooled, _ = train(options_of("least_squares"), classes_of(480), noise=1e-6)
    np.testing.assert_allclose(heads[-1].weights, pooled.weights, atol=2e-4)
    assert all(bool(cohort.sums) == factorisation.keeps_sums for cohort in kept)


@pytest.mark.parametrize("head", ["prototypes", "feature_covariance"])
def test_each_cohort_adds_its_own_noise_to_the_sums_so_far(head: str) -> None:
    """With almost no noise, both cohorts' head equals the head of all rows; noise changes it."""
    quiet, _ = chain(head, ADDED, noise=1e-6, cohorts=2)
    loud, _ = chain(head, ADDED, noise=1.0, cohorts=2)
    again, _ = chain(head, ADDED, noise=1.0, cohorts=2)
    for place in range(2):
        assert np.array_equal(loud[place].weights, again[place].weights)
        assert not np.allclose(loud[place].weights, quiet[place].weights, atol=1e-3)
    assert not np.allclose(quiet[0].weights, quiet[1].weights, atol=1e-3), "more rows, another head"


@pytest.mark.parametrize("factorisation", [ADDED, HALF_A_YEAR], ids=["added", "factorised"])
@pytest.mark.parametrize("head", HEADS)
def test_later_heads_are_better_than_the_first(head: str, factorisation: Factorisation) -> None:
    """Each cohort adds only its own noise, but the last head sees six times the rows."""
    heads, _ = chain(head, factorisation, noise=8.0, cohorts=6)
    test = classes_of(2000, seed=0)
    first, last = (accuracy(each, *test) for each in (heads[0], heads[-1]))
    assert last > first + 0.02
    assert last > 0.4


def test_a_small_cohort_moves_the_head_slightly_and_releases_what_its_plan_prices() -> None:
    options = options_of("feature_covariance")
    (last,), (cohort,) = chain("feature_covariance", ADDED, noise=1.0, cohorts=1)
    kept = [replace(cohort, n=10**9)]
    running = RunningSums(ADDED, kept, names=options.running_sums or (), n=400)
    # `train` checks at its end that all releases were counted
    moved, _ = train(options, classes_of(), noise=1.0, running=running)
    distance = np.linalg.norm(moved.weights - last.weights)
    assert 0 < distance < 0.1 * np.linalg.norm(last.weights)
    assert list(running.make_cohort(np.zeros((1, 1), np.float32)).outputs) == ["covariance"]


def test_other_heads_are_refused() -> None:
    running = RunningSums(ADDED, [], names=(), n=400)
    with pytest.raises(ConfigError, match="head newton: it is not made of sums"):
        train(options_of("newton"), classes_of(), noise=1.0, running=running)


def test_several_seeds_cannot_share_cohorts() -> None:
    options = options_of("prototypes")
    features, labels = classes_of()
    running = RunningSums(ADDED, [], names=("class_sums",), n=400)
    with pytest.raises(PrivacyError, match="one private fit at a time"):
        fit_heads(
            options,
            TrainingSet(features, labels, 4),
            plan_for(options, 400, 1.0),
            (1, 2),
            running=running,
        )
