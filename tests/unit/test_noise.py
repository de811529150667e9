"""Gaussian noise: its law, its tails, and who shares it with whom (nobody)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpprobe.privacy.noise import GaussianNoise, Scratch, box_muller

CPU = torch.device("cpu")


def draws(seeds: list[int], steps: int, size: int, deviation: float = 1.0) -> np.ndarray:
    return GaussianNoise(seeds, size, CPU).draw(steps, deviation).numpy().copy()


def test_law_is_normal_with_the_asked_deviation() -> None:
    sample = draws([1], 40, 50_000, deviation=0.7).ravel().astype(np.float64)
    count = sample.size
    assert abs(sample.mean()) < 5 * 0.7 / count**0.5
    assert sample.std() == pytest.approx(0.7, rel=5 / (2 * count) ** 0.5)
    scaled = sample / 0.7
    assert stats.kstest(scaled[:200_000], "norm").pvalue > 1e-4
    for threshold in (2, 3, 4):
        wanted = 2 * stats.norm.sf(threshold) * count
        assert abs((np.abs(scaled) > threshold).sum() - wanted) < 5 * wanted**0.5


def test_tails_reach_beyond_what_float32_uniforms_give() -> None:
    """A 24-bit uniform stops at 5.77; with delta = 1e-5 the mass beyond it is not negligible."""
    words = torch.zeros((1, 4), dtype=torch.int64)
    words[0, 1] = 1 << 24  # radius 1.5 / 2^39
    words[0, 2] = -1 << 24
    words[0, 3] = (1 << 63) - 1  # the largest: radius about 0
    out = torch.empty((1, 8))
    box_muller(words, out, 1.0, Scratch.of((1, 4)))
    assert float(out[0, 0]) == pytest.approx(math.sqrt(2 * 40 * math.log(2)), rel=1e-6)
    assert float(out[0, 1]) == pytest.approx(math.sqrt(2 * (39 * math.log(2) - math.log(1.5))))
    assert torch.isfinite(out).all()
    assert abs(float(out[0, 3])) < 1e-3


def test_steps_classes_and_halves_of_a_pair_are_uncorrelated() -> None:
    sample = draws([5], 20_000, 12).astype(np.float64)[0]
    correlation = np.corrcoef(sample.T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / 20_000**0.5
    flat = sample.ravel()
    for lag in (1, 6, 12, 18, 24):
        assert abs(np.mean(flat[:-lag] * flat[lag:])) < 5 / flat.size**0.5
    # Nor are their sizes, which a shared radius would betray.
    sizes = np.corrcoef(np.square(sample).T)
    np.fill_diagonal(sizes, 0)
    assert np.abs(sizes).max() < 5 / 20_000**0.5


@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_seeds_noise_depends_on_that_seed_alone(size: int) -> None:
    alone = draws([11], 9, size)[0]
    noise = GaussianNoise([10, 11, 12], size, CPU)
    together = np.concatenate([noise.draw(part, 1.0).numpy().copy() for part in (4, 3, 2)], axis=1)
    np.testing.assert_array_equal(together[1], alone)
    assert not np.intersect1d(together[0], together[2]).size


def test_long_blocks_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draws([3, 4], 10, 15)
    monkeypatch.setattr("dpprobe.privacy.noise._PAIRS_A_PASS", 20)
    np.testing.assert_array_equal(draws([3, 4], 10, 15), whole)


def test_no_deviation_is_exactly_nothing() -> None:
    noise = GaussianNoise([1, 2], 6, CPU)
    noise.draw(3, 1.0)
    block = noise.draw(3, 0.0)
    assert block.shape == (2, 3, 6)
    assert not block.any()
