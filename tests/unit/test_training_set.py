"""Training rows: normalised one by one, harmless when they are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpprobe.errors import DataError
from dpprobe.heads import scores
from dpprobe.heads.training_set import Heads, TrainingSet, normalise_rows

LABELS = torch.tensor([0, 1, 2, 1])


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 5, generator=generator)


@pytest.mark.parametrize("normalize", ["none", "l2", "layer_norm"])
def test_a_row_is_normalised_by_itself(normalize: str) -> None:
    rows = features()
    whole = normalise_rows(rows, normalize)
    rows[1:] *= 100
    assert torch.equal(normalise_rows(rows, normalize)[0], whole[0])


def test_normalisations_are_what_they_are_called() -> None:
    rows = torch.cat([features() * 30, torch.zeros(1, 5)])
    lengths = normalise_rows(rows, "l2").norm(dim=1)
    assert lengths.tolist() == pytest.approx([1, 1, 1, 1, 0], abs=1e-6)
    layered = normalise_rows(rows, "layer_norm")
    assert layered.mean(1).abs().max() < 1e-5
    assert layered[:4].var(1, unbiased=False).tolist() == pytest.approx([1] * 4, rel=1e-4)
    assert torch.equal(normalise_rows(rows, "none"), rows)


def test_norms_hold_the_appended_one_in_float64() -> None:
    rows = TrainingSet(features(), LABELS, 3).normalised("none")
    wanted = (features().double().square().sum(1) + 1).sqrt()
    torch.testing.assert_close(rows.norms, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("normalize", ["none", "l2", "layer_norm"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_left_out(normalize: str, bad: float) -> None:
    dirty = features()
    dirty[2, 3] = bad
    kept = dirty.clone()
    rows = TrainingSet(dirty, LABELS, 3).normalised(normalize)
    assert rows.norms[2] == math.inf
    assert not rows.features[2].any()
    clean = TrainingSet(features(), LABELS, 3).normalised(normalize)
    for index in (0, 1, 3):
        assert torch.equal(rows.features[index], clean.features[index])
    torch.testing.assert_close(dirty, kept, equal_nan=True)  # the caller's rows are its own


def test_a_huge_row_is_left_out_unless_scaled() -> None:
    huge = features()
    huge[0] = 1e30
    assert TrainingSet(huge, LABELS, 3).normalised("none").norms[0] == math.inf
    assert TrainingSet(huge, LABELS, 3).normalised("l2").norms[0] == pytest.approx(2**0.5)


def test_normalised_rows_are_computed_once() -> None:
    data = TrainingSet(features(), LABELS, 3)
    assert data.normalised("l2") is data.normalised("l2")
    assert data.normalised("none").features is data.features


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(4, 5, dtype=torch.float64), LABELS, "float64"),
        (torch.zeros(4), LABELS, "training features"),
        (torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), "training features"),
        (torch.zeros(3, 5), LABELS, "training labels"),
        (torch.zeros(4, 5), LABELS.float(), "training labels"),
        (torch.zeros(4, 5), LABELS + 1, "from 1 to 3"),
    ],
)
def test_wrong_input_is_refused(rows: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TrainingSet(rows, labels, 3)


def test_scores_are_the_logits_of_normalised_rows() -> None:
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(2, 3, 6)).astype(np.float32)
    heads = Heads(weights=weights, seeds=(1, 2), normalize="l2", steps=1)
    rows = features()
    unit = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    wanted = np.einsum("nd,skd->snk", unit, weights[..., :-1]) + weights[:, None, :, -1]
    np.testing.assert_allclose(scores(heads, rows.numpy()), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match="dimension 5"):
        scores(heads, rows[:, :4])
