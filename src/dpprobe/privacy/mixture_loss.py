"""The loss of a group of units in a Poisson sample, as dp-accounting computes it, but faster.

dp-accounting inverts the loss of a mixture of Gaussians by one Python call per point. Here all
points take each step of the same bisection together. The result is the same up to rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    _create_pld_pmf_from_monotone_privacy_loss,
)
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from scipy.stats import binom

Numbers = npt.NDArray[np.float64]


class _MixtureLoss(MixtureGaussianPrivacyLoss):  # type: ignore[misc]
    def _inverse_privacy_losses_with_range(
        self, privacy_losses: Numbers, bounds: tuple[float, float], precision: float = 1e-6
    ) -> Numbers:
        low, high = (np.full(len(privacy_losses), end) for end in bounds)
        while (wide := high - low > precision).any():
            middle = (low + high) / 2
            above = privacy_losses < self._compute_losses(middle)
            low = np.where(wide & above, middle, low)
            high = np.where(wide & ~above, middle, high)
        inverses: Numbers = np.floor(high / precision) * precision
        return inverses

    def _compute_losses(self, x: Numbers) -> Numbers:
        """Computes `privacy_loss` at every point."""
        sign = 1.0 if self.adjacency_type == AdjacencyType.ADD else -1.0
        moved = self.sensitivities * x[:, None] / self._variance
        total = np.logaddexp.reduce(self._precompute_privacy_loss_constants + sign * moved, axis=1)
        losses: Numbers = -sign * total
        return losses


def compute_group_loss(
    noise: float, rate: float, size: int, interval: float
) -> PrivacyLossDistribution:
    """Computes the loss of one release on a Poisson sample to a group: see `group_epsilon`."""
    joined = np.arange(size + 1)

    def make_pmf(adjacency: AdjacencyType) -> PLDPmf:
        loss = _MixtureLoss(
            noise,
            joined.tolist(),
            binom.pmf(joined, size, rate).tolist(),
            log_mass_truncation_bound=-50,
            adjacency_type=adjacency,
        )
        return _create_pld_pmf_from_monotone_privacy_loss(
            loss, value_discretization_interval=interval, use_connect_dots=True
        )

    return PrivacyLossDistribution(make_pmf(AdjacencyType.REMOVE), make_pmf(AdjacencyType.ADD))
