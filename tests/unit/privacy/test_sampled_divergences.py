"""Rényi divergences of a Poisson-sampled release are dp-accounting's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from dpprobe.privacy.sampled_divergences import SampledAccountant, compute_divergences

# At rate 0.4, order 2.5 needs more than 64 terms, and order 1.1 more than the library uses.
ORDERS = (1.1, 2.5, 9.9, 2, 3, 64, 4096)


@pytest.mark.parametrize("noise", [0.05, 0.7, 3.0, 1e3])
@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.4, 1 - 1e-9])
def test_they_equal_the_library(noise: float, rate: float) -> None:
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    library = RdpAccountant(ORDERS).compose(event)
    assert np.array_equal(compute_divergences(rate, noise, np.array(ORDERS)), library._rdp)


def test_compositions_equal_the_library() -> None:
    """Composes samples, a selection, a release without sampling, and rates of 0 and 1."""
    sampled = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.1))
    whole = dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(2.0))
    never = dp_event.PoissonSampledDpEvent(0.0, dp_event.GaussianDpEvent(2.0))
    events = [
        dp_event.SelfComposedDpEvent(sampled, 30),
        dp_event.RepeatAndSelectDpEvent(dp_event.SelfComposedDpEvent(sampled, 3), 4.0, 1.0),
        dp_event.ComposedDpEvent([whole, never, dp_event.GaussianDpEvent(3.0), sampled]),
    ]
    ours, library = SampledAccountant(ORDERS), RdpAccountant(ORDERS)
    for event in events:
        ours.compose(event, 2)
        library.compose(event, 2)
    assert ours.get_epsilon(1e-6) == library.get_epsilon(1e-6)
    assert np.array_equal(ours._rdp, library._rdp)


def test_a_release_without_noise_has_no_bound() -> None:
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(0.0))
    assert np.isinf(SampledAccountant(ORDERS).compose(event).get_epsilon(1e-6))
