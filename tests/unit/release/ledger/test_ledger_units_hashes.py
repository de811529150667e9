"""Hashes tell units of two ledgers, and nothing to those who lack the key."""

from __future__ import annotations

import io
import itertools
import math
import multiprocessing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.special import ndtr, ndtri

from dpprobe.errors import BudgetError, DataError, PrivacyError
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.running_sums import Factorisation
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Booking, Part
from dpprobe.release.ledger.ledger_prices import Limits, bound_bookings
from dpprobe.release.ledger.ledger_units import (
    Units,
    count_moved,
    count_paying_twice,
    find_tables,
    load_key,
    share_units,
)
from tests.support.split_tables import write_tables
from tests.unit.release.ledger.test_ledger import DELTA, FREE, gaussian, part

SPAWN = multiprocessing.get_context("spawn")


def booking(name: str, *parts: Part, **more: Any) -> Booking:
    return Booking(
        release=name,
        study="clinic",
        unit="image",
        split="hash_20",
        parts=parts,
        identity=f"{name} {name}",
        **more,
    )


def book(data_dir: Path, dataset: str, start: Any, results: Any) -> None:
    asked = booking(dataset, part("train", gaussian(5.0)))
    units = Units(names={"train": [f"patient {number}" for number in range(2000)]}, tables=None)
    start.wait()
    try:
        Ledger.of_dataset(data_dir, dataset).book_release(asked, FREE, units=units)
    except PrivacyError as error:
        results.put(str(error))
    else:
        results.put("booked")


def test_of_two_processes_with_the_same_units_one_books(tmp_path: Path) -> None:
    start, results = SPAWN.Barrier(2), SPAWN.Queue()
    jobs = [SPAWN.Process(target=book, args=(tmp_path, each, start, results)) for each in "ab"]
    for job in jobs:
        job.start()
    said = sorted(results.get(timeout=400) for _ in jobs)
    for job in jobs:
        job.join()
    assert said[0] == "booked"
    assert "names of units of dataset" in said[1]


def test_a_picture_on_both_sides_is_two_units(tmp_path: Path) -> None:
    key = load_key(tmp_path, used=False)
    one = Units(names={}, tables=tmp_path / "a")
    other = Units(names={}, tables=tmp_path / "b")
    write_tables(tmp_path / "a", {"train": ["x", "y", "black"], "test": ["z", "v", "black"]})
    write_tables(tmp_path / "b", {"train": ["x", "y", "v"], "test": ["z", "w", "black"]})
    assert count_moved(one.hash_with(key), other.hash_with(key)) == 1
    assert count_moved(other.hash_with(key), one.hash_with(key)) == 1
    assert count_moved(one.hash_with(key), one.hash_with(key)) == 0


def test_hashes_without_the_key_tell_nothing(tmp_path: Path) -> None:
    """Two keys give two sets of hashes of the same images."""
    made = write_tables(tmp_path, {"train": ["x", "y", "z"], "test": ["w"]})
    assert [find_tables(tmp_path, each) for each in (None, made, "x")] == [tmp_path] * 2 + [None]
    units = Units(names={}, tables=tmp_path)
    first, second = (units.hash_with(bytes([number]) * 32) for number in (1, 2))
    assert not share_units(first, second, "images")
    assert share_units(first, units.hash_with(bytes([1]) * 32), "images")


def test_pixels_are_compared_too(tmp_path: Path) -> None:
    """The same picture in another file, without loss, is the same picture."""
    found = []
    for level in (0, 9):
        written = [
            png(number if number == 3 else number + 10 * level, level) for number in range(6)
        ]
        write_tables(
            tmp_path / str(level), {"train": written[:4], "test": written[4:]}, verify="decode"
        )
        found.append(Units(names={}, tables=tmp_path / str(level)).hash_with(bytes(32)))
    assert png(3, 0) != png(3, 9)
    assert share_units(found[0], found[1], "images")


def png(number: int, level: int) -> bytes:
    stream = io.BytesIO()
    picture = Image.fromarray(np.full((8, 8), number, dtype=np.uint8))
    picture.save(stream, "png", compress_level=level)
    return stream.getvalue()


@pytest.mark.parametrize("horizon", [2, 12])
@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_a_unit_of_two_cohorts_pays_for_sums_that_meet(
    tmp_path: Path, horizon: int, order: tuple[str, ...]
) -> None:
    """A third dataset, of a release that costs next to nothing, joins the ledgers of both."""
    factorisation, sigma = Factorisation.make(horizon), 5.0
    c = factorisation.coefficients
    moved = [c[0], *(after + before for before, after in pairwise(c))]  # places 1 and 2
    true = float(np.linalg.norm(moved)) / factorisation.column_norm / sigma
    accountant = PLDAccountant().compose(GaussianDpEvent(1 / true))
    limits = Limits(delta=DELTA, max_epsilon=accountant.get_epsilon(DELTA))
    sums = part("train", gaussian(sigma, name="covariance"), gaussian(100.0, count=4))
    asked = {
        "a": [booking("of_a", sums, place="a/of_a 1")],
        "b": [booking("of_b", sums, place="a/of_a 2")],
        "c": [booking(same, part("train", gaussian(1e3)), same_units_as=same) for same in "ab"],
    }
    for dataset in "ab":
        Ledger.of_dataset(tmp_path, dataset).book_release(
            booking("old", part("test", gaussian(1e3))), FREE
        )
    *first, last = [(dataset, each) for dataset in order for each in asked[dataset]]
    for dataset, each in first:
        Ledger.of_dataset(tmp_path, dataset).book_release(each, FREE)
    ledger = Ledger.of_dataset(tmp_path, last[0])
    with pytest.raises(BudgetError, match="above max_epsilon"):
        ledger.book_release(last[1], limits)
    ledger.book_release(last[1], FREE)
    spent = ledger.compute_spent(DELTA)
    assert limits.max_epsilon is not None
    assert spent.epsilon > limits.max_epsilon
    wanted = math.hypot(2 / sigma, math.sqrt(8) / 100)  # gradients have noise of their own
    assert spent.epsilon == pytest.approx(gaussian_epsilon(wanted, DELTA), rel=1e-4)
    assert not spent.exact
    risk = bound_bookings(ledger.list_bookings(), [0.001], DELTA)
    assert risk.true_positives[0] == pytest.approx(ndtr(wanted + ndtri(0.001)), rel=1e-4)


PEOPLE = st.lists(st.sampled_from(["Ann", "ann ", "Bo", "Cy"]), max_size=3)
SPLITS_OF_PEOPLE = st.fixed_dictionaries({"train": PEOPLE, "test": PEOPLE})


@given(SPLITS_OF_PEOPLE, SPLITS_OF_PEOPLE)
def test_releases_share_units_if_any_name_is_in_both(
    one: dict[str, list[str]], other: dict[str, list[str]]
) -> None:
    """In whichever split, and in another spelling of capitals and spaces."""
    key = bytes(range(32))
    first, second = (Units(names=each, tables=None).hash_with(key) for each in (one, other))
    people = [
        {name.strip().lower() for name in itertools.chain(*each.values())} for each in (one, other)
    ]
    assert share_units(first, second, "names") == bool(people[0] & people[1])
    assert not share_units(first, second, "images")
    for hashes in (first, second):
        for values in hashes.values():
            assert np.array_equal(values, np.unique(values)), "sorted, each once"


IMAGES = st.sets(st.integers(1, 4))


@given(IMAGES, IMAGES, IMAGES, IMAGES)
def test_an_image_moved_if_it_is_on_one_side_alone_and_later_on_the_other(
    train: set[int], test: set[int], later_train: set[int], later_test: set[int]
) -> None:
    first, second = (
        {f"{side}.images": np.array(sorted(held), np.uint64) for side, held in sides.items()}
        for sides in (
            {"train": train, "test": test},
            {"train": later_train, "test": later_test},
        )
    )
    to_test = (train - test) & (later_test - later_train)
    to_train = (test - train) & (later_train - later_test)
    assert count_moved(first, second) == len(to_test) + len(to_train)
    assert count_moved(second, first) == count_moved(first, second)
    # each side of one release that is read, with the other side of the other release
    both = {"train", "test"}
    paying = len(train & later_test) + len(test & later_train)
    assert count_paying_twice(first, both, second, both) == paying
    assert count_paying_twice(first, {"train"}, second, both) == len(train & later_test)
    assert count_paying_twice(first, {"test"}, second, {"test"}) == 0


def test_a_key_is_made_once_private_and_never_replaced(tmp_path: Path) -> None:
    made = load_key(tmp_path, used=False)
    path = tmp_path / "units.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(made) == 32
    assert path.read_bytes() == made == load_key(tmp_path, used=True)
    for content, fault in ((b"", "0 bytes, not 32"), (b"x" * 31, "31 bytes"), (b"x" * 33, "33 b")):
        path.write_bytes(content)
        for used in (True, False):
            with pytest.raises(DataError, match=f"units.key: {fault}.*from a backup"):
                load_key(tmp_path, used=used)
        assert path.read_bytes() == content
    path.unlink()
    with pytest.raises(DataError, match="missing, but ledgers contain hashes .*from a backup"):
        load_key(tmp_path, used=True)
    assert load_key(tmp_path, used=False) != made
