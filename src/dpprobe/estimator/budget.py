"""The privacy budget that all fits on one private dataset share.

A fit is booked before the fit's noise is drawn, so the budget counts each fit that may have
released something. Bookings are kept in a ledger file, which any number of processes can share, or
in the memory of one process. `sklearn.clone` and `copy.deepcopy` return the same budget; with
copied budgets, each candidate of a grid search would spend a separate budget.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.estimator.given_values import read_number, read_risk
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, check_delta
from dpprobe.release.ledger.ledger_limits import Limits, refuse_excess
from dpprobe.release.ledger.ledger_prices import Spent, bound_bookings, compose_bookings
from dpprobe.release.ledger.ledger_units import Units, find_tables, unit_words
from dpprobe.study.reserved_names import LEDGER_FILE

logger = logging.getLogger("dpprobe")

MEMORY = "the budget in memory"
# The units in the last split tables, by folder and fingerprint: a search books many fits, and to
# list units may decode all images.
_LISTED: dict[tuple[Path, str], Units] = {}


class Budget:
    """A limit on the privacy cost of all private fits on one dataset together.

    Args:
      folder: the folder of the private data; `ledger.jsonl` in this folder lists each fit and
        release. To share the ledger with a study's releases, give the dataset's folder under the
        study's `data_dir`. With None, the list of fits is in this process's memory and is lost when
        the process ends. Other processes cannot spend from a budget in memory.
      max_epsilon: the largest epsilon of all fits together, at `delta`, for one unit of privacy (an
        image or a patient). Choose max_epsilon before the first fit.
      max_risk: instead of max_epsilon, a limit on the success of attacks on one unit, given all
        fits: `{"advantage": 0.1}`, or `{"true_positives": 0.01, "at": 0.001}`.
      delta: the delta of the limit, and of each fit without its own delta.
      column: the word for a group, such as "patient". All entries of one ledger must have the same
        word: for a study's dataset whose unit is a patient, write the study's unit_column.
      same_units_as: a dataset next to `folder` that has some of the same units, as the dataset
        option of this name. Rows of `read_features` bring their dataset's option.
      other_units_than: datasets next to `folder` whose units are different, although their names
        are equal or their pixels cannot be compared, as the dataset option of this name.

    If `folder` has split tables, each fit compares their names and images with the ledgers of all
    datasets next to `folder`, as a release does. The first fit of a process may decode all images.

    Raises:
      PrivacyError: unless there is exactly one limit, positive and finite, and delta is in range.
      ConfigError: for a limit or a delta that is no number, and for datasets that are no strings.

    Example:
      >>> import numpy as np
      >>> from dpprobe import Budget, PrivateClassifier
      >>> rows = np.random.default_rng(0).normal(size=(100, 2))
      >>> budget = Budget(max_epsilon=2, delta=1e-5)
      >>> head = PrivateClassifier(epsilon=1.5, head="prototypes", classes=[0, 1], budget=budget)
      >>> _ = head.fit(rows, np.where(rows[:, 0] > 0, 0, 1))
      >>> round(budget.compute_spent().epsilon, 2), budget.compute_risk()
      (1.5, 0.153516)
      >>> head.fit(rows, np.where(rows[:, 0] > 0, 0, 1))  # a second fit spends again
      Traceback (most recent call last):
          ...
      dpprobe.errors.BudgetError: release 'fit': the total epsilon of a unit would be 2.20651
      at delta 1e-05 (without this release 1.5, by the budget in memory), above ...
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        max_epsilon: float | None = None,
        max_risk: Mapping[str, float] | None = None,
        delta: float,
        column: str = "groups",
        same_units_as: str | None = None,
        other_units_than: Sequence[str] = (),
    ) -> None:
        if (max_epsilon is None) == (max_risk is None):
            raise PrivacyError(
                "budget: a budget needs exactly one limit; pass max_epsilon=1, or "
                "max_risk={'advantage': 0.1}"
            )
        self.max_epsilon = None if max_epsilon is None else read_number("max_epsilon", max_epsilon)
        if self.max_epsilon is not None and not 0 < self.max_epsilon < math.inf:
            raise PrivacyError(f"max_epsilon {max_epsilon!r}: must be a positive number")
        self.max_risk = None if max_risk is None else read_risk("max_risk", max_risk)
        self.delta = read_number("delta", delta)
        check_delta(self.delta)
        self.column = column
        if isinstance(other_units_than, str) or not all(
            isinstance(name, str) for name in (*other_units_than, same_units_as or "")
        ):
            raise ConfigError(
                f"same_units_as {same_units_as!r}, other_units_than {other_units_than!r}: write "
                "one dataset's name, and a list of datasets' names"
            )
        self.same_units_as, self.other_units_than = same_units_as, tuple(other_units_than)
        self.folder = None if folder is None else Path(folder).absolute()
        self._bookings: list[Booking] = []
        self._lock = threading.Lock()
        # Pickled copies (without an owner) and forked processes do not see later bookings.
        self._owner: int | None = os.getpid()

    def __repr__(self) -> str:
        place = "" if self.folder is None else f"{str(self.folder)!r}, "
        return f"Budget({place}{self.describe_limit()}, delta={self.delta:g})"

    def describe_limit(self) -> str:
        """Formats the limit as a user writes it."""
        if self.max_risk is None:
            return f"max_epsilon={self.max_epsilon:g}"
        return f"max_risk={self.max_risk.to_dict()}"

    def compute_spent(self, delta: float | None = None) -> Spent:
        """Computes the total epsilon of all fits so far for one unit of privacy.

        Args:
          delta: the delta at which epsilon is computed; by default the budget's delta.

        Raises:
          DataError: for a damaged ledger.
        """
        delta = self.delta if delta is None else read_number("delta", delta)
        if self._ledger is not None:
            return self._ledger.compute_spent(delta)
        with self._lock:
            return compose_bookings(self._bookings, delta)

    def compute_risk(self, at: float | None = None) -> float:
        """Bounds the success of attacks on one unit, given all fits so far.

        Args:
          at: a false positive rate.

        Returns:
          The true positive rate at `at`, or without `at` the advantage, rounded up to six decimals.

        Raises:
          DataError: for a damaged ledger.
        """
        rates = () if at is None else (at,)
        with self._lock:
            bookings = self._bookings if self._ledger is None else self._ledger.list_bookings()
            bounds = bound_bookings(bookings, rates, self.delta)
        return bounds.true_positives[0] if rates else bounds.advantage

    def join_declared(self, of_rows: str | None) -> str | None:
        """Returns the dataset that shares units, by this budget or by the rows' own dataset."""
        declared = {of_rows, self.same_units_as} - {None}
        if len(declared) > 1:
            raise PrivacyError(
                f"budget: same_units_as is {self.same_units_as}, but {of_rows} in the dataset of "
                "the rows; write the same dataset in both places, or leave one out"
            )
        return of_rows or self.same_units_as

    def check_fit(self, booking: Booking) -> None:
        """Checks that the budget allows a fit, before any data is read or noise is drawn.

        Raises BudgetError above the limit. `book_fit` checks again, as others may book earlier.
        """
        if self._ledger is not None:
            self._ledger.check_room(booking, self._limits)
            return
        self._check_owner()
        with self._lock:
            self._refuse_excess(booking)

    def book_fit(self, booking: Booking) -> int:
        """Records a fit and returns the number of its entry; noise may be drawn after this returns.

        The booking gets a release name that no other fit has. Raises BudgetError if the limit would
        be exceeded. Raises PrivacyError for a budget in memory if another process made the budget.
        """
        named = replace(booking, release=f"fit-{uuid.uuid4().hex[:12]}")
        if self._ledger is not None:
            other = named.same_units_as
            known = other and (self._ledger.path.parent.parent / other).is_dir()
            return self._ledger.book_release(
                named,
                self._limits,
                units=None if self.folder is None else _list_units(self.folder),
                other_units_than=self.other_units_than,
                datasets=[other] if other and known else [],
            ).number
        self._check_owner()
        with self._lock:
            self._refuse_excess(named)
            self._bookings.append(named)
            return len(self._bookings)

    def close_fit(self, number: int, digest: str) -> None:
        """Records that a booked fit has ended; a fit whose entry remains open counts too."""
        if self._ledger is not None:
            self._ledger.close_entry(number, digest)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise PrivacyError(
                "budget: this budget is in the memory of another process, so this copy must not "
                "spend from it; use Budget(FOLDER, ...), which processes can share"
            )

    def _refuse_excess(self, booking: Booking) -> None:
        if booking.same_units_as is not None:
            raise PrivacyError(
                f"budget: the dataset of the rows shares units with {booking.same_units_as} "
                "(same_units_as). A budget in memory does not add up the costs of both; use "
                "Budget(FOLDER, ...) with the dataset's folder under the study's data_dir"
            )
        for earlier in self._bookings:
            if (earlier.unit, earlier.column) != (booking.unit, booking.column):
                raise PrivacyError(
                    f"unit {unit_words(booking)}: an earlier fit on this budget protects another "
                    f"unit, {unit_words(earlier)}, and their epsilons cannot be added up; use the "
                    "unit of that fit"
                )
        refuse_excess(self._bookings, booking, self._limits, ledger=MEMORY)

    @property
    def _limits(self) -> Limits:
        return Limits(delta=self.delta, max_epsilon=self.max_epsilon, max_risk=self.max_risk)

    @property
    def _ledger(self) -> Ledger | None:
        return None if self.folder is None else Ledger(self.folder / LEDGER_FILE)

    def __sklearn_clone__(self) -> Self:
        return self

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "_lock"}
        return {**state, "_owner": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _list_units(folder: Path) -> Units | None:
    """Lists the units in a dataset's split tables; None for a folder without split tables."""
    tables = find_tables(folder)
    if tables is None:
        if (folder / "dataset.json").exists():
            logger.warning(
                "budget: the split tables in %s are missing or damaged, so this fit is not "
                "compared with other datasets; run the study again, which restores them",
                folder,
            )
        return None
    key = tables, read_info(tables / "dataset.json").fingerprint
    listed = _LISTED.get(key)
    # Missing images may have been restored since.
    if listed is None or not listed.contents.pixels:
        listed = Units.of_tables(tables, of_fit=True)
        _LISTED.clear()
        _LISTED[key] = listed
    return listed
