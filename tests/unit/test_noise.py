"""Gaussian noise: its law, its tails, and who shares it with whom (nobody)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpprobe.privacy.noise import GaussianNoise, Scratch, box_muller

CPU = torch.device("cpu")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def draws(
    seeds: list[int], steps: int, size: int, deviation: float = 1.0, device: str = "cpu"
) -> np.ndarray:
    noise = GaussianNoise(seeds, size, torch.device(device))
    return noise.draw(steps, deviation).cpu().numpy().copy()


def no_further(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.uint64)


def transform(radii: list[int], angles: list[int], further: Any = no_further) -> np.ndarray:
    words = np.array([[*radii, *angles]], dtype=np.int32)
    out = torch.empty(words.shape)
    box_muller(words, out, 1.0, Scratch.of((1, len(radii))), further)
    return out.numpy()[0]


@pytest.mark.parametrize("device", DEVICES)
def test_law_is_normal_with_the_asked_deviation(device: str) -> None:
    sample = draws([1], 80, 50_000, deviation=0.7, device=device).ravel().astype(np.float64)
    count = sample.size
    assert abs(sample.mean()) < 5 * 0.7 / count**0.5
    assert np.mean(sample**2) == pytest.approx(0.49, rel=0.004)  # 5.6 standard errors
    scaled = sample / 0.7
    assert stats.kstest(scaled[:200_000], "norm").pvalue > 1e-4
    for threshold in (2, 3, 4):
        wanted = 2 * stats.norm.sf(threshold) * count
        assert abs((np.abs(scaled) > threshold).sum() - wanted) < 5 * wanted**0.5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("deviation", [1e-20, 1e-9, 1e-3, 1.0, 1e9, 1e20])
def test_every_deviation_a_mechanism_may_have(deviation: float, device: str) -> None:
    unit = draws([1], 4, 5000, 1.0, device).astype(np.float64)
    sample = draws([1], 4, 5000, deviation, device).astype(np.float64)
    np.testing.assert_allclose(sample / deviation, unit, rtol=3e-7)
    assert sample.std() == pytest.approx(deviation, rel=0.03)


def test_tails_reach_far_beyond_any_delta() -> None:
    """The least 31-bit uniform, with the least 64 bits more, is 2^-96: 11.5 deviations."""
    least = transform([0, -1], [0, 0])
    np.testing.assert_allclose(least[:2], math.sqrt(2 * 96 * math.log(2)), rtol=1e-6)
    # The further words run through the whole of the least unit.
    for word in (1 << 20, 1 << 40, 1 << 63, 2**64 - 1):
        (number, _) = transform([0], [0], lambda _, w=word: np.array([w], dtype=np.uint64))
        wanted = math.sqrt(-2 * (math.log((word + 0.5) / 2**64) - 31 * math.log(2)))
        assert number == pytest.approx(wanted, rel=1e-6)


def test_small_radii_are_refined_within_their_unit() -> None:
    asked = []

    def further(count: int) -> np.ndarray:
        asked.append(count)
        return np.full(count, 1 << 62, dtype=np.uint64)  # a quarter

    radii = [3, -4, 2**18 - 1, -(2**18), 2**18, -(2**18) - 1, 2**30]
    found = transform(radii, [0] * 7, further)[:7]
    assert asked == [4]
    uniforms = [3.25, 3.25, 2**18 - 0.75, 2**18 - 0.75, 2**18 + 0.5, 2**18 + 0.5, 2**30]
    wanted = np.sqrt(-2 * np.log(np.array(uniforms) / 2**31))
    np.testing.assert_allclose(found, wanted, rtol=3e-7)


def test_no_number_is_zero() -> None:
    """Neither the largest uniforms nor angles along the axes give an exact zero."""
    extremes = [-(2**31), 2**31 - 1, 0, -1, 2**30, -(2**30), 2**30 - 1, 2**29]
    pairs = [(radius, angle) for radius in extremes for angle in extremes]
    found = transform([radius for radius, _ in pairs], [angle for _, angle in pairs])
    assert np.isfinite(found).all()
    assert found.all()


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_seeds_noise_depends_on_that_seed_alone(size: int, device: str) -> None:
    alone = draws([11], 9, size, device=device)[0]
    together = draws([10, 11, 12], 9, size, device=device)
    np.testing.assert_array_equal(together[1], alone)
    assert not np.intersect1d(together[0], together[2]).size
    correlation = np.corrcoef(draws([1, 2, 3], 40, 1000, device=device).reshape(3, -1))
    assert np.abs(correlation - np.eye(3)).max() < 5 / 40_000**0.5


def test_on_the_cpu_it_does_not_depend_on_how_many_are_drawn_at_a_time() -> None:
    """Over enough numbers that some radii take further words."""
    noise = GaussianNoise([10, 11], 20_001, CPU)
    parts = [noise.draw(part, 1.0).numpy().copy() for part in (4, 3, 2)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1)[1], draws([11], 9, 20_001)[0])


def test_no_two_sources_of_words_are_the_same() -> None:
    noise = GaussianNoise([10, 11], 8, CPU)
    words = [source(100) for source in (*noise._streams, *noise._tails)]
    assert len(np.unique(np.concatenate(words))) == 400


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
