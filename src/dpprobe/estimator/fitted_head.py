"""A fitted head and the facts of its statement, which are all that an estimator stores of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger import Spent


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The heads of a fit and the facts of their statement, but nothing of the rows.

    `method` has the choice that `auto` made. `entry` is the budget's entry, and `spent` its sum
    after it; None in benchmark mode.
    """

    method: MethodOptions
    facts: DataFacts
    plan: Plan
    heads: Heads
    entry: int | None
    spent: Spent | None
