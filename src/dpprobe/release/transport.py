"""Trains a release's head on this machine, from the rows of one site.

The release part `sites` replaces this transport if several sites train one head together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.entropy import Entropy, SystemEntropy
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Shared
from dpprobe.release.ledger.ledger_file import Entry
from dpprobe.training.job_features import JobFeatures

Block = dict[str, Any]  # a block of a privacy statement
Blocks = dict[str, Block]  # statement blocks by the name of their release part


@dataclass(kw_only=True)
class Draw:
    """A head that was trained with fresh noise, and its measurements.

    Attributes:
      heads: the trained head.
      blocks: the statement's blocks, by release part.
      open_entropy: returns the random source for one part's noise.
      shared: adds up the counts of several sites; None for one site.
    """

    heads: Heads
    features: JobFeatures
    open_entropy: Callable[[], Entropy]
    shared: Shared | None
    blocks: dict[str, Block | None] = field(default_factory=dict)


# Fits and measures a head, from features, a source of random numbers, and sums that sites share.
Fit = Callable[[JobFeatures, Entropy, Shared | None], Draw]


class Agreed:
    """The agreement of a release's sites; this base class is for a single site.

    Attributes:
      n, test_n: the number of training and of test units of all sites; None for one site.
      promise: agreement and trusted sites, for the ledger's entry; None for one site.
    """

    n: int | None = None
    test_n: int | None = None
    promise: str | None = None

    def check(self, method: MethodOptions, n: int) -> None:
        """Raises an error, before the booking, if this site cannot take part."""

    def price_shares(self, plan: Plan) -> Plan:
        """Returns a plan whose epsilon covers noise that several sites draw in shares."""
        return plan

    def find_open(self) -> Entry | None:
        """Returns the open ledger entry that this run continues; None to book a new entry."""
        return None

    def note_booked(self) -> None:
        """Called after the release is booked and before any noise is drawn."""

    def draw_head(self, fit: Fit, features: JobFeatures, method: MethodOptions) -> Draw:  # noqa: ARG002
        return fit(features, SystemEntropy(), None)


class Transport:
    """Trains the head of one site without other sites."""

    resumes = False  # True if a run may continue an open entry, because its noise is fixed

    def agree(self) -> Agreed:
        """Returns the agreement of all sites; WaitingError if a site has not answered yet."""
        return Agreed()

    def run(self, work: Callable[[], None], wait_minutes: float | None) -> None:  # noqa: ARG002
        """Makes or finishes the release; `wait_minutes` None waits as long as `sites` states."""
        work()

    def make_offer(self, prepare: Callable[[], None]) -> tuple[Any, Path]:  # noqa: ARG002
        """Offers the release to other sites after `prepare`; ConfigError if no sites are set."""
        raise ConfigError("the release has no `sites`, so there is nothing to offer")

    def note_unbooked(self) -> None:
        """Called if no ledger entry of the release counts."""
