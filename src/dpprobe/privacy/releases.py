"""Adds a plan's noise to the sums of a fit, and counts each noisy release against the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.noise import GaussianNoise
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed


class Releases:
    """Adds a plan's noise to sums, each seed's from its own stream, and counts the releases.

    Attributes:
      plan: as calibrated.
      seeds: one a fit, all trained together.
      device: the torch device of the sums.
    """

    def __init__(self, plan: Plan, seeds: Sequence[int], device: torch.device) -> None:
        self.plan = plan
        self.seeds = tuple(seeds)
        self.device = device
        self._taken: Counter[str] = Counter()
        self._noise: dict[tuple[str, int], GaussianNoise] = {}
        self._handed_out: set[tuple[int, str | None]] = set()

    def sensitivity(self, name: str) -> float:
        """Returns the norm that rows are clipped to; infinite when the plan is not private."""
        return self.plan.mechanism(name).sensitivity if self.plan.private else math.inf

    def deviation(self, name: str) -> float:
        """Returns the noise's standard deviation; 0 when the plan is not private."""
        mechanism = self.plan.mechanism(name)
        return mechanism.noise_multiplier * mechanism.sensitivity

    def gaussian(self, name: str, sums: torch.Tensor) -> torch.Tensor:
        """Releases each seed's sum once, with Gaussian noise.

        Args:
          name: of the mechanism.
          sums: [seeds, ...], the exact sums, of L2 sensitivity `sensitivity(name)` in each seed.

        Returns:
          A new tensor, `sums` plus normals of standard deviation `deviation(name)`.
        """
        self.count(name, 1)
        return sums + self._normals(name, sums)

    def symmetric(self, name: str, sums: torch.Tensor) -> torch.Tensor:
        """Releases each seed's symmetric matrix once, of Frobenius sensitivity `sensitivity(name)`.

        Its coordinates in an orthonormal basis of the symmetric matrices, the diagonal and
        sqrt(2) times one triangle, get independent noise. So the noise on the diagonal has the
        standard deviation `deviation(name)`, and elsewhere one smaller by sqrt(2).

        Args:
          sums: [seeds, d, d], symmetric.
        """
        self.count(name, 1)
        noise = self._normals(name, sums)
        # An antisymmetric part would get no noise: it is taken out.
        return (sums + sums.mT) / 2 + (noise + noise.mT) / 2

    def noise(
        self,
        name: str,
        size: int,
        *,
        seeds: Sequence[int] | None = None,
        stream: str | None = None,
    ) -> GaussianNoise:
        """Returns the noise of releases that a head adds up by itself, step after step or in parts.

        The head draws with the standard deviation that `deviation` says, and notes its releases by
        `count`.

        Args:
          name: of the mechanism.
          size: numbers of one release or part.
          seeds: those of the fit's seeds whose noise it is; all of them where absent.
          stream: the name of a stream that each seed has for this; the seed's own where absent.

        Raises:
          PrivacyError: when the plan lacks the mechanism, or the noise was handed out before: two
            sums with the same noise give their difference away.
        """
        self.plan.mechanism(name)
        chosen = self.seeds if seeds is None else tuple(seeds)
        streams = {(seed, stream) for seed in chosen}
        if streams & self._handed_out:
            raise PrivacyError(f"{name}: its noise was handed out before; not released")
        self._handed_out |= streams
        if stream is not None:
            chosen = tuple(derived_seed(seed, stream) for seed in chosen)
        return GaussianNoise(chosen, size, self.device)

    def count(self, name: str, releases: int) -> None:
        """Counts releases to which a head has added the noise itself.

        Raises:
          PrivacyError: when there are more than were priced.
        """
        self._taken[name] += releases
        priced = self.plan.mechanism(name).count
        if self._taken[name] > priced:
            raise PrivacyError(
                f"{name}: {self._taken[name]} noisy releases were taken, {priced} were priced; "
                "not released"
            )

    def check(self) -> None:
        """Raises PrivacyError unless each mechanism released exactly as often as was priced."""
        for mechanism in self.plan.mechanisms:
            taken = self._taken[mechanism.name]
            if taken != mechanism.count:
                raise PrivacyError(
                    f"{mechanism.name}: {taken} noisy releases were taken, {mechanism.count} were "
                    "priced; not released"
                )

    def _normals(self, name: str, like: torch.Tensor) -> torch.Tensor:
        size = like[0].numel()
        key = (name, size)
        if key not in self._noise:
            seeds = [derived_seed(seed, f"{name} {size}") for seed in self.seeds]
            self._noise[key] = GaussianNoise(seeds, size, self.device)
        drawn = self._noise[key].draw(1, self.deviation(name))
        return drawn.reshape(like.shape).to(like.dtype)
