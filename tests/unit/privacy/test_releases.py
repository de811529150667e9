"""Releases have the noise that was priced, are counted, and share noise with no other release."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.privacy.running_sums import Factorisation, RunningSums
from tests.support.gpu import DEVICES
from tests.support.mechanisms import gaussians, made_plan

CPU = torch.device("cpu")


def mechanism(name: str, *, count: int = 1, noise: float = 2.0) -> Mechanism:
    return replace(gaussians(noise, count=count, name=name), sensitivity=0.5)


def releases(*mechanisms: Mechanism, seeds: tuple[int, ...] = (1, 2), **options: Any) -> Releases:
    return Releases(made_plan(mechanisms, 10), seeds, CPU, **options)


def zero(*shape: int, step: float = 2.0**-16) -> GridSum:
    return GridSum(torch.zeros(shape, dtype=torch.float64), step)


def test_noise_has_the_plan_s_deviation_and_differs_by_seed_mechanism_and_release() -> None:
    taken = releases(mechanism("a", count=2), mechanism("b"))
    zeros = zero(2, 40_000)
    drawn = [taken.release_gaussian(name, zeros) for name in ("a", "a", "b")]
    together = torch.cat(drawn)
    assert together.std(1).tolist() == pytest.approx([1.0] * 6, rel=0.02)
    assert (torch.corrcoef(together) - torch.eye(6)).abs().max() < 0.03
    taken.check_counts()


def test_noise_is_not_smaller_by_a_percent_than_priced() -> None:
    """The estimate of the deviation has an error of 1 / sqrt(2 * 2^20) = 0.07%."""
    drawn = releases(mechanism("a"), seeds=(1,)).release_gaussian("a", zero(1, 2**20))
    assert float(drawn.std()) == pytest.approx(1.0, rel=0.003)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("take", ["release_gaussian", "release_symmetric"])
def test_a_release_has_its_bits_wherever_the_sums_lie(device: str, take: str) -> None:
    units = torch.arange(2.0 * 170 * 170, dtype=torch.float64).view(2, 170, 170) * 10**6
    taken = Releases(made_plan([mechanism("a")], 10), (1, 2), torch.device(device))
    actual = getattr(taken, take)("a", GridSum(units.to(device), 2.0**-16))
    assert actual.device.type == device
    wanted = getattr(releases(mechanism("a")), take)("a", GridSum(units, 2.0**-16))
    assert torch.equal(actual.cpu(), wanted)


@pytest.mark.parametrize("size", [1, 2, 160, 333])
def test_a_matrix_takes_its_noise_row_by_row_however_much_is_drawn_at_a_time(size: int) -> None:
    released = releases(mechanism("a"), seeds=(1,)).release_symmetric("a", zero(1, size, size))
    noise = (released[0] * 2.0**16).numpy()
    drawn = RoundedGaussian(SEEDED.open_keystream(1, "noise of a"))
    deviation = math.nextafter(2.0**16, math.inf)
    assert (noise.diagonal() == drawn.draw_numbers(size, deviation)).all()
    smaller = math.nextafter(deviation * math.sqrt(0.5), math.inf)
    for row in range(size - 1):
        assert (noise[row, row + 1 :] == drawn.draw_numbers(size - row - 1, smaller)).all()


def test_noise_drawn_ahead_equals_the_noise_of_releases() -> None:
    """A head that adds this noise itself must count its releases."""
    one, other = (releases(mechanism("a", count=5)) for _ in range(2))
    wanted = [one.release_gaussian("a", zero(2, 9, step=2.0**-9)) for _ in range(5)]
    parts = [other.draw_ahead("a", 2.0**-9, count, 9) for count in (3, 2)]
    for seed in range(2):
        drawn = np.concatenate([part[seed] for part in parts]) * 2.0**-9
        np.testing.assert_array_equal(drawn, torch.stack(wanted)[:, seed])
    with pytest.raises(PrivacyError, match="0 noisy releases were made, but epsilon covers 5"):
        other.check_counts()


def test_a_seed_s_noise_does_not_depend_on_who_else_trains() -> None:
    alone = releases(mechanism("a"), seeds=(2,)).release_gaussian("a", zero(1, 7))
    beside = releases(mechanism("a"), seeds=(1, 2)).release_gaussian("a", zero(2, 7))
    assert torch.equal(alone[0], beside[1])


def test_more_or_fewer_releases_than_epsilon_covers_are_refused() -> None:
    taken = releases(mechanism("a", count=2))
    with pytest.raises(PrivacyError, match="0 noisy releases were made, but epsilon covers 2"):
        taken.check_counts()
    taken.count_releases("a", 2)
    taken.check_counts()
    with pytest.raises(PrivacyError, match="3 noisy releases were asked for, but epsilon covers 2"):
        taken.release_gaussian("a", zero(2, 3))
    with pytest.raises(PrivacyError, match="no mechanism 'b'"):
        taken.release_gaussian("b", zero(2, 3))


def test_a_plan_without_privacy_adds_no_noise_and_does_not_clip() -> None:
    taken = releases(mechanism("a", noise=0.0))
    sums = torch.arange(6.0, dtype=torch.float64).reshape(2, 3) / 7
    assert torch.equal(taken.release_gaussian("a", GridSum(sums)), sums)
    assert taken.sensitivity("a") == math.inf
    assert taken.noise_deviation("a") == 0
    assert releases(mechanism("a")).sensitivity("a") == 0.5


def test_the_same_noise_is_handed_out_once() -> None:
    taken = releases(mechanism("a"), mechanism("b"))
    taken.make_noise("a", 10, seeds=(1,))
    taken.make_noise("a", 10, seeds=(2,))
    with pytest.raises(PrivacyError, match="b: its noise was already used"):
        taken.make_noise("b", 10, seeds=(2,))
    with pytest.raises(PrivacyError, match="no mechanism 'c'"):
        taken.make_noise("c", 10)


def test_each_seed_has_its_own_noise_in_any_order_of_seeds() -> None:
    def draw(seeds: tuple[int, ...]) -> dict[int, Any]:
        noise = releases(mechanism("a"), seeds=seeds).make_noise("a", 6).draw_steps(2, 1.0)
        return dict(zip(seeds, noise.tolist(), strict=True))

    assert draw((7, 2, 9)) == draw((2, 7, 9))


def test_random_words_are_handed_out_once() -> None:
    taken = releases(mechanism("a"))
    first = taken.open_keystream(1, "Poisson sampling").draw_words(2)
    assert first.tolist() != taken.open_keystream(2, "Poisson sampling").draw_words(2).tolist()
    with pytest.raises(PrivacyError, match="Poisson sampling: its random words were already used"):
        taken.open_keystream(1, "Poisson sampling")


def test_forbidden_combinations_are_refused() -> None:
    observer, shared = (cast(Any, SimpleNamespace()) for _ in range(2))
    chain = RunningSums(Factorisation.make(4), [], names=("a",), n=10)
    private, silent, loud = (mechanism("a", noise=noise) for noise in (2.0, 0.0, 2.0**40))
    of_sites = releases(private, seeds=(1,), shared=shared)
    refused: list[tuple[Callable[[], Any], str]] = [
        *(
            (partial(releases, part, seeds=seeds, **several, **more), "one private fit at a time")
            for several in ({"running": chain}, {"shared": shared})
            for part, seeds, more in (
                (private, (1, 2), {}),
                (silent, (1,), {}),
                (private, (1,), {"observer": observer}),
            )
        ),
        (
            partial(releases, private, entropy=SystemEntropy(), observer=observer),
            "an audit reads sums without noise",
        ),
        (partial(of_sites.open_keystream, 1, "sampling"), "is drawn by each site, not by the fit"),
        (partial(of_sites.make_noise, "a", 3), "not for sums of several sites"),
        (
            partial(releases(loud).release_gaussian, "a", zero(2, 3, step=2.0**-9)),
            "exceeds the limit of exact sums; set a larger epsilon",
        ),
    ]
    for call, message in refused:
        with pytest.raises(PrivacyError, match=message):
            call()
    # noise of 2^39 is just below 2^48 steps, the largest number allowed
    assert releases(loud).release_gaussian("a", zero(2, 3, step=2.0**-8)).isfinite().all()


def test_released_sums_are_on_the_grid() -> None:
    """Sums are whole numbers of steps before and after, so smaller bits reveal nothing."""
    taken = releases(mechanism("a", count=2))
    taken.kept, step = {}, 2.0**-12
    for released in (
        taken.release_gaussian("a", zero(2, 500, step=step)),
        taken.release_symmetric("a", zero(2, 20, 20, step=step)),
    ):
        assert torch.equal(released, (released / step).round() * step)
        assert float(released.std()) > 0.5
    assert torch.equal(taken.kept["a"], released[0]), "what is kept was released"


def test_sums_off_the_grid_are_not_released() -> None:
    taken = releases(mechanism("a"))
    with pytest.raises(PrivacyError, match="a: sums are not whole numbers of steps"):
        taken.release_gaussian("a", GridSum(torch.full((2, 3), 0.5, dtype=torch.float64), 1.0))
    with pytest.raises(PrivacyError, match="a: sums are not whole numbers of steps"):
        releases(mechanism("a")).release_gaussian("a", GridSum(torch.zeros(2, 3)))  # float32 sums


@pytest.mark.parametrize("shape", [(2,), (2, 40), (2, 3, 7), (2, 4, 1, 5), (2, 5, 30)])
def test_an_observer_gets_the_bits_of_a_release(shape: tuple[int, ...]) -> None:
    """Tests both code paths; sums may be part of a larger array."""
    larger = shape if len(shape) == 1 else (*shape[:-1], 40)
    units = (100 * torch.randn(larger, dtype=torch.float64)).round()[..., : shape[-1]]
    sums = GridSum(units, 2.0**-12).divide_by(3.0)
    taken, observed = releases(mechanism("a", count=2)), releases(mechanism("a", count=2))
    observe = Mock(side_effect=lambda *given: given[3]())  # changes nothing
    observed.observer = Mock(observe_release=observe)
    before = units.clone()
    for _ in range(2):
        released = taken.release_gaussian("a", sums)
        assert torch.equal(released, observed.release_gaussian("a", sums))
        assert torch.equal(units, before)
        assert not torch.equal(released, sums.values)
    seen = [each.args for each in observe.call_args_list]
    assert [(*each[:2], each[4]) for each in seen] == [("a", k, sums.step) for k in (1, 2, 1, 2)]
    assert all(torch.equal(each[2], sums.values[each[1] - 1]) for each in seen)


def test_an_observer_sees_the_float32_sums_of_a_head_by_seed() -> None:
    taken = releases(mechanism("a"), seeds=(1, 2, 3))
    observe = Mock(side_effect=lambda _, seed, sums, draw: draw() if seed == 3 else -sums)
    taken.observer = Mock(observe_release=observe)
    sums, noise = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.5, 0.25], [8.0, 9.0]])
    assert taken.observe_sums("a", sums, noise, (3, 2)).tolist() == [[1.5, 2.25], [-3.0, -4.0]]
    seen = [(*each.args[:2], each.args[2].tolist()) for each in observe.call_args_list]
    assert seen == [("a", 3, [1.0, 2.0]), ("a", 2, [3.0, 4.0])]


def test_a_part_of_a_fit_shares_its_sources_but_counts_its_own_releases() -> None:
    """Noise from public seeds could be subtracted from a release."""
    shared, observer = (cast(Any, SimpleNamespace()) for _ in range(2))
    for given in ({"entropy": SystemEntropy(), "shared": shared}, {"observer": observer}):
        whole = releases(mechanism("a"), seeds=(1,), **given)
        whole.count_releases("a", 1)
        part = whole.make_part(whole.plan, (5,))
        part.count_releases("a", 1)
        assert {name: getattr(part, name) for name in given} == given
        assert part.seeds == (5,)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.0**53 + 2, -(2.0**60)])
def test_nonfinite_or_too_large_sums_are_not_released(value: float) -> None:
    sums = torch.zeros(2, 3, 3, dtype=torch.float64)
    sums[1, 0, 2] = value
    for release in ("release_gaussian", "release_symmetric"):
        with pytest.raises(PrivacyError, match=r"^a: sums are not finite, or above 2\^53 steps"):
            getattr(releases(mechanism("a")), release)("a", GridSum(sums, 1.0))
    sums[1, 0, 2] = math.copysign(2.0**53, value) if value == value else 2.0**53
    for release in ("release_gaussian", "release_symmetric"):
        assert getattr(releases(mechanism("a")), release)("a", GridSum(sums, 1.0)).isfinite().all()


def test_the_same_sums_on_another_grid_are_released_to_within_a_step() -> None:
    """Releases on both grids round the same Gaussian."""
    steps = (2.0**-30, 2.0**-10)
    fine, coarse = (
        releases(mechanism("a")).release_gaussian("a", zero(2, 9, step=each)) for each in steps
    )
    assert float((fine - coarse).abs().max()) <= 2.0**-11 * (1 + 1e-9)


@pytest.mark.parametrize("entropy", [SEEDED, SystemEntropy()])
def test_a_chain_of_cohorts_has_its_planned_noise(entropy: Any) -> None:
    running = RunningSums(Factorisation.make(4), [], names=("a",), n=10)
    parts = mechanism("a"), mechanism("b")
    taken = releases(*parts, seeds=(1,), running=running, entropy=entropy)
    assert running.noise_growth > 1
    assert taken.noise_multiplier("a") == 2.0 * running.noise_growth
    assert taken.noise_multiplier("b") == 2.0


@pytest.mark.parametrize("take", ["release_gaussian", "release_symmetric"])
def test_sums_of_several_sites_take_the_sites_noise_also_in_a_chain_of_cohorts(take: str) -> None:
    """The seeds of a fit of several sites are public, so they must not determine any noise."""
    running = RunningSums(Factorisation.make(4), [], names=("a",), n=10)
    shared = Mock(add_up=Mock(side_effect=lambda _, local, **__: local + 7))
    taken = releases(mechanism("a"), seeds=(1,), running=running, shared=shared)
    total = getattr(taken, take)("a", zero(1, 3, 3))
    assert torch.equal(total, torch.full((1, 3, 3), 7 * 2.0**-16, dtype=torch.float64))
    assert shared.add_up.call_args.kwargs == {
        "step": 2.0**-16,
        "symmetric": take == "release_symmetric",
        "deviation": math.nextafter(2.0**16, math.inf),  # 2.0 times 0.5, in steps
    }
    assert taken.noise_multiplier("a") == 2.0
