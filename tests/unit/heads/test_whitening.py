"""Whitened rows: what is released, what a row may move, and heads for rows as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads import momentum
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.normalisation import Whitened
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases
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


def test_whitened_rows_keep_the_device_of_exact_sums() -> None:
    data = TrainingSet(*features(), K)
    data.exact_device = "cuda"
    rows = whitened(1.0, data)
    assert rows.data.exact_device == "cuda"
    assert rows.device == CPU


def whitened(noise: float, data: TrainingSet, spec: Whitened = SPEC) -> Rows:
    options = momentum.Options(normalize=spec)
    return normalise_rows(data, spec, Releases(plan(options, data.n, noise=noise), [1], CPU))


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
