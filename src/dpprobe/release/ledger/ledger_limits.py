"""Limits on the total privacy cost of one dataset's releases, and the error above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpprobe.errors import BudgetError
from dpprobe.privacy.risk import Risk
from dpprobe.release.ledger.ledger_file import Booking
from dpprobe.release.ledger.ledger_prices import (
    bound_bookings,
    compose_bookings,
    explain_unsure,
    list_unsure,
)


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


def _explain_unsure_total(bookings: Sequence[Booking]) -> str:
    unsure = list_unsure(bookings)
    return f". {explain_unsure(unsure)}" if unsure else ""
