"""The price of a composition of Gaussian mechanisms, by more than one library.

- `pld`: privacy loss distributions (dp-accounting; Koskela et al. 2020, Doroshenko et al. 2022).
  A composition in which no mechanism samples is priced exactly instead, as mu-GDP.
- `rdp`: Renyi differential privacy (dp-accounting; Mironov 2017, Mironov et al. 2019).
- `prv`: privacy random variables (Opacus; Gopi et al. 2021), a check by another code base.

Opacus's `gdp` accountant is not offered: for sampled steps it is a central limit approximation
that promises less privacy loss than there is. Neither is the classical Gaussian calibration
sqrt(2 ln(1.25 / delta)) / epsilon: it is not valid above epsilon = 1.

`pld` and `prv` compose by Fourier transforms in float64. Their round-off reaches deltas of 1e-12,
where `pld` is no upper bound any more: hence `dpprobe.config.SMALLEST_DELTA`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from dpprobe.errors import PrivacyError
from dpprobe.privacy.plan import Mechanism

logger = logging.getLogger("dpprobe")

ACCOUNTANTS = ("pld", "rdp", "prv", "gaussian")
_LIBRARIES = {"pld": "dp-accounting", "rdp": "dp-accounting", "prv": "opacus"}

# Fractional orders for large epsilons, powers of two far up for small ones.
_RDP_ORDERS = (
    *(1 + step / 10 for step in range(1, 100)),
    *range(11, 64),
    *(2**power for power in range(6, 15)),
)
_ROUGH_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 4096)
# PRV adds its error to its answer. A smaller one takes gigabytes, at so many steps.
_PRV_LEAST_ERROR, _PRV_STEPS = 2e-3, 31_250


def resolve(mechanisms: Sequence[Mechanism], accountant: str) -> str:
    """The accountant that prices these mechanisms: `pld` without sampling is exact, `gaussian`.

    Raises:
      PrivacyError: for an unknown name, or `gaussian` on sampled mechanisms.
    """
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(f"accountant {accountant!r}: write one of {', '.join(ACCOUNTANTS)}")
    sampled = [mechanism.name for mechanism in mechanisms if mechanism.sample_rate < 1]
    if accountant == "gaussian" and sampled:
        raise PrivacyError(
            f"accountant 'gaussian': mechanism {sampled[0]!r} samples its rows; write 'pld'"
        )
    return "gaussian" if accountant == "pld" and not sampled else accountant


def describe(mechanisms: Sequence[Mechanism], accountant: str) -> str:
    """The accountant that prices these mechanisms, with its library and version."""
    return _label(resolve(mechanisms, accountant))


def _label(resolved: str) -> str:
    if resolved == "gaussian":
        return "gaussian (exact mu-GDP)"
    library = _LIBRARIES[resolved]
    return f"{resolved} ({library} {version(library)})"


def epsilon(
    mechanisms: Sequence[Mechanism],
    delta: float,
    accountant: str,
    *,
    interval: float | None = None,
) -> float:
    """The epsilon of a composition at `delta`, an upper bound, under add or remove one.

    Args:
      mechanisms: the composition; a noise multiplier of 0 costs infinity.
      delta: above 0, below 1.
      accountant: one of `ACCOUNTANTS`.
      interval: the grid of `pld` on the privacy loss; found from a rough RDP answer where absent.

    Raises:
      PrivacyError: for an unknown accountant or a delta out of range.
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta {delta!r}: must lie between 0 and 1")
    resolved = resolve(mechanisms, accountant)
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    if not mechanisms:
        return 0.0
    if resolved == "gaussian":
        return gaussian_epsilon(gaussian_mu(mechanisms), delta)
    if resolved == "rdp":
        return _rdp_epsilon(mechanisms, delta)
    if resolved == "prv":
        return _prv_epsilon(mechanisms, delta)
    if interval is None:
        interval = pld_interval(max(rough_epsilon(mechanisms, delta), delta))
    return _pld_epsilon(mechanisms, delta, interval)


def rough_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """A loose upper bound in little time: RDP at a few orders. To start from, not to promise."""
    return _rdp_epsilon(mechanisms, delta, _ROUGH_ORDERS)


def central_limit_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """What the central limit theorem makes of many steps. To start from: it is NOT an upper bound.

    Bu, Dong, Long and Su 2020: mu^2 = sum of count * rate^2 * (exp(1 / noise_multiplier^2) - 1).
    """
    squares = 0.0
    for item in mechanisms:
        one = item.noise_multiplier**-2
        one = one if item.sample_rate == 1 else math.expm1(min(one, 600.0))
        squares += item.count * item.sample_rate**2 * one
    return gaussian_epsilon(math.sqrt(squares), delta)


def together(mechanisms: Sequence[Mechanism], delta: float, times: int) -> float:
    """An upper bound on the epsilon at `delta` of as many independent fits, all published.

    Exact where no mechanism samples; by RDP otherwise, which is quick at any number of fits.
    """
    repeated = [mechanism.repeated(times) for mechanism in mechanisms]
    sampled = any(mechanism.sample_rate < 1 for mechanism in repeated)
    return epsilon(repeated, delta, "rdp" if sampled else "gaussian")


def delta(mechanisms: Sequence[Mechanism], epsilon: float) -> float:
    """The exact delta at `epsilon` of mechanisms that do not sample.

    Raises:
      PrivacyError: when one of them samples.
    """
    resolve(mechanisms, "gaussian")
    if not mechanisms:
        return 0.0
    return math.exp(gaussian_log_delta(gaussian_mu(mechanisms), epsilon))


def gaussian_mu(mechanisms: Sequence[Mechanism]) -> float:
    """mu of a composition without sampling: mu^2 = sum of count / noise_multiplier^2.

    Dong, Roth and Su 2022, corollary 3.3.
    """
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    return math.sqrt(
        math.fsum(mechanism.count / mechanism.noise_multiplier**2 for mechanism in mechanisms)
    )


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log of Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

    Balle and Wang 2018, theorem 8, without cancellation between large terms or underflow: for an
    upper tail both terms are the normal density times a Mills ratio, and only those differ.
    """
    from scipy.special import erfcx, log_ndtr

    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if upper < 0:
        scale = math.sqrt(math.pi / 2)
        mills = scale * (erfcx(-upper / math.sqrt(2)) - erfcx(-lower / math.sqrt(2)))
        if mills <= 0:  # mu below the spacing of the arguments
            return -math.inf
        return -0.5 * upper**2 - 0.5 * math.log(2 * math.pi) + math.log(mills)
    first, second = float(log_ndtr(upper)), epsilon + float(log_ndtr(lower))
    return first + math.log1p(-math.exp(min(second - first, 0.0))) if second < first else -math.inf


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at which mu-GDP has this delta, from above, to 1e-12 relative."""
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if gaussian_log_delta(mu, 0.0) <= target:
        return 0.0
    high = 1.0
    while gaussian_log_delta(mu, high) > target:
        high *= 2
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if gaussian_log_delta(mu, middle) > target:
            low = middle
        else:
            high = middle
    return high


def pld_interval(epsilon: float) -> float:
    """A grid on the privacy loss for an epsilon of this size: about epsilon / 10,000.

    The discretisation only ever overestimates; the grid decides by how much (0.1 % of epsilon or
    less over 31,250 steps at batch 32 of 50,000), and how much time and memory it takes.
    """
    size = min(max(epsilon, 1e-3), 10.0)
    decade = math.floor(math.log10(size))
    mantissa = size / 10**decade
    step = 5 if mantissa >= 5 else 2 if mantissa >= 2 else 1
    return float(f"{step}e{decade - 4}")


def checks(
    mechanisms: Sequence[Mechanism], delta: float, accountant: str
) -> tuple[dict[str, float | None], dict[str, str]]:
    """The epsilon by every accountant but the one that prices these mechanisms.

    Returns:
      For each, its name with library and version, and its answer: None where it has none worth
      telling. For each of the latter, the reason.
    """
    used = resolve(mechanisms, accountant)
    interval = pld_interval(max(rough_epsilon(mechanisms, delta), delta))
    others = {
        "pld": lambda: _pld_epsilon(mechanisms, delta, interval),
        "rdp": lambda: _rdp_epsilon(mechanisms, delta),
        "prv": lambda: _prv_check(mechanisms, delta),
    }
    answers: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    for name, price in others.items():
        if name == used:
            continue
        try:
            answers[_label(name)] = price()
        except Exception as error:  # a second opinion: noted, not needed
            reason = str(error) if isinstance(error, PrivacyError) else repr(error)
            logger.info("calibration: no check by %s: %s", name, reason)
            answers[_label(name)] = None
            notes[_label(name)] = reason
    return answers, notes


def _pld_epsilon(mechanisms: Sequence[Mechanism], delta: float, interval: float) -> float:
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=interval)
    for event, count in _events(mechanisms):
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _rdp_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, orders: Sequence[float] = _RDP_ORDERS
) -> float:
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders)
    with _quiet_absl():
        for event, count in _events(mechanisms):
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))


def _prv_check(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """The answer of `prv` where it tells something.

    Raises:
      PrivacyError: when its error is too large for the epsilon, or it exceeds RDP's upper bound.
    """
    error = _prv_error(mechanisms, delta)
    bound = _rdp_epsilon(mechanisms, delta)
    if error > 0.05 * bound:
        raise PrivacyError(f"its error of {error:.2g} is too large for an epsilon of {bound:.2g}")
    answer = _prv_epsilon(mechanisms, delta)
    if not answer <= bound + error:
        raise PrivacyError(f"its answer {answer:.4g} exceeds the upper bound {bound:.4g} by RDP")
    return answer


def _prv_error(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """One per cent of the epsilon, within what memory allows."""
    steps = sum(count for _, _, count in _prv_history(mechanisms))
    least = _PRV_LEAST_ERROR * max(1.0, steps / _PRV_STEPS) ** 0.5
    return max(least, min(0.01 * rough_epsilon(mechanisms, delta), 0.05))


def _prv_history(mechanisms: Sequence[Mechanism]) -> list[tuple[float, float, int]]:
    """Opacus's records of (noise multiplier, rate, count); without sampling, one release."""
    whole = [mechanism for mechanism in mechanisms if mechanism.sample_rate == 1]
    history = [(1 / gaussian_mu(whole), 1.0, 1)] if whole else []
    return history + [
        (mechanism.noise_multiplier, mechanism.sample_rate, mechanism.count)
        for mechanism in mechanisms
        if mechanism.sample_rate < 1
    ]


def _prv_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = _prv_history(mechanisms)
    with warnings.catch_warnings():
        # It takes logarithms of 0 outside its support, and a coarse order to size its grid.
        warnings.filterwarnings("ignore", "divide by zero", RuntimeWarning)
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        error = _prv_error(mechanisms, delta)
        return float(accountant.get_epsilon(delta, eps_error=error))


def _events(mechanisms: Sequence[Mechanism]) -> Iterator[tuple[object, int]]:
    """dp-accounting's events; all mechanisms that do not sample are one Gaussian, exactly."""
    import dp_accounting

    whole = [mechanism for mechanism in mechanisms if mechanism.sample_rate == 1]
    if whole:
        yield dp_accounting.GaussianDpEvent(1 / gaussian_mu(whole)), 1
    for mechanism in mechanisms:
        if mechanism.sample_rate < 1:
            gaussian = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
            yield (
                dp_accounting.PoissonSampledDpEvent(mechanism.sample_rate, gaussian),
                mechanism.count,
            )


@contextmanager
def _quiet_absl() -> Iterator[None]:
    """Without a warning for each fractional order left out: leaving one out only loosens."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
