"""Mechanisms for tests of the accounting."""

from __future__ import annotations

from dpprobe.privacy.plan import Mechanism


def gaussians(noise: float, rate: float = 1.0, count: int = 1, name: str = "g") -> Mechanism:
    return Mechanism(
        name=name,
        released="a sum",
        sensitivity=1.0,
        noise_multiplier=noise,
        sample_rate=rate,
        count=count,
    )
