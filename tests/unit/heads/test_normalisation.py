"""Group norm and released channel statistics: what they compute, bound and cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import DataError
from dpprobe.heads import sgd
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import (
    CHANNEL_DEVIATIONS,
    CHANNEL_MEANS,
    Centred,
    Channels,
    GroupNorm,
    Normalisation,
)
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.releases import Releases
from tests.support.mechanisms import made_plan

pytestmark = pytest.mark.usefixtures("several_blocks")

CPU = torch.device("cpu")
C, P = 3, 4
SPEC = Channels(channels=C, max_mean_norm=0.7, max_deviation_norm=0.3, floor=1e-4)
BOUNDS = {CHANNEL_MEANS: SPEC.max_mean_norm, CHANNEL_DEVIATIONS: SPEC.max_deviation_norm}


def plan(mechanisms: tuple[Mechanism, ...], n: int, *, noise: float) -> Plan:
    return made_plan(mechanisms, n, noise)


def data(rows: torch.Tensor) -> TrainingSet:
    return TrainingSet(rows.clone(), torch.arange(len(rows)) % 2, 2)


def features(n: int, *, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    loud = torch.tensor([1.0, 0.1, 0.01]).repeat_interleave(P)
    return scale * loud * (torch.randn(n, C * P, generator=generator) + 0.5)


def released(rows: torch.Tensor, *, noise: float, spec: Channels = SPEC) -> Rows:
    n = len(rows)
    return normalise_rows(
        data(rows), spec, Releases(plan(spec.list_releases(n), n, noise=noise), [1], CPU)
    )


# group norm


@pytest.mark.parametrize("groups", [1, 3, 9, 27])
def test_group_norm_is_torch_s_on_channels_and_positions(groups: int) -> None:
    images = torch.randn(5, 27, 4, 2, generator=torch.Generator().manual_seed(1)) * 3 + 2
    wanted = torch.nn.GroupNorm(groups, 27, affine=False)(images).flatten(1)
    actual = Transform(GroupNorm(groups=groups))(images.flatten(1))
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


# channels: what is computed


def test_without_privacy_channels_are_standardised() -> None:
    rows = features(400)
    actual = torch.cat([block.features for block in released(rows, noise=0.0).read_blocks()])
    channels = rows.double().unflatten(1, (C, P))
    means = channels.mean((0, 2))
    deviations = (channels - means[:, None]).square().mean(2).sqrt().mean(0)
    wanted = (channels - means[:, None]) / (deviations.square() + SPEC.floor).sqrt()[:, None]
    torch.testing.assert_close(actual.double(), wanted.flatten(1), rtol=1e-4, atol=1e-4)
    assert actual.unflatten(1, (C, P)).mean((0, 2)).abs().max() < 1e-3


def test_a_quiet_channel_is_not_blown_up() -> None:
    rows = features(50)
    rows[:, 2 * P :] = 1e-7
    deviations = released(rows, noise=0.0).transform.arrays[CHANNEL_DEVIATIONS]
    assert float(deviations[2]) == pytest.approx(math.sqrt(SPEC.floor), rel=1e-3)
    for noise in (1.0, 1e4):
        actual = released(rows, noise=noise)
        assert actual.transform.arrays[CHANNEL_DEVIATIONS].min() >= 0.99 * SPEC.floor**0.5
        assert actual.norms.isfinite().all()


def test_noise_below_zero_is_no_deviation() -> None:
    spec = Channels(channels=2000, max_mean_norm=1.0, max_deviation_norm=1.0)
    deviations = released(torch.zeros(5, 2000), noise=1.0, spec=spec).transform.arrays[
        CHANNEL_DEVIATIONS
    ]
    at_floor = (deviations - spec.floor**0.5).abs() < 1e-6
    # With zero rows the distances are the released means': each adds a vector of length 1.
    assert float(at_floor.float().mean()) == pytest.approx(0.5, abs=0.05)


def test_channels_must_divide_the_dimension() -> None:
    with pytest.raises(
        DataError, match="3 channels do not divide the dimension 10; write"
    ) as error:
        released(torch.ones(4, 10), noise=1.0)
    assert "\n" not in str(error.value)


def test_means_and_deviations_are_scaled_down_to_bounds_of_their_own() -> None:
    rows = features(50, scale=10.0)
    channels = rows.double().unflatten(1, (C, P))
    means = channels.mean(2).renorm(2, 0, SPEC.max_mean_norm).mean(0)
    distances = (channels - means[:, None]).square().mean(2).sqrt()
    squares = distances.renorm(2, 0, SPEC.max_deviation_norm).mean(0).square()
    arrays = released(rows, noise=1e-6).transform.arrays
    torch.testing.assert_close(arrays[CHANNEL_MEANS].double(), means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        arrays[CHANNEL_DEVIATIONS].double(), (squares + SPEC.floor).sqrt(), rtol=1e-4, atol=1e-5
    )


# channels: noise, price, what is published


def test_the_share_is_that_of_the_published_noise() -> None:
    """Tramer and Boneh 2021: noise 8 for two releases, 5.67 for 360 steps of 8,192 in 50,000."""
    share = 2 / 8**2 / (2 / 8**2 + 360 * (8192 / 50_000) ** 2 / 5.67**2)
    spec = Channels(channels=243, max_mean_norm=1.7321, max_deviation_norm=0.8661, share=share)
    options = sgd.Options(batch_size=8192, steps=360, max_grad_norm=0.1, normalize=spec)
    by_name = {item.name: item for item in options.list_mechanisms(50_000)}
    gradients = by_name["gradients"].noise_multiplier
    for name in (CHANNEL_MEANS, CHANNEL_DEVIATIONS):
        assert by_name[name].noise_multiplier / gradients == pytest.approx(8 / 5.67)
        assert by_name[name].sample_rate == 1
        assert by_name[name].count == 1


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_head_publishes_what_was_released_and_uses_it_on_other_rows(noise: float) -> None:
    rows = features(60)
    options = sgd.Options(batch_size="full", steps=3, normalize=SPEC)
    priced = plan(options.list_mechanisms(60), 60, noise=noise)
    fitted = fit_heads(options, data(rows), priced, [1, 2])
    arrays = fitted.released_arrays()
    assert set(arrays) == set(BOUNDS)
    assert arrays[CHANNEL_MEANS].shape == (2, C)
    assert np.array_equal(arrays[CHANNEL_MEANS][0], arrays[CHANNEL_MEANS][1]) == (noise == 0)
    other = features(7, seed=9)
    actual = score_rows(fitted, other.numpy())
    for index in range(2):
        means, deviations = (arrays[name][index].repeat(P) for name in BOUNDS)
        weights = fitted.weights[index].astype(np.float64)
        wanted = (other.double().numpy() - means) / deviations @ weights[:, :-1].T + weights[:, -1]
        np.testing.assert_allclose(actual[index], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", [SPEC, Centred()], ids=["channels", "centred"])
def test_rows_are_normalised_with_full_products_whatever_a_caller_has_set(
    spec: Normalisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row lengths that reduced products rounded would break the claimed sensitivities."""
    seen = []

    def watched(*args: Any) -> Rows:
        seen.append(torch.get_float32_matmul_precision())
        return normalise_rows(*args)

    monkeypatch.setattr("dpprobe.heads.fit.normalise_rows", watched)
    rows = torch.randn(40, C * P, generator=torch.Generator().manual_seed(0))
    method = sgd.Options(batch_size="full", steps=2, normalize=spec)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        fit_heads(method, data(rows), plan(method.list_mechanisms(40), 40, noise=1.0), [1])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]
