"""The loss of a group in a Poisson sample equals dp-accounting's own."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom

from dpprobe.privacy.mixture_loss import compute_group_loss


@pytest.mark.parametrize(
    ("noise", "rate", "size", "interval"),
    [
        (2.64, 32 / 1438, 8, 1e-2),
        (0.75, 32 / 1438, 2, 2e-2),
        (20.0, 0.3, 3, 1e-3),
        (0.6, 0.9, 14, 0.1),
    ],
)
def test_it_equals_the_library(noise: float, rate: float, size: int, interval: float) -> None:
    joined = list(range(size + 1))
    expected = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise,
        joined,
        binom.pmf(joined, size, rate).tolist(),
        value_discretization_interval=interval,
    )
    computed = compute_group_loss(noise, rate, size, interval)
    for name in ("_pmf_remove", "_pmf_add"):
        pmf, other = (getattr(loss, name).to_dense_pmf() for loss in (computed, expected))
        assert pmf._infinity_mass == other._infinity_mass
        assert pmf._lower_loss == other._lower_loss
        np.testing.assert_allclose(pmf._probs, other._probs, rtol=1e-9, atol=1e-15)
