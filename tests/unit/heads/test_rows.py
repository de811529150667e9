"""Rows after a normalisation: what a head sees, in memory and as a stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from dpprobe import devices
from dpprobe.errors import DataError, PrivacyError
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import CENTRE, Centred, GroupNorm, Normalisation, Normalize
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import Source
from tests.support.mechanisms import made_plan

pytestmark = pytest.mark.usefixtures("several_blocks")

LABELS = torch.tensor([0, 1, 2, 1])
FREE = ["none", "l2", "layer_norm", {"kind": "group_norm", "groups": 2}]
CHANNELS = {"kind": "channels", "channels": 2, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
EVERY = [*FREE, "centred", CHANNELS, "whitened"]
CPU = torch.device("cpu")


def spec(value: Any) -> Normalisation:
    actual: Normalisation = TypeAdapter(Normalize).validate_python(value)
    return actual


def features(rows: int = 4, dimension: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, dimension, generator=generator)


def releases(value: Normalisation, n: int, *, noise: float = 0.5, seed: int = 1) -> Releases:
    return Releases(made_plan(value.list_releases(n), n, noise), [seed], CPU)


def rows_of(data: TrainingSet, value: Any, *, noise: float = 0.5) -> Rows:
    chosen = spec(value)
    return normalise_rows(data, chosen, releases(chosen, data.n, noise=noise))


def whole(rows: Rows) -> torch.Tensor:
    return torch.cat([block.features for block in rows.read_blocks()])


@pytest.mark.parametrize("value", FREE)
def test_a_row_is_normalised_by_itself(value: Any) -> None:
    transform = Transform(spec(value))
    rows = features()
    before = transform(rows.clone())[0].clone()
    rows[1:] *= 100
    assert torch.equal(transform(rows)[0], before)


def test_normalisations_are_what_they_are_called() -> None:
    rows = torch.cat([features() * 30, torch.zeros(1, 6)])
    lengths = Transform(spec("l2"))(rows).norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 1, 1, 0], abs=1e-6)
    layered = Transform(spec("layer_norm"))(rows)
    assert layered.mean(1).abs().max() < 1e-5
    assert layered[:4].var(1, unbiased=False).tolist() == pytest.approx([1] * 4, rel=1e-4)
    parts = Transform(GroupNorm(groups=2))(rows)
    assert torch.equal(parts[:, :3], Transform(spec("layer_norm"))(rows[:, :3].contiguous()))
    assert Transform(spec("none"))(rows) is rows


@pytest.mark.parametrize("value", EVERY)
def test_norms_are_those_of_the_rows_with_a_one_appended(value: Any) -> None:
    data = TrainingSet(features(50, 8), torch.zeros(50, dtype=torch.int64), 3)
    rows = rows_of(data, value)
    wanted = (whole(rows).double().square().sum(1) + 1).sqrt()
    # The float32 of a row may differ from its norm in the last place.
    torch.testing.assert_close(rows.norms, wanted, rtol=2.0**-24, atol=0)


@pytest.mark.parametrize("value", EVERY)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_row_that_is_not_finite_is_left_out(value: Any, bad: float) -> None:
    dirty = features()
    dirty[2, 3] = bad
    missing = features()
    missing[2] = math.nan
    for source in (dirty.clone(), Source(dirty.clone().numpy(), 3)):
        rows = rows_of(TrainingSet(source, LABELS, 3), value)
        assert rows.norms[2] == math.inf
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


def test_a_centre_of_noise_alone_is_shrunk_away() -> None:
    """To far below the noise, whose length would be that of unit rows here."""
    data = TrainingSet(torch.zeros(10, 4000), torch.zeros(10, dtype=torch.int64), 2)
    value = Centred()
    centre = normalise_rows(data, value, releases(value, 10, noise=3.0)).transform.arrays[CENTRE]
    assert float(centre.norm()) < 0.1 * 3.0 * 4000**0.5 / 10


def test_scores_are_those_of_normalised_rows() -> None:
    rows = features()
    weights = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(np.float32)
    transforms = [Transform(Centred(), {CENTRE: torch.full((6,), value)}) for value in (0.1, 0.2)]
    heads = Heads(weights=weights, seeds=(1, 2), transforms=tuple(transforms), steps=1)
    actual = score_rows(heads, rows.numpy())
    for seed, transform in enumerate(transforms):
        wanted = transform(rows) @ weights[seed, :, :-1].T + weights[seed, :, -1]
        np.testing.assert_allclose(actual[seed], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(heads.released_arrays()[CENTRE][:, 0], [0.1, 0.2])
    with pytest.raises(DataError, match="need dimension 6"):
        score_rows(heads, rows[:, :5])


def test_a_release_too_many_is_refused() -> None:
    value = Centred()
    taken = releases(value, 4)
    data = TrainingSet(features(), LABELS, 3)
    normalise_rows(data, value, taken)
    with pytest.raises(PrivacyError, match="2 noisy releases were made, but epsilon covers 1"):
        normalise_rows(data, value, taken)
