"""A fitted head and the facts of its privacy statement: all that an estimator keeps of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger import Spent


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The heads of a fit and the facts of their privacy statement, without any training rows.

    `method` is the head that `auto` chose, if the fit used `auto`. `entry` is the fit's number in
    the budget, and `spent` the budget's total after the fit; both are None in benchmark mode.
    """

    method: MethodOptions
    facts: DataFacts
    plan: Plan
    heads: Heads
    entry: int | None
    spent: Spent | None
