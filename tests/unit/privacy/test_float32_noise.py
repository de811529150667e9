"""Gaussian noise: its distribution, its tails, and that no two purposes share it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpprobe import devices
from dpprobe.privacy import float32_noise as noise_module
from dpprobe.privacy.float32_noise import GaussianNoise, box_muller, refine_pairs
from dpprobe.privacy.randomness import open_stream
from tests.support.gpu import DEVICES

CPU = torch.device("cpu")


def draws(
    seeds: list[int], steps: int, size: int, deviation: float = 1.0, device: str = "cpu"
) -> np.ndarray:
    noise = GaussianNoise(seeds, size, torch.device(device))
    return noise.draw_steps(steps, deviation).cpu().numpy().copy()


def tail(word: int = 0) -> npt.NDArray[np.uint64]:
    """Returns a generator whose next word is `word`."""
    return np.array([[word], [0], [0], [0]], dtype=np.uint64)


def transform(
    radii: npt.ArrayLike, angles: npt.ArrayLike, word: int | None = None
) -> npt.NDArray[np.float32]:
    """Returns both numbers of each pair, [2, m]; `word`, if given, refines small radii."""
    first, second = np.asarray(radii, dtype=np.int32), np.asarray(angles, dtype=np.int32)
    out = np.empty((2, len(first)), dtype=np.float32)
    box_muller(first, second, out[0], out[1], np.float32(1))
    if word is not None:
        refine_pairs(tail(word), first, second, out[0], out[1], np.float32(1))
    return out


@pytest.mark.parametrize("device", DEVICES)
def test_law_is_normal_with_the_asked_deviation(device: str) -> None:
    sample = draws([1], 80, 50_000, deviation=0.7, device=device).ravel().astype(np.float64)
    count = sample.size
    assert abs(sample.mean()) < 5 * 0.7 / count**0.5
    assert np.mean(sample**2) == pytest.approx(0.49, rel=0.004)  # 5.6 standard errors
    scaled = sample / 0.7
    assert np.mean(scaled**3) == pytest.approx(0, abs=5 * (15 / count) ** 0.5)
    assert np.mean(scaled**4) == pytest.approx(3, abs=5 * (96 / count) ** 0.5)
    assert stats.kstest(scaled[:200_000], "norm").pvalue > 1e-4
    assert stats.kstest(scaled[1::97], "norm").pvalue > 1e-4
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


def numpy_words(seed: int, name: str, lanes: int, count: int) -> np.ndarray:
    """Returns the words of NumPy's generators in turn, each after 18 words of warm-up."""
    starts = open_stream(seed, name).bit_generator.random_raw(3 * lanes).reshape(3, lanes)
    out = np.empty((-(-count // lanes), lanes), dtype=np.uint64)
    for lane in range(lanes):
        source: Any = np.random.SFC64()
        state = source.state
        state["state"]["state"] = np.append(starts[:, lane], np.uint64(1))
        source.state = state
        out[:, lane] = source.random_raw(18 + len(out))[18:]
    return out.ravel()[:count]


def round_uniform(radii: np.ndarray) -> np.ndarray:
    """Returns the uniform numbers of 32-bit radii, rounded to float32, before their logarithm."""
    halves = np.abs(radii.astype(np.int32).astype(np.float32) + np.float32(0.5))
    return (halves * np.float32(2.0**-31 * (1 - 2.0**-24))).astype(np.float64)


def slow_normals(seed: int, steps: int, size: int) -> np.ndarray:
    """Returns a seed's numbers [steps, size] by NumPy's generators and float64 functions."""
    pairs = -(-size // 64) * 32
    words = numpy_words(seed, "noise", 32, steps * pairs)
    low, high = words.astype(np.uint32).view(np.int32), (words >> np.uint64(32)).astype(np.int64)
    units = np.where(low < 0, -1 - low.astype(np.int64), low)
    small = units < 2**18
    uniform = round_uniform(low)
    further = numpy_words(seed, "noise tail", 1, int(small.sum())) * 2.0**-64
    uniform[small] = (units[small] + further) * 2.0**-31 * (1 - 2.0**-24)
    radii = np.sqrt(-2 * np.log(uniform))
    turns = (high + 0.5) * math.pi / 2**31
    both = np.stack([radii * np.cos(turns), radii * np.sin(turns)]).reshape(2, steps, pairs)
    passes = [both[:, :, start : start + 1024] for start in range(0, pairs, 1024)]
    return np.concatenate([half for each in passes for half in each], axis=1)[:, :size]


@pytest.mark.parametrize("seed", [0, 7, 2**128 - 1])
@pytest.mark.parametrize("size", [1, 31, 64, 65, 2048, 2049, 20_001])
def test_numbers_follow_numpys_generators_and_functions(seed: int, size: int) -> None:
    """Numbers do not depend on how many are drawn at a time; large samples have refined pairs."""
    noise = GaussianNoise([99, seed], size, CPU)
    parts = [noise.draw_steps(steps, 0.75)[1].numpy().copy() for steps in (4, 1, 3)]
    drawn = np.concatenate(parts)
    np.testing.assert_allclose(drawn, 0.75 * slow_normals(seed, 8, size), rtol=6e-7)
    alone = GaussianNoise([seed], size, CPU)
    out = np.zeros((8, noise_module.padded_size(size)), dtype=np.float32)
    noise_module.fill_normals(*alone.noise_source(0.1)[:2], out, alone.noise_source(0.1)[2])
    np.testing.assert_array_equal(out[:, :size], draws([seed], 8, size, 0.1)[0])


@given(st.floats(1e-20, 1e20))
def test_deviations_are_rounded_up(deviation: float) -> None:
    stated = GaussianNoise([1], 1, CPU).noise_source(deviation)[2]
    assert float(np.nextafter(stated, np.float32(0))) < deviation <= float(stated)


def test_polynomials_are_accurate() -> None:
    """The reference uses float64 functions of the same float32 uniform and of the exact angle."""
    generator = open_stream(1, "words")
    edges = [0, -1, 1, 2**31 - 1, -(2**31), 2**30, -(2**30), 2**29, 2**29 - 1, -(2**29), 12345]
    radii = np.append(generator.integers(-(2**31), 2**31, 200_000), np.repeat(edges, len(edges)))
    angles = np.append(generator.integers(-(2**31), 2**31, 200_000), edges * len(edges))
    radius = np.sqrt(-2 * np.log(round_uniform(radii)))
    angle = (angles + 0.5) * math.pi / 2**31
    cosines, sines = transform(radii, angles).astype(np.float64)
    for normals, wanted in ((cosines, radius * np.cos(angle)), (sines, radius * np.sin(angle))):
        # cos of float64's pi / 2 is off by 6e-17, which is far below 2^-32 times 3e-7.
        assert np.abs(normals / wanted - 1).max() < 4e-7
    np.testing.assert_allclose(np.hypot(cosines, sines), radius, rtol=3e-7)


def test_tails_reach_far_beyond_any_delta() -> None:
    """The smallest uniform, 31 bits and 64 more, is 2^-96, or 11.5 standard deviations."""
    for radius in (0, -1):
        assert transform([radius], [0], 0)[0, 0] == pytest.approx(
            math.sqrt(2 * 96 * math.log(2)), rel=1e-6
        )
    # The additional words cover the whole smallest unit.
    for word in (1 << 20, 1 << 40, 1 << 63, 2**64 - 1):
        wanted = math.sqrt(-2 * (math.log((word + 0.5) / 2**64) - 31 * math.log(2)))
        assert transform([0], [0], word)[0, 0] == pytest.approx(wanted, rel=1e-6)


def test_small_radii_are_refined_within_their_unit() -> None:
    for radius, uniform in (
        (3, 3.25),
        (-4, 3.25),
        (2**18 - 1, 2**18 - 0.75),
        (-(2**18), 2**18 - 0.75),
        (2**18, 2**18 + 0.5),
        (-(2**18) - 1, 2**18 + 0.5),
        (2**30, 2**30),
    ):
        normals = transform([radius], [2**29], 1 << 62)  # a quarter of a unit
        wanted = np.sqrt(-np.log(np.array(uniform) / 2**31))
        np.testing.assert_allclose(normals, np.full((2, 1), wanted), rtol=4e-7)


def test_the_refined_tail_has_its_share() -> None:
    """All numbers beyond 4.245, the radius of 2^18 units, come from refined pairs."""
    sample = np.abs(draws([5], 8, 1 << 20)[0])
    beyond = sample[sample > 4.245].astype(np.float64)
    wanted = 2 * stats.norm.sf(4.245) * sample.size
    assert abs(len(beyond) - wanted) < 5 * wanted**0.5
    assert len(np.unique(beyond)) == len(beyond)
    uniform = stats.norm.sf(beyond) / stats.norm.sf(4.245)
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4


def test_no_number_is_zero() -> None:
    """Neither the largest uniforms nor angles along the axes give exactly zero."""
    extremes = [-(2**31), 2**31 - 1, 0, -1, 2**30, -(2**30), 2**30 - 1, 2**29]
    pairs = [(radius, angle) for radius in extremes for angle in extremes]
    normals = transform([radius for radius, _ in pairs], [angle for _, angle in pairs])
    assert np.isfinite(normals).all()
    assert normals.all()
    refined = transform([0] * len(extremes), extremes, 99)
    assert np.isfinite(refined).all()
    assert refined.all()


def test_steps_classes_and_halves_of_a_pair_are_uncorrelated() -> None:
    sample = draws([5], 20_000, 12).astype(np.float64)[0]
    correlation = np.corrcoef(sample.T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / 20_000**0.5
    # Over whole passes: both halves of a pair are 32 numbers apart, and lanes are adjacent.
    flat = draws([5], 1, 400_000).astype(np.float64).ravel()
    sizes = np.square(flat) - 1
    for lag in (1, 2, 16, 31, 32, 33, 64, 1024, 2048):
        assert abs(np.mean(flat[:-lag] * flat[lag:])) < 5 / flat.size**0.5
        # Sizes are uncorrelated too; a shared radius would correlate them.
        assert abs(np.mean(sizes[:-lag] * sizes[lag:])) < 5 * 2 / flat.size**0.5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 7, 8, 64, 2049])
def test_a_seeds_noise_depends_only_on_that_seed(size: int, device: str) -> None:
    alone = draws([11], 9, size, device=device)[0]
    together = draws([10, 11, 12], 9, size, device=device)
    np.testing.assert_array_equal(together[1], alone)
    assert not np.intersect1d(together[0].ravel()[:500], together[2].ravel()[:500]).size
    correlation = np.corrcoef(draws([1, 2, 3], 40, 1000, device=device).reshape(3, -1))
    assert np.abs(correlation - np.eye(3)).max() < 5 / 40_000**0.5


def test_seeds_that_agree_in_64_bits_are_different_seeds() -> None:
    first, second = draws([7], 1, 100), draws([7 + 2**64], 1, 100)
    assert not np.intersect1d(first, second).size


def test_noise_with_zero_deviation_is_exactly_zero() -> None:
    noise = GaussianNoise([1, 2], 6, CPU)
    noise.draw_steps(3, 1.0)
    block = noise.draw_steps(3, 0.0)
    assert block.shape == (2, 3, 6)
    assert not block.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 7])
def test_noise_continues_from_a_state(
    device: str, kernels: bool, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers follow, whatever was drawn in between, and no earlier number is repeated."""
    seeds = [1, 2] if kernels else [1]  # PyTorch on the CPU cannot read a view of states
    if not kernels:
        monkeypatch.setattr(devices, "has_kernels", lambda _: False)
    first = GaussianNoise(seeds, 3001, torch.device(device))
    before = [first.draw_steps(1, 2.0).clone() for _ in range(taken)]
    state = first.copy_state()
    ahead = [first.draw_steps(1, 2.0).clone() for _ in range(5)]
    again = GaussianNoise(seeds, 3001, torch.device(device))
    again.draw_steps(3, 1.0)
    again.restore_state(state)
    for wanted in ahead:
        drawn = again.draw_steps(1, 2.0)
        assert torch.equal(drawn, wanted)
        assert not any(torch.equal(drawn, one) for one in before)
    if taken == 7 and device == "cpu" and kernels:  # some of 21,000 radii are refined
        assert not torch.equal(state["tail"], GaussianNoise([1, 2], 3001, CPU).copy_state()["tail"])
