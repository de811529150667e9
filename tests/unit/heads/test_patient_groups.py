"""Units of several rows: weights, batches of units, and the sums that every head shares."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpprobe.errors import DataError
from dpprobe.heads import tuned
from dpprobe.heads.normalisation import Centred, Channels, Normalisation
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases
from tests.support.mechanisms import made_plan

pytestmark = pytest.mark.usefixtures("several_blocks")

CPU = torch.device("cpu")
DIMENSION = 12
CHANNELS = Channels(channels=3, max_mean_norm=0.7, max_deviation_norm=0.3, floor=1e-4)
NORMALISATIONS = {"centred": Centred(), "channels": CHANNELS}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200))
def test_a_unit_s_weights_sum_to_at_most_one(codes: list[int]) -> None:
    units = Units.number_units([str(code) for code in codes])
    assert units.count == len(set(codes))
    assert sorted(units.members.tolist()) == list(range(len(codes)))
    for code in range(units.count):
        rows = units.members[units.starts[code] : units.starts[code + 1]]
        assert len({codes[row] for row in rows}) == 1
        weights = units.weights[rows].astype(np.float64)
        assert len(set(weights)) == 1
        # Exact: a float32 times fewer than 2^29 rows is a float64.
        assert 1 - 2.0**-23 <= weights[0] * len(rows) <= 1


@pytest.mark.parametrize("size", [2, 3, 7, 41, 49, 107, 1000, 99_991])
def test_the_weight_of_one_row_of_many_is_not_rounded_up(size: int) -> None:
    (weight,) = set(Units.number_units(["a"] * size).weights.tolist())
    assert weight * size <= 1 < float(np.nextafter(np.float32(weight), np.float32(1))) * size


def test_batches_of_units_are_batches_of_their_rows() -> None:
    units = Units.number_units(["b", "a", "b", "c", "a", "b"])
    chosen = np.array([1, 0, 2, 1])
    rows, sizes = units.rows_of(chosen, np.array([2, 0, 1, 1]))
    assert sizes.tolist() == [5, 0, 1, 3]
    assert rows.tolist() == [0, 2, 5, 1, 4, 3, 0, 2, 5]
    empty = units.rows_of(np.zeros(0, dtype=np.int64), np.array([0, 0]))
    assert [part.tolist() for part in empty] == [[], [0, 0]]


def test_units_are_of_the_set_s_rows() -> None:
    with pytest.raises(DataError, match="units: given for 2 rows, but there are 3"):
        TrainingSet(
            torch.ones(3, 2),
            torch.zeros(3, dtype=torch.int64),
            2,
            units=Units.number_units(list("ab")),
        )


class Watched(Releases):
    """Keeps the sums that would be released."""

    def __init__(self, spec: Normalisation, n: int) -> None:
        super().__init__(made_plan(spec.list_releases(n), n), [1], CPU)
        self.sums: dict[str, torch.Tensor] = {}

    def release_gaussian(self, name: str, sums: GridSum) -> torch.Tensor:
        self.count_releases(name, 1)
        self.sums[name] = sums.values[0]
        return torch.full_like(sums.values, 0.1)  # the same of every dataset


def rows_of(seed: int, count: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * (torch.randn(count, DIMENSION, generator=generator) + 0.5)


def sums(rows: torch.Tensor, names: list[str], spec: Normalisation) -> dict[str, torch.Tensor]:
    labels = torch.arange(len(rows)) % 2
    data = TrainingSet(rows.clone(), labels, 2, units=Units.number_units(names))
    watched = Watched(spec, data.n)
    normalise_rows(data, spec, watched)
    watched.check_counts()
    return watched.sums


def bounds(spec: Normalisation) -> dict[str, float]:
    return {item.name: item.sensitivity for item in spec.list_releases(10)}


@pytest.mark.parametrize("kind", NORMALISATIONS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    scales=st.lists(
        st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e12, 1e17, math.inf, math.nan]),
        min_size=30,
        max_size=30,
    ),
)
def test_a_patient_of_thirty_images_moves_a_sum_no_more_than_one_of_one(
    kind: str, seed: int, scales: list[float]
) -> None:
    spec = NORMALISATIONS[kind]
    rows = rows_of(seed, 35)
    rows[5:] = rows_of(seed + 1, 30) * torch.tensor(scales)[:, None]
    names = [f"p{row}" for row in range(5)] + ["many"] * 30
    without = rows.clone()
    without[5:] = math.nan  # null rows
    before, after = sums(rows, names, spec), sums(without, names, spec)
    for name, bound in bounds(spec).items():
        assert float((before[name] - after[name]).norm()) <= bound


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_equal_images_of_a_patient_count_as_one(kind: str) -> None:
    spec, rows = NORMALISATIONS[kind], rows_of(3, 4)
    counts = torch.tensor([1, 30, 2, 7])
    names = [f"p{row}" for row in range(4)]
    repeated = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    once, often = sums(rows, names, spec), sums(rows.repeat_interleave(counts, 0), repeated, spec)
    for name in once:
        torch.testing.assert_close(often[name], once[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
def test_the_score_of_a_search_counts_patients(several: bool) -> None:
    rows = rows_of(1, 40)
    names = [f"p{row}" for row in range(9)] + ["many"] * 31
    labels = torch.arange(40) % 3
    if several:
        labels = (torch.arange(120).view(40, 3) % 2).to(torch.uint8)
    options = method_options(
        {"head": "sgd", "batch_size": "full", "loss": "sigmoid" if several else "softmax"}
    )
    weights = torch.randn(2, 3, DIMENSION + 1, generator=torch.Generator().manual_seed(2))

    def scored(change: Callable[[torch.Tensor], None]) -> torch.Tensor:
        changed = labels.clone()
        change(changed)
        data = TrainingSet(rows.clone(), changed, 3, units=Units.number_units(names))
        rows_of_data = Rows(data, Transform(options.normalize))
        return tuned.score_heads(options, rows_of_data, weights).values[:, 0]

    def another(changed: torch.Tensor) -> None:
        changed[9:] = 1 - changed[9:] if several else (changed[9:] + 1) % 3

    before, after = scored(lambda _: None), scored(another)
    assert bool((before >= 0).all())
    assert bool((before <= 10).all())  # patients, not images
    assert bool(((before - after).abs() <= 1).all())
    assert bool(((before - after).abs() > 0).any())
