"""A fitted head and what its statement needs: all that an estimator keeps of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger import Spent


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The heads of a fit and what their statement needs; nothing of the rows.

    Attributes:
      method: the options, with the choice that `auto` made.
      facts: the public facts behind the fit.
      entry: the number of the budget's entry, and `spent`: the budget's sum after it; None in
        benchmark mode.
    """

    method: MethodOptions
    facts: DataFacts
    plan: Plan
    heads: Heads
    entry: int | None
    spent: Spent | None
