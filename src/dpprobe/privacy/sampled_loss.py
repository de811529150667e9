"""The privacy loss of a release on a Poisson sample, equal to dp-accounting's, but faster.

dp-accounting inverts the loss, and sums the deltas of a distribution, with one Python call per
point. This module uses arrays, in the same order, so that results are bit-identical.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import numpy.typing as npt
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    _create_pld_pmf_from_monotone_privacy_loss,
)
from dp_accounting.pld.privacy_loss_mechanism import (
    AdjacencyType,
    GaussianPrivacyLoss,
    MixtureGaussianPrivacyLoss,
)
from scipy.stats import binom

Numbers = npt.NDArray[np.float64]

# If samples without units of the group are rarer than this, floats lose precision.
_NEVER = 1e-15


class _SampledLoss(GaussianPrivacyLoss):  # type: ignore[misc]
    def get_delta_for_epsilon(self, epsilon: Numbers) -> Numbers:
        rate, sign = self.sampling_prob, 1.0 if self.adjacency_type == AdjacencyType.REMOVE else -1
        deltas = -np.expm1(np.minimum(epsilon, 0.0)) if sign > 0 else np.zeros(len(epsilon))
        inside = sign * epsilon > math.log1p(-rate)
        losses, least = sign * epsilon[inside], math.log(1 - rate)
        # `math.isclose`, as in dp-accounting
        at_least = np.abs(losses - least) <= 1e-9 * np.maximum(np.abs(losses), abs(least))
        moved = np.where(at_least, 0.0, losses) + np.log(1 / rate)
        with np.errstate(invalid="raise", divide="raise"):
            whole = moved + np.log1p(-np.exp(np.log(1 / rate - 1) - moved))  # without sampling
        whole[losses == 0] = np.log(1 / rate + (1 - 1 / rate))
        whole[at_least] = -np.inf
        # these functions of dp-accounting accept arrays
        invert = (
            self._inverse_privacy_loss_without_subsampling_remove
            if sign > 0
            else self._inverse_privacy_loss_without_subsampling_add
        )
        x = invert(sign * whole)
        deltas[inside] = self.mu_upper_cdf(x) - np.exp(epsilon[inside] + self.mu_lower_log_cdf(x))
        return np.clip(deltas, 0, 1)


class _MixtureLoss(MixtureGaussianPrivacyLoss):  # type: ignore[misc]
    def __init__(self, noise: float, size: int, rate: float, adjacency_type: AdjacencyType) -> None:
        shares = binom.pmf(joined := np.arange(size + 1), size, rate)
        if never := shares[0] < _NEVER:  # counts them as one unit, which can only raise loss
            shares[:2] = 0.0, shares[0] + shares[1]
        super().__init__(noise, joined, shares, adjacency_type=adjacency_type)
        if never:
            self._sampling_prob = 1.0  # exactly: dp-accounting takes log(1 - the shares' sum)

    def _inverse_privacy_losses_with_range(
        self, privacy_losses: Numbers, bounds: tuple[float, float], precision: float = 1e-6
    ) -> Numbers:
        low, high = (np.full(len(privacy_losses), end) for end in bounds)
        while (wide := high - low > precision).any():
            middle = (low + high) / 2
            above = privacy_losses < self._compute_losses(middle)
            low, high = np.where(wide & above, middle, low), np.where(wide & ~above, middle, high)
        inverses: Numbers = np.floor(high / precision) * precision
        return inverses

    def _compute_losses(self, x: Numbers) -> Numbers:
        """Computes `privacy_loss` at every point."""
        sign = 1 if self.adjacency_type == AdjacencyType.ADD else -1
        terms = zip(self._precompute_privacy_loss_constants, self.sensitivities, strict=True)
        total = reduce(np.logaddexp, (log + sign * (y * x / self._variance) for log, y in terms))
        return np.asarray(-sign * total, dtype=np.float64)


def compute_sampled_loss(
    noise: float, rate: float, size: int, interval: float
) -> PrivacyLossDistribution:
    """Computes the privacy loss of one sampled release for a group; see `group_epsilon`."""
    losses = (
        _SampledLoss(noise, sampling_prob=rate, adjacency_type=adjacency)
        if size == 1
        else _MixtureLoss(noise, size, rate, adjacency)
        for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    removed, added = (
        _create_pld_pmf_from_monotone_privacy_loss(
            loss, value_discretization_interval=interval, use_connect_dots=True
        )
        for loss in losses
    )
    return PrivacyLossDistribution(removed, added)


def compute_deltas(loss: PrivacyLossDistribution, epsilons: npt.ArrayLike) -> Numbers:
    """Computes the deltas of a privacy loss distribution at finite epsilons."""
    pmfs = [loss._pmf_remove] if loss._symmetric else [loss._pmf_remove, loss._pmf_add]
    parts = [_sum_deltas(pmf, np.asarray(epsilons, dtype=np.float64)) for pmf in pmfs]
    return np.maximum(parts[0], parts[-1])


def _sum_deltas(pmf: PLDPmf, epsilons: Numbers) -> Numbers:
    dense = pmf.to_dense_pmf()
    losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
    above = len(losses) - np.searchsorted(losses, epsilons, side="right")
    top = slice(-1, -1 - int(above.max(initial=0)), -1)
    shares = np.concatenate([[dense._infinity_mass], dense._probs[top]])
    others = np.concatenate([[0.0], dense._probs[top] * np.exp(-losses[top])])
    deltas: Numbers = shares.cumsum()[above] - np.exp(epsilons) * others.cumsum()[above]
    return deltas
