"""The likelihood ratio of all releases: its distribution, and what a replay shows beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpprobe.analyses.audit.canary_attack import Attack, Runs, Shape, compare_heads, make_worlds
from dpprobe.analyses.audit.transcripts import join_blocks
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.randomness import derived_seed
from dpprobe.progress import Progress
from tests.support.audits import METHODS, plan_of

SHAPE = Shape(n=300, dimension=8, num_classes=3, multi_label=False)
GROUP = 3


def attack_on(name: str, *, noise: float = 4.0, group: int = GROUP) -> Attack:
    method = METHODS[name]
    plan = plan_of(method, SHAPE.n, noise=noise)
    worlds = [make_worlds(SHAPE, group=group, length=1.0, seed=3, label=k) for k in range(3)]
    return Attack(method=method, plan=plan, worlds=worlds, claim=plan)


def run(attack: Attack, runs: int) -> Runs:
    members = np.random.default_rng(1).random(runs) < 0.5
    seeds = [derived_seed(2, str(index)) for index in range(runs)]
    with Progress(runs, label="test", unit="runs") as progress:
        return attack.train_and_score(seeds, members, progress)


@pytest.mark.parametrize("name", ["least_squares", "momentum_centred", "exact_sgd"])
def test_without_sampling_the_ratio_is_normal_about_half_of_mu_squared(name: str) -> None:
    attack = attack_on(name)
    scores, members = (scored := run(attack, 400)).releases, scored.members
    mu = attack.compute_strength([derived_seed(2, "0")])
    assert mu == pytest.approx(GROUP * gaussian_mu(attack.plan.mechanisms), rel=0.02)
    for group, middle in ((scores[members], mu**2 / 2), (scores[~members], -(mu**2) / 2)):
        assert abs(group.mean() - middle) < 4.5 * mu / math.sqrt(len(group))
        assert abs(group.std() / mu - 1) < 4.5 / math.sqrt(2 * len(group))


def test_the_ratio_of_a_sample_weighs_every_number_of_canaries() -> None:
    """A ratio's mean under "out", exponentiated, is 1: the martingale of a likelihood ratio."""
    attack = attack_on("sampled_exact_sgd", noise=3.0)
    scored = run(attack, 400)
    ratios = np.exp(scored.releases[~scored.members])
    assert abs(ratios.mean() - 1) < 4.5 * ratios.std() / math.sqrt(len(ratios))
    inverse = np.exp(-scored.releases[scored.members])
    assert abs(inverse.mean() - 1) < 4.5 * inverse.std() / math.sqrt(len(inverse))
    assert scored.releases[scored.members].mean() > scored.releases[~scored.members].mean()


def test_runs_are_the_same_for_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = attack_on("exact_sgd")
    whole = run(attack, 9)
    monkeypatch.setattr("dpprobe.analyses.audit.canary_attack._CHUNK_BYTES", 1)
    np.testing.assert_array_equal(run(attack, 9).releases, whole.releases)


def test_a_replay_keeps_the_order_of_seeds_whichever_seed_released_first() -> None:
    attack = attack_on("sgd")
    worlds, seeds = attack.worlds[0], [5, 6, 7]
    heads, recorder = attack._train_heads(worlds, seeds, present=False)
    finished = {seed: recorder.transcripts[seed] for seed in reversed(seeds)}
    again, _ = attack._replay_heads(worlds, seeds, finished, present=False)
    assert again.seeds == heads.seeds
    assert compare_heads(heads, again) == 0


@pytest.mark.parametrize(("name", "joined"), [("least_squares", GROUP), ("sampled_exact_sgd", 1)])
def test_what_one_canary_uses_of_a_sensitivity_is_its_longest_change(
    name: str, joined: int
) -> None:
    """Of several canaries that are in together each makes its part; of a sample each is alone."""
    attack = attack_on(name)
    seed = derived_seed(2, "0")
    _, recorder = attack._train_heads(attack.worlds[0], [seed], present=False)
    transcript = join_blocks(recorder.transcripts[seed])
    without = {block.name: block.sums for block in transcript}
    used: dict[str, float] = {}
    for length, wanted in ((0.5, 0.5 / joined), (0.25, 0.5 / joined), (math.nan, math.inf)):
        moved = {key: sums.clone() for key, sums in without.items()}
        for key, sums in moved.items():
            sums.view(-1)[-1] += length * attack.claim.find_mechanism(key).sensitivity
        attack._log_ratio(transcript, without, moved, GROUP, used)
        assert [*used.values()] == pytest.approx([wanted] * len(without)), "the most so far"
