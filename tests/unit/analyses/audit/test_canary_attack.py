"""Likelihood ratios of all releases: their distribution, and other results of a replay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpprobe.analyses.audit.canary_attack import (
    Attack,
    Runs,
    Shape,
    _log_ratios,
    compare_heads,
    make_worlds,
)
from dpprobe.analyses.audit.transcripts import join_blocks
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.transform import Transform
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
    """Likelihood ratios have mean 1 under "out", and so do their inverses under "in"."""
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
    monkeypatch.setattr("dpprobe.analyses.audit.canary_attack.CHUNK_BYTES", 1)
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
    """Canaries that are in together share the change; with sampling, each canary counts alone."""
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


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("group", [1, 4])
def test_the_ratio_of_releases_equals_that_of_the_mixture_s_densities(
    rate: float, group: int
) -> None:
    """The reference is SciPy: N(j d, s), mixed over j of k canaries in a batch, against N(0, s)."""
    generator = np.random.default_rng(0)
    changes, outputs, deviation = generator.normal(size=7), generator.normal(size=7), 1.7
    wanted = 0.0
    for change, output in zip(changes, outputs, strict=True):
        if rate == 1:  # all canaries are in, and `change` is their joint change
            density = norm.pdf(output, change, deviation)
        else:
            density = sum(
                binom.pmf(j, group, rate) * norm.pdf(output, j * change, deviation)
                for j in range(group + 1)
            )
        wanted += math.log(density / norm.pdf(output, 0, deviation))
    products, squares = outputs * changes / deviation**2, changes**2 / deviation**2
    assert _log_ratios(products, squares, rate, group) == pytest.approx(wanted)


def heads_of(weights: np.ndarray, **changes: Any) -> Heads:
    same = (Transform(NoNormalisation()),) * len(weights)
    seeds = tuple(range(len(weights)))
    return Heads(weights=weights, seeds=seeds, transforms=same, steps=0, **changes)


def test_heads_differ_by_their_largest_change_relative_to_the_largest_weight() -> None:
    weights = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 30  # the largest is -30
    heads = heads_of(weights)
    assert compare_heads(heads, heads_of(weights.copy())) == 0
    assert compare_heads(heads, heads_of(weights[:1])) == 0, "the first seeds alone"
    moved = weights.copy()
    moved[1, 2, 3] += np.float32(0.75)
    assert compare_heads(heads, heads_of(moved)) == pytest.approx(0.75 / 30)
    assert compare_heads(heads, heads_of(moved[:1])) == 0
    moved[0, 0, 0] = math.nan
    assert compare_heads(heads, heads_of(moved)) == math.inf
    assert compare_heads(heads_of(moved), heads) == math.inf


def test_heads_differ_also_by_what_they_release_next_to_their_weights() -> None:
    weights = np.ones((2, 3, 4), dtype=np.float32)
    one, other = (heads_of(weights, priors=weights[:, 0] * scale) for scale in (1, 1.5))
    assert compare_heads(one, other) == pytest.approx(0.5)
    assert compare_heads(one, one) == 0


@pytest.mark.parametrize(("n", "rows", "classes"), [(90, 1, 3), (10, 3, 2), (70, 2, 1)])
def test_units_of_the_two_worlds_have_as_many_rows_as_they_may(
    n: int, rows: int, classes: int
) -> None:
    """Unit i has 1 to `rows` copies of a row in turn, of weight 1 / copies; canaries have most."""
    shape = Shape(n=n, dimension=5, num_classes=classes, multi_label=False, rows_per_unit=rows)
    worlds = make_worlds(shape, group=4, length=2.0, seed=1, label=classes - 1)
    others = min(64, n - 4)
    assert worlds.canaries == range(others, others + 4)
    assert (worlds.label, worlds.other_label) == (classes - 1, 0)
    for world, units in ((worlds.absent, others), (worlds.present, others + 4)):
        assert world.units is not None
        assert world.features is not None
        assert (world.n, world.num_classes) == (n, classes)
        sizes = np.diff(world.units.starts)
        expected = [1 + unit % rows for unit in range(others)] + [rows] * 4
        assert sizes.tolist() == expected[:units] + [0] * (n - units)
        assert world.units.weights == pytest.approx(
            np.repeat([1 / size for size in expected[:units]], expected[:units])
        )
        labels = world.labels.numpy()
        for unit in range(units):
            mine = slice(world.units.starts[unit], world.units.starts[unit + 1])
            assert (world.features[mine] == world.features[mine][:1]).all()
            assert len(set(labels[mine].tolist())) == 1
    assert (worlds.present.labels[-4 * rows :] == classes - 1).all()
    assert np.linalg.norm(worlds.canary) == pytest.approx(2.0, rel=1e-5)


def test_other_seeds_and_lengths_make_other_rows_and_equal_ones_the_same() -> None:
    made = [
        make_worlds(SHAPE, group=2, length=length, seed=seed).canary
        for seed, length in ((1, 2.0), (1, 2.0), (2, 2.0), (1, 4.0))
    ]
    assert made[0].equal(made[1])
    assert not made[0].equal(made[2])
    assert (2 * made[0]).allclose(made[3])
