"""Rows after normalisation, as a head reads them from memory or from a stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from dpprobe import devices
from dpprobe.errors import DataError
from dpprobe.heads import momentum, sgd
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import (
    CENTRE,
    CHANNEL_DEVIATIONS,
    CHANNEL_MEANS,
    Centred,
    Channels,
    GroupNorm,
    Normalisation,
    Normalize,
    Whitened,
)
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import CPU, Source, plan_for, whole
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching

pytestmark = pytest.mark.usefixtures("several_blocks")

LABELS = torch.tensor([0, 1, 2, 1])
FREE = ["none", "l2", "layer_norm", {"kind": "group_norm", "groups": 2}]
CHANNELS = {"kind": "channels", "channels": 2, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
EVERY = [*FREE, "centred", CHANNELS, "whitened"]


def spec(value: Any) -> Normalisation:
    actual: Normalisation = TypeAdapter(Normalize).validate_python(value)
    return actual


def features(rows: int = 4, dimension: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, dimension, generator=generator)


def releases(value: Normalisation, n: int, *, noise: float = 0.5) -> Releases:
    return Releases(made_plan(value.list_releases(n), n, noise), [1], CPU)


def rows_of(data: TrainingSet, value: Any, *, noise: float = 0.5) -> Rows:
    chosen = spec(value)
    return normalise_rows(data, chosen, releases(chosen, data.n, noise=noise))


def test_normalisations_are_what_they_are_called() -> None:
    rows = torch.cat([features() * 30, torch.zeros(1, 6)])
    lengths = Transform(spec("l2"))(rows).norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 1, 1, 0], abs=1e-6)
    layered = Transform(spec("layer_norm"))(rows)
    assert layered.mean(1).abs().max() < 1e-5
    assert layered[:4].var(1, unbiased=False).tolist() == pytest.approx([1] * 4, rel=1e-4)
    assert Transform(spec("none"))(rows) is rows


@pytest.mark.parametrize("value", EVERY)
def test_norms_equal_those_of_the_rows_with_a_one_appended(value: Any) -> None:
    data = TrainingSet(features(50, 8), torch.zeros(50, dtype=torch.int64), 3)
    rows = rows_of(data, value)
    wanted = (whole(rows).double().square().sum(1) + 1).sqrt()
    # The float32 row may differ from its norm in the last digit.
    torch.testing.assert_close(rows.norms, wanted, rtol=2.0**-24, atol=0)


@pytest.mark.parametrize("value", EVERY)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_row_that_is_not_finite_is_left_out(
    value: Any, bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    dirty, missing = features(), features()
    dirty[2, 3], missing[2] = bad, math.nan
    for source in (dirty.clone(), Source(dirty.clone().numpy(), 3)):
        caplog.clear()
        rows = rows_of(TrainingSet(source, LABELS, 3), value)
        assert rows.norms[2] == math.inf
        assert "training rows with NaN, infinity, huge or tiny values count as" in caplog.text
        actual = whole(rows)
        assert not actual[2].any()
        wanted = whole(rows_of(TrainingSet(missing.clone(), LABELS, 3), value))
        for index in (0, 1, 3):
            torch.testing.assert_close(actual[index], wanted[index], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("value", ["l2", "centred"])
@pytest.mark.parametrize("tiny", [1e-44, 1e-38, 1e-21])
def test_a_row_too_short_to_be_scaled_is_left_out(value: str, tiny: float) -> None:
    values = features(40, 6)
    values[7] = 0
    values[7, 2] = tiny
    labels = torch.arange(40) % 3
    for source in (values.clone(), Source(values.clone().numpy(), 3)):
        rows = rows_of(TrainingSet(source, labels, 3), value)
        actual = whole(rows)
        assert actual.isfinite().all()
        assert not actual[7].any()
        assert rows.lengths[7] == math.inf
        torch.testing.assert_close(rows.transform(values[7:8]), rows.transform(torch.zeros(1, 6)))
        if rows.affine is not None:
            assert all(part.isfinite().all() for part in rows.affine)


@pytest.mark.parametrize("value", EVERY)
def test_a_stream_gives_the_rows_of_memory(value: Any) -> None:
    values = features(40, 6)
    labels, units = torch.arange(40) % 3, Units.number_units([str(n * n % 17) for n in range(40)])
    memory = rows_of(TrainingSet(values.clone(), labels, 3, units=units), value)
    stream = rows_of(TrainingSet(Source(values.numpy(), 3), labels, 3, units=units), value)
    assert stream.streamed
    assert stream.direct is None
    torch.testing.assert_close(whole(stream), whole(memory))
    parts = [block.features.clone() for block in stream.read_blocks(500)]  # shorter blocks
    torch.testing.assert_close(torch.cat(parts), whole(memory))
    torch.testing.assert_close(stream.norms, memory.norms)
    index = torch.tensor([3, 17, 3])
    torch.testing.assert_close(memory.copy_rows(index), whole(memory)[index])
    with pytest.raises(DataError, match='write batch_size: "full"'):
        stream.copy_rows(index)


@pytest.mark.parametrize("value", EVERY)
def test_rows_that_are_kept_have_the_bits_of_rows_normalised_each_time(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = features(60)
    given[3] = math.nan
    index = torch.tensor([5, 3, 59])
    each_time, kept = (TrainingSet(given.clone(), LABELS.repeat(15), 3) for _ in range(2))
    monkeypatch.setattr(devices, "spare_bytes", lambda _: 4 * 60 * 6 - 1)
    wanted = rows_of(each_time, value)
    assert wanted.are_views == (value == "none")
    monkeypatch.setattr(devices, "spare_bytes", lambda _: 4 * 60 * 6)
    actual = rows_of(kept, value)
    assert actual.are_views
    assert torch.equal(whole(actual), whole(wanted))
    assert torch.equal(actual.copy_rows(index), wanted.copy_rows(index))
    assert torch.equal(actual.norms, wanted.norms)


def test_targets_hold_a_one_at_each_label() -> None:
    single = rows_of(TrainingSet(features(), LABELS, 3), "none")
    assert single.make_targets(1, 3).tolist() == [[0, 1, 0], [0, 0, 1]]
    many = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], dtype=torch.uint8)
    rows = rows_of(TrainingSet(features(), many, 3), "none")
    assert rows.multi_label
    assert rows.make_targets(0, 4).tolist() == many.tolist()


def test_centred_rows_are_unit_rows_around_their_mean() -> None:
    data = TrainingSet(features(200, 6) + 2, torch.zeros(200, dtype=torch.int64), 3)
    rows = rows_of(data, "centred", noise=0.0)
    assert data.features is not None
    unit = torch.nn.functional.normalize(data.features, dim=1)
    wanted = torch.nn.functional.normalize(unit - unit.mean(0), dim=1)
    torch.testing.assert_close(whole(rows), wanted, atol=1e-5, rtol=1e-5)


def test_a_centre_of_pure_noise_is_shrunk() -> None:
    """The centre becomes far shorter than its noise, which here has the length of unit rows."""
    data = TrainingSet(torch.zeros(10, 4000), torch.zeros(10, dtype=torch.int64), 2)
    value = Centred()
    centre = normalise_rows(data, value, releases(value, 10, noise=3.0)).transform.arrays[CENTRE]
    assert float(centre.norm()) < 0.1 * 3.0 * 4000**0.5 / 10


def test_scores_equal_those_of_normalised_rows() -> None:
    rows = features()
    weights = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    transforms = [Transform(Centred(), {CENTRE: torch.full((6,), value)}) for value in (0.1, 0.2)]
    heads = Heads(weights=weights, seeds=(1, 2), transforms=tuple(transforms), steps=1)
    actual = score_rows(heads, rows.numpy())
    for seed, transform in enumerate(transforms):
        wanted = transform(rows) @ weights[seed, :, :-1].T + weights[seed, :, -1]
        np.testing.assert_allclose(actual[seed], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(heads.released_arrays()[CENTRE][:, 0], [0.1, 0.2])
    for wrong in (rows[:, :5], rows[0], rows[..., None]):
        with pytest.raises(DataError, match="need dimension 6"):
            score_rows(heads, wrong)


@pytest.mark.parametrize("groups", [1, 3, 9, 27])
def test_group_norm_is_torch_s_on_channels_and_positions(groups: int) -> None:
    images = torch.randn(5, 27, 4, 2, generator=torch.Generator().manual_seed(1)) * 3 + 2
    wanted = torch.nn.GroupNorm(groups, 27, affine=False)(images).flatten(1)
    actual = Transform(GroupNorm(groups=groups))(images.flatten(1))
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


# --- channels -----------------------------------------------------------------------------------


C, P = 3, 4
SPEC = Channels(channels=C, max_mean_norm=0.7, max_deviation_norm=0.3, floor=1e-4)
BOUNDS = {CHANNEL_MEANS: SPEC.max_mean_norm, CHANNEL_DEVIATIONS: SPEC.max_deviation_norm}


def channels_of(n: int, *, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    loud = torch.tensor([1.0, 0.1, 0.01]).repeat_interleave(P)
    return scale * loud * (torch.randn(n, C * P, generator=generator) + 0.5)


def two_classes(rows: torch.Tensor) -> TrainingSet:
    return TrainingSet(rows.clone(), torch.arange(len(rows)) % 2, 2)


def released(rows: torch.Tensor, *, noise: float, value: Channels = SPEC) -> Rows:
    return rows_of(two_classes(rows), value, noise=noise)


def test_without_privacy_channels_are_standardised() -> None:
    rows = channels_of(400)
    actual = whole(released(rows, noise=0.0))
    channels = rows.double().unflatten(1, (C, P))
    means = channels.mean((0, 2))
    deviations = (channels - means[:, None]).square().mean(2).sqrt().mean(0)
    wanted = (channels - means[:, None]) / (deviations.square() + SPEC.floor).sqrt()[:, None]
    torch.testing.assert_close(actual.double(), wanted.flatten(1), rtol=1e-4, atol=1e-4)
    assert actual.unflatten(1, (C, P)).mean((0, 2)).abs().max() < 1e-3


def test_a_quiet_channel_is_not_blown_up() -> None:
    rows = channels_of(50)
    rows[:, 2 * P :] = 1e-7
    deviations = released(rows, noise=0.0).transform.arrays[CHANNEL_DEVIATIONS]
    assert float(deviations[2]) == pytest.approx(math.sqrt(SPEC.floor), rel=1e-3)
    for noise in (1.0, 1e4):
        actual = released(rows, noise=noise)
        assert actual.transform.arrays[CHANNEL_DEVIATIONS].min() >= 0.99 * SPEC.floor**0.5
        assert actual.norms.isfinite().all()


def test_a_negative_noisy_variance_is_replaced_by_the_floor() -> None:
    value = Channels(channels=2000, max_mean_norm=1.0, max_deviation_norm=1.0)
    arrays = released(torch.zeros(5, 2000), noise=1.0, value=value).transform.arrays
    at_floor = (arrays[CHANNEL_DEVIATIONS] - value.floor**0.5).abs() < 1e-6
    # Zero rows are as far away as the released means: each adds a vector of length 1.
    assert float(at_floor.float().mean()) == pytest.approx(0.5, abs=0.05)


def test_channels_must_divide_the_dimension() -> None:
    with pytest.raises(DataError, match="3 channels do not divide the dimension 10; choose"):
        released(torch.ones(4, 10), noise=1.0)


def test_means_and_deviations_are_scaled_down_to_bounds_of_their_own() -> None:
    rows = channels_of(50, scale=10.0)
    channels = rows.double().unflatten(1, (C, P))
    means = channels.mean(2).renorm(2, 0, SPEC.max_mean_norm).mean(0)
    distances = (channels - means[:, None]).square().mean(2).sqrt()
    squares = distances.renorm(2, 0, SPEC.max_deviation_norm).mean(0).square()
    arrays = released(rows, noise=1e-6).transform.arrays
    torch.testing.assert_close(arrays[CHANNEL_MEANS].double(), means, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        arrays[CHANNEL_DEVIATIONS].double(), (squares + SPEC.floor).sqrt(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_head_publishes_what_was_released_and_uses_it_on_other_rows(noise: float) -> None:
    rows = channels_of(60)
    options = sgd.Options(batch_size="full", steps=3, normalize=SPEC)
    priced = plan_for(options, 60, noise)
    fitted = fit_heads(options, two_classes(rows), priced, [1, 2])
    arrays = fitted.released_arrays()
    assert set(arrays) == set(BOUNDS)
    assert arrays[CHANNEL_MEANS].shape == (2, C)
    assert np.array_equal(arrays[CHANNEL_MEANS][0], arrays[CHANNEL_MEANS][1]) == (noise == 0)
    other = channels_of(7, seed=9)
    actual = score_rows(fitted, other.numpy())
    for index in range(2):
        means, deviations = (arrays[name][index].repeat(P) for name in BOUNDS)
        weights = fitted.weights[index].astype(np.float64)
        wanted = (other.double().numpy() - means) / deviations @ weights[:, :-1].T + weights[:, -1]
        np.testing.assert_allclose(actual[index], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [SPEC, Centred()], ids=["channels", "centred"])
def test_rows_are_normalised_at_full_precision_whatever_the_caller_has_set(
    value: Normalisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reduced-precision products would round row lengths and break the claimed sensitivities."""
    seen = []

    def watched(*args: Any) -> Rows:
        seen.append(torch.get_float32_matmul_precision())
        return normalise_rows(*args)

    monkeypatch.setattr("dpprobe.heads.fit.normalise_rows", watched)
    rows = torch.randn(40, C * P, generator=torch.Generator().manual_seed(0))
    method = sgd.Options(batch_size="full", steps=2, normalize=value)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        fit_heads(method, two_classes(rows), plan_for(method, 40, noise=1.0), [1])
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]


# --- whitening ----------------------------------------------------------------------------------


N, D, K = 400, 12, 3


def quiet_classes(n: int = N, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns rows whose classes differ in the directions of least variance."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (n,), generator=generator)
    spread = torch.logspace(0, -2, D)
    rows = torch.randn(n, D, generator=generator) * spread
    rows[:, -K:] += 3 * spread[-K:] * torch.nn.functional.one_hot(labels, K)
    return rows + 0.5, labels


def whitened(noise: float, data: TrainingSet, value: Whitened | None = None) -> Rows:
    value = value or Whitened()
    method = momentum.Options(normalize=value)
    releases = Releases(plan_for(method, data.n, noise), [1], CPU)
    return normalise_rows(data, value, releases)


def test_whitened_rows_keep_the_device_of_exact_sums() -> None:
    data = TrainingSet(*quiet_classes(), K)
    data.exact_device = "cuda"
    rows = whitened(1.0, data)
    assert rows.data.exact_device == "cuda"
    assert rows.device == CPU


@pytest.mark.usefixtures("larger_blocks")
def test_without_noise_and_with_a_half_rows_are_white() -> None:
    rows, labels = quiet_classes(20_000)
    out = whitened(0.0, TrainingSet(rows, labels, K), Whitened(exponent=0.5))
    z = whole(out).double()
    values = torch.linalg.eigvalsh(z.T @ z / len(z) * D)
    assert float(values[-1] / values[0]) < 2.5
    plain = torch.linalg.eigvalsh(torch.cov(rows.double().T))
    assert float(plain[-1] / plain[0]) > 1000


def test_pure_noise_leaves_rows_unchanged() -> None:
    rows, labels = quiet_classes()
    data = TrainingSet(rows, labels, K)
    out = whitened(1e4, data)
    matrix = out.scored_weights(torch.cat([torch.eye(D), torch.zeros(D, 1)], 1))[:, :-1]
    scale = matrix.diagonal().mean()
    torch.testing.assert_close(matrix, scale * torch.eye(D), atol=0.1 * float(scale), rtol=0)


def test_the_whitener_follows_from_the_released_moment() -> None:
    """Eigenvalues are corrected for the noise's repulsion: s^2 sum(1 / gap), smoothed over s."""
    rows, labels = quiet_classes()
    value, watching = Whitened(exponent=0.4), Watching(through=True)
    plan = plan_for(momentum.Options(normalize=value), N, 3.0)
    with_noise = Releases(plan, [1], CPU, observer=watching)
    out = normalise_rows(TrainingSet(rows, labels, K), value, with_noise)
    actual = out.scored_weights(torch.cat([torch.eye(D), torch.zeros(D, 1)], 1))[:, :-1]

    (moment,) = watching.outputs["second_moment"]
    deviation = plan.find_mechanism("second_moment").noise_multiplier
    found, vectors = np.linalg.eigh(moment.numpy())
    values = np.array(
        [
            v
            - deviation**2
            * sum((v - other) / ((v - other) ** 2 + 2 * deviation**2) for other in found)
            for v in found
        ]
    ).clip(0)
    factors = (values + deviation * math.sqrt(D)) ** -0.4
    factors *= math.sqrt(N / (values * factors**2).sum())
    expected = (vectors * factors) @ vectors.T
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-3, atol=1e-3 * factors.max())


@pytest.mark.usefixtures("larger_blocks")
def test_each_row_is_transformed_independently() -> None:
    rows, labels = quiet_classes(3000)
    first = whole(whitened(1.0, TrainingSet(rows, labels, K)))
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    # the sums are exact, so another order of rows releases the same numbers
    data = TrainingSet(rows[order].clone(), labels[order], K)
    assert torch.equal(first[order], whole(whitened(1.0, data)))


def test_heads_are_for_rows_as_they_are() -> None:
    """Scores of raw rows x are the scores of z times |A x|, with the same biases."""
    rows, labels = quiet_classes()
    out = whitened(1.0, TrainingSet(rows.clone(), labels, K))
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(K, D + 1, generator=generator)
    heads[:, -1] = 0
    on_z = whole(out) @ heads[:, :-1].T
    on_x = out.scoring(rows.clone()) @ out.scored_weights(heads)[:, :-1].T
    lengths = (on_x / on_z).median(dim=1, keepdim=True).values
    torch.testing.assert_close(on_x, on_z * lengths, rtol=1e-2, atol=1e-3)
    assert 0.5 < float(lengths.mean()) < 2
    assert torch.equal(on_x.argmax(1), on_z.argmax(1))


@pytest.mark.usefixtures("larger_blocks")
@pytest.mark.parametrize("engine", ["closed_form", "exact"])
def test_classes_along_quiet_directions_are_learned(engine: str) -> None:
    rows, labels = quiet_classes(4000)
    test, truth = quiet_classes(2000, seed=1)

    def accuracy(normalize: str) -> float:
        options = momentum.Options(normalize=normalize, engine=engine)
        priced = plan_for(options, 4000, noise=40.0)
        fitted = fit_heads(options, TrainingSet(rows.clone(), labels, K), priced, [1, 2, 3])
        right = score_rows(fitted, test).argmax(2) == truth.numpy()
        return float(right.mean())

    assert accuracy("whitened") > accuracy("centred") + 0.1


def test_the_head_of_a_seed_does_not_depend_on_other_seeds_and_is_the_recorded_head() -> None:
    data, method = TrainingSet(*quiet_classes(), K), momentum.Options(normalize="whitened", steps=3)
    seen: list[torch.Tensor] = []

    def record(_: int, weights: torch.Tensor, transform: Transform) -> None:
        assert transform.spec.kind == "whitened"
        seen.append(weights.clone())

    both = fit_heads(method, data, plan_for(method, N, 1.0), [1, 2], record=record).weights
    np.testing.assert_array_equal(seen[-1].numpy(), both[1:])
    (alone,) = fit_heads(method, data, plan_for(method, N, 1.0), [2]).weights
    np.testing.assert_array_equal(both[1], alone)
    assert not np.array_equal(both[0], both[1])
