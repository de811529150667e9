"""What a ledger prints of its entries and totals, and what a person may do to an entry."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from tests.support.refusals import refusal_of
from tests.unit.release.ledger.test_ledger import DELTA, FREE, booking, gaussian, part
from tests.unit.release.ledger.test_ledger_prices import exact_epsilon

REASON = "the job died before its noise"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.of_dataset(tmp_path, "lesions")


@pytest.mark.parametrize("reason", ["", "1234", " 1234 ", "two\nlines", "tab\there", "\x1b[2Jx"])
def test_a_reason_is_one_printable_line_of_five_characters(ledger: Ledger, reason: str) -> None:
    ledger.book_release(booking(), FREE)
    with pytest.raises(PrivacyError, match="write one line of 5 characters or more"):
        ledger.abandon_entry(1, reason)
    assert ledger.read_entries()[0].state == "open"
    ledger.abandon_entry(1, " 12345 ")
    assert ledger.read_entries()[0].reason == "12345"


def test_an_entry_that_is_not_there_or_not_open_is_named(ledger: Ledger) -> None:
    for name in ("first", "second"):
        ledger.book_release(booking(name), FREE)
    ledger.close_entry(1, "d" * 64)
    ledger.abandon_entry(2, REASON)
    folder = str(ledger.path.parent)
    assert refusal_of(ledger.close_entry, 3, "d" * 64) == (
        f"{ledger.path}: no entry 3; `dpprobe ledger {folder}` lists all entries"
    )
    for call, given in ((ledger.abandon_entry, REASON), (ledger.close_entry, "e" * 64)):
        said = str(refusal_of(call, 1, given))
        assert f"entry 1 is closed with bundle {'d' * 64}, which somebody may have seen" in said
        assert f"entry 2 was abandoned ({REASON}); delete" in str(refusal_of(call, 2, given))
    before = ledger.path.read_bytes()
    ledger.close_entry(1, "d" * 64)  # twice with one digest
    assert ledger.path.read_bytes() == before


def test_a_name_is_free_again_once_its_entry_is_abandoned(ledger: Ledger) -> None:
    ledger.book_release(booking("first"), FREE)
    said = str(refusal_of(ledger.book_release, booking("first"), FREE))
    assert f"release 'first': entry 1 of {ledger.path} is open" in said
    command = f'`dpprobe ledger {ledger.path.parent} --abandon 1 --reason "..."`'
    assert command in said
    ledger.abandon_entry(1, REASON)
    assert ledger.book_release(booking("first"), FREE).number == 2
    ledger.close_entry(2, "d" * 64)
    said = str(refusal_of(ledger.book_release, booking("first"), FREE))
    assert f"release 'first': entry 2 of {ledger.path} is closed" in said
    assert "give it another name" in said


def test_a_folder_with_a_space_is_quoted_for_the_shell(tmp_path: Path) -> None:
    ledger = Ledger.of_dataset(tmp_path, "my data")
    ledger.book_release(booking("first"), FREE)
    assert f"`dpprobe ledger '{ledger.path.parent}' --abandon 1" in describe_ledger(
        ledger, delta=None
    )


def test_an_empty_ledger_says_that_no_release_is_recorded(ledger: Ledger) -> None:
    assert describe_ledger(ledger, delta=None) == f"{ledger.path}: no release is recorded"
    ledger.book_release(booking("first"), FREE)
    ledger.abandon_entry(1, REASON)
    text = describe_ledger(ledger, delta=None)
    assert text.endswith("Total epsilon 0: all entries are abandoned.")
    assert ledger.list_added() == []


def read_table(text: str) -> list[list[str]]:
    """The cells of a printed table, whose columns begin below their titles."""
    head, *rows = text.split("\n\n")[1].splitlines()
    starts = [match.start() for match in re.finditer(r"(?:^|(?<=  ))\S", head)]
    ends = [*starts[1:], None]
    return [[row[a:b].strip() for a, b in zip(starts, ends, strict=True)] for row in (head, *rows)]


def test_each_entry_is_a_row_with_its_prices_and_state(ledger: Ledger) -> None:
    train, test = part("train", gaussian(4.0)), replace(part("test", gaussian(30.0)), delta=1e-4)
    ledger.book_release(booking("of_both", train, test), FREE)
    ledger.book_release(booking("of_test_units_only", test), FREE)
    ledger.book_release(booking("third", train), FREE)
    ledger.close_entry(1, "d" * 64)
    ledger.abandon_entry(2, REASON)
    titles, *rows = read_table(describe_ledger(ledger, delta=DELTA))
    assert titles == [
        "entry",
        "release",
        "state",
        "booked",
        "training unit",
        "test unit",
        "reason",
    ]
    trained = f"epsilon {train.epsilon:g}, delta 1e-05"
    tested = f"epsilon {test.epsilon:g}, delta 0.0001"
    for row in rows:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row.pop(3)), row
    assert rows == [
        ["1", "of_both", "closed", trained, tested, ""],
        ["2", "of_test_units_only", "abandoned", "-", tested, REASON],
        ["3", "third", "open", trained, "-", ""],
    ]


def test_totals_are_printed_by_side_of_each_split_and_for_any_unit(ledger: Ledger) -> None:
    """Of the counted entries, at the largest delta of the releases unless another is asked."""
    test = replace(part("test", gaussian(10.0)), delta=1e-3)
    ledger.book_release(booking("a", part("train", gaussian(5.0)), test), FREE)
    ledger.book_release(booking("b", part("train", gaussian(5.0)), split="seed_2"), FREE)
    ledger.book_release(booking("c", part("train", gaussian(1.0))), FREE)
    ledger.abandon_entry(3, REASON)
    for asked, delta in ((None, 1e-3), (1e-6, 1e-6)):
        lines = describe_ledger(ledger, delta=asked).split("\n\n")[2].splitlines()
        assert lines[0] == (
            f"Total at delta {delta:g} over 2 entries (abandoned releases do not count), for one "
            "image:"
        )
        wanted = {
            "a training unit of split hash_20": 1 / 5,
            "a test unit of split hash_20": 1 / 10,
            "a training unit of split seed_2": 1 / 5,
            "any unit": math.sqrt(2) / 5,  # trained on in both splits
        }
        assert len(lines) == 1 + len(wanted)
        for line, (who, mu) in zip(lines[1:], wanted.items(), strict=True):
            found = re.fullmatch(rf"  {who}: epsilon (\S+) \(exact\)", line)
            assert found, line
            assert float(found[1]) == pytest.approx(exact_epsilon(mu, delta), rel=3e-5)


def test_a_bound_is_called_one(ledger: Ledger) -> None:
    chain = [replace(booking(str(n)), place=f"lesions/v1 {n}") for n in (1, 2)]
    for each in chain:
        ledger.book_release(each, FREE)
    text = describe_ledger(ledger, delta=DELTA)
    shared = exact_epsilon(2 / 5)  # 1 / sigma of both add up
    for who in ("a training unit of split hash_20", "any unit"):
        found = re.search(rf"{who}: epsilon (\S+) \(upper bound\)", text)
        assert found, text
        assert float(found[1]) == pytest.approx(shared, rel=3e-5)


def test_ledgers_that_are_added_are_named_with_the_joint_total(tmp_path: Path) -> None:
    ledgers = [Ledger.of_dataset(tmp_path, name) for name in "abc"]
    for ledger, same in zip(ledgers, (None, "a", "a"), strict=True):
        ledger.book_release(replace(booking("v1"), same_units_as=same), FREE)
    text = describe_ledger(ledgers[1], delta=DELTA)
    found = re.search(r"ledgers of (.*), which .*: 3 entries, epsilon (\S+) \(exact\)", text)
    assert found, text
    assert found[1] == "a, c"
    assert float(found[2]) == pytest.approx(exact_epsilon(math.sqrt(3) / 5), rel=3e-5)
    assert "over 1 entry" in text, "its own total too"
    alone = Ledger.of_dataset(tmp_path, "d")
    alone.book_release(booking("v1"), FREE)
    assert "same_units_as" not in describe_ledger(alone, delta=DELTA)


def test_only_open_entries_are_explained(ledger: Ledger) -> None:
    for name in ("first", "second", "third"):
        ledger.book_release(booking(name), FREE)
    ledger.close_entry(1, "d" * 64)
    ledger.abandon_entry(2, REASON)
    text = describe_ledger(ledger, delta=None)
    assert re.findall(r"^(\w+): entry (\d) of \S+ is open", text, re.MULTILINE) == [("third", "3")]
