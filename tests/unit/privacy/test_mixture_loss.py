"""The privacy loss of a group in a Poisson sample equals dp-accounting's own."""

from __future__ import annotations

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom

from dpprobe.privacy.mixture_loss import compute_group_loss


def test_it_equals_the_library() -> None:
    noise, rate, size, interval = 1.1, 0.05, 3, 0.05
    joined = range(size + 1)
    expected = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise, joined, binom.pmf(joined, size, rate), value_discretization_interval=interval
    )
    computed = compute_group_loss(noise, rate, size, interval)
    for name in ("_pmf_remove", "_pmf_add"):
        pmf, other = (getattr(loss, name).to_dense_pmf() for loss in (computed, expected))
        assert pmf._infinity_mass == other._infinity_mass
        assert pmf._lower_loss == other._lower_loss
        np.testing.assert_allclose(pmf._probs, other._probs, rtol=1e-9, atol=1e-15)
