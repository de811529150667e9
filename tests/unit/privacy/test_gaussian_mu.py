"""mu computed in pure Python equals the accountant's mu."""

from __future__ import annotations

import pytest

from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.gaussian_mu import gaussian_mu


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_the_accountant_prices_mu_at_the_epsilon_it_came_from(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-5)
