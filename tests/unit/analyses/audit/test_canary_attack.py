"""The likelihood ratio of all releases: its distribution, and that every broken mechanism shows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit.bounds import accuracy_lower_bound
from dpprobe.analyses.audit.canaries import Shape, make_worlds
from dpprobe.analyses.audit.canary_attack import Attack, Runs
from dpprobe.analyses.audit.controls import Control, make_controls, share_noise
from dpprobe.analyses.audit.power import PlanFamily
from dpprobe.privacy.accountants import gaussian_mu
from dpprobe.privacy.randomness import derived_seed
from dpprobe.progress import Progress
from tests.support.audits import METHODS, plan_of, priced

SHAPE = Shape(n=300, dimension=8, num_classes=3, multi_label=False)
GROUP = 3
CONTROLS = (
    "noise_off", "half_noise", "no_clipping", "half_sample_rate", "shared_noise",
    "unpriced_centre", "float_noise",
)  # fmt: skip


@pytest.fixture(scope="module")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrations")


def attack_on(name: str, *, noise: float = 4.0, group: int = GROUP) -> Attack:
    method = METHODS[name]
    return Attack(
        method=method,
        plan=plan_of(method, SHAPE.n, noise=noise),
        worlds=make_worlds(SHAPE, group=group, length=1.0, seed=3),
    )


def run(attack: Attack, runs: int) -> Runs:
    members = np.random.default_rng(1).random(runs) < 0.5
    with Progress(runs, label="test", unit="runs") as progress:
        return attack.train_and_score(
            [derived_seed(2, str(index)) for index in range(runs)], members, progress
        )


def right(runs: Runs) -> float:
    return float(((runs.releases > 0) == runs.members).mean())


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


@pytest.mark.parametrize("fault", CONTROLS)
@pytest.mark.parametrize(
    "name",
    ["least_squares", "feature_covariance", "momentum_centred", "sgd", "exact_sgd", "sampled_sgd",
     "sampled_exact_sgd"],
)  # fmt: skip
def test_every_broken_mechanism_is_told_apart_more_often_than_its_plan_allows(
    name: str, fault: str, calibrations: Path
) -> None:
    attack = attack_on(name, noise=7.0)
    if name.startswith("sampled"):
        plan = priced(attack.method, SHAPE.n, 4.0, calibrations)
        attack = replace(attack, plan=plan)
    control = next(item for item in controls_of(attack, calibrations) if item.name == fault)
    if control.attack is None:
        assert fault == "half_sample_rate"
        assert not name.startswith("sampled")
        return
    runs = 150
    correct = round(right(run(control.attack, runs)) * runs)
    allowed = (1 + PlanFamily(attack.plan, group=GROUP).total_variation()) / 2
    assert accuracy_lower_bound(correct, runs, 0.95) > allowed


def controls_of(attack: Attack, folder: Path) -> list[Control]:
    return list(make_controls(attack, SHAPE, group=GROUP, seed=3, cache=folder))


def test_a_right_mechanism_is_not_told_apart_by_what_tells_the_broken_ones(tmp_path: Path) -> None:
    """The float32 test and the differences between classes say nothing of exact releases."""
    attack = attack_on("least_squares", noise=100.0)
    for control in controls_of(attack, tmp_path):
        if control.name in ("float_noise", "shared_noise"):
            assert control.attack is not None
            whole = replace(control.attack, broken=None)
            share = right(run(whole, 200))
            assert abs(share - 0.5) < 4.5 * 0.5 / math.sqrt(200)


def test_shared_noise_is_the_first_class_s_and_leaves_matrices_alone() -> None:
    sums = torch.arange(12.0).reshape(3, 4)
    noisy = sums + torch.arange(12.0).reshape(3, 4) + 1
    torch.testing.assert_close(share_noise(sums, noisy) - sums, torch.tensor([[1.0, 2, 3, 4]] * 3))
    square = torch.zeros(3, 3)
    assert share_noise(square, square + 1).eq(1).all()
