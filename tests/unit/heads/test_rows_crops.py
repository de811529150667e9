"""Heads whose steps take turns between stored crops of every example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads import adam, feature_covariance, least_squares, newton, prototypes
from dpprobe.heads.balance import weigh_classes
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import KINDS
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import crop_at
from dpprobe.heads.sgd import Options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from tests.support.gradient_sums import square
from tests.support.linear_heads import (
    Source,
    features_of,
    oracle_sum,
    plan_for,
    relative,
    rows_of,
    training_set,
    whole,
)
from tests.support.observers import Watching
from tests.support.plain_heads import Adam, Lamb, Momentum

SEEDS = [cell_seed("crops", index) for index in range(2)]
PATIENTS = Units.number_units([f"{row % 17}" for row in range(120)])


def with_crops(
    *crops: torch.Tensor, units: Units | None = None, streamed: bool = False
) -> TrainingSet:
    """Returns the rows of `training_set` with the given crops."""
    data = training_set()

    def make(features: torch.Tensor, **more: Any) -> TrainingSet:
        rows = Source(features.numpy().copy()) if streamed else features.clone()
        return TrainingSet(rows, data.labels, data.num_classes, units=units, **more)

    return make(features_of(data), crops=lambda: [make(crop) for crop in crops])


def versions(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    rows = features_of(training_set())
    return [rows + torch.randn(rows.shape, generator=generator) for _ in range(count)]


def fit(method: MethodOptions, data: TrainingSet) -> np.ndarray:
    return fit_heads(method, data, plan_for(method, data.n), SEEDS).weights


def test_crops_take_turns_one_a_pass() -> None:
    full = [crop_at(step, 1.0, 3) for step in range(5)]
    assert full == [(0, 1), (1, 1), (2, 1), (0, 1), (1, 1)]
    assert [crop_at(step, 2**20 / 1_281_167, 3)[0] for step in range(4)] == [0, 1, 2, 0]
    batches = [crop_at(step, 32 / 1437, 2) for step in range(136)]  # 44.9 steps per pass
    assert [crop for crop, _ in batches] == [0] * 45 + [1] * 45 + [0] * 45 + [1]
    assert [left for _, left in batches[43:47]] == [2, 1, 45, 44]
    assert {crop for crop, _ in (crop_at(step, 0.1, 1) for step in range(40))} == {0}


ENGINES = [
    *((head, "closed_form") for head in (Options, Momentum, Adam, Lamb)),
    (Options, "exact"),
    (Adam, "exact"),
]


@pytest.mark.parametrize("batch_size", [16, "full"])
@pytest.mark.parametrize(("head", "engine"), ENGINES)
def test_crops_that_are_the_rows_train_the_same_head(
    head: Any, engine: str, batch_size: int | str
) -> None:
    """All bits are equal, because neither batches nor noise depend on crops."""
    method = head(engine=engine, batch_size=batch_size, steps=30, average="ema", normalize="l2")
    rows = features_of(training_set())
    alone = fit(method, training_set())
    assert np.array_equal(fit(method, with_crops(rows, rows, rows)), alone)
    assert not np.array_equal(fit(method, with_crops(*versions())), alone)


@pytest.mark.parametrize("units", [None, PATIENTS])
@pytest.mark.parametrize("engine", ["closed_form", "exact"])
@pytest.mark.parametrize(("batch_size", "streamed"), [(5, False), ("full", False), ("full", True)])
def test_a_step_sums_one_clipped_gradient_of_each_drawn_example_from_its_crop(
    engine: str, batch_size: Any, streamed: bool, units: Units | None
) -> None:
    """In each crop, every one of a patient's m rows has the weight 1 / m."""
    count = 2 if streamed else 3
    data = with_crops(*versions(count), units=units, streamed=streamed)
    watching = Watching()
    method = Options(engine=engine, batch_size=batch_size, steps=80, init="zero", max_grad_norm=0.9)
    fit_heads(method, data, plan_for(method, data.n), SEEDS[:1], observer=watching)
    (releases,) = watching.sums.values()
    assert len(releases) == 80
    zero, rate = np.zeros((4, 8)), 1.0 if batch_size == "full" else 5 / data.n
    parts = []  # the gradient of each row in each crop
    for features in versions(count):
        rows = rows_of(TrainingSet(features, data.labels, 4))
        parts.append([oracle_sum(rows, zero, np.array([row]), 0.9) for row in range(120)])
    assert all(np.linalg.norm(part) <= 0.9 + 1e-9 for crop in parts for part in crop)
    used = set()
    for step, actual in enumerate(releases):
        crop, _ = crop_at(step, rate, count)
        batch = watching.batches[step] if watching.batches else np.arange(data.n)
        weights = np.ones(120, np.float32) if units is None else units.weights
        if units is not None:
            batch, _ = units.rows_of(batch, np.array([len(batch)]))
        wanted = sum((weights[row] * parts[crop][row] for row in batch), np.zeros((4, 8)))
        assert (
            np.linalg.norm(actual.double().numpy() - wanted) < 1e-3
        )  # rounding to the grid; crops differ by more than 0.1
        used.add(crop)
    assert used == set(range(count))


@pytest.mark.parametrize("class_weights", [None, (1.0, 0.5, 0.25, 1.0)])
@pytest.mark.parametrize("kind", ["none", "l2", "layer_norm"])
def test_a_null_patient_changes_the_sum_of_any_crop_by_at_most_the_sensitivity(
    kind: str, class_weights: tuple[float, ...] | None
) -> None:
    """All crops of a patient's images belong to one unit of privacy."""
    long = [crop * torch.logspace(-3, 3, 120)[:, None] for crop in versions()]
    method = Options(class_weights=class_weights)

    def totals(left_out: Sequence[int] | np.ndarray) -> list[GridSum]:
        changed = [crop.clone() for crop in long]
        for crop in changed:
            crop[left_out] = math.nan
        rows = rows_of(with_crops(*changed, units=PATIENTS), kind)
        if class_weights:
            rows = weigh_classes(method, rows)
        weights = torch.linspace(-1, 1, 32, dtype=torch.float64).view(1, 4, 8)
        return [
            ExactSums(crop, 0.9, sigmoid=False, pool=None).sum_all(weights) for crop in rows.crops
        ]

    everything, largest = totals([]), Fraction(0)
    for unit in range(PATIENTS.count):
        rows = PATIENTS.members[PATIENTS.starts[unit] : PATIENTS.starts[unit + 1]]
        for before, after in zip(everything, totals(rows), strict=True):
            moved = square(GridSum(before.units - after.units, before.step))
            assert moved <= Fraction(0.9) ** 2
            largest = max(largest, moved)
    assert largest > Fraction(0.2) ** 2


@pytest.mark.parametrize("normalize", ["l2", "centred", "whitened"])
def test_a_crop_without_values_is_a_row_of_zeros(normalize: str) -> None:
    crops = versions()
    crops[1][5] = math.nan
    method = adam.Options(normalize=normalize, steps=6)
    assert np.isfinite(fit(method, with_crops(*crops))).all()
    releases = Releases(plan_for(method, 120), SEEDS[:1], torch.device("cpu"))
    crop = normalise_rows(with_crops(*crops), method.normalize, releases).crops[1]
    assert crop.lengths.isinf().nonzero().flatten().tolist() == [5]
    assert not whole(crop)[5].any()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_crop_is_normalised_as_the_rows_are(kind: str, streamed: bool) -> None:
    """Crops use the statistics of the central parts; here they are the rows in another order."""
    options: dict[str, dict[str, Any]] = {
        "group_norm": {"groups": 1},
        "channels": {"channels": 7, "max_mean_norm": 3.0, "max_deviation_norm": 3.0},
    }
    values = options.get(kind, {})
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    data = with_crops(features_of(training_set())[order], streamed=streamed)
    method = adam.Options(normalize={"kind": kind, **values}, learning_rate=0.1)
    rows = normalise_rows(
        data, method.normalize, Releases(plan_for(method, data.n), SEEDS[:1], data.device)
    )
    (crop,) = rows.crops
    assert relative(whole(crop), whole(rows)[order]) < 1e-6
    assert relative(crop.lengths, rows.lengths[order]) < 1e-6
    assert crop.streamed == streamed


@pytest.mark.parametrize(
    "method",
    [
        least_squares.Options(),
        prototypes.Options(),
        newton.Options(steps=2),
        feature_covariance.Options(steps=2),
    ],
)
def test_heads_of_full_sums_read_only_central_parts(method: MethodOptions) -> None:
    def refuse() -> list[TrainingSet]:
        raise AssertionError("crops were read")

    rows = training_set()
    unread = TrainingSet(features_of(rows).clone(), rows.labels, 4, crops=refuse)
    assert np.array_equal(fit(method, unread), fit(method, training_set()))
    with pytest.raises(AssertionError, match="crops were read"):
        fit(Options(steps=1), unread)


def test_crops_follow_labels_and_units_that_are_put_in_place_of_others() -> None:
    """An audit's shadow heads each leave out one unit; bad rows are cleared only once."""
    crops = versions()
    crops[1][5] = math.nan
    data = with_crops(*crops)
    assert all(each.weights is None for each in (data, *data.crops)), "kept from now on"
    labels = (data.labels + 1) % 4
    weights = np.ones(120, np.float32)
    weights[7] = 0
    single = Units.number_units([str(row // 2) for row in range(120)])
    other = data.replace_labels(labels, Units(single.members, single.starts, weights))
    assert (other.n, rows_of(other).n, data.n) == (60, 60, 120)
    for rows in (rows_of(other), rows_of(data)):
        assert len(rows.crops) == 3
        assert rows.crops[1].lengths.isinf().nonzero().flatten().tolist() == [5]
    for mine, theirs in zip(rows_of(other).crops, rows_of(data).crops, strict=True):
        assert torch.equal(mine.labels, labels)
        assert torch.equal(theirs.labels, data.labels)
        assert mine.data.features is theirs.data.features
        assert mine.weights is not None
        assert float(mine.weights[7]) == 0
