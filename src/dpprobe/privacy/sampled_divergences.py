"""Rényi divergences of a release on a Poisson sample, equal to dp-accounting's, but faster.

dp-accounting adds up to 16,385 terms for a Rényi order, with one Python call per term. This module
uses arrays, in the same order, so that results are bit-identical.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, log_ndtr

Numbers = npt.NDArray[np.float64]
_MOST_TERMS = 1000  # for a fractional order, as in dp-accounting


class SampledAccountant(RdpAccountant):  # type: ignore[misc]
    """dp-accounting's accountant, with the divergences of `compute_divergences`."""

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> object:
        if do_compose and isinstance(event, dp_event.PoissonSampledDpEvent):
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            if 0 < rate < 1 and noise > 0:
                self._rdp += count * compute_divergences(rate, noise, self._orders)
                return None
        return super()._maybe_compose(event, count, do_compose)


def compute_divergences(rate: float, noise: float, orders: Numbers) -> Numbers:
    """Computes divergences (Mironov et al. 2019, 3.3); infinite if the series does not converge."""
    moments = [
        (_whole_moment if float(order).is_integer() else _fractional_moment)(rate, noise, order)
        for order in orders
    ]
    return np.array(moments) / (orders - 1)


def _whole_moment(rate: float, noise: float, order: float) -> float:
    i = np.arange(int(order) + 1)
    terms = _log_choices(order, i) + i * math.log(rate) + (order - i) * math.log1p(-rate)
    return float(np.logaddexp.reduce(terms + (i * i - i) / (2 * noise**2)))


def _fractional_moment(rate: float, noise: float, order: float) -> float:
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    for terms in (64, _MOST_TERMS):  # 64 terms are enough for most orders
        i = np.arange(terms)
        j, log_choices = order - i, _log_choices(order, i)
        below = log_choices + i * log_rate + j * log_rest + (i * i - i) / (2 * noise**2)
        below = below + _log_tail((i - middle) / (math.sqrt(2) * noise))
        above = log_choices + j * log_rate + i * log_rest + (j * j - j) / (2 * noise**2)
        above = above + _log_tail((middle - j) / (math.sqrt(2) * noise))
        total = np.logaddexp(np.logaddexp.accumulate(below), np.logaddexp.accumulate(above))
        last = (below[1:] < below[:-1]) & (above[1:] < above[:-1])
        last &= np.maximum(below, above)[1:] < total[1:] - 30
        if last.any():
            return float(total[1 + last.argmax()])
    return math.inf


def _log_choices(order: float, i: npt.NDArray[np.int64]) -> Numbers:
    choices: Numbers = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    return choices


def _log_tail(x: npt.ArrayLike) -> Numbers:
    """Computes the log of erfc(x) / 2, in dp-accounting's steps."""
    tail: Numbers = math.log(0.5) + (math.log(2) + log_ndtr(-np.asarray(x) * 2**0.5))
    return tail
