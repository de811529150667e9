"""Adds a plan's noise to the sums of a fit, and counts each noisy release against the plan.

A sum is released on its public grid (`privacy.grid`): an integer number of steps, to which the
rounding of a real Gaussian is added (`privacy.rounded_gaussian`). The release is the rounding of
the real-valued Gaussian mechanism, so the accountants' epsilon holds, and no low bit reveals what
was added. In benchmark mode, first-order heads add float32 noise to float32 sums themselves;
docs/privacy.md explains the consequences.

An audit passes an `Observer`, which sees every release of a fit before and after its noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.entropy import SEEDED, Entropy
from dpprobe.privacy.float32_noise import GaussianNoise
from dpprobe.privacy.grid import Grid, GridSum, mirror_upper
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.rounded_gaussian import LARGEST_DEVIATION, RoundedGaussian, release_integers
from dpprobe.privacy.running_sums import RunningSums
from dpprobe.privacy.sampling import Sampler

Integers = npt.NDArray[np.int64]
# Above LARGEST_SUM, float64 does not represent every integer.
LARGEST_SUM = 2.0**53
# The number of rows of a symmetric matrix for which noise is drawn per call.
_PANEL = 160


class ObservedSteps(NamedTuple):
    """Arrays of several steps that compiled code fills for an observer.

    Attributes:
      sums: float32 [steps, ...], one seed's sums without noise; empty without an observer.
      outputs: the sums with noise, of the shape of `sums`.
      given: True if the observer has filled `outputs`, which the fit must then use.
    """

    sums: npt.NDArray[np.float32]
    outputs: npt.NDArray[np.float32]
    given: bool


_NO_SUMS = np.zeros((0, 0, 0), dtype=np.float32)
NOT_OBSERVED = ObservedSteps(_NO_SUMS, _NO_SUMS, given=False)


class Observer(Protocol):
    """Interface of an audit's observer, which sees each release before and after its noise.

    Attributes:
      sees_each_step: False if compiled steps may call `observe_steps` once, in place of
        `observe_release` for each step.
    """

    sees_each_step: bool = True

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        """Observes a release, and returns the output with which the head continues.

        Args:
          sums: one seed's sums, without noise.
          draw: returns a copy of the sums with the plan's noise.
          step: the grid step of sums and output; None for float32 sums.
        """
        ...

    def observe_steps(
        self, name: str, seed: int, steps: int, shape: tuple[int, ...]
    ) -> ObservedSteps:
        """Returns arrays for a seed's next `steps` float32 releases, each of the given shape."""
        shapes = f"{steps} of shape {shape}, seed {seed}"
        raise PrivacyError(f"{name}: this observer needs each step separately, not {shapes}")

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler: ...

    def see_values(self, name: str, seeds: Sequence[int], values: torch.Tensor) -> None:
        """Receives values that follow from earlier releases and on which the next sums depend."""
        assert seeds, f"{name}: {values.shape} of no seed"


class Shared(Protocol):
    """Interface to add the sums of several sites, with noise; see `site_exchange.shared_sums`."""

    def add_up(
        self, name: str, local: Integers, *, step: float, deviation: float, symmetric: bool
    ) -> Integers:
        """Returns the noisy total over sites, in grid steps, in the shape of `local`."""
        ...


class NoiseStreams:
    """The random numbers of a fit: one stream per seed and use, which is opened only once.

    Attributes:
      entropy: the source of all random numbers; published seeds by default.
      shared: adds up the sums of several sites, with their noise; None with one site.
    """

    def __init__(
        self,
        plan: Plan,
        seeds: Sequence[int],
        device: torch.device,
        entropy: Entropy,
        shared: Shared | None,
    ) -> None:
        self.plan, self.seeds, self.device = plan, tuple(seeds), device
        self.entropy, self.shared = entropy, shared
        self._samplers: dict[tuple[str, int], RoundedGaussian] = {}
        self._handed_out: set[int] = set()
        self._streams: set[tuple[str, int]] = set()

    def open_keystream(self, seed: int, use: str) -> Keystream:
        """Returns a seed's random words for one use; raises PrivacyError at a second call."""
        if self.shared is not None:
            raise PrivacyError(
                f"{use}: the noise of several sites is drawn by each site, not by the fit"
            )
        if (use, seed) in self._streams:
            raise PrivacyError(f"{use}: its random words were already used; nothing is released")
        self._streams.add((use, seed))
        return self.entropy.open_keystream(seed, use)

    def make_noise(
        self, name: str, size: int, *, seeds: Sequence[int] | None = None
    ) -> GaussianNoise:
        """Returns the float32 noise that a head itself adds to its sums, step by step.

        The head draws noise of deviation `noise_deviation`, for all or some seeds of the fit, and
        calls `count_releases`. Raises PrivacyError in release mode, and if the plan lacks the
        mechanism or the noise was returned before: sums with equal noise reveal their difference.
        """
        if self.entropy.secret:
            raise PrivacyError(
                f"{name}: its float32 noise is for benchmarks, not for release; write "
                "`engine: exact`"
            )
        self.plan.find_mechanism(name)
        if self.shared is not None:
            raise PrivacyError(f"{name}: float32 noise is not for sums of several sites")
        chosen = self.seeds if seeds is None else tuple(seeds)
        if self._handed_out & set(chosen):
            raise PrivacyError(f"{name}: its noise was already used; nothing is released")
        self._handed_out |= set(chosen)
        return GaussianNoise(chosen, size, self.device)

    def _make_rounded_gaussian(self, name: str, seed: int) -> RoundedGaussian:
        key = (name, seed)
        if key not in self._samplers:
            self._samplers[key] = RoundedGaussian(self.open_keystream(seed, f"noise of {name}"))
        return self._samplers[key]


class Releases(NoiseStreams):
    """Adds a plan's noise to sums, with a separate stream per seed, and counts the releases.

    Attributes:
      observer: an audit's observer; None without an audit.
      running: the earlier cohorts, to whose sums a release adds; None without cohorts.
      kept: if set, receives each released symmetric matrix of the first seed, by name.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> plan = Plan(
      ...     mechanisms=(full_batch("sums", "a sum", 1.0).scale_noise(4),), n=10, epsilon=1.0,
      ...     delta=1e-5, accountant="pld", realised_epsilon=0.94,
      ... )
      >>> releases = Releases(plan, [7], torch.device("cpu"))
      >>> sums = GridSum(torch.tensor([[[3072.0]]], dtype=torch.float64), 2.0**-10)  # 3.0
      >>> noisy = releases.release_gaussian("sums", sums)
      >>> releases.release_gaussian("sums", sums)
      Traceback (most recent call last):
          ...
      dpprobe.errors.PrivacyError: sums: 2 noisy releases were asked for, but epsilon covers 1;
      nothing is released
    """

    kept: dict[str, torch.Tensor] | None = None

    def __init__(
        self,
        plan: Plan,
        seeds: Sequence[int],
        device: torch.device,
        *,
        entropy: Entropy = SEEDED,
        observer: Observer | None = None,
        running: RunningSums | None = None,
        shared: Shared | None = None,
    ) -> None:
        several = running is not None or shared is not None
        if several and (observer or len(seeds) != 1 or not plan.private):
            raise PrivacyError(
                "sums of several cohorts or sites: one private fit at a time, without an audit"
            )
        if entropy.secret and observer is not None:
            raise PrivacyError(
                "an audit reads sums without noise, so it must not read the sums of a release"
            )
        super().__init__(plan, seeds, device, entropy, shared)
        self.observer, self.running = observer, running
        self._taken: Counter[str] = Counter()

    def make_part(self, plan: Plan, seeds: Sequence[int]) -> Releases:
        """Returns a `Releases` for a part of this fit, with its own plan, seeds and counts."""
        return Releases(
            plan,
            seeds,
            self.device,
            entropy=self.entropy,
            observer=self.observer,
            shared=self.shared,
        )

    def sensitivity(self, name: str) -> float:
        """Returns the norm that rows are clipped to; infinite without privacy."""
        return self.plan.find_mechanism(name).sensitivity if self.plan.private else math.inf

    def noise_multiplier(self, name: str) -> float:
        """Returns the standard deviation of a release's noise, divided by its sensitivity; 0
        without privacy."""
        running = self._running_of(name)
        growth = 1.0 if running is None else running.noise_growth
        return self.plan.find_mechanism(name).noise_multiplier * growth

    def noise_deviation(self, name: str) -> float:
        """Returns the standard deviation of the noise in a release's output."""
        return self.noise_multiplier(name) * self.plan.find_mechanism(name).sensitivity

    def _running_of(self, name: str) -> RunningSums | None:
        if self.shared is not None:  # sites draw their own noise; a fit's seeds are public here
            return None
        return self.running if self.running is not None and name in self.running.names else None

    def make_grid(self, longest: float, rows: int) -> Grid:
        """Returns the grid of a sum over n rows of norm at most `longest`; both are public."""
        return Grid.make_grid(longest, rows, whole=self.plan.private)

    def release_gaussian(self, name: str, sums: GridSum) -> torch.Tensor:
        """Releases one sum per seed, with Gaussian noise, on the sums' grid.

        Args:
          sums: [seeds, ...], of L2 sensitivity `sensitivity(name)` in each seed.

        Returns:
          float64 [seeds, ...]: `sums` plus rounded normals of deviation `noise_deviation(name)`.

        Raises PrivacyError if the plan has no further release `name`, or sums are off their grid.
        """
        self.count_releases(name, 1)
        deviation = _deviation_in_steps(self.plan.find_mechanism(name), sums.step)
        if deviation == 0:
            return sums.values
        units = sums.units
        if (running := self._running_of(name)) is not None:
            return self._release_running(name, sums, running, _add_to_all)
        if self.shared is not None:
            return self._release_shared(name, sums, deviation, symmetric=False)
        if self.observer is None and units.device.type == "cpu" and units.dtype == torch.float64:
            return self._release_at_once(name, sums, deviation)
        return self._add_rounded_noise(name, sums, partial(_add_to_all, deviation=deviation))

    def release_symmetric(self, name: str, sums: GridSum, *, counted: bool = True) -> torch.Tensor:
        """Releases one symmetric matrix per seed, of Frobenius sensitivity `sensitivity(name)`.

        In an orthonormal basis of the symmetric matrices, the diagonal and sqrt(2) times one
        triangle, each coordinate gets independent noise. So the noise on the diagonal has the
        deviation `noise_deviation(name)`, and elsewhere a deviation smaller by sqrt(2).

        Args:
          sums: [seeds, d, d], symmetric; entries below the diagonal are not read.
          counted: False for one of several parts of a release that the head itself counts.

        Returns:
          float64 [seeds, d, d].
        """
        if counted:
            self.count_releases(name, 1)
        deviation = _deviation_in_steps(self.plan.find_mechanism(name), sums.step)
        if deviation == 0:
            return sums.values
        if (running := self._running_of(name)) is not None:
            released = self._release_running(name, sums, running, _add_to_triangle)
        elif self.shared is not None:
            released = self._release_shared(name, sums, deviation, symmetric=True)
        else:
            add_noise = partial(_add_to_triangle, deviation=deviation)
            released = self._add_rounded_noise(name, sums, add_noise)
        if self.kept is not None:
            self.kept[name] = released[0]
        return released

    def draw_ahead(self, name: str, step: float, count: int, size: int) -> list[Integers]:
        """Draws the noise of several releases, in grid steps: for each seed int64 [count, size].

        Calls of `release_gaussian` would draw the same numbers. The head adds each part of the
        noise to one sum, and calls `count_releases`.
        """
        deviation = _deviation_in_steps(self.plan.find_mechanism(name), step)
        samplers = [self._make_rounded_gaussian(name, seed) for seed in self.seeds]
        return [one.draw_numbers(count * size, deviation).reshape(count, size) for one in samplers]

    def observe_sums(
        self, name: str, sums: torch.Tensor, noise: torch.Tensor, seeds: Sequence[int]
    ) -> torch.Tensor:
        """Passes a head's float32 sums [seeds, ...] and the head's noise to an audit's observer.

        Returns:
          `sums` plus `noise`, or the observer's replacement.
        """
        assert self.observer is not None
        outputs = torch.empty_like(sums)
        for place, seed in enumerate(seeds):
            part, drawn = sums[place], noise[place]
            outputs[place] = self.observer.observe_release(
                name, seed, part, partial(part.add, drawn)
            )
        return outputs

    def observe_steps(
        self, name: str, seed: int, steps: int, shape: tuple[int, ...]
    ) -> ObservedSteps:
        """Returns the arrays in which a head records its next steps for an audit's observer."""
        if self.observer is None:
            return NOT_OBSERVED
        return self.observer.observe_steps(name, seed, steps, shape)

    def show_values(self, name: str, values: torch.Tensor) -> None:
        """Shows weights or statistics [seeds, ...] to an audit's observer, before the next sum."""
        if self.observer is not None:
            self.observer.see_values(name, self.seeds, values)

    def choose_sampler(self, seed: int, sampler: Sampler) -> Sampler:
        return sampler if self.observer is None else self.observer.replace_sampler(seed, sampler)

    def count_releases(self, name: str, releases: int) -> None:
        """Counts noisy releases; raises PrivacyError if there are more than epsilon covers."""
        self._taken[name] += releases
        priced = self.plan.find_mechanism(name).count
        if self._taken[name] > priced:
            raise PrivacyError(
                f"{name}: {self._taken[name]} noisy releases were asked for, but epsilon covers "
                f"{priced}; nothing is released"
            )

    def check_counts(self) -> None:
        """Raises PrivacyError unless each mechanism was released as often as planned."""
        for mechanism in self.plan.mechanisms:
            taken = self._taken[mechanism.name]
            if taken != mechanism.count:
                raise PrivacyError(
                    f"{mechanism.name}: {taken} noisy releases were made, but epsilon covers "
                    f"{mechanism.count}; nothing is released"
                )

    def _release_at_once(self, name: str, sums: GridSum, deviation: float) -> torch.Tensor:
        """Computes the result of `_add_rounded_noise` in one pass over each seed's sums."""
        out = np.empty(tuple(sums.units.shape))
        lines = out.reshape(len(self.seeds), -1)  # views, even if there is one number per seed
        for seed, units, noisy in zip(self.seeds, sums.units.numpy(), lines, strict=True):
            numbers = self._make_rounded_gaussian(name, seed).draw_numbers(units.size, deviation)
            table = units if units.ndim == 2 else units.reshape(1, -1)
            if not release_integers(table, numbers, LARGEST_SUM, sums.step, noisy):
                _require_whole(name, sums.units)
                raise PrivacyError(f"{name}: sums cannot be released; nothing is released")
        return torch.from_numpy(out)

    def _release_running(
        self,
        name: str,
        sums: GridSum,
        running: RunningSums,
        add: Callable[[RoundedGaussian, torch.Tensor, float], None],
    ) -> torch.Tensor:
        """Releases this cohort's sums in a chain of cohorts; returns the total of all cohorts."""
        _require_whole(name, sums.units)
        mixed, step = running.mix_sums(
            name, sums.units[0].cpu().numpy(), sums.step, sensitivity=self.sensitivity(name)
        )
        norm = running.factorisation.column_norm
        deviation = _deviation_in_steps(self.plan.find_mechanism(name), step, norm=norm)
        add(self._make_rounded_gaussian(name, self.seeds[0]), torch.from_numpy(mixed), deviation)
        output: npt.NDArray[np.float64] = mixed.astype(np.float64) * step
        total = running.take_output(name, output)
        return torch.from_numpy(total)[None].to(self.device)

    def _release_shared(
        self, name: str, sums: GridSum, deviation: float, *, symmetric: bool
    ) -> torch.Tensor:
        """Returns the noisy total of all sites' sums, to which this site adds its own."""
        assert self.shared is not None
        _require_whole(name, sums.units)
        local = sums.units[0].cpu().numpy().astype(np.int64)
        total = self.shared.add_up(
            name, local, step=sums.step, deviation=deviation, symmetric=symmetric
        )
        return torch.from_numpy(total * sums.step)[None].to(self.device)

    def _add_rounded_noise(
        self, name: str, sums: GridSum, add: Callable[[RoundedGaussian, torch.Tensor], None]
    ) -> torch.Tensor:
        noisy = sums.units.clone(memory_format=torch.contiguous_format)
        _require_whole(name, noisy)
        if self.observer is None:
            for seed, numbers in zip(self.seeds, noisy, strict=True):
                add(self._make_rounded_gaussian(name, seed), numbers)
            return noisy.mul_(sums.step)

        def draw_noisy(index: int) -> torch.Tensor:
            add(self._make_rounded_gaussian(name, self.seeds[index]), noisy[index])
            return noisy[index] * sums.step

        outputs = [
            self.observer.observe_release(
                name, seed, sums.values[index], partial(draw_noisy, index), sums.step
            )
            for index, seed in enumerate(self.seeds)
        ]
        return torch.stack(outputs)


def _deviation_in_steps(mechanism: Mechanism, step: float, *, norm: float = 1.0) -> float:
    """Returns a release's noise in grid steps, rounded up; `norm` multiplies the sensitivity."""
    deviation = mechanism.noise_scale
    if deviation == 0:
        return 0.0
    steps = math.nextafter(deviation / step, math.inf)
    if norm != 1:
        steps = math.nextafter(steps * norm, math.inf)
    if steps > LARGEST_DEVIATION:
        raise PrivacyError(
            f"{mechanism.name}: noise of {mechanism.noise_multiplier:g} times the sensitivity "
            "exceeds the limit of exact sums; set a larger epsilon"
        )
    return steps


def _require_whole(name: str, units: torch.Tensor) -> None:
    """Raises PrivacyError unless sums are whole numbers of steps, exact in float64."""
    if not bool((units.abs() <= LARGEST_SUM).all()):
        raise PrivacyError(
            f"{name}: sums are not finite, or above 2^53 steps, where float64 is not exact; "
            "clip rows and use the grid of their bound; nothing is released"
        )
    if units.dtype != torch.float64 or not bool((units == units.trunc()).all()):
        raise PrivacyError(
            f"{name}: sums are not whole numbers of steps; round rows to the grid before "
            "adding them; nothing is released"
        )


def add_rounded_noise(
    sampler: RoundedGaussian, numbers: Integers, deviation: float, *, symmetric: bool
) -> None:
    """Adds a release's noise to whole numbers in place; symmetric matrices are [d, d]."""
    add = _add_to_triangle if symmetric else _add_to_all
    add(sampler, torch.from_numpy(numbers), deviation)


def _add_to_all(sampler: RoundedGaussian, numbers: torch.Tensor, deviation: float) -> None:
    """Adds noise drawn on the CPU to whole numbers on any device."""
    if numbers.device.type == "cpu":
        sampler.add_to(numbers.numpy(), deviation)
    else:
        drawn = torch.from_numpy(sampler.draw_numbers(numbers.numel(), deviation))
        numbers.add_(drawn.view(numbers.shape).to(numbers.device))


def _add_to_triangle(sampler: RoundedGaussian, matrix: torch.Tensor, deviation: float) -> None:
    """Adds isometric noise to a symmetric matrix; reads only its upper triangle."""
    off_diagonal = math.nextafter(deviation * math.sqrt(0.5), math.inf)
    diagonal = sampler.draw_numbers(len(matrix), deviation)
    matrix.diagonal().add_(torch.from_numpy(diagonal).to(matrix.device))
    for low in range(0, len(matrix), _PANEL):
        panel = matrix[low : low + _PANEL, low:]
        lengths = [panel.shape[1] - row - 1 for row in range(len(panel))]
        drawn = np.split(sampler.draw_numbers(sum(lengths), off_diagonal), np.cumsum(lengths))
        noise = np.zeros(panel.shape, dtype=np.int64)
        for row, numbers in enumerate(drawn[:-1]):
            noise[row, row + 1 :] = numbers
        panel.add_(torch.from_numpy(noise).to(panel.device))
    mirror_upper(matrix)
