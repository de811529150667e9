"""A fitted head and the facts of its privacy statement, as attributes of an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.estimator.budget import Budget
from dpprobe.files.array_files import hash_arrays
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger.ledger_prices import Spent


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The heads of a fit and the facts of their privacy statement, without any training rows.

    The estimator's parameters may change after the fit, so they are not read later.

    Attributes:
      method: the head that `auto` chose, if the fit used `auto`.
      classes: the names of the classes, in the order of the weights.
      file_hashes: SHA-256 of each public file that the fit read, by path.
      entry: the fit's number in the budget; None in benchmark mode.
      budget: lists this fit and others; None in benchmark mode.
      spent: the budget's total epsilon after the fit; None in benchmark mode.
      promise: the facts about the dataset on which the guarantee depends; None if unknown.
      digest: the hash of the released numbers, also in the budget; "" in benchmark mode.
    """

    method: MethodOptions
    facts: DataFacts
    plan: Plan
    classes: tuple[str, ...]
    file_hashes: Mapping[str, str]
    heads: Heads
    entry: int | None = None
    budget: Budget | None = None
    spent: Spent | None = None
    digest: str = ""
    promise: PromiseFacts | None = None

    @property
    def is_private(self) -> bool:
        return self.entry is not None

    def count_spent(self) -> Spent:
        """Returns the budget's total, now or after the fit, whichever has the larger epsilon.

        Users may also choose among later fits. A budget copied to another process may list fewer
        fits than at the time of this fit, and an abandoned fit no longer counts.
        """
        assert self.budget is not None
        assert self.spent is not None
        now = self.budget.compute_spent(self.plan.delta)
        return max(self.spent, now, key=lambda spent: (spent.epsilon, spent.entries))


def hash_heads(heads: Heads) -> str:
    """Hashes all numbers of a private fit that may be published."""
    return hash_arrays({"weights": heads.weights, **heads.released_arrays()})
