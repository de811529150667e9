"""Computes the noise that meets a privacy target, once for all fits that need it.

The noise depends only on the accountant, the target, each mechanism's sampling rate, count and
relative noise, and on which mechanisms are repeated. Each answer is cached in a file whose name is
the hash of all inputs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from dpprobe import json_values
from dpprobe.errors import PrivacyError
from dpprobe.files import json_files
from dpprobe.privacy import accountants
from dpprobe.privacy.limits import (
    DIGITS,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    round_down,
    round_up,
)
from dpprobe.privacy.plan import Mechanism, Plan, Selection, priced_alike
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from dpprobe.progress import report_wait
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-calibration"
# The epsilon found for a risk is below the largest permitted epsilon by at most this fraction.
RISK_TOLERANCE = 0.005
# Most of a search uses a grid that is coarser by the factor _COARSER.
_COARSER = 8
# A search may end below its target by this fraction, if epsilon jumps across the target.
_LARGEST_STEP = 1e-3
# If a rough epsilon exceeds `_FAR` times the target, at most `_MOST_NOISE` times the noise is
# tried.
_FAR, _MOST_NOISE = 6, 1e6


def calibrate(
    mechanisms: Sequence[Mechanism],
    target: Target,
    *,
    cache: Path,
    selection: Selection | None = None,
    checked: bool = True,
) -> Plan:
    """Finds the common factor on the noise multipliers that meets a target.

    Args:
      mechanisms: mechanisms with noise multipliers relative to each other.
      cache: a folder of cached answers, which is read and written.
      selection: names the mechanisms that are repeated, with only the best run released.
      checked: False to skip the epsilons by other accountants, which take most of the time.

    Returns:
      A plan whose realised epsilon is at most the target and at least 0.99 of it. For a permitted
      risk, the plan has the largest epsilon that stays within the risk.

    Raises PrivacyError if the target is out of reach, or the cached answer is damaged.

    Example:
      >>> from tempfile import mkdtemp
      >>> from dpprobe.privacy.plan import full_batch
      >>> target = Target(n=1000, epsilon=1.0, delta=1e-5)
      >>> sums = [full_batch("sums", "a sum", 1.0)]
      >>> plan = calibrate(sums, target, cache=Path(mkdtemp()), checked=False)
      >>> plan.mechanisms[0].noise_multiplier, plan.realised_epsilon
      (3.73064, 0.999998)
      >>> round(price_of_group(plan, 3), 2), round(price_of_fits(plan, 3), 2)
      (3.41, 1.83)
    """

    def make_plan(epsilon: float, *, checked: bool = checked) -> Plan:
        aim = replace(target, epsilon=epsilon)
        return _meet_epsilon(tuple(mechanisms), aim, selection, cache, checked=checked)

    if not isinstance(target.epsilon, Risk):
        return make_plan(target.epsilon)
    # Other accountants check only the last plan.
    plan = _search_plan(target.epsilon, target.delta, partial(make_plan, checked=False))
    return replace(make_plan(plan.epsilon), risk=target.epsilon.to_dict())


def _meet_epsilon(
    mechanisms: tuple[Mechanism, ...],
    target: Target,
    selection: Selection | None,
    cache: Path,
    *,
    checked: bool,
) -> Plan:
    epsilon = target.nominal_epsilon
    if math.isinf(epsilon) or not mechanisms:
        if math.isfinite(epsilon):
            raise PrivacyError(
                f"epsilon {epsilon:g}: this method has no private mechanism; write epsilon inf"
            )
        silent = tuple(item.scale_noise(0.0) for item in mechanisms)
        return target.make_plan(mechanisms=silent, selection=selection)
    _check_target(mechanisms, target)
    answer = _recall_answer(mechanisms, target, selection, cache, checked=checked)
    return target.make_plan(
        mechanisms=tuple(mechanism.scale_noise(answer["factor"]) for mechanism in mechanisms),
        selection=selection,
        realised_epsilon=answer["realised_epsilon"],
        priced_by=accountants.describe_accountant(mechanisms, target.accountant, selection),
        checks=answer.get("checks", {}),
        check_notes=answer.get("check_notes", {}),
    )


def _search_plan(risk: Risk, delta: float, make_plan: Callable[[float], Plan]) -> Plan:
    plan = make_plan(risk.to_epsilon(delta))
    if accountants.exactly_priced(plan.mechanisms, plan.selection):
        if not risk.permits(plan):
            raise PrivacyError(f"{risk}: the plan with epsilon {plan.epsilon:g} exceeds this risk")
        return plan
    low = high = plan
    while risk.permits(high) and high.epsilon < LARGEST_EPSILON:
        low, high = high, make_plan(min(2 * high.epsilon, LARGEST_EPSILON))
    while not risk.permits(low):
        if low.epsilon <= SMALLEST_EPSILON:
            raise PrivacyError(
                f"{risk}: even the smallest possible epsilon, {SMALLEST_EPSILON:g}, at this delta "
                "exceeds this risk; permit a larger risk or set a smaller delta"
            )
        low, high = make_plan(max(low.epsilon / 2, SMALLEST_EPSILON)), low
    if risk.permits(high):
        return high
    while high.epsilon / low.epsilon > 1 + RISK_TOLERANCE:
        middle = make_plan(round_down(math.sqrt(high.epsilon * low.epsilon)))
        low, high = (middle, high) if risk.permits(middle) else (low, middle)
    return low


def price_plan(plan: Plan) -> float:
    """Computes a plan's epsilon again, at the plan's delta and on the grid of its calibration.

    If the epsilon is far above the plan's target, the grid would need too much memory: the returned
    epsilon is then a lower bound, computed for more noise.
    """
    if not plan.private:
        return math.inf
    shared = priced_alike(plan.mechanisms)
    resolved = accountants.resolve_accountant(shared, plan.accountant)
    return _cached_price(_Prices(shared, plan.delta, resolved, plan.selection), plan.epsilon)


def second_opinions(plan: Plan) -> tuple[str, dict[str, float | None], dict[str, str]]:
    """Returns a plan's `priced_by`, and computes its `checks` and `check_notes` again."""
    if not plan.private:
        return "none", {}, {}
    resolved = accountants.resolve_accountant(plan.mechanisms, plan.accountant)
    by = accountants.describe_accountant(plan.mechanisms, plan.accountant, plan.selection)
    shared = priced_alike(plan.mechanisms)
    return (by, *_cached_checks(shared, plan.delta, resolved, plan.selection))


def price_of_group(plan: Plan, size: int) -> float:
    """Computes the epsilon of a plan, at the plan's delta, for a group of `size` units."""
    if not plan.private:
        return math.inf
    return _group_price(priced_alike(plan.mechanisms), plan.delta, size, selection=plan.selection)


def price_of_fits(plan: Plan, times: int) -> float:
    """Bounds the epsilon of publishing `times` independent fits of a plan, at its delta."""
    if not plan.private:
        return math.inf
    return _fits_price(priced_alike(plan.mechanisms), plan.delta, times, plan.selection)


@lru_cache
def _cached_checks(
    mechanisms: tuple[Mechanism, ...], delta: float, resolved: str, selection: Selection | None
) -> tuple[dict[str, float | None], dict[str, str]]:
    values, notes = accountants.check_epsilons(mechanisms, delta, resolved, selection)
    return {
        name: None if value is None else round_up(value) for name, value in values.items()
    }, notes


_group_price = lru_cache(accountants.group_epsilon)
_fits_price = lru_cache(accountants.price_together)


@lru_cache
def _cached_price(prices: _Prices, epsilon: float) -> float:
    interval = None
    if not prices.exact:
        interval = accountants.pld_interval(max(epsilon, prices.delta))
        factor = 1.0
        while prices.rough_price(factor) > _FAR * epsilon and factor < _MOST_NOISE:
            factor *= 1.5
        if factor > 1 and (bound := prices.price_at(factor, interval)) > epsilon:
            return bound
    return prices.price_at(1.0, interval)


def _check_target(mechanisms: Sequence[Mechanism], target: Target) -> None:
    epsilon, delta = target.nominal_epsilon, target.delta
    if not SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON:
        remedy = (
            'write "inf" for no privacy' if epsilon > LARGEST_EPSILON else "choose a larger one"
        )
        raise PrivacyError(
            f"epsilon {epsilon!r}: outside the range that can be calibrated, {SMALLEST_EPSILON:g} "
            f"to {LARGEST_EPSILON:g}; {remedy}"
        )
    if not SMALLEST_DELTA <= delta < 1:
        raise PrivacyError(
            f"delta {delta!r}: outside the range that can be calibrated, {SMALLEST_DELTA:g} to 1; "
            "choose a delta slightly below 1 / (training rows)"
        )
    for mechanism in mechanisms:
        if mechanism.noise_multiplier <= 0:
            raise PrivacyError(
                f"mechanism {mechanism.name!r}: relative noise multiplier 0 cannot be scaled to "
                "a target; give it a positive one"
            )
    accountants.resolve_accountant(mechanisms, target.accountant)


def _collect_inputs(
    mechanisms: Sequence[Mechanism], target: Target, selection: Selection | None
) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "version": VERSIONS["calibration"],
        "digits": DIGITS,
        "accountant": accountants.describe_accountant(mechanisms, target.accountant),
        "second_accountant": accountants.describe_accountant(mechanisms, "prv"),
        "epsilon": target.epsilon,
        "delta": target.delta,
        "mechanisms": [
            {
                "noise_multiplier": mechanism.noise_multiplier,
                "sample_rate": mechanism.sample_rate,
                "count": mechanism.count,
            }
            for mechanism in mechanisms
        ],
    }
    if selection is not None:
        repeated = [mechanism.name in selection.repeated for mechanism in mechanisms]
        inputs["selection"] = {**selection.to_dict(), "repeated": repeated}
    return inputs


def _recall_answer(
    mechanisms: tuple[Mechanism, ...],
    target: Target,
    selection: Selection | None,
    cache: Path,
    *,
    checked: bool,
) -> dict[str, Any]:
    """Reads an answer from the cache, or computes and writes it; adds missing checks."""
    inputs = _collect_inputs(mechanisms, target, selection)
    unchecked = {**inputs, "checked": False}
    answer = _read_answer(cache, inputs) or _read_answer(cache, unchecked)
    if answer is not None and (not checked or "checks" in answer):
        return answer
    with report_wait(f"calibration: searching for the noise of {target}"):
        answer = answer or solve_target(mechanisms, target, selection)
        if checked:
            resolved = accountants.resolve_accountant(mechanisms, target.accountant)
            scaled = tuple(item.scale_noise(answer["factor"]) for item in priced_alike(mechanisms))
            checks, notes = _cached_checks(scaled, target.delta, resolved, selection)
            answer = {**answer, "checks": checks, "check_notes": notes}
    asked = inputs if checked else unchecked
    record = {"format": FORMAT, "inputs": asked, **answer}
    path = cache / f"{json_values.hash_value(asked)}.json"
    json_files.write_json(path, {**record, "sha256": json_values.hash_value(record)})
    return answer


def solve_target(
    mechanisms: Sequence[Mechanism], target: Target, selection: Selection | None
) -> dict[str, Any]:
    """Searches for the factor on the noise that meets a target; returns it with its epsilon."""
    started, epsilon = time.monotonic(), target.nominal_epsilon
    resolved = accountants.resolve_accountant(mechanisms, target.accountant)
    what = f"{target} by accountant {resolved!r}"
    prices = _Prices(priced_alike(mechanisms), target.delta, resolved, selection)
    factor, realised = _meet_target(prices, epsilon, what)
    realised = min(round_up(realised), epsilon)
    logger.info(
        "calibration: %s: noise factor %.6g, realised epsilon %.6g, in %.1f s",
        target,
        factor,
        realised,
        time.monotonic() - started,
    )
    return {"factor": factor, "realised_epsilon": realised}


@dataclass(frozen=True)
class _Prices:
    """The epsilon of a composition as a function of a factor on its noise multipliers."""

    mechanisms: Sequence[Mechanism]
    delta: float
    resolved: str
    selection: Selection | None

    @property
    def exact(self) -> bool:
        return self.selection is None and self.resolved == "gaussian"

    def price_at(self, factor: float, interval: float | None = None) -> float:
        return accountants.compute_epsilon(
            self._scale_noise(factor),
            self.delta,
            self.resolved,
            interval=interval,
            selection=self.selection,
        )

    def rough_price(self, factor: float) -> float:
        return accountants.rough_epsilon(self._scale_noise(factor), self.delta, self.selection)

    def central_limit(self, factor: float) -> float:
        return accountants.central_limit_epsilon(self._scale_noise(factor), self.delta)

    def _scale_noise(self, factor: float) -> list[Mechanism]:
        return [item.scale_noise(factor) for item in self.mechanisms]


def _meet_target(prices: _Prices, epsilon: float, what: str) -> tuple[float, float]:
    """Returns a factor on the noise (`DIGITS` digits) that meets a target, and its epsilon.

    A fine grid on the privacy loss is slow, so the search uses a coarse grid. After each search,
    the coarse target is multiplied by the ratio of the wanted epsilon to the epsilon on the fine
    grid. Two or three evaluations on the fine grid suffice.
    """
    if prices.exact:
        factor, _ = find_factor(prices.price_at, epsilon, what=what, tolerance=1e-9)
        factor = round_up(factor)
        return factor, prices.price_at(factor)
    interval = accountants.pld_interval(max(epsilon, prices.delta))
    searched = _COARSER * interval if prices.resolved == "pld" else interval
    quick = partial(prices.price_at, interval=searched)
    factor, aim = _rough_factor(prices, epsilon, what), (1 - 5e-4) * epsilon
    for _ in range(20):
        # Short strides, because with much less noise than needed a grid exceeds the memory.
        factor, _ = find_factor(quick, aim, what=what, tolerance=2e-4, start=factor, stride=0.3)
        factor = round_up(factor)
        realised = prices.price_at(factor, interval)
        if (1 - 1e-3) * epsilon <= realised <= epsilon:
            return factor, realised
        aim *= (1 - 4e-4) * epsilon / realised
    raise PrivacyError(
        f"{what}: found no noise whose epsilon is within 0.1% of the target; choose another "
        "accountant"
    )


def _rough_factor(prices: _Prices, epsilon: float, what: str) -> float:
    try:
        return find_factor(prices.rough_price, epsilon, what=what, tolerance=0.05)[0]
    except PrivacyError:
        return find_factor(prices.central_limit, epsilon, what=what, tolerance=0.05)[0]


def find_factor(
    price: Callable[[float], float],
    target: float,
    *,
    what: str,
    tolerance: float,
    start: float = 1.0,
    stride: float = 3.0,
) -> tuple[float, float]:
    """Finds a factor at which the decreasing `price` is at most `tolerance` below a target.

    Uses a bracketed secant search on a log-log scale, on which epsilon is nearly a straight line.
    Returns the factor and its epsilon; raises PrivacyError if there is none.
    """
    aim = math.log(target) + math.log1p(-tolerance / 2)
    cheap = dear = None  # (log factor, log price - aim), on either side of the target
    x = math.log(start)
    for _ in range(100):
        value = price(math.exp(x))
        if (1 - tolerance) * target <= value <= target:
            return math.exp(x), value
        gap = math.log(value) - aim if 0 < value < math.inf else math.copysign(20.0, value - target)
        if value > target:
            dear = (x, gap)
        else:
            cheap = (x, gap)
        x = _next_factor(x, gap, cheap, dear, stride)
        if abs(x) > 40 or (cheap and dear and cheap[0] - dear[0] < 1e-14):
            break
    # At the smallest deltas, round-off in Fourier transforms makes epsilon jump in small steps. A
    # factor just below such a jump is accurate enough.
    if cheap and dear and cheap[1] > -_LARGEST_STEP:
        return math.exp(cheap[0]), math.exp(aim + cheap[1])
    raise PrivacyError(
        f"{what}: no amount of noise reaches this epsilon; set a larger epsilon or delta, or "
        "fewer steps"
    )


def _next_factor(
    x: float,
    gap: float,
    cheap: tuple[float, float] | None,
    dear: tuple[float, float] | None,
    stride: float,
) -> float:
    if cheap is None or dear is None:
        return x + max(-stride, min(stride, 1.05 * gap))
    width = cheap[0] - dear[0]
    crossing = dear[0] + width * dear[1] / (dear[1] - cheap[1])
    # Stays away from the ends, so that the bracket shrinks even if the curve is not straight.
    return min(max(crossing, dear[0] + 0.02 * width), cheap[0] - 0.02 * width)


def _read_answer(cache: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """Reads a cached answer; raises PrivacyError unless it is complete and for these inputs."""
    path = cache / f"{json_values.hash_value(inputs)}.json"
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json_files.read_json(path)
        whole = record.pop("sha256") == json_values.hash_value(record)
        if whole and record.pop("inputs") == inputs and record.pop("format") == FORMAT:
            return record
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise PrivacyError(
        f"{path}: this calibration was changed after it was written; delete it and run again"
    )
