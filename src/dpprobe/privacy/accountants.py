"""Computes epsilon of a composition of mechanisms, with several libraries.

- `pld`: privacy loss distributions (dp-accounting; Koskela et al. 2020, Doroshenko et al. 2022).
  Gaussian mechanisms without sampling are accounted exactly, as mu-GDP.
- `rdp`: Renyi differential privacy (dp-accounting; Mironov 2017, Mironov et al. 2019).
- `rdp_2017`: Renyi divergences (Opacus) with the conversion to epsilon of Mironov 2017, proposition
  3, to reproduce the looser noise of papers until 2020.
- `prv`: privacy random variables (Opacus; Gopi et al. 2021), implemented independently, so used as
  a check. Only Opacus's accounting is imported (`opacus_accounting`).

`rdp` accounts for a selection (`plan.Selection`) as in Papernot and Steinke 2022. Other accountants
use the privacy profile of one run, exact or `pld`'s, as `dpprobe.privacy.best_of_runs_price`
derives. `prv` and `rdp_2017` do not support selections.

Opacus's `gdp` accountant is not offered: for sampled steps it is a central limit approximation,
which understates the privacy loss. The classical Gaussian calibration sqrt(2 ln(1.25 / delta)) /
epsilon is not offered either, because it is not valid above epsilon = 1.

`pld` and `prv` compose by Fourier transforms in float64, whose round-off reaches deltas of 1e-12.
At deltas near 1e-12 `pld` is no upper bound, so `dpprobe.privacy.limits.SMALLEST_DELTA` is larger.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dpprobe.errors import PrivacyError
from dpprobe.privacy.gaussian_mu import gaussian_mu as mu_at
from dpprobe.privacy.opacus_accounting import import_accounting
from dpprobe.privacy.plan import Mechanism, Selection

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from dp_accounting.pld import privacy_loss_distribution

    from dpprobe.privacy.best_of_runs_price import Profile

logger = logging.getLogger("dpprobe")

_SMALL_MU = 1e-6  # below this mu, delta is the difference of two nearly equal terms
# Renyi orders: fractional for large epsilons, powers of two up to 2^14 for small epsilons.
RDP_ORDERS = (
    *(1 + step / 10 for step in range(1, 100)),
    *range(11, 64),
    *(2**power for power in range(6, 15)),
)
_ROUGH_ORDERS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024, 4096)
# Larger groups of sampled rows take minutes and more memory than a laptop has.
LARGEST_SAMPLED_GROUP = 100
# A group's epsilon is reported, not calibrated, so its grid is coarser and overestimates by 1%.
_GROUP_COARSER = 10
# PRV adds its error to its answer. At _PRV_STEPS steps, errors below _PRV_LEAST_ERROR take
# gigabytes of memory.
_PRV_LEAST_ERROR, _PRV_LARGEST_ERROR, _PRV_STEPS = 2e-3, 0.25, 31_250
_PRV_TRIES = 12


def resolve_accountant(mechanisms: Sequence[Mechanism], accountant: str) -> str:
    """Returns the accountant that computes epsilon for these mechanisms.

    `pld` is exact if possible: `gaussian` without sampling. Raises PrivacyError for an unknown
    name, or if `gaussian` is asked for mechanisms that sample.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> resolve_accountant([full_batch("gram", "a sum", 1.0)], "pld")  # exact without sampling
      'gaussian'
    """
    if accountant not in ACCOUNTANTS:
        raise PrivacyError(f"accountant {accountant!r}: choose one of {', '.join(ACCOUNTANTS)}")
    sampled = [mechanism.name for mechanism in mechanisms if mechanism.sample_rate < 1]
    if accountant == "gaussian" and sampled:
        raise PrivacyError(
            f"accountant 'gaussian': mechanism {sampled[0]!r} samples its rows, which this "
            "accountant does not support; write 'pld'"
        )
    return "gaussian" if accountant == "pld" and not sampled else accountant


def exactly_priced(mechanisms: Sequence[Mechanism], selection: Selection | None = None) -> bool:
    """Returns True if `pld` computes epsilon of these mechanisms exactly, without a grid."""
    return selection is None and is_gaussian(mechanisms)


def is_gaussian(mechanisms: Sequence[Mechanism]) -> bool:
    """Returns True if the mechanisms together are one Gaussian mechanism."""
    return resolve_accountant(mechanisms, "pld") == "gaussian"


def describe_accountant(
    mechanisms: Sequence[Mechanism], accountant: str, selection: Selection | None = None
) -> str:
    """Returns the accountant for these mechanisms, with library and version."""
    return _label_accountant(resolve_accountant(mechanisms, accountant), selection)


def _label_accountant(resolved: str, selection: Selection | None) -> str:
    library = ACCOUNTANTS[resolved].library
    label = f"{resolved} ({f'{library} {version(library)}' if library else 'exact mu-GDP'})"
    if selection is None:
        return label
    by = "Renyi divergences" if resolved == "rdp" else "the privacy profile of one run"
    return f"{label}, selection by {by}"


def compute_epsilon(
    mechanisms: Sequence[Mechanism],
    delta: float,
    accountant: str,
    *,
    interval: float | None = None,
    selection: Selection | None = None,
) -> float:
    """Computes an upper bound on the epsilon of a composition at `delta`, in (0, 1).

    `plan` defines neighbours: a unit's rows are replaced by null rows, or null rows by them. The
    accounting libraries call this relation "add or remove one". A noise multiplier of 0 has
    infinite epsilon.

    Args:
      interval: `pld`'s grid spacing on the privacy loss; by default from an approximate epsilon.
      selection: names the mechanisms that are repeated, with only the best run released.

    Raises PrivacyError for an unknown accountant, one that does not support the mechanisms, or a
    delta out of range.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> once = full_batch("sums", "a sum", 1.0).scale_noise(5)  # noise of 5 sensitivities
      >>> round(compute_epsilon([once], 1e-5, "pld"), 3)
      0.726
      >>> round(compute_epsilon([once.repeat_count(4)], 1e-5, "pld"), 3)  # less than 4 times
      1.555
      >>> compute_epsilon([once.scale_noise(0)], 1e-5, "pld")
      inf
    """
    if not 0 < delta < 1:
        raise PrivacyError(f"delta {delta!r}: must lie between 0 and 1")
    resolved = resolve_accountant(mechanisms, accountant)
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    if not mechanisms:
        return 0.0
    if resolved == "gaussian" and selection is None:
        return gaussian_epsilon(gaussian_mu(mechanisms), delta)
    compute = ACCOUNTANTS[resolved].compute
    if compute is not None:
        return compute(mechanisms, delta, selection)
    if interval is None and not _closed_form(mechanisms, resolved, selection):
        interval = pld_interval(max(rough_epsilon(mechanisms, delta, selection), delta))
    return _profile_epsilon(mechanisms, delta, resolved, interval, selection)


def epsilon_below(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """Computes a lower bound on the epsilon of Gaussian mechanisms at `delta`.

    Without sampling the bound is tight to twelve digits. With sampling the lower bound is the lower
    end of `prv`, whose error is proven (Gopi et al. 2021): 0.5% below the epsilon, or more to spare
    memory. `prv` fails for epsilons of hundreds, so the bound is then computed for more noise.
    """
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    if not mechanisms:
        return 0.0
    whole = [mechanism for mechanism in mechanisms if mechanism.sample_rate == 1]
    certain = gaussian_epsilon(gaussian_mu(whole), delta) * (1 - 2e-12) if whole else 0.0
    if len(whole) == len(mechanisms):
        return certain
    error, tail = max(_prv_error(mechanisms, delta) / 4, _PRV_LEAST_ERROR), delta / 1000
    for _ in range(_PRV_TRIES):
        # `prv`'s upper end at delta + 2 tails, minus two errors, is a lower bound at delta.
        try:
            answer = _prv_upper(mechanisms, delta + 2 * tail, error, tail) - 2 * error
        except ValueError:  # an epsilon beyond `prv`'s grid
            answer = math.inf
        if math.isfinite(answer):
            return max(certain, answer)
        mechanisms = [mechanism.scale_noise(1.5) for mechanism in mechanisms]
    return certain


def privacy_profile(
    mechanisms: Sequence[Mechanism], delta: float, *, size: int = 1, coarser: float = 1
) -> Profile:
    """Computes the privacy profile of a fit without selection, the larger of both directions.

    Without sampling the profile is exact. With sampling it is `pld`'s upper bound, on the grid of
    `compute_epsilon`.

    Args:
      size: number of units in a group; above 1 the grid is `group_epsilon`'s.
      coarser: a factor on the grid spacing for one unit.
    """
    resolved = resolve_accountant(mechanisms, "pld")
    interval = None
    if not _closed_form(mechanisms, resolved, None):
        alone = rough_epsilon(mechanisms, delta)
        interval = (
            coarser * pld_interval(max(alone, delta))
            if size == 1
            else _group_interval(size * alone)
        )
    return _make_profile(_to_group(mechanisms, size), resolved, interval, size)


def rough_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, selection: Selection | None = None
) -> float:
    """Computes a loose upper bound quickly, by RDP at a few orders, to start a search."""
    return _rdp_epsilon(mechanisms, delta, selection, _ROUGH_ORDERS)


def group_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, size: int, *, selection: Selection | None = None
) -> float:
    """Computes the epsilon for a group of `size` units, at `delta`.

    Neighbouring datasets differ in whether all rows of the group are replaced by null rows. A
    release on all rows changes by up to `size` sensitivities, so the epsilon is exact without
    sampling. In a Poisson sample a binomial number of the group's rows takes part. A mixture of
    Gaussians, whose means are multiples of the sensitivity, dominates the release (Ganesh 2024,
    "Tight group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
    The result is an upper bound, tight except for the discretisation error of the grid.

    Returns:
      The epsilon; infinite, without computing it, for sampled groups above `LARGEST_SAMPLED_GROUP`.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> once = full_batch("sums", "a sum", 1.0).scale_noise(5)
      >>> [round(group_epsilon([once], 1e-5, size), 2) for size in (1, 2, 10)]
      [0.73, 1.55, 10.0]
    """
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    sampled = [item for item in mechanisms if item.sample_rate < 1]
    whole = _to_group(mechanisms, size)
    if size == 1 or not sampled:
        return compute_epsilon(whole, delta, "pld", selection=selection)
    if size > LARGEST_SAMPLED_GROUP:
        return math.inf
    alone = rough_epsilon(mechanisms, delta, selection)
    interval = _group_interval(size * alone)
    return _profile_epsilon(whole, delta, "pld", interval, selection, size=size)


def _group_interval(epsilon: float) -> float:
    """Chooses the grid spacing for a group; above epsilon 1,000 it grows to limit memory."""
    return _GROUP_COARSER * pld_interval(epsilon) * max(1.0, epsilon / 1000)


def _to_group(mechanisms: Sequence[Mechanism], size: int) -> list[Mechanism]:
    """Divides the noise multipliers of mechanisms without sampling by the size of a group."""
    return [item.scale_noise(1 / size) if item.sample_rate == 1 else item for item in mechanisms]


def worth_to_group(epsilon: float, delta: float, size: int) -> float:
    """Converts a unit's epsilon under Gaussian releases without sampling to a group's epsilon.

    Example:
      >>> round(worth_to_group(1.0, 1e-5, 5), 2)  # five images of one patient, images as units
      6.17
    """
    return gaussian_epsilon(size * mu_at(epsilon, delta), delta)


def central_limit_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """Approximates the epsilon of many steps by the central limit theorem: NOT an upper bound.

    The approximation only starts a search (Bu, Dong, Long and Su 2020): mu^2 = sum of count *
    rate^2 * (exp(1 / noise_multiplier^2) - 1).
    """
    squares = 0.0
    for item in mechanisms:
        one = item.noise_multiplier**-2
        one = one if item.sample_rate == 1 else math.expm1(min(one, 600.0))
        squares += item.count * item.sample_rate**2 * one
    return gaussian_epsilon(math.sqrt(squares), delta)


def price_together(
    mechanisms: Sequence[Mechanism], delta: float, times: int, selection: Selection | None = None
) -> float:
    """Bounds the epsilon at `delta` of publishing `times` independent fits together.

    The bound is exact without sampling or selection. With a selection but no sampling, the bound
    follows from the privacy profile; with sampling, from RDP.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> head = [full_batch("sums", "a sum", 1.0).scale_noise(5)]
      >>> [round(price_together(head, 1e-5, times), 2) for times in (1, 2, 5)]
      [0.73, 1.06, 1.76]
    """
    repeated = [mechanism.repeat_count(times) for mechanism in mechanisms]
    sampled = any(mechanism.sample_rate < 1 for mechanism in repeated)
    if selection is None and not sampled:
        return compute_epsilon(repeated, delta, "pld")
    by_rdp = _rdp_epsilon(mechanisms, delta, selection, times=times)
    if selection is None or sampled:
        return by_rdp
    interval = pld_interval(max(by_rdp, delta))
    return _profile_epsilon(mechanisms, delta, "gaussian", interval, selection, times)


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Independent fits of one kind: their mechanisms, and how many there are."""

    mechanisms: tuple[Mechanism, ...]
    times: int
    selection: Selection | None = None


def all_together(fits: Sequence[Fits], delta: float) -> tuple[float, bool]:
    """Bounds the epsilon at `delta` of publishing fits of several kinds together.

    Returns:
      The bound, and True if it is exact: if all mechanisms are Gaussian, without sampling or
      selection. With sampling or selection RDP gives the bound, in a fraction of a second per kind.

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> loud, quiet = (full_batch("sums", "a sum", 1.0).scale_noise(noise) for noise in (10, 5))
      >>> epsilon, exact = all_together(
      ...     [Fits(mechanisms=(loud,), times=4), Fits(mechanisms=(quiet,), times=3)], 1e-5
      ... )
      >>> round(epsilon, 2), exact
      (1.55, True)
    """
    once = [
        m.repeat_count(each.times)
        for each in fits
        if each.selection is None
        for m in each.mechanisms
    ]
    if all(each.selection is None for each in fits) and is_gaussian(once):
        return compute_epsilon(once, delta, "gaussian"), True
    from dpprobe.privacy.sampled_divergences import SampledAccountant  # imports dp-accounting

    # Mechanisms with equal prices are merged into one with a larger count, which saves time.
    alike: dict[Mechanism, int] = {}
    for item in once:
        key = replace(item, name="", released="", sensitivity=1.0, count=1)
        alike[key] = alike.get(key, 0) + item.count
    accountant = SampledAccountant(RDP_ORDERS)
    with _quiet_absl():
        if alike:
            accountant.compose(
                _make_event([item.repeat_count(n) for item, n in alike.items()], None)
            )
        for each in fits:
            if each.selection is not None:
                accountant.compose(_make_event(each.mechanisms, each.selection), each.times)
        return float(accountant.get_epsilon(delta)), False


def gaussian_mu(mechanisms: Sequence[Mechanism]) -> float:
    """Computes mu without sampling: mu^2 = sum of count / noise_multiplier^2 (Dong et al. 2022).

    Example:
      >>> from dpprobe.privacy.plan import full_batch
      >>> round(gaussian_mu([full_batch("sums", "a sum", 1.0, count=9).scale_noise(6)]), 6)
      0.5
    """
    if any(mechanism.noise_multiplier == 0 for mechanism in mechanisms):
        return math.inf
    return math.sqrt(
        math.fsum(mechanism.count / mechanism.noise_multiplier**2 for mechanism in mechanisms)
    )


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Computes the log of Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

    Evaluates Balle and Wang 2018, theorem 8, without cancellation or underflow. In the upper tail
    both terms are one normal density times a Mills ratio, so the ratios are subtracted.
    """
    from scipy.special import erfcx, log_ndtr

    if mu == 0:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    if epsilon / mu - mu > 1e150:  # delta is below any float
        return -math.inf
    if mu < _SMALL_MU:
        return _small_log_delta(mu, epsilon)
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if upper < 0:
        scale = math.sqrt(math.pi / 2)
        mills = scale * (erfcx(-upper / math.sqrt(2)) - erfcx(-lower / math.sqrt(2)))
        if mills <= 0:  # mu below the spacing of the arguments
            return -math.inf
        return -0.5 * upper**2 - 0.5 * math.log(2 * math.pi) + math.log(mills)
    first, second = float(log_ndtr(upper)), epsilon + float(log_ndtr(lower))
    return first + math.log1p(-math.exp(min(second - first, 0.0))) if second < first else -math.inf


def _small_log_delta(mu: float, epsilon: float) -> float:
    """Bounds log delta from above for small mu; delta's relative error is at most mu^2 / 8.

    The derivative of delta by mu is phi(mu/2 - epsilon/mu), at most exp(epsilon/2) phi(epsilon/mu).
    The integral of this bound is exp(epsilon/2) mu phi(t) (1 - t Phi(-t) / phi(t)), with t =
    epsilon/mu.
    """
    from scipy.special import erfcx

    t = epsilon / mu
    if t > 1e3:  # the terms below would cancel
        rest = math.log1p(-3 * t**-2 + 15 * t**-4) - 2 * math.log(t)
    else:
        rest = math.log(1 - t * math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2))))
    return epsilon / 2 + math.log(mu) - 0.5 * (t**2 + math.log(2 * math.pi)) + rest


def gaussian_deltas(mu: float, epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Computes the delta of mu-GDP at epsilons >= 0, as `gaussian_log_delta` does."""
    import numpy as np
    from scipy.special import erfcx, log_ndtr, ndtr

    upper, lower = mu / 2 - epsilons / mu, -mu / 2 - epsilons / mu
    root = math.sqrt(2)
    tail = erfcx(np.maximum(-upper, 0.0) / root) - erfcx(-lower / root)
    body = ndtr(upper) - np.exp(epsilons + log_ndtr(lower))
    return np.maximum(np.where(upper < 0, 0.5 * np.exp(-0.5 * upper**2) * tail, body), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Computes the epsilon of mu-GDP at `delta`, rounded up by at most 1e-12 (relative).

    Example:
      >>> [round(gaussian_epsilon(mu, 1e-5), 2) for mu in (0.1, 0.25, 1)]
      [0.34, 0.93, 4.38]
    """
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
    """Chooses the grid spacing on the privacy loss: about epsilon / 10,000.

    Discretisation can only overestimate epsilon: by at most 0.1% for 31,250 steps at batch size 32
    of 50,000 units. A finer grid would take more time and memory.
    """
    size = min(max(epsilon, 1e-3), 10.0)
    decade = math.floor(math.log10(size))
    mantissa = size / 10**decade
    step = 5 if mantissa >= 5 else 2 if mantissa >= 2 else 1
    return float(f"{step}e{decade - 4}")


def check_epsilons(
    mechanisms: Sequence[Mechanism],
    delta: float,
    accountant: str,
    selection: Selection | None = None,
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Computes epsilon with every accountant except the main one for these mechanisms.

    Returns:
      A dictionary from accountant (with library and version) to epsilon, or None if the accountant
      failed, and a dictionary of the reasons.
    """
    used = resolve_accountant(mechanisms, accountant)
    answers: dict[str, float | None] = {}
    notes: dict[str, str] = {}
    for name, each in ACCOUNTANTS.items():
        check = each.check
        if check is None or name == used:
            continue
        label = _label_accountant(name, None if name == "prv" else selection)
        try:
            answers[label] = check(mechanisms, delta, selection)
        except Exception as error:  # checks are optional, so a failure becomes a note
            reason = str(error) if isinstance(error, PrivacyError) else repr(error)
            logger.info("calibration: no check by %s: %s", name, reason)
            answers[label] = None
            notes[label] = reason
    return answers, notes


def _pld_check(mechanisms: Sequence[Mechanism], delta: float, selection: Selection | None) -> float:
    interval = pld_interval(max(rough_epsilon(mechanisms, delta, selection), delta))
    return _profile_epsilon(mechanisms, delta, "pld", interval, selection)


def _closed_form(
    mechanisms: Sequence[Mechanism], resolved: str, selection: Selection | None
) -> bool:
    return resolved == "gaussian" and (
        selection is None or all(item.name in selection.repeated for item in mechanisms)
    )


def _profile_epsilon(
    mechanisms: Sequence[Mechanism],
    delta: float,
    resolved: str,
    interval: float | None,
    selection: Selection | None,
    times: int = 1,
    size: int = 1,
) -> float:
    """Computes the epsilon of a fit, or of `times` fits that each select their best run.

    The noise of mechanisms without sampling must already be scaled to a group of `size` units.
    Mechanisms outside the selection are released once per fit, before the runs.
    """
    if selection is None:
        return _epsilon_at(_compute_loss_distribution(mechanisms, interval, size), delta)
    from dpprobe.privacy import best_of_runs_price as best  # imports numpy

    inside = [item for item in mechanisms if item.name in selection.repeated]
    outside = [item for item in mechanisms if item.name not in selection.repeated]
    profile = _make_profile(inside, resolved, interval, size)
    if not outside and times == 1:
        return best.best_bound(selection.mean, profile, delta).bound_epsilon(delta)
    assert interval is not None, "a composition with a selection needs a grid"
    others = [item.repeat_count(times) for item in outside]
    exact = gaussian_epsilon(gaussian_mu(others), delta / 2) if is_gaussian(others) else None
    loss = best.dominating_loss(selection.mean, profile, delta / times, interval)
    if loss is None or (exact is not None and exact > best.LARGEST_LOSS):
        # Where the grid would overflow, use basic composition: epsilons and deltas add up.
        part = delta / (2 * times)
        selected = best.best_bound(selection.mean, profile, part).bound_epsilon(part)
        if exact is None:
            exact = _profile_epsilon(others, delta / 2, resolved, interval, None, size=size)
        return times * selected + exact
    loss = loss.self_compose(times) if times > 1 else loss
    loss = loss.compose(_compute_loss_distribution(others, interval, size)) if others else loss
    return _epsilon_at(loss, delta)


def _epsilon_at(loss: privacy_loss_distribution.PrivacyLossDistribution, delta: float) -> float:
    import numpy as np

    with np.errstate(over="ignore"):  # the quotient is only compared with a limit
        return float(loss.get_epsilon_for_delta(delta))


def _make_profile(
    mechanisms: Sequence[Mechanism], resolved: str, interval: float | None, size: int = 1
) -> Profile:
    from dpprobe.privacy.best_of_runs_price import Profile  # imports numpy

    if resolved == "gaussian":
        mu = gaussian_mu(mechanisms)
        return Profile(
            deltas=lambda epsilons: gaussian_deltas(mu, epsilons),
            epsilon=lambda delta: gaussian_epsilon(mu, delta),
        )
    from dpprobe.privacy.sampled_loss import compute_deltas  # imports dp-accounting

    loss = _compute_loss_distribution(mechanisms, interval, size)
    return Profile(deltas=partial(compute_deltas, loss), epsilon=partial(_epsilon_at, loss))


def _compute_loss_distribution(
    mechanisms: Sequence[Mechanism], interval: float | None, size: int = 1
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Computes dp-accounting's privacy loss distribution, by connected dots.

    The distribution is for a group of `size` units; noise of mechanisms without sampling is already
    scaled to the group.
    """
    from dp_accounting.pld import privacy_loss_distribution

    from dpprobe.privacy.sampled_loss import compute_sampled_loss  # imports dp-accounting

    assert interval is not None, "a privacy loss distribution needs a grid"
    losses = [
        compute_sampled_loss(noise, rate, size, interval).self_compose(count)
        if rate < 1
        else privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=noise, value_discretization_interval=interval
        ).self_compose(count)
        for noise, rate, count in _condense_mechanisms(mechanisms)
    ]
    total = losses[0]
    for loss in losses[1:]:
        total = total.compose(loss)
    return total


def _rdp_epsilon(
    mechanisms: Sequence[Mechanism],
    delta: float,
    selection: Selection | None = None,
    orders: Sequence[float] = RDP_ORDERS,
    times: int = 1,
) -> float:
    from dpprobe.privacy.sampled_divergences import SampledAccountant  # imports dp-accounting

    accountant = SampledAccountant(orders)
    with _quiet_absl():
        accountant.compose(_make_event(mechanisms, selection), times)
        return float(accountant.get_epsilon(delta))


def _early_rdp_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, selection: Selection | None
) -> float:
    """Computes min over orders a of RDP(a) + log(1 / delta) / (a - 1), as in Mironov 2017."""
    _refuse_selection(selection)
    opacus = import_accounting("analysis.rdp")
    divergences = sum(
        opacus.compute_rdp(q=rate, noise_multiplier=noise, steps=count, orders=RDP_ORDERS)
        for noise, rate, count in _condense_mechanisms(mechanisms)
    )
    return min(
        float(divergence) + math.log(1 / delta) / (order - 1)
        for order, divergence in zip(RDP_ORDERS, divergences, strict=True)
    )


def _prv_check(mechanisms: Sequence[Mechanism], delta: float, selection: Selection | None) -> float:
    """Computes `prv`'s epsilon; raises PrivacyError if `prv` is too inexact to be a check."""
    _refuse_selection(selection)
    error = _prv_error(mechanisms, delta)
    bound = _rdp_epsilon(mechanisms, delta)
    if error > 0.05 * bound:
        raise PrivacyError(f"its error of {error:.2g} is too large for an epsilon of {bound:.2g}")
    answer = _prv_epsilon(mechanisms, delta)
    if not answer <= bound + error:
        raise PrivacyError(f"its answer {answer:.4g} exceeds the upper bound {bound:.4g} by RDP")
    return answer


def _refuse_selection(selection: Selection | None) -> None:
    if selection is not None:
        raise PrivacyError("Opacus has no accounting for releasing the best of repeated runs")


def _prv_error(mechanisms: Sequence[Mechanism], delta: float) -> float:
    """Returns the error tolerance for `prv`: 1% of epsilon, or more to save memory."""
    steps = sum(count for _, _, count in _condense_mechanisms(mechanisms))
    least = _PRV_LEAST_ERROR * max(1.0, steps / _PRV_STEPS) ** 0.5
    return max(least, min(0.01 * rough_epsilon(mechanisms, delta), _PRV_LARGEST_ERROR))


def _prv_epsilon(
    mechanisms: Sequence[Mechanism], delta: float, selection: Selection | None = None
) -> float:
    _refuse_selection(selection)
    return _prv_upper(mechanisms, delta, _prv_error(mechanisms, delta), delta / 1000)


def _prv_upper(mechanisms: Sequence[Mechanism], delta: float, error: float, tail: float) -> float:
    """Computes `prv`'s upper bound, at most two errors above the truth at delta - 2 tails."""
    accountant = import_accounting("prv").PRVAccountant()
    accountant.history = _condense_mechanisms(mechanisms)
    with warnings.catch_warnings():
        # Harmless: `prv` computes log(0) where its density is 0, and sizes its grid by a rough RDP.
        warnings.filterwarnings("ignore", "divide by zero", RuntimeWarning)
        warnings.filterwarnings("ignore", "invalid value", RuntimeWarning)
        warnings.filterwarnings("ignore", "overflow", RuntimeWarning)
        warnings.filterwarnings("ignore", "Optimal order", UserWarning)
        return float(accountant.get_epsilon(delta, eps_error=error, delta_error=tail))


def _condense_mechanisms(mechanisms: Sequence[Mechanism]) -> list[tuple[float, float, int]]:
    """Returns (noise multiplier, rate, count) tuples, a single tuple for all without sampling."""
    whole = [item for item in mechanisms if item.sample_rate == 1]
    single = [(1 / gaussian_mu(whole), 1.0, 1)] if whole else []
    return single + [
        (mechanism.noise_multiplier, mechanism.sample_rate, mechanism.count)
        for mechanism in mechanisms
        if mechanism.sample_rate < 1
    ]


def _make_event(mechanisms: Sequence[Mechanism], selection: Selection | None) -> Any:
    from dp_accounting import dp_event

    if selection is not None:
        inside = [item for item in mechanisms if item.name in selection.repeated]
        outside = [item for item in mechanisms if item.name not in selection.repeated]
        # shape 1 of a truncated negative binomial: a geometric number
        best = dp_event.RepeatAndSelectDpEvent(_make_event(inside, None), selection.mean, 1)
        return dp_event.ComposedDpEvent([best, _make_event(outside, None)])
    events: list[Any] = []
    for noise, rate, count in _condense_mechanisms(mechanisms):
        one: Any = dp_event.GaussianDpEvent(noise)
        if rate < 1:
            one = dp_event.PoissonSampledDpEvent(rate, one)
        events.append(dp_event.SelfComposedDpEvent(one, count))
    return dp_event.ComposedDpEvent(events)


@contextmanager
def _quiet_absl() -> Iterator[None]:
    """Silences absl's warnings about omitted fractional orders, which only loosen the bound."""
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


_Compute = Callable[[Sequence[Mechanism], float, Selection | None], float]


class Accountant(NamedTuple):
    """An accountant of this module.

    Attributes:
      library: the package that computes epsilon; None if this module does.
      compute: computes epsilon from mechanisms, delta and selection; None to use a privacy profile.
      check: computes an epsilon to check other accountants; None if the accountant is no check.
      in_studies: whether a study may choose the accountant.
    """

    library: str | None
    compute: _Compute | None = None
    check: _Compute | None = None
    in_studies: bool = False


ACCOUNTANTS = {
    "pld": Accountant("dp-accounting", check=_pld_check, in_studies=True),
    "rdp": Accountant("dp-accounting", _rdp_epsilon, check=_rdp_epsilon, in_studies=True),
    "rdp_2017": Accountant("opacus", _early_rdp_epsilon, in_studies=True),
    "prv": Accountant("opacus", _prv_epsilon, check=_prv_check),
    "gaussian": Accountant(None),
}
if TYPE_CHECKING:
    StudyAccountant = str
else:
    StudyAccountant = Literal[tuple(name for name, each in ACCOUNTANTS.items() if each.in_studies)]
