"""Whitened rows: what is released, what a row may move, and heads for rows as they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import ConfigError
from dpprobe.heads import momentum
from dpprobe.heads.dimension_limits import MOST_FEATURES, dimension_fault
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import CENTRE, SECOND_MOMENT, Whitened
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import Source
from tests.support.mechanisms import made_plan

pytestmark = pytest.mark.usefixtures("several_blocks")

CPU = torch.device("cpu")
N, D, K = 400, 12, 3
SPEC = Whitened()


def plan(options: Any, n: int, *, noise: float) -> Plan:
    return made_plan(options.list_mechanisms(n), n, noise)


def features(n: int = N, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows whose classes differ where they vary least."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (n,), generator=generator)
    spread = torch.logspace(0, -2, D)
    rows = torch.randn(n, D, generator=generator) * spread
    rows[:, -K:] += 3 * spread[-K:] * torch.nn.functional.one_hot(labels, K)
    return rows + 0.5, labels


class Watched(Releases):
    """Keeps the exact sums; every dataset gets the same centre."""

    def __init__(self, options: Any, n: int) -> None:
        super().__init__(plan(options, n, noise=1.0), [1], CPU)
        self.sums: dict[str, torch.Tensor] = {}

    def release_gaussian(self, name: str, sums: GridSum) -> torch.Tensor:
        self.sums[name] = sums.values
        if name == CENTRE:
            self.count_releases(name, 1)
            return torch.full((1, D), 0.2 * N, dtype=torch.float64)
        return super().release_gaussian(name, sums)

    def release_symmetric(self, name: str, sums: GridSum, *, counted: bool = True) -> torch.Tensor:
        self.sums[name] = sums.values
        return super().release_symmetric(name, sums, counted=counted)


def second_moment(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    releases = Watched(momentum.Options(normalize=SPEC), len(rows))
    normalise_rows(TrainingSet(rows.clone(), labels, K), SPEC, releases)
    return releases.sums[SECOND_MOMENT][0]


def test_whitened_rows_keep_the_device_of_exact_sums() -> None:
    rows, labels = features()
    data = TrainingSet(rows, labels, K)
    data.exact_device = "cuda"
    whitened = normalise_rows(data, SPEC, Watched(momentum.Options(normalize=SPEC), N))
    assert whitened.data.exact_device == "cuda"
    assert whitened.device == CPU


def test_the_budget_is_split_as_the_shares_say() -> None:
    options = momentum.Options(normalize=SPEC)
    cost = {item.name: item.count / item.noise_multiplier**2 for item in options.list_mechanisms(N)}
    total = sum(cost.values())
    shares = {name: value / total for name, value in cost.items()}
    assert shares == pytest.approx({CENTRE: 0.042, SECOND_MOMENT: 0.098, "gradients": 0.86})
    assert {item.sensitivity for item in SPEC.list_releases(N)} == {1.0}


@pytest.mark.parametrize("value", [1.0, 1e-12, 1e12, 0.0, math.nan, math.inf, 1e19])
def test_one_row_moves_the_second_moment_by_at_most_one(value: float) -> None:
    rows, labels = features()
    with_row, without = rows.clone(), rows.clone()
    with_row[7] *= value
    without[7] = math.nan  # a row that must not contribute
    moved = second_moment(with_row, labels) - second_moment(without, labels)
    assert float(torch.linalg.matrix_norm(moved)) <= 1
    if value in (1.0, 1e12):
        assert float(torch.linalg.matrix_norm(moved)) > 0.999  # the bound is reached
    if not value * 1 < 1e18:
        assert not moved.any()


def test_a_unit_of_several_rows_moves_it_by_at_most_one() -> None:
    rows, labels = features()
    units = Units.number_units([str(row // 4) for row in range(N)])
    options = momentum.Options(normalize=SPEC)

    def summed(data: torch.Tensor) -> torch.Tensor:
        releases = Watched(options, units.count)
        normalise_rows(TrainingSet(data.clone(), labels, K, units=units), SPEC, releases)
        return releases.sums[SECOND_MOMENT][0]

    without = rows.clone()
    without[:4] = math.nan
    moved = float(torch.linalg.matrix_norm(summed(rows) - summed(without)))
    assert 0.2 < moved <= 1


def test_the_noise_is_what_was_priced() -> None:
    options = momentum.Options(normalize=SPEC)
    nothing = GridSum(torch.zeros(1, D, D, dtype=torch.float64), 2.0**-20)
    draws = []
    for seed in range(200):
        releases = Releases(plan(options, N, noise=1.0), [seed], CPU)
        draws.append(releases.release_symmetric(SECOND_MOMENT, nothing)[0])
    noise = torch.stack(draws)
    deviation = releases.noise_deviation(SECOND_MOMENT)
    diagonal = noise.diagonal(dim1=1, dim2=2)
    above = noise[:, *torch.triu_indices(D, D, 1)]
    assert float(diagonal.std()) == pytest.approx(deviation, rel=0.05)
    assert float(above.std()) == pytest.approx(deviation / math.sqrt(2), rel=0.03)


def whitened(noise: float, data: TrainingSet, spec: Whitened = SPEC) -> Rows:
    options = momentum.Options(normalize=spec)
    return normalise_rows(data, spec, Releases(plan(options, data.n, noise=noise), [1], CPU))


def test_rows_are_unit_rows_and_bad_ones_contribute_nothing() -> None:
    rows, labels = features()
    rows[3], rows[4], rows[5] = math.nan, math.inf, 0.0
    out = whitened(1.0, TrainingSet(rows, labels, K))
    assert out.lengths[3] == out.lengths[4] == math.inf
    usable = out.lengths.isfinite()
    assert float(out.lengths[usable].max()) <= 1 + 1e-6
    blocks = torch.cat([block.features for block in out.read_blocks()])
    assert not blocks[[3, 4]].any()
    assert blocks.isfinite().all()


def test_without_noise_and_with_a_half_rows_are_white() -> None:
    rows, labels = features(20_000)
    out = whitened(0.0, TrainingSet(rows, labels, K), Whitened(exponent=0.5))
    z = torch.cat([block.features for block in out.read_blocks()]).double()
    values = torch.linalg.eigvalsh(z.T @ z / len(z) * D)
    assert float(values[-1] / values[0]) < 2.5
    plain = torch.linalg.eigvalsh(torch.cov(rows.double().T))
    assert float(plain[-1] / plain[0]) > 1000


def test_noise_alone_leaves_rows_as_they_are() -> None:
    rows, labels = features()
    data = TrainingSet(rows, labels, K)
    out = whitened(1e4, data)
    matrix = out.scored_weights(torch.cat([torch.eye(D), torch.zeros(D, 1)], 1))[:, :-1]
    scale = matrix.diagonal().mean()
    torch.testing.assert_close(matrix, scale * torch.eye(D), atol=0.1 * float(scale), rtol=0)


def test_a_row_is_mapped_by_itself_wherever_it_stands() -> None:
    rows, labels = features(3000)
    first = torch.cat(
        [b.features for b in whitened(1.0, TrainingSet(rows, labels, K)).read_blocks()]
    )
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    # the sums are exact, so that another order releases the same numbers
    data = TrainingSet(rows[order].clone(), labels[order], K)
    second = torch.cat([block.features for block in whitened(1.0, data).read_blocks()])
    assert torch.equal(first[order], second)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_stream_gives_the_heads_of_memory(noise: float) -> None:
    rows, labels = features()
    rows[3] = math.nan
    options = momentum.Options(normalize=SPEC, steps=3)
    priced = plan(options, N, noise=noise)
    stored = TrainingSet(Source(rows.numpy().copy(), 97), labels, K)
    memory = fit_heads(options, TrainingSet(rows, labels, K), priced, [1])
    stream = fit_heads(options, stored, priced, [1])
    np.testing.assert_allclose(memory.weights, stream.weights, rtol=1e-4, atol=1e-5)


def test_heads_are_for_rows_as_they_are() -> None:
    """Scores on rows x are those on z times |A x|, with the same biases."""
    rows, labels = features()
    out = whitened(1.0, TrainingSet(rows.clone(), labels, K))
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(K, D + 1, generator=generator)
    heads[:, -1] = 0
    z = torch.cat([block.features for block in out.read_blocks()])
    on_z = z @ heads[:, :-1].T
    on_x = out.scoring(rows.clone()) @ out.scored_weights(heads)[:, :-1].T
    lengths = (on_x / on_z).median(dim=1, keepdim=True).values
    torch.testing.assert_close(on_x, on_z * lengths, rtol=1e-2, atol=1e-3)
    assert 0.5 < float(lengths.mean()) < 2
    assert torch.equal(on_x.argmax(1), on_z.argmax(1))


@pytest.mark.parametrize("engine", ["closed_form", "exact"])
def test_classes_along_quiet_directions_are_learned(engine: str) -> None:
    rows, labels = features(20_000)
    test, truth = features(2000, seed=1)

    def accuracy(normalize: str) -> float:
        options = momentum.Options(normalize=normalize, engine=engine)
        priced = plan(options, 20_000, noise=200.0)
        fitted = fit_heads(options, TrainingSet(rows.clone(), labels, K), priced, [1, 2, 3])
        right = score_rows(fitted, test).argmax(2) == truth.numpy()
        return float(right.mean())

    assert accuracy("whitened") > accuracy("centred") + 0.1


def test_too_many_features_are_refused_at_planning_and_in_a_fit() -> None:
    options = momentum.Options(normalize=SPEC)
    fault = dimension_fault(options, MOST_FEATURES + 1)
    assert fault is not None
    assert "8193" in fault
    assert "normalize: centred" in fault
    assert dimension_fault(options, MOST_FEATURES) is None
    rows = torch.randn(3, MOST_FEATURES + 1)
    data = TrainingSet(rows, torch.tensor([0, 1, 2]), K)
    with pytest.raises(ConfigError, match="8193 features"):
        fit_heads(options, data, plan(options, 3, noise=1.0), [1])


def test_seeds_have_releases_to_themselves() -> None:
    rows, labels = features()
    options = momentum.Options(normalize=SPEC, steps=3)
    priced = plan(options, N, noise=1.0)
    both = fit_heads(options, TrainingSet(rows.clone(), labels, K), priced, [1, 2])
    one = fit_heads(options, TrainingSet(rows.clone(), labels, K), priced, [2])
    np.testing.assert_array_equal(both.weights[1], one.weights[0])
    assert not np.array_equal(both.weights[0], both.weights[1])


def test_the_history_is_of_the_heads_that_are_returned() -> None:
    rows, labels = features()
    options = momentum.Options(normalize=SPEC, steps=3)
    seen: list[torch.Tensor] = []

    def record(step: int, weights: torch.Tensor, transform: Any) -> None:  # noqa: ARG001
        assert transform.spec.kind == "whitened"
        seen.append(weights.clone())

    fitted = fit_heads(
        options, TrainingSet(rows, labels, K), plan(options, N, noise=1.0), [1], record=record
    )
    np.testing.assert_array_equal(seen[-1].numpy(), fitted.weights)
