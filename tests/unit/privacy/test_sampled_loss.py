"""The privacy loss of a Poisson-sampled release equals dp-accounting's."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom

from dpprobe.privacy.sampled_loss import compute_deltas, compute_sampled_loss


@pytest.mark.parametrize(
    ("noise", "rate", "size", "interval"),
    [(0.9, 0.05, 1, 0.01), (6.0, 1 - 1e-9, 1, 0.01), (1.1, 0.05, 3, 0.05)],
)
def test_the_loss_equals_the_librarys(
    noise: float, rate: float, size: int, interval: float
) -> None:
    joined = range(size + 1)
    expected = (
        privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=rate, value_discretization_interval=interval
        )
        if size == 1
        else privacy_loss_distribution.from_mixture_gaussian_mechanism(
            noise, joined, binom.pmf(joined, size, rate), value_discretization_interval=interval
        )
    )
    computed = compute_sampled_loss(noise, rate, size, interval)
    for name in ("_pmf_remove", "_pmf_add"):
        pmf, other = (getattr(loss, name).to_dense_pmf() for loss in (computed, expected))
        assert pmf._infinity_mass == other._infinity_mass
        assert pmf._lower_loss == other._lower_loss
        np.testing.assert_allclose(pmf._probs, other._probs, rtol=1e-9, atol=1e-15)
        assert size > 1 or np.array_equal(pmf._probs, other._probs), "plans keep their bits"
    epsilons = np.array([0.0, 0.0, 0.103, 0.5, 2.0, 60.0])
    theirs = expected.self_compose(5).get_delta_for_epsilon(epsilons)
    np.testing.assert_allclose(
        compute_deltas(expected.self_compose(5), epsilons), theirs, rtol=1e-9, atol=1e-15
    )
