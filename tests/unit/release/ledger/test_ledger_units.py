"""A booking whose units contradict earlier ones is refused, with the entry and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError, PrivacyError
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking
from dpprobe.release.ledger.ledger_units import Units
from tests.support.refusals import refusal_of
from tests.support.split_tables import write_tables
from tests.unit.release.ledger.test_ledger import FREE, gaussian, part

TRAIN = part("train", gaussian(5.0))
BOTH = (TRAIN, part("test", gaussian(9.0)))


def asked(name: str, data: str = "", **more: Any) -> Booking:
    """A booking of other data than any other, unless `data` is given."""
    values: dict[str, Any] = {"unit": "image", "split": "hash_20", "parts": (TRAIN,), **more}
    identity = f"options {data or f'data-of-{name}'}"
    return Booking(release=name, study="clinic", identity=identity, **values)


def named(*train: str, test: tuple[str, ...] = ()) -> Units:
    return Units(names={"train": train, "test": test}, tables=None)


def tables(folder: Path, train: list[str], test: list[str]) -> Units:
    """Writes tables of these images, and of enough others; returns their units, without names."""
    others = [f"{folder.name} {number}" for number in range(3)]
    write_tables(folder, {"train": [*train, *others], "test": test})
    return Units(names={}, tables=folder)


def book(folder: Path, dataset: str, booking: Booking, units: Units | None, **more: Any) -> None:
    Ledger.of_dataset(folder, dataset).book_release(booking, FREE, units=units, **more)


@pytest.mark.parametrize("other", [named("Ann", "Di"), named("Eva", test=("Ann",))])
def test_names_that_another_ledger_has_too_are_refused(tmp_path: Path, other: Units) -> None:
    """On whichever side; a person says that they are other people, or adds the ledgers up."""
    book(tmp_path, "a", asked("v1"), named("Ann", test=("Bo",)))
    said = refusal_of(book, tmp_path, "b", asked("v2"), other)
    assert said
    for words in (
        "release 'v2': names of units of dataset b are also in entry 1 of",
        f"{tmp_path}/a/ledger.jsonl (v1)",
        "write `same_units_as: a` under datasets.b",
        "or other_units_than: [a] if different units have the same names",
    ):
        assert words in said, said
    assert not (tmp_path / "b/ledger.jsonl").exists()
    book(tmp_path, "b", asked("v2"), other, other_units_than=["a"])
    book(tmp_path, "c", asked("v3", same_units_as="a"), named("Cy"))
    assert refusal_of(book, tmp_path, "d", asked("v4"), named("Cy"), other_units_than=["a"])
    book(tmp_path, "e", asked("v5"), named("Flo"))


def test_each_entry_of_a_ledger_is_compared_by_the_units_that_it_had(tmp_path: Path) -> None:
    """Data of a dataset may change between two releases."""
    for name, units in (("v1", named("Ann")), ("v2", named("Bo")), ("v3", named("Bo", "Cy"))):
        book(tmp_path, "a", asked(name), units)
    for name, number in (("Ann", 1), ("Bo", 2), ("Cy", 3)):
        said = refusal_of(book, tmp_path, "b", asked("w"), named(name))
        assert f"are also in entry {number} of" in str(said), name
    Ledger.of_dataset(tmp_path, "a").abandon_entry(3, "died before its noise")
    book(tmp_path, "b", asked("w"), named("Cy"))


def test_equal_images_or_features_are_the_same_units_whatever_their_names(tmp_path: Path) -> None:
    """A person may declare that equal names are other people, not that equal images are others."""
    x = tables(tmp_path / "x", ["p", "q"], ["r"])
    y = tables(tmp_path / "y", ["s", "r"], ["t"])
    book(tmp_path, "a", asked("v1", data="d1"), x)
    for units, booking in ((y, asked("v2")), (named("Zoe"), asked("v2", data="d1"))):
        said = refusal_of(book, tmp_path, "b", booking, units, other_units_than=["a"])
        assert "release 'v2': images of dataset b are also in entry 1" in str(said)
        assert "other_units_than" not in str(said)
    book(tmp_path, "b", asked("v2", data="d2"), named("Zoe"), other_units_than=["a"])


def test_an_entry_without_hashes_is_compared_by_the_dataset_s_tables(tmp_path: Path) -> None:
    """As the entries of a classifier in Python, which names no units."""
    book(tmp_path, "a", asked("v1"), None)
    units = tables(tmp_path / "x", ["p"], ["r"])
    book(tmp_path, "free", asked("w"), Units(names={}, tables=None))
    tables(tmp_path / "a", ["q"], ["p"])
    assert "images of dataset b are also in entry 1" in str(
        refusal_of(book, tmp_path, "b", asked("v2"), units)
    )


def test_a_split_whose_images_moved_is_refused_and_another_split_is_not(tmp_path: Path) -> None:
    x = tables(tmp_path / "x", ["p", "q"], ["r"])
    y = tables(tmp_path / "y", ["q", "r"], ["p"])
    book(tmp_path, "a", asked("v1"), None)  # of unknown units: compared with nothing
    book(tmp_path, "a", asked("v2"), x)
    said = str(refusal_of(book, tmp_path, "a", asked("v3"), y))
    for words in ("have changed sides since entry 2", "(v2)", "(hash_20)", "another split_seed"):
        assert words in said, said
    book(tmp_path, "a", asked("v3", split="seed_5"), y)


def test_an_image_on_both_sides_is_refused_where_both_are_read(tmp_path: Path) -> None:
    units = tables(tmp_path / "x", ["p", "q"], ["q"])
    said = str(refusal_of(book, tmp_path, "a", asked("v1", parts=BOTH), units))
    assert "an image is in both splits" in said
    assert "Remove the copy" in said
    book(tmp_path, "a", asked("v1", parts=BOTH[:1]), units)
    # its test copy would now be read as well
    assert "changed sides since entry 1" in str(
        refusal_of(book, tmp_path, "a", asked("v2", parts=BOTH[1:]), units)
    )


@pytest.mark.parametrize(
    ("dataset", "more", "fits"),
    [
        ("a", {"unit": "image", "column": None}, False),
        ("a", {"unit": "patient", "column": "case"}, False),
        ("a", {"unit": "patient", "column": "who"}, True),
        ("b", {"unit": "image", "column": None}, False),
        ("b", {"unit": "patient", "column": "case"}, True),  # its name for the same people
    ],
)
def test_prices_to_other_units_are_not_added_up(
    tmp_path: Path, dataset: str, more: dict[str, Any], fits: bool
) -> None:
    book(tmp_path, "a", asked("v1", unit="patient", column="who"), None)
    same = {"same_units_as": "a"} if dataset == "b" else {}
    said = refusal_of(book, tmp_path, dataset, asked("v2", **more, **same), None)
    assert (said is None) == fits, said
    column = f" (a value of {more['column']})" if more["column"] else ""
    assert fits or f"release 'v2': its unit of privacy is {more['unit']}{column}, but" in str(said)
    assert fits or "entry 1 of" in str(said)
    assert fits or "(v1) is patient (a value of who)" in str(said)
    book(tmp_path, "c", asked("v3"), None)  # in a ledger of its own


def test_a_dataset_that_nobody_knows_is_no_partner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book(tmp_path, "a", asked("v1"), None)
    for other in ("gone", "b"):
        said = refusal_of(book, tmp_path, "b", asked("v2", same_units_as=other), None)
        assert f"release 'v2': same_units_as: {other}: write the name of another" in str(said)
        assert "As written, same_units_as adds up no ledgers" in str(said)
    book(tmp_path, "b", asked("v2", same_units_as="a"), None)
    assert caplog.text == ""
    more = {"datasets": ["later"]}  # of the study, without a ledger so far
    book(tmp_path, "b", asked("v3", same_units_as="later"), None, **more)
    assert "release 'v3': same_units_as: later: this dataset has no ledger yet" in caplog.text
    assert Ledger.of_dataset(tmp_path, "b").list_added() == ["a"]


def test_a_lost_key_stops_all_bookings_with_units(tmp_path: Path) -> None:
    """Without it nobody can tell if units are the same."""
    book(tmp_path, "a", asked("v1"), named("Ann"))
    (tmp_path / "units.key").unlink()
    with pytest.raises(DataError, match=r"units.key: missing, .*restore the file from a backup"):
        book(tmp_path, "b", asked("v2"), named("Zoe"))
    book(tmp_path, "b", asked("v2"), None)
    assert not (tmp_path / "units.key").exists()


def test_a_place_in_a_chain_is_taken_once_in_all_ledgers(tmp_path: Path) -> None:
    book(tmp_path, "a", asked("v1", place="lesions/v1 1"), None)
    with pytest.raises(PrivacyError, match=r"'v2': v1 of dataset a already has place 1 in the "):
        book(tmp_path, "b", asked("v2", place="lesions/v1 1"), None)
    for place in ("lesions/v1 2", "lesions/v9 1", None):
        booking = replace(asked(f"of {place}"), place=place)
        book(tmp_path, "b", booking, None)


def test_bookings_without_a_hash_of_their_data_are_not_of_equal_data(tmp_path: Path) -> None:
    plain = [replace(asked(name), identity="options") for name in ("v1", "v2")]
    for dataset, booking, unit in zip("ab", plain, ("Ann", "Bo"), strict=True):
        book(tmp_path, dataset, booking, named(unit))
    assert Ledger.of_dataset(tmp_path, "b").entry_of("v2")
