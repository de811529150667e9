"""Defines the interface of release parts: declarations, steps, and readers.

A release part is a folder of `dpprobe.release.parts`, with one line in
`dpprobe.release_part_registry`:

- `__init__` declares `PART`, for the plan of a study, if the part has options or faults;
- `measure` has the class `Steps`, which acts while a release is made;
- `measure`, or a module `show`, has `READER`, which verifies the part's block of a statement and
  provides values for templates;
- `card.md.j2` and `page.html.j2` are the part's sections of model card and page.

`release.make` calls the steps of all parts in the order of the registry. A release part never
imports another part, books an entry or publishes a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpprobe.privacy.unit_words import UnitWords, words_of_statement

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import torch

    from dpprobe.data.options import Headline
    from dpprobe.heads.facts import DataFacts
    from dpprobe.heads.fitted import Heads
    from dpprobe.heads.options import MethodOptions
    from dpprobe.options import Options
    from dpprobe.privacy.plan import Mechanism, Plan
    from dpprobe.privacy.running_sums import RunningSums
    from dpprobe.release.asked_release import AskedRelease
    from dpprobe.release.bundle import BundleFacts
    from dpprobe.release.checks import Checks
    from dpprobe.release.ledger.ledger_file import Entry
    from dpprobe.release.planned_release import PlannedRelease
    from dpprobe.release.transport import Block, Draw, Transport
    from dpprobe.study.options import ReleaseOptions
    from dpprobe.study.study_checks import WantedRelease

Facts = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReleasePart:
    """Declares one component that a release may have besides its head.

    Attributes:
      key, options: the key and class of the part's options in a release, if the part has options.
      describe: the purpose of the options, for the schema.
      faults: yields reasons, known from the study, that forbid offering or booking the release.
      test_metric: returns the test metric that the part publishes; None if it publishes none.
    """

    key: str = ""
    options: type[Options] | None = None
    describe: str = ""
    test_metric: Callable[[ReleaseOptions], Headline | None] = lambda _: None
    faults: Callable[[WantedRelease], Iterable[str]] = lambda _: ()


class PartSteps:
    """The steps of a release part while a release is made; by default a step does nothing.

    A part with options has steps only in releases with these options (`asked`). Steps before the
    booking write no files except cached noise calibrations.
    """

    slow = False  # True if `check` takes minutes, and so runs after the checks of other parts

    def __init__(self, planned: PlannedRelease, asked: Any = None) -> None:
        self.planned, self.release, self.asked = planned, planned.release, asked

    @staticmethod
    def open_transport(release: AskedRelease, asked: Any) -> Transport | None:  # noqa: ARG004
        """Returns how the head is trained; None to train it only on this site's rows."""
        return None

    def plan_test_units(self) -> Plan | None:
        """Returns the plan of the part's measurements on test units; None without measurements."""
        return None

    def check(self) -> Block | None:
        """Checks the release before the booking; returns the statement block if already known."""
        return None

    def count_useful(self) -> DataFacts | None:
        """Returns public facts that replace the benchmark if it was trained on other rows."""
        return None

    def describe_booking(self) -> dict[str, str | None]:
        """Returns additional values for the release's `Booking` in the ledger."""
        return {}

    def continue_sums(self) -> RunningSums | None:
        """Returns the running sums of earlier cohorts that the fit continues."""
        return None

    # training and measurements

    def extend_head(self, heads: Heads, moments: Mapping[str, torch.Tensor]) -> Heads:  # noqa: ARG002
        """Returns the head, extended by arrays computed from noisy releases.

        `moments` has the second moments that the fit released, by name.
        """
        return heads

    def needs(self) -> tuple[str, ...]:
        """Names parts that must be measured before this part, if the release has them."""
        return ()

    def measure(self, draw: Draw) -> Block | None:  # noqa: ARG002
        """Measures the head on the test units; returns the part's statement block."""
        return None

    # between training and the bundle

    def keep(self, heads: Heads, entry: Entry) -> None:
        """Stores private files for later releases."""

    def drop(self, entry: Entry) -> None:
        """Removes the private files of an abandoned ledger entry."""

    def state(self, entry: Entry) -> Block | None:  # noqa: ARG002
        """Returns the part's statement block, if the block is known only after the booking."""
        return None


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The values of a bundle that `verify` could read; None for values it could not read."""

    folder: Path | None
    facts: BundleFacts | None
    options: MethodOptions | None
    values: Mapping[str, Any] | None
    plan: Plan | None
    predecessors: Sequence[Path]


@dataclass(frozen=True)
class PartReader:
    """Verifies a part's block of a statement, and returns its content for documents.

    Attributes:
      check: checks the block, and returns a detail; `reads` names its arguments.
      reads: the values of `Stated` that `check` needs.
      always: True to check a statement without the block, too.
      values: returns values for documents, by name, from the block (None if absent), the unit's
        words and the whole statement.
      wanted: returns the mechanisms that read test units, from the part's block.
    """

    name: str
    check: Callable[..., tuple[str, bool]] | None = None
    reads: tuple[str, ...] = ("values", "plan")
    always: bool = False
    values: Callable[[Any, UnitWords, Facts], dict[str, Any]] | None = None
    wanted: Callable[[Any, BundleFacts], tuple[Mechanism, ...]] | None = None

    def read(self, statement: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns the part's block; None if absent."""
        return statement.get(self.name)

    def verify_files(self, checks: Checks, folder: Path | None, public_key: Path | None) -> None:
        """Checks the bundle's files, before their content is read."""

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        """Checks the part's block; None if the check failed, or depends on a failed check."""
        if self.check is None or not (self.always or self.name in (stated.values or {})):
            return True
        inputs = (getattr(stated, each) for each in self.reads)
        return checks.run_check(self.name, self.check, *inputs)

    def show(self, statement: Facts) -> dict[str, Any]:
        """Returns the values and sentences of the part that documents show, by name."""
        block = statement.get(self.name)
        if self.values is None:
            return {self.name: block}
        return self.values(block, words_of_statement(statement), statement)

    def mechanisms(self, statement: Facts, facts: BundleFacts) -> tuple[Mechanism, ...]:
        """Returns the mechanisms with which the part reads test units; empty if it reads none."""
        block = statement.get(self.name)
        read = block is not None and self.wanted is not None and "mechanisms" in block
        return self.wanted(block, facts) if read and self.wanted else ()

    def list_arrays(
        self,
        _values: Mapping[str, Any],
        _plan: Plan,
        _options: MethodOptions,
        _facts: BundleFacts,
    ) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the part's arrays, which are stored with the weights."""
        return {}

    def check_arrays(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Raises DataError for wrong values of the part's arrays."""
