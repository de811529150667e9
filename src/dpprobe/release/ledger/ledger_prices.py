"""Adds up the costs of one dataset's releases to one unit, and compares the total with limits.

**Sides.** In each split, the rows of a unit are on one side: training examples or test examples.
Null rows in place of a unit's rows change the sums of mechanisms on the unit's side, each by at
most its sensitivity. Mechanisms on the other side read other units' rows and earlier releases,
which is post-processing. A unit's cost is therefore the composition of all mechanisms on the unit's
sides. The total is the cost of the worst choice of one side per split. For a single split, the
total is the larger of the two sides' compositions. With more than `MOST_SPLITS` two-sided splits,
the total composes the mechanisms of all sides, which is an upper bound. The same holds for a split
whose images were not compared by pixels (`list_unsure`): one image may be on both of its sides.

- Gaussian mechanisms without sampling or repetition compose exactly, to one Gaussian mechanism with
  mu^2 = sum of count / sigma^2. Gaussian composition also covers plans chosen after seeing earlier
  releases, if `max_epsilon` was fixed before (Smith and Thakurta 2022, "Fully adaptive composition
  for Gaussian DP").
- Sampled mechanisms compose by privacy loss distributions, an upper bound. Theorems on sampled
  mechanisms cover plans that were fixed without seeing earlier releases.
- A repeated fit, of which only the best run is released, has its plan's epsilon if no other release
  counts. Repeated fits and other releases compose by Renyi divergences, a looser upper bound.

**Chains of cohorts.** In a chain with a horizon, each release reads the exact sums of earlier
cohorts again. A unit in two cohorts of a chain changes equal outputs through both cohorts
(`privacy.running_sums`). For a unit in several cohorts, values of 1 / sigma therefore add up, not
their squares: an upper bound.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpprobe.errors import BudgetError
from dpprobe.privacy.accountants import (
    Fits,
    all_together,
    compute_epsilon,
    exactly_priced,
    pld_interval,
)
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.trade_off import Allowed, bound_attacks
from dpprobe.release.ledger.ledger_file import Booking, Part, Side, check_delta

# Largest number of two-sided splits for which all 2^6 = 64 choices of sides are composed.
MOST_SPLITS = 6


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on the total privacy cost, to one unit, of all releases from one dataset.

    Attributes:
      delta: the delta at which the epsilon of all releases must not exceed `max_epsilon`.
      max_epsilon: None for no limit on epsilon.
      max_risk: the largest risk from attacks on all releases together; None for no limit.
    """

    delta: float
    max_epsilon: float | None = None
    max_risk: Risk | None = None


@dataclass(frozen=True, kw_only=True)
class Spent:
    """The total epsilon of entries for one unit, rounded up to six digits; exact or a bound."""

    epsilon: float
    exact: bool
    entries: int

    def to_block(self, *, entry: int | None, unit: str, delta: float) -> dict[str, Any]:
        """Returns the block `ledger` of a release's statement; `entry` is the release's number."""
        return {
            "entry": entry,
            "releases": self.entries,
            "unit": unit,
            "delta": delta,
            "epsilon": self.epsilon,
            "exact": self.exact,
        }


def refuse_excess(
    booked: Sequence[Booking], booking: Booking, limits: Limits, *, ledger: str
) -> None:
    """Raises BudgetError if `booking` and the bookings `booked`, from `ledger`, exceed a limit."""
    delta, max_epsilon, max_risk = limits.delta, limits.max_epsilon, limits.max_risk
    every = [*booked, booking]
    if max_epsilon is not None:
        spent = compose_bookings(every, delta)
        if not spent.epsilon <= max_epsilon:
            before = compose_bookings(booked, delta).epsilon
            raise BudgetError(
                f"release {booking.release!r}: the total epsilon of a unit would be "
                f"{spent.epsilon:g} at delta {delta:g} (without this release {before:g}, by "
                f"{ledger}), above max_epsilon {max_epsilon:g}; set a smaller epsilon, or raise "
                f"max_epsilon{_explain_unsure_total(every)}"
            )
    if max_risk is not None:
        reached = max_risk.measure(bound_bookings(every, max_risk.rates, delta))
        if not reached <= max_risk.target:
            before = max_risk.measure(bound_bookings(booked, max_risk.rates, delta))
            raise BudgetError(
                f"release {booking.release!r}: attacks on a unit could reach {reached:g} (without "
                f"this release {before:g}, by {ledger}), above max_risk {max_risk}. Choose a "
                f"smaller epsilon, or raise max_risk{_explain_unsure_total(every)}"
            )


def list_unsure(bookings: Sequence[Booking]) -> list[Booking]:
    """Lists bookings of two-sided splits whose images were not compared by pixels.

    One image may be on both sides of their splits, in two file formats. Bookings of older versions
    do not tell how images were compared; equal hashes of a later booking do.
    """
    compared = {each.units for each in bookings if each.pixels}
    splits = {split for split, sides in group_by_split(bookings).items() if len(sides) > 1}
    return [
        each
        for each in bookings
        if each.split in splits
        and each.units not in compared
        and (each.pixels is False or (each.pixels is None and each.units is not None))
    ]


def explain_unsure(unsure: Sequence[Booking]) -> str:
    """Explains why a total adds up both sides of a split, with the remedy."""
    names = ", ".join(dict.fromkeys(each.release for each in unsure))
    return (
        f"Training and test images of {names} were not compared by pixels, so one image may be in "
        "both splits. The total therefore adds up both sides. Keep split tables and images in "
        "place: the next release of the same images compares them"
    )


def _explain_unsure_total(bookings: Sequence[Booking]) -> str:
    unsure = list_unsure(bookings)
    return f". {explain_unsure(unsure)}" if unsure else ""


def compose_bookings(bookings: Sequence[Booking], delta: float) -> Spent:
    """Computes the total epsilon of one dataset's releases for the unit with the largest cost."""
    check_delta(delta)
    choices, searched = _list_choices(bookings)
    most, exact = max(price_parts(parts, delta) for parts in choices)
    return Spent(epsilon=round_up(most), exact=exact and searched, entries=len(bookings))


def bound_bookings(bookings: Sequence[Booking], rates: Sequence[float], delta: float) -> Allowed:
    """Bounds attacks on all releases from one dataset together, for the unit most at risk.

    True positive rates are bounded at the false positive rates `rates`; only searches use `delta`.
    """
    check_delta(delta)
    choices, searched = _list_choices(bookings)
    bounds = [_bound_parts(parts, rates, delta) for parts in choices]
    return Allowed(
        balanced_accuracy=max(each.balanced_accuracy for each in bounds),
        true_positives=tuple(
            max(values) for values in zip(*(each.true_positives for each in bounds), strict=True)
        ),
        exact=searched
        and len(bounds) == 1
        and bounds[0].exact
        and not any(part.bounded for part in choices[0]),
    )


def _bound_parts(parts: Sequence[Part], rates: Sequence[float], delta: float) -> Allowed:
    if not parts:
        return Allowed(balanced_accuracy=0.5, true_positives=tuple(rates), exact=True)
    searches = [part.selection for part in parts if part.selection]
    price = round_up(price_parts(parts, delta)[0]) if searches else math.inf
    return bound_attacks(
        _merge_mechanisms(parts),
        rates,
        searches[0] if searches else None,  # a search is known by its epsilon only
        delta=delta,
        epsilon=price,
    )


def _list_choices(bookings: Sequence[Booking]) -> tuple[list[list[Part]], bool]:
    """Lists, for each choice of one side per split, the parts that read a unit on these sides.

    Joins the sides of splits whose images were not compared, and of all splits if more than
    `MOST_SPLITS` have two sides. Returns False if sides were joined, as costs are then only bounds.
    """
    unsure = {each.split for each in list_unsure(bookings)}
    splits = group_by_split(bookings)
    few = sum(len(split) > 1 for split in splits.values()) <= MOST_SPLITS
    sides = [
        list(split.values())
        if few and name not in unsure
        else [list(itertools.chain(*split.values()))]
        for name, split in splits.items()
    ]
    searched = few and not unsure
    choices = [itertools.chain.from_iterable(choice) for choice in itertools.product(*sides)]
    return [price_meetings(parts) for parts in choices], searched


def group_by_split(bookings: Sequence[Booking]) -> dict[str, dict[Side, list[Part]]]:
    splits: dict[str, dict[Side, list[Part]]] = {}
    for booking in bookings:
        chain = booking.place and booking.place.rpartition(" ")[0]
        for part in booking.parts:
            if part.side == "train":  # only training sums are shared along a chain
                part = replace(part, chain=chain)
            splits.setdefault(booking.split, {}).setdefault(part.side, []).append(part)
    return splits


def price_meetings(parts: Iterable[Part]) -> list[Part]:
    """Divides by sqrt(k) the noise of running sums that k cohorts of one chain share.

    Noise divided by sqrt(k) gives an upper bound: the squared sum of k values 1 / sigma is at most
    k times the sum of their squares. Running sums are released once, without sampling; other
    releases have separate noise.
    """
    parts = list(parts)
    cohorts = Counter(part.chain for part in parts)
    priced = []
    for part in parts:
        if part.chain is not None and (times := cohorts[part.chain]) > 1:
            mechanisms = (
                item.scale_noise(times**-0.5) if item.count == item.sample_rate == 1 else item
                for item in part.mechanisms
            )
            part = replace(part, mechanisms=tuple(mechanisms), bounded=True)
        priced.append(part)
    return priced


def price_parts(parts: Sequence[Part], delta: float) -> tuple[float, bool]:
    """Returns a bound on the epsilon of parts that read equal rows, and True if it is exact."""
    if len(parts) == 1:
        # The grid of the plan: another grid could refuse a release that just meets a limit alone.
        grid = pld_interval(max(parts[0].epsilon, delta))
        mechanisms, selection = parts[0].mechanisms, parts[0].selection
        price = compute_epsilon(mechanisms, delta, "pld", interval=grid, selection=selection)
        return price, exactly_priced(mechanisms, selection) and not parts[0].bounded
    if any(part.selection for part in parts):
        fits = [
            Fits(mechanisms=part.mechanisms, times=1, selection=part.selection) for part in parts
        ]
        return all_together(fits, delta)
    merged = _merge_mechanisms(parts)
    exact = exactly_priced(merged) and not any(part.bounded for part in parts)
    return compute_epsilon(merged, delta, "pld"), exact


def _merge_mechanisms(parts: Sequence[Part]) -> list[Mechanism]:
    """Returns the mechanisms of all parts, with equal mechanisms merged to save time."""
    alike: Counter[Mechanism] = Counter()
    for item in (item for part in parts for item in part.mechanisms):
        key = replace(item, name="", released="", sensitivity=1.0, count=1)
        alike[key] += item.count
    return [item.repeat_count(count) for item, count in alike.items()]
