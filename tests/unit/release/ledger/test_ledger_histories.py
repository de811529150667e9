"""Random histories of three ledgers (by hypothesis), compared with a short model.

After any sequence of bookings, closings, abandonments, torn lines and refusals, the files record
exactly the completed actions, and the total is that of the unit with the largest epsilon.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpprobe.errors import BudgetError, DataError, PrivacyError
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.ledger.ledger_prices import Spent
from tests.support.mechanisms import exact_epsilon
from tests.unit.release.ledger.test_ledger import DELTA, gaussian, part
from tests.unit.release.ledger.test_ledger_prices import rounded_up

DATASETS = "abc"
REASON = "died before its noise"
NOTHING = Spent(epsilon=0.0, exact=True, entries=0)


@dataclass
class Noted:
    """An entry in the model."""

    dataset: str
    booking: Booking
    state: str = "open"
    note: str | None = None

    @property
    def counts(self) -> bool:
        return self.state != "abandoned"


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.noted: list[Noted] = []
        self.lines = dict.fromkeys(DATASETS, b"")

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def ledger(self, dataset: str) -> Ledger:
        return Ledger.of_dataset(self.folder, dataset)

    # Model

    def joined(self, dataset: str, *extra: Noted) -> list[Noted]:
        """Returns the counted entries of this ledger and of all ledgers added to it."""
        pairs = [
            {each.dataset, each.booking.same_units_as}
            for each in (*self.noted, *extra)
            if each.counts and each.booking.same_units_as
        ]
        known: set[str | None] = {dataset}
        for _ in DATASETS:
            known |= set().union(*(pair for pair in pairs if pair & known))
        return [each for each in (*self.noted, *extra) if each.counts and each.dataset in known]

    def worst(self, counted: list[Noted]) -> float:
        """Returns a unit's largest mu on any sides of the splits; 1 / sigma adds up in a chain."""
        splits = sorted({(each.dataset, each.booking.split) for each in counted})
        worst = 0.0
        for sides in itertools.product(("train", "test"), repeat=len(splits)):
            on = dict(zip(splits, sides, strict=True))
            read = [
                (each.booking.place if one.side == "train" else None, one.mechanisms[0])
                for each in counted
                for one in each.booking.parts
                if one.side == on[each.dataset, each.booking.split]
            ]
            chains = [place and place.split()[0] for place, _ in read]
            worst = max(
                worst,
                sum(
                    (chains.count(chain) if chain else 1) / item.noise_multiplier**2
                    for chain, (_, item) in zip(chains, read, strict=True)
                ),
            )
        return math.sqrt(worst)

    def why_not(self, asked: Noted, limit: float | None) -> str | None:
        """Returns words of the expected refusal, or None if the booking must succeed."""
        booking = asked.booking
        for each in self.noted:
            mine = each.dataset == asked.dataset
            if each.counts and mine and each.booking.release == booking.release:
                return "is closed" if each.state == "closed" else "is open"
        for each in self.joined(asked.dataset, asked):
            column = each.dataset == asked.dataset and each.booking.column != booking.column
            if each.booking.unit != booking.unit or column:
                return "cannot be added up"
        for each in self.noted:
            if each.counts and booking.place and each.booking.place == booking.place:
                return "already has place"
        if limit is not None:
            after = exact_epsilon(self.worst(self.joined(asked.dataset, asked)))
            if after > limit:
                return "above max_epsilon"
        return None

    # Actions

    @rule(
        dataset=st.sampled_from(DATASETS),
        name=st.sampled_from(["v1", "v2", "v3", "v4", "v5"]),
        sigmas=st.sampled_from([(4.0, None), (6.0, 3.0), (None, 5.0), (9.0, 12.0)]),
        split=st.sampled_from(["one", "one", "two"]),
        unit=st.sampled_from([("image", None)] * 5 + [("patient", "who"), ("patient", "case")]),
        same=st.sampled_from([None, None, None, *DATASETS]),
        place=st.sampled_from([None, None, None, "a/v1 1", "a/v1 2", "b/v1 1"]),
        limit=st.sampled_from([None, None, 1.0, 2.0]),
    )
    def book(
        self,
        dataset: str,
        name: str,
        sigmas: tuple[float | None, float | None],
        split: str,
        unit: tuple[str, str | None],
        same: str | None,
        place: str | None,
        limit: float | None,
    ) -> None:
        sides: Any = zip(("train", "test"), sigmas, strict=True)
        asked = Booking(
            release=name,
            study="clinic",
            unit=unit[0],
            column=unit[1],
            split=split,
            identity="o d",
            parts=tuple(part(side, gaussian(sigma)) for side, sigma in sides if sigma),
            same_units_as=None if same == dataset else same,
            place=place,
        )
        ledger, entry = self.ledger(dataset), Noted(dataset, asked)
        why = self.why_not(entry, limit)
        limits = Limits(delta=DELTA, max_epsilon=limit)
        if why is None:
            made = ledger.book_release(asked, limits, datasets=DATASETS)
            assert (made.booking, made.state) == (asked, "open")
            self.noted.append(entry)
            return
        with pytest.raises(PrivacyError, match=why) as caught:
            ledger.book_release(asked, limits, datasets=DATASETS)
        assert f"release {name!r}: " in str(caught.value)
        assert isinstance(caught.value, BudgetError) == ("max_epsilon" in why)
        if "added up" in why or "max_epsilon" in why:
            with pytest.raises(PrivacyError, match=why):
                ledger.check_room(asked, limits)

    def entry(self, dataset: str, number: int) -> Noted | None:
        entries = [each for each in self.noted if each.dataset == dataset]
        return entries[number - 1] if 0 < number <= len(entries) else None

    @rule(
        dataset=st.sampled_from(DATASETS),
        number=st.integers(1, 4),
        digest=st.sampled_from(["d" * 64, "e" * 64]),
    )
    def close(self, dataset: str, number: int, digest: str) -> None:
        entry, ledger = self.entry(dataset, number), self.ledger(dataset)
        if entry and (entry.state == "open" or (entry.state, entry.note) == ("closed", digest)):
            ledger.close_entry(number, digest)
            entry.state, entry.note = "closed", digest
        else:
            self.refuse(entry, ledger.close_entry, number, digest)

    @rule(dataset=st.sampled_from(DATASETS), number=st.integers(1, 4))
    def abandon(self, dataset: str, number: int) -> None:
        entry, ledger = self.entry(dataset, number), self.ledger(dataset)
        if entry and entry.state == "open":
            ledger.abandon_entry(number, f" {REASON} ")
            entry.state, entry.note = "abandoned", REASON
        else:
            self.refuse(entry, ledger.abandon_entry, number, REASON)

    def refuse(self, entry: Noted | None, call: Any, *given: Any) -> None:
        words = "no entry|No such file" if entry is None else f"{entry.state}.*{entry.note}"
        with pytest.raises((PrivacyError, DataError), match=words):
            call(*given)

    @rule(dataset=st.sampled_from(DATASETS), length=st.integers(1, 60))
    def cut_a_line_short(self, dataset: str, length: int) -> None:
        """Simulates a job that dies while writing: the partial line is not counted."""
        path = self.ledger(dataset).path
        if self.lines[dataset] and path.read_bytes() == self.lines[dataset]:
            with path.open("ab") as stream:
                stream.write(self.lines[dataset][:length])

    # Invariants

    @invariant()
    def files_hold_what_was_done(self) -> None:
        for dataset in DATASETS:
            noted = [each for each in self.noted if each.dataset == dataset]
            entries = self.ledger(dataset).read_entries()
            assert [entry.number for entry in entries] == [*range(1, len(noted) + 1)]
            for entry, each in zip(entries, noted, strict=True):
                assert (entry.booking, entry.state) == (each.booking, each.state)
                assert (entry.digest or entry.reason) == each.note
            path = self.ledger(dataset).path
            written = path.read_bytes() if path.exists() else b""
            whole = written[: written.rfind(b"\n") + 1]
            assert whole.startswith(self.lines[dataset]), "a line was altered"
            events = len(noted) + sum(each.state != "open" for each in noted)
            assert whole.count(b"\n") == events
            self.lines[dataset] = whole

    @invariant()
    def totals_are_of_the_worst_unit(self) -> None:
        for dataset in DATASETS:
            counted, ledger = self.joined(dataset), self.ledger(dataset)
            mine = [each.booking for each in counted if each.dataset == dataset]
            listed = ledger.list_bookings()
            assert listed[: len(mine)] == mine, "of this dataset first"
            assert len(listed) == len(counted)
            others = {each.dataset for each in counted} - {dataset}
            assert others <= set(ledger.list_added()) <= {*DATASETS} - {dataset}
            spent = ledger.compute_spent(DELTA)
            assert spent.entries == len(counted)
            if counted:
                assert rounded_up(spent, exact_epsilon(self.worst(counted)))
            else:
                assert spent == NOTHING

    @invariant()
    def a_name_leads_to_the_entry_that_counts(self) -> None:
        for dataset, name in itertools.product(DATASETS, ("v1", "v2", "gone")):
            numbers = [
                number
                for number, each in enumerate(self.entries_of(dataset), 1)
                if each.counts and each.booking.release == name
            ]
            found = self.ledger(dataset).entry_of(name)
            assert [found.number] == numbers if found else not numbers

    def entries_of(self, dataset: str) -> Iterator[Noted]:
        return (each for each in self.noted if each.dataset == dataset)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=25,
    stateful_step_count=15,
)


def test_ledgers_join_through_a_third_which_need_not_be_released_from(tmp_path: Path) -> None:
    """Dataset b belongs to a, and c to b: a release from any of them counts all three."""
    plain = Booking(
        release="v1",
        study="clinic",
        unit="image",
        split="one",
        identity="o d",
        parts=(part("train", gaussian(5.0)),),
    )
    a, b, c = (Ledger.of_dataset(tmp_path, name) for name in "abc")
    free = Limits(delta=DELTA)
    a.book_release(plain, free)
    c.book_release(replace(plain, same_units_as="b"), free, datasets="b")
    assert (a.list_added(), c.list_added()) == ([], [])
    b.book_release(replace(plain, same_units_as="a"), free)
    assert [each.list_added() for each in (a, b, c)] == [["b", "c"], ["a", "c"], ["a", "b"]]
    tight = Limits(delta=DELTA, max_epsilon=exact_epsilon(math.sqrt(3) / 5.0))
    with pytest.raises(BudgetError, match="above max_epsilon"):
        a.book_release(replace(plain, release="v2"), tight)
    # three splits whose hash keys are equal: a unit may be on a different side in each
    assert {each.split for each in a.list_bookings()} == {"one", "b: one", "c: one"}
