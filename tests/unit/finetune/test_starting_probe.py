"""The probe: priced in the whole plan, released once, with noise of its own, and then the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpprobe.errors import PrivacyError
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.options import Options
from dpprobe.finetune.starting_probe import fit_probe, probe_plan, start_from
from dpprobe.finetune.train import train_network
from dpprobe.finetune.tuned_network import Network, TunedNetwork
from dpprobe.heads.fitted import Heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy import gradient_noise as noise_module
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.target import Target
from tests.support.tiny_networks import CPU, SEED, network_options, plan_of

DIMENSION, CLASSES, ROWS = 7, 3, 60


def features() -> torch.Tensor:
    return torch.randn(ROWS, DIMENSION, generator=torch.Generator().manual_seed(1))


def labels() -> torch.Tensor:
    return features()[:, :CLASSES].argmax(1)


def data(units: Units | None = None) -> TrainingSet:
    return TrainingSet(features(), labels(), CLASSES, units=units)


def head_network(transform: Transform) -> TunedNetwork:
    module = Network(nn.Identity(), nn.Linear(DIMENSION, CLASSES), transform, graph=None).eval()
    return TunedNetwork(
        module=module, trained=dict(module.named_parameters()), shape=(DIMENSION,),
        from_images=False,
    )  # fmt: skip


def started(weights: np.ndarray, transform: Transform) -> TunedNetwork:
    """A network that starts from a probe."""
    network = head_network(transform)
    start_from(network, weights, transform)
    return network


def inputs_of_rows() -> Inputs:
    return Inputs(features(), labels(), CLASSES, shape=(DIMENSION,), units=None)


def probed(method: dict[str, Any] | None = None, **values: Any) -> Options:
    base = {"steps": 5} if "head" in (method or {}) else {"steps": 5, "normalize": "l2"}
    method = {"head": "momentum", **base, **(method or {})}
    return network_options(tune="head", steps=4, probe={"share": 0.3, "method": method}, **values)


def releases_of(options: Options, noise: float, n: int = ROWS) -> Releases:
    return Releases(plan_of(options, n, noise), [SEED], CPU)


METHODS: list[dict[str, Any]] = [
    {"head": "momentum", "steps": 5},
    {"head": "sgd", "batch_size": 12, "steps": 5, "normalize": {"kind": "l2"}},
    {"head": "feature_covariance", "normalize": {"kind": "l2"}},
    {"head": "feature_covariance"},  # its statistics are priced
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_network_starts_from_the_probe_s_scores(method: dict[str, Any], noise: float) -> None:
    options = probed(method)
    weights, transform = fit_probe(options, data(), releases_of(options, noise), SEED)
    assert weights.shape == (CLASSES, DIMENSION + 1)
    assert weights.dtype == np.float32
    network = started(weights, transform)
    heads = Heads(weights=weights[None], seeds=(0,), transforms=(transform,), steps=0)
    with torch.no_grad():
        assert torch.equal(
            network.module(features()), torch.from_numpy(score_rows(heads, features())[0])
        )


@pytest.mark.parametrize("method", METHODS)
def test_both_parts_are_counted_in_the_plan_of_the_whole(method: dict[str, Any]) -> None:
    options = probed(method)
    releases = releases_of(options, 1.0)
    weights, transform = fit_probe(options, data(), releases, SEED)
    with pytest.raises(
        PrivacyError, match="gradients: 0 noisy releases were made, but epsilon covers 4;"
    ):
        releases.check_counts()
    train_network(options, started(weights, transform), inputs_of_rows(), releases)
    releases.check_counts()


def test_a_probe_is_released_once_under_its_own_plan() -> None:
    options = probed()
    releases = releases_of(options, 1.0)
    network = head_network(Transform(options.normalize))
    train_network(options, network, inputs_of_rows(), releases)
    with pytest.raises(PrivacyError, match="probe gradients: 0 noisy releases"):
        releases.check_counts()
    twice = releases_of(options, 1.0)
    fit_probe(options, data(), twice, SEED)
    for asked, planned, said in (
        (options, twice, "probe gradients: 10 noisy releases were made, but epsilon covers 5"),
        (options, releases_of(network_options(tune="head"), 1.0), "the plan covers no probe"),
        (options, releases_of(options, 1.0, n=59), "the plan is for n = 59"),
        (probed({"steps": 6}), releases_of(options, 1.0), "calibrate for this method"),
    ):
        with pytest.raises(PrivacyError, match=said):
            fit_probe(asked, data(), planned, SEED)


def test_the_probe_has_its_share_of_a_calibrated_budget(tmp_path: Path) -> None:
    """Full batches: mu^2 adds up, and the probe's part of it is its share."""
    options = probed()
    plan = calibrate(
        options.list_mechanisms(ROWS), Target(n=ROWS, epsilon=1.0, delta=1e-3), cache=tmp_path
    )
    parts = {item.name: item.count / item.noise_multiplier**2 for item in plan.mechanisms}
    assert set(parts) == {"probe gradients", "gradients"}
    assert parts["probe gradients"] / sum(parts.values()) == pytest.approx(0.3, rel=1e-6)
    part = probe_plan(replace(plan, selection=Selection(mean=3.0, repeated=("gradients",))))
    assert part == replace(plan, mechanisms=part.mechanisms), "the search is not the probe's"
    assert [item.name for item in part.mechanisms] == ["gradients"]
    multiplier = plan.find_mechanism("probe gradients").noise_multiplier
    assert part.mechanisms[0].noise_multiplier == multiplier
    releases = Releases(plan, [SEED], CPU)
    fit_probe(options, data(), releases, SEED)


def test_probe_and_network_never_share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases with one noise would give their difference away."""
    drawn: list[np.ndarray] = []
    draw = noise_module.GaussianNoise.draw_steps

    def watched(self: Any, steps: int, deviation: float) -> torch.Tensor:
        block = draw(self, steps, deviation)
        drawn.extend((block[0] / deviation).numpy().copy())
        return block

    monkeypatch.setattr(noise_module.GaussianNoise, "draw_steps", watched)
    options = probed()
    releases = releases_of(options, 1.0)
    weights, transform = fit_probe(options, data(), releases, SEED)
    train_network(options, started(weights, transform), inputs_of_rows(), releases)
    assert len(drawn) == 5 + 4
    numbers = np.concatenate([np.round(one[:24], 5) for one in drawn])
    assert len(set(numbers.tolist())) > 0.98 * len(numbers)


def test_without_privacy_the_start_is_the_head_s_own_fit() -> None:
    options = probed({"steps": 200})
    weights, _ = fit_probe(options, data(), releases_of(options, 0.0), SEED)
    scores = features() @ torch.from_numpy(weights[:, :-1]).T + torch.from_numpy(weights[:, -1])
    assert float((scores.argmax(1) == labels()).float().mean()) > 0.9
    assert np.isfinite(weights).all()
    units = Units.number_units([f"p{row // 3}" for row in range(ROWS)])
    weights, _ = fit_probe(probed(), data(units), releases_of(probed(), 1.0, n=20), SEED)
    assert np.isfinite(weights).all()


def test_a_normalisation_with_a_price_is_the_probe_s() -> None:
    options = probed({"head": "feature_covariance"})
    assert options.normalize.priced
    names = [item.name for item in options.list_mechanisms(ROWS)]
    assert names == ["probe centre", "probe covariance", "probe gradients", "gradients"]
    cost = {
        item.name: item.count * (item.sample_rate / item.noise_multiplier) ** 2
        for item in options.list_mechanisms(ROWS)
    }
    assert cost["gradients"] == pytest.approx(0.7 * sum(cost.values()))
    assert method_options(options.model_dump(mode="json")) == options


def test_gradients_pass_through_released_statistics() -> None:
    options = probed({"head": "feature_covariance"})
    _, transform = fit_probe(options, data(), releases_of(options, 1.0), SEED)
    rows = features().double()[:2].requires_grad_()
    double = Transform(transform.spec, {k: v.double() for k, v in transform.arrays.items()})

    def normalised(rows: torch.Tensor) -> torch.Tensor:
        return double(rows)

    (gradient,) = torch.autograd.grad(normalised(rows).sum(), rows)
    step = 1e-3
    for place in range(3):
        moved = rows.detach().clone()
        moved[0, place] += step
        slope = (normalised(moved) - normalised(rows)).sum().item() / step
        assert gradient[0, place].item() == pytest.approx(slope, abs=5e-3)
