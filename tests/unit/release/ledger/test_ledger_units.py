"""A booking whose units contradict earlier ones is refused; the error names entry and remedy."""

from __future__ import annotations

import io
import itertools
import json
import math
import multiprocessing
import zlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.special import ndtr, ndtri

from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.errors import BudgetError, DataError, PrivacyError
from dpprobe.files.json_files import write_record
from dpprobe.privacy.accountants import gaussian_epsilon
from dpprobe.privacy.running_sums import Factorisation
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from dpprobe.release.ledger.ledger_file import Booking
from dpprobe.release.ledger.ledger_limits import Limits
from dpprobe.release.ledger.ledger_prices import bound_bookings, compose_bookings
from dpprobe.release.ledger.ledger_units import (
    Contents,
    Hashes,
    Units,
    count_moved,
    count_paying_twice,
    find_tables,
    load_key,
    share_units,
)
from tests.support.refusals import check_tokens, refusal_of, refuses
from tests.support.split_tables import write_tables
from tests.unit.release.ledger.test_ledger import DELTA, FREE, gaussian, part

TRAIN = part("train", gaussian(5.0))
BOTH = (TRAIN, part("test", gaussian(9.0)))


def asked(name: str, data: str = "", **more: Any) -> Booking:
    """Returns a booking whose data differ from all other bookings' unless `data` is given."""
    values: dict[str, Any] = {"unit": "image", "split": "hash_20", "parts": (TRAIN,), **more}
    identity = f"options {data or f'data-of-{name}'}"
    return Booking(release=name, study="clinic", identity=identity, **values)


class Named(Units):
    """Units with names whose images are known to differ from all others."""

    contents = Contents({}, pixels=True)


def named(*train: str, test: tuple[str, ...] = ()) -> Units:
    return Named(names={"train": train, "test": test}, tables=None)


def tables(
    folder: Path, train: list[str], test: list[str], *, level: int = 0, verify: str = "decode"
) -> Units:
    """Writes tables of these images and three fillers; returns their units, without names."""
    others = [f"{folder.name} {number}" for number in range(3)]
    images = {"train": [*train, *others], "test": test}
    encoded = {
        split: [png(zlib.crc32(text.encode()), level) for text in texts]
        for split, texts in images.items()
    }
    write_tables(folder, encoded, verify=verify)
    return Units(names={}, tables=folder)


def book(folder: Path, dataset: str, booking: Booking, units: Units | None, **more: Any) -> None:
    Ledger.of_dataset(folder, dataset).book_release(booking, FREE, units=units, **more)


@pytest.mark.parametrize("other", [named("Ann", "Di"), named("Eva", test=("Ann",))])
def test_names_that_another_ledger_has_too_are_refused(tmp_path: Path, other: Units) -> None:
    """Names on either side count. Users may declare different people, or add up the ledgers."""
    book(tmp_path, "a", asked("v1"), named("Ann", test=("Bo",)))
    said = refusal_of(book, tmp_path, "b", asked("v2"), other)
    assert said
    for words in (
        "release 'v2': names of units or ids of dataset b are also in entry 1 of",
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
    """The data of a dataset may change between two releases."""
    for name, units in (("v1", named("Ann")), ("v2", named("Bo")), ("v3", named("Bo", "Cy"))):
        book(tmp_path, "a", asked(name), units)
    for name, number in (("Ann", 1), ("Bo", 2), ("Cy", 3)):
        said = refusal_of(book, tmp_path, "b", asked("w"), named(name))
        check_tokens(str(said), f"entry {number}", tmp_path / "a/ledger.jsonl")
    Ledger.of_dataset(tmp_path, "a").abandon_entry(3, "died before its noise")
    book(tmp_path, "b", asked("w"), named("Cy"))


def test_equal_images_or_features_are_one_unit_under_any_name(tmp_path: Path) -> None:
    """Users may declare that equal names are different people, but not that equal images are."""
    x = tables(tmp_path / "x", ["p", "q"], ["r"])
    y = tables(tmp_path / "y", ["s", "r"], ["t"])
    book(tmp_path, "a", asked("v1", data="d1"), x)
    for units, booking in ((y, asked("v2")), (named("Zoe"), asked("v2", data="d1"))):
        said = refusal_of(book, tmp_path, "b", booking, units, other_units_than=["a"])
        check_tokens(str(said), "'v2'", "images", "dataset b", "entry 1")
        assert "other_units_than" not in str(said)
    book(tmp_path, "b", asked("v2", data="d2"), named("Zoe"), other_units_than=["a"])


def test_an_entry_without_hashes_is_compared_by_the_dataset_s_tables(tmp_path: Path) -> None:
    """For example, entries of the Python classifier name no units."""
    book(tmp_path, "a", asked("v1"), None)
    units = tables(tmp_path / "x", ["p"], ["r"])
    book(tmp_path, "free", asked("w"), named())
    tables(tmp_path / "a", ["q"], ["p"])
    said = refusal_of(book, tmp_path, "b", asked("v2"), units)
    check_tokens(str(said), "images", "dataset b", "entry 1")
    notes(tmp_path / "c", 1, ids="c", patients="p")
    book(tmp_path, "c", asked("v1"), None)
    for name in ("c row 3", "p1"):
        said = refusal_of(book, tmp_path, "d", asked("v2"), named(name))
        check_tokens(str(said), "names of units or ids", "dataset d", "c/ledger.jsonl", "entry 1")


# The same vectors under other names in a study.


def notes(
    folder: Path,
    seed: int = 0,
    *,
    names: Mapping[str, str] | None = None,
    counts: npt.NDArray[np.float32] | None = None,
    first: int = 0,
    ids: str = "",
    patients: str = "",
) -> Units:
    """Prepares 8 notes with vectors; 4 notes from number `first` on are for training."""
    generator = np.random.default_rng(seed)
    rows = np.roll(np.arange(8), -first)
    arrays: dict[str, Any] = {"x": generator.normal(size=(8, 3)).astype(np.float32)}
    arrays["counts"] = generator.normal(size=(8, 2)).astype(np.float32)
    if counts is not None:
        arrays["counts"] = counts
    columns = {"kind": np.array(["k", "l"] * 4)}
    columns |= {"scan": np.array([f"{ids} row {row}" for row in range(8)])} if ids else {}
    columns |= {"who": np.array([f"{patients}{row // 4}" for row in rows])} if patients else {}
    folder.mkdir(exist_ok=True)
    for split, chosen in (("train", rows[:4]), ("test", rows[4:])):
        kept = {name: array[chosen] for name, array in (arrays | columns).items()}
        np.savez(folder / f"{split}.npz", **kept)
    options = {"train": "train.npz", "test": "test.npz", "vectors": names or {"x": "x"}}
    options |= {"id_column": "scan"} if ids else {}
    options |= {"unit_column": "who"} if patients else {}
    given = {"source": "embeddings", "root": str(folder), "label_column": "kind"}
    prepare_dataset(dataset_options(given | {"class_names": ["k", "l"]} | options), folder)
    return Units.of_tables(folder)


BESIDE = {"y": "x", "hashing": "counts"}


@pytest.mark.parametrize("names", [{"y": "x"}, BESIDE, {"counts": "counts", "x": "x"}], ids=str)
def test_a_vector_under_another_name_is_the_same_unit(
    tmp_path: Path, names: dict[str, str]
) -> None:
    book(tmp_path, "a", asked("v1"), notes(tmp_path / "a"))
    said = refusal_of(
        book,
        tmp_path,
        "b",
        asked("v2"),
        notes(tmp_path / "b", names=names),
        other_units_than=["a"],
    )
    check_tokens(str(said), "vectors of dataset b", "also in entry 1", "same_units_as: a")
    book(tmp_path, "c", asked("v3"), notes(tmp_path / "c", 1, names=names))


def test_a_vector_that_moved_under_another_name_is_found(tmp_path: Path) -> None:
    """Two notes may have equal counts of words, and are then no copies of each other."""
    counts = np.zeros((8, 2), np.float32)
    alike = notes(tmp_path / "a", names=BESIDE, counts=counts)
    for name, part_of in (("v1", BOTH), ("v2", BOTH[:1]), ("v3", BOTH[1:])):
        book(tmp_path, "a", asked(name, parts=part_of), alike)
    moved = notes(tmp_path / "a", first=4)
    said = refusal_of(book, tmp_path, "a", asked("v4"), moved)
    check_tokens(str(said), "changed sides", "entry 1", "split_seed")


@pytest.mark.parametrize("nested", [False, True])
def test_ids_in_tables_are_names_also_in_a_layout(tmp_path: Path, nested: bool) -> None:
    units, path = notes(tmp_path / "a", ids="a"), tmp_path / "a/dataset.json"
    if nested:
        described = json.loads(path.read_text())
        del described["record_sha256"]
        described["source"] = {"source": "url", "layout": described["source"]}
        write_record(path, described)
    assert Units.of_tables(tmp_path / "a").names == units.names
    assert "a row 3" in units.names["train"]


class Older(Units):
    """Units with the hashes of versions that hashed neither single vectors nor ids."""

    def hash_with(self, key: bytes) -> Hashes:
        hashes = super().hash_with(key)
        return {part: hashes[part] for part in hashes if part.endswith(".images")}


def test_an_entry_of_an_older_version_is_compared_by_the_dataset_s_tables(tmp_path: Path) -> None:
    """Without its tables, it may have any vectors; equally named vectors are still compared."""
    made = notes(tmp_path / "a", ids="a", patients="p")
    book(tmp_path, "a", asked("v1"), Older(names={}, tables=made.tables))
    for units in (notes(tmp_path / "b", names={"y": "x"}), named("a row 3"), named("p1")):
        said = refusal_of(book, tmp_path, "b", asked("v2"), units)
        check_tokens(str(said), "are also in entry 1", "dataset b")
    for data, seed in {"new": 1, "none": None}.items():  # other data, then no tables
        path = tmp_path / "a/dataset.json"
        path.unlink() if seed is None else notes(tmp_path / "a", seed, ids="a", patients="q")
        same = notes(tmp_path / "b")
        said = refusal_of(book, tmp_path, "b", asked("v2"), same, other_units_than=["a"])
        check_tokens(str(said), "vectors of dataset b are also in entry 1")
        renamed = notes(tmp_path / "b", names={"y": "x"})
        said = refusal_of(book, tmp_path, "b", asked("v2"), renamed)
        check_tokens(str(said), "may also be in entry 1", "older version", "other_units_than: [a]")
        images = tables(tmp_path / data, [f"p {data}"], [f"r {data}"])
        book(tmp_path, data, asked(data), images)  # images are no vectors
    book(tmp_path, "b", asked("v2"), renamed, other_units_than=["a"])


@pytest.mark.parametrize("verify", ["hash", "decode"])
def test_booking_vectors_decodes_no_images_of_an_older_entry(
    tmp_path: Path, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that an older version compared by pixels are not decoded again."""
    made = tables(tmp_path / "a", ["p"], ["r"], verify=verify)
    book(tmp_path, "a", asked("v1"), Older(names={}, tables=made.tables))
    monkeypatch.setattr("dpprobe.data.table.decode_image", pytest.fail)
    book(tmp_path, "b", asked("v2"), notes(tmp_path / "b"))


def test_a_split_whose_images_moved_is_refused_and_another_split_is_not(tmp_path: Path) -> None:
    x = tables(tmp_path / "x", ["p", "q"], ["r"])
    y = tables(tmp_path / "y", ["q", "r"], ["p"])
    book(tmp_path, "a", asked("v1"), None)  # units unknown: compared with nothing
    book(tmp_path, "a", asked("v2"), x)
    said = str(refusal_of(book, tmp_path, "a", asked("v3"), y))
    check_tokens(said, "entry 2", "v2", "hash_20", "split_seed")
    book(tmp_path, "a", asked("v3", split="seed_5"), y)


def test_a_split_whose_people_moved_under_another_spelling_is_refused(tmp_path: Path) -> None:
    """The names decide the side, but `007` and `7` are one person, whatever their images."""
    book(
        tmp_path, "a", asked("v1"), Units(names={"train": ["007", "8"], "test": ["9"]}, tables=None)
    )
    moved = Units(names={"train": ["08", "9"], "test": ["7"]}, tables=None)
    said = str(refusal_of(book, tmp_path, "a", asked("v2"), moved))
    check_tokens(said, "units have changed sides", "entry 1", "split_seed")
    book(tmp_path, "a", asked("v2", split="seed_5"), moved)
    stayed = Units(names={"train": ["7", "8", "10"], "test": ["09"]}, tables=None)
    book(tmp_path, "a", asked("v3"), stayed)


def test_an_image_on_both_sides_is_refused(tmp_path: Path) -> None:
    units = tables(tmp_path / "x", ["p", "q"], ["q"])
    said = str(refusal_of(book, tmp_path, "a", asked("v1", parts=BOTH), units))
    check_tokens(said, "image", "splits")
    book(tmp_path, "a", asked("v1", parts=BOTH[:1]), units)
    # its test set would then be used as well
    check_tokens(
        str(refusal_of(book, tmp_path, "a", asked("v2", parts=BOTH[1:]), units)), "entry 1"
    )


@pytest.mark.parametrize(
    ("dataset", "more", "fits"),
    [
        ("a", {"unit": "image", "column": None}, False),
        ("a", {"unit": "patient", "column": "case"}, False),
        ("a", {"unit": "patient", "column": "who"}, True),
        ("b", {"unit": "image", "column": None}, False),
        ("b", {"unit": "patient", "column": "case"}, True),  # another column for the same people
    ],
)
def test_prices_for_different_units_of_privacy_are_not_added(
    tmp_path: Path, dataset: str, more: dict[str, Any], fits: bool
) -> None:
    book(tmp_path, "a", asked("v1", unit="patient", column="who"), None)
    same = {"same_units_as": "a"} if dataset == "b" else {}
    said = refusal_of(book, tmp_path, dataset, asked("v2", **more, **same), None)
    assert (said is None) == fits, said
    if said is not None:
        asked_for = [more["unit"], *filter(None, [more["column"]])]
        check_tokens(said, "'v2'", *asked_for, "entry 1", "v1", "patient", "who")
    book(tmp_path, "c", asked("v3"), None)  # in a ledger without other entries


def test_an_unknown_dataset_cannot_share_units(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book(tmp_path, "a", asked("v1"), None)
    for other in ("gone", "b"):
        said = refusal_of(book, tmp_path, "b", asked("v2", same_units_as=other), None)
        check_tokens(str(said), "'v2'", f"same_units_as: {other}")
    book(tmp_path, "b", asked("v2", same_units_as="a"), None)
    assert caplog.text == ""
    more = {"datasets": ["later"]}  # in the study, but without a ledger so far
    book(tmp_path, "b", asked("v3", same_units_as="later"), None, **more)
    check_tokens(caplog.text, "'v3'", "same_units_as: later", "ledger")
    assert Ledger.of_dataset(tmp_path, "b").list_added() == ["a"]


def test_a_lost_key_stops_all_bookings_with_units(tmp_path: Path) -> None:
    """Without the key, units cannot be compared."""
    book(tmp_path, "a", asked("v1"), named("Ann"))
    (tmp_path / "units.key").unlink()
    with refuses(DataError, tmp_path / "units.key", "backup"):
        book(tmp_path, "b", asked("v2"), named("Zoe"))
    book(tmp_path, "b", asked("v2"), None)
    assert not (tmp_path / "units.key").exists()


def test_bookings_without_a_data_hash_are_not_treated_as_equal_data(tmp_path: Path) -> None:
    plain = [replace(asked(name), identity="options") for name in ("v1", "v2")]
    for dataset, booking, unit in zip("ab", plain, ("Ann", "Bo"), strict=True):
        book(tmp_path, dataset, booking, named(unit))
    assert Ledger.of_dataset(tmp_path, "b").entry_of("v2")


# Hashes identify shared units of two ledgers, but reveal nothing without the key.


SPAWN = multiprocessing.get_context("spawn")


def book_at_once(data_dir: Path, dataset: str, start: Any, results: Any) -> None:
    units = Units(names={"train": [f"patient {number}" for number in range(2000)]}, tables=None)
    start.wait()
    try:
        Ledger.of_dataset(data_dir, dataset).book_release(asked(dataset), FREE, units=units)
    except PrivacyError as error:
        results.put(str(error))
    else:
        results.put("booked")


def test_of_two_processes_with_the_same_units_one_books(tmp_path: Path) -> None:
    start, results = SPAWN.Barrier(2), SPAWN.Queue()
    jobs = [
        SPAWN.Process(target=book_at_once, args=(tmp_path, each, start, results)) for each in "ab"
    ]
    for job in jobs:
        job.start()
    said = sorted(results.get(timeout=400) for _ in jobs)
    for job in jobs:
        job.join()
    assert said[0] == "booked"
    check_tokens(said[1], "names of units", "dataset", "entry 1")


def test_hashes_of_the_same_images_match_only_with_the_same_key(tmp_path: Path) -> None:
    """Different keys give different hashes of the same images."""
    made = write_tables(tmp_path, {"train": ["x", "y", "z"], "test": ["w"]})
    assert [find_tables(tmp_path, each) for each in (None, made, "x")] == [tmp_path] * 2 + [None]
    units = Units(names={}, tables=tmp_path)
    first, second = (units.hash_with(bytes([number]) * 32) for number in (1, 2))
    assert not share_units(first, second, "images")
    assert share_units(first, units.hash_with(bytes([1]) * 32), "images")


def test_pixels_are_compared_too(tmp_path: Path) -> None:
    """Lossless copies of one picture are equal, even if their files differ."""
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
    colour = np.frombuffer(number.to_bytes(4, "big"), np.uint8)
    picture = Image.fromarray(np.tile(colour, (8, 16)))
    picture.save(stream, "png", compress_level=level)
    return stream.getvalue()


# The same picture with another compression level; `verify: hash` does not compare pixels.


SPENT = part("train", gaussian(1.6))  # epsilon 2.56, or 3.80 if released twice
LIMITED = Limits(delta=DELTA, max_epsilon=3.0)


@pytest.mark.parametrize("verify", ["hash", "decode"])
def test_a_picture_with_another_compression_does_not_pay_in_two_datasets(
    tmp_path: Path, verify: str
) -> None:
    assert compose_bookings([asked("v", parts=(SPENT,))], DELTA).epsilon < 3.0
    assert compose_bookings([asked("v", parts=(SPENT,)) for _ in "ab"], DELTA).epsilon > 3.79
    for name, level in (("a", 0), ("b", 9)):
        tables(tmp_path / name, ["p"], ["r" + name], level=level, verify=verify)
    a, b = (Units(names={}, tables=tmp_path / name) for name in "ab")
    assert not set(a.contents.images["train"]) >= set(b.contents.images["train"])
    Ledger.of_dataset(tmp_path, "a").book_release(asked("v1", parts=(SPENT,)), LIMITED, units=a)
    second = Ledger.of_dataset(tmp_path, "b")
    for others in ([], ["a"]):
        with refuses(PrivacyError, "images", "dataset b", "entry 1", "same_units_as: a"):
            second.book_release(
                asked("v2", parts=(SPENT,)), LIMITED, units=b, other_units_than=others
            )
    with refuses(BudgetError, "3.79654", "max_epsilon 3"):
        second.book_release(asked("v2", parts=(SPENT,), same_units_as="a"), LIMITED, units=b)


@pytest.mark.parametrize("verify", ["hash", "decode"])
def test_a_picture_with_another_compression_does_not_pay_on_both_sides(
    tmp_path: Path, verify: str
) -> None:
    texts = {"train": ["p", "q", "s"], "test": ["p"]}
    levels = {"train": 0, "test": 9}
    encoded = {
        split: [png(zlib.crc32(text.encode()), levels[split]) for text in texts[split]]
        for split in texts
    }
    write_tables(tmp_path / "a", encoded, verify=verify)
    units = Units(names={}, tables=tmp_path / "a")
    with refuses(PrivacyError, "both splits", "pixels"):
        book(tmp_path, "a", asked("v1", parts=BOTH), units)


def test_images_that_cannot_be_compared_count_as_equal(tmp_path: Path) -> None:
    """Both sides are added up, as an upper bound; another dataset is refused or declared."""
    parts = (SPENT, part("test", gaussian(1.6)))
    gone = Units(names={}, tables=None)  # the split tables are missing
    ledger = Ledger.of_dataset(tmp_path, "a")
    with refuses(BudgetError, "3.79654", "max_epsilon 3", "pixels", "both splits"):
        ledger.book_release(asked("v1", parts=parts), LIMITED, units=gone)
    book(tmp_path, "a", asked("v1", parts=parts), gone)
    spent = ledger.compute_spent(DELTA)
    assert spent.epsilon > 3.79
    assert not spent.exact
    assert not bound_bookings(ledger.list_bookings(), [0.001], DELTA).exact
    check_tokens(describe_ledger(ledger, delta=DELTA), "v1", "pixels", "upper bound")
    known = tables(tmp_path / "b", ["p"], ["r"])
    for dataset, units in (("b", known), ("c", gone)):
        with refuses(PrivacyError, "pixels", "same_units_as: a", "other_units_than: [a]"):
            book(tmp_path, dataset, asked("v2"), units)
    book(tmp_path, "b", asked("v2"), known, other_units_than=["a"])
    same = [replace(asked("v", parts=parts), units="u", pixels=pixels) for pixels in (True, None)]
    assert compose_bookings(same, DELTA).exact, "a later booking of equal hashes compared pixels"
    assert not compose_bookings(same[1:], DELTA).exact, "older versions do not tell"
    assert compose_bookings([asked("v", parts=parts)], DELTA).exact, "fits of an estimator"


def test_pixels_of_undecodable_images_are_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tables(tmp_path, {"train": [b"x", b"y", b"z"], "test": [b"w"]})
    contents = Units(names={}, tables=tmp_path).contents
    assert (len(contents.images["train"]), contents.pixels) == (3, False)
    check_tokens(caplog.text, "train row 0", "decoded")


def test_current_tables_compare_the_images_of_an_earlier_entry(tmp_path: Path) -> None:
    """An old entry without a kind of comparison uses today's tables if they have all its images."""
    units = tables(tmp_path / "a", ["p"], ["r"])
    bare = replace(units, tables=None)
    bytes_only = {split: {*table} for split, table in units.contents.images.items()}
    old = type("Old", (Units,), {"contents": Contents(bytes_only, pixels=False)})
    book(tmp_path, "a", asked("v1"), old(names={}, tables=None))
    others = tables(tmp_path / "b", ["q"], ["s"])
    with refuses(PrivacyError, "pixels"):
        book(tmp_path, "b", asked("v2"), bare)
    book(tmp_path, "b", asked("v2"), others)
    copied = tables(tmp_path / "c", ["p"], ["t"], level=9)
    with refuses(PrivacyError, "images", "also in entry 1"):
        book(tmp_path, "c", asked("v3"), copied, other_units_than=["b"])
    tables(tmp_path / "a", ["p"], ["u"])  # one of the entry's images is missing
    with refuses(PrivacyError, "pixels", "other_units_than"):
        book(tmp_path, "d", asked("v4"), tables(tmp_path / "d", ["v"], ["w"]))


@pytest.mark.parametrize("horizon", [2, 12])
@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_a_unit_of_two_cohorts_pays_for_sums_that_meet(
    tmp_path: Path, horizon: int, order: tuple[str, ...]
) -> None:
    """A third dataset, with a release of nearly no cost, joins the two ledgers."""
    factorisation, sigma = Factorisation.make(horizon), 5.0
    c = factorisation.coefficients
    moved = [c[0], *(after + before for before, after in pairwise(c))]  # a unit in cohorts 1 and 2
    true = float(np.linalg.norm(moved)) / factorisation.column_norm / sigma
    accountant = PLDAccountant().compose(GaussianDpEvent(1 / true))
    limits = Limits(delta=DELTA, max_epsilon=accountant.get_epsilon(DELTA))
    sums = (part("train", gaussian(sigma, name="covariance"), gaussian(100.0, count=4)),)
    little = [part(side, gaussian(1e3)) for side in ("train", "test")]
    bookings = {
        "a": [asked("of_a", parts=sums, place="a/of_a 1")],
        "b": [asked("of_b", parts=sums, place="a/of_a 2")],
        "c": [asked(same, parts=little[:1], same_units_as=same) for same in "ab"],
    }
    for dataset in "ab":
        book(tmp_path, dataset, asked("old", parts=little[1:]), None)
    *first, last = [(dataset, each) for dataset in order for each in bookings[dataset]]
    for dataset, each in first:
        book(tmp_path, dataset, each, None)
    ledger = Ledger.of_dataset(tmp_path, last[0])
    with pytest.raises(BudgetError, match="above max_epsilon"):
        ledger.book_release(last[1], limits)
    ledger.book_release(last[1], FREE)
    spent = ledger.compute_spent(DELTA)
    assert limits.max_epsilon is not None
    assert spent.epsilon > limits.max_epsilon
    wanted = math.hypot(2 / sigma, math.sqrt(8) / 100)  # gradients have independent noise
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
    """Neither the split nor case nor surrounding spaces matter."""
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


@given(st.sampled_from(["images", "names"]), IMAGES, IMAGES, IMAGES, IMAGES)
def test_units_that_change_sides_are_found(
    kind: str, train: set[int], test: set[int], later_train: set[int], later_test: set[int]
) -> None:
    first, second = (
        {f"{side}.{kind}": np.array(sorted(held), np.uint64) for side, held in sides.items()}
        for sides in ({"train": train, "test": test}, {"train": later_train, "test": later_test})
    )
    to_test = (train - test) & (later_test - later_train)
    to_train = (test - train) & (later_train - later_test)
    assert count_moved(first, second) == len(to_test) + len(to_train)
    assert count_moved(second, first) == count_moved(first, second)
    if kind == "names":  # own splits may number each side from 0
        return
    # pairs: a side that one release uses, and the opposite side in the other release
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
    for content in (b"", b"x" * 31, b"x" * 33):
        path.write_bytes(content)
        for used in (True, False):
            with refuses(DataError, path, f"{len(content)} bytes", 32, "backup"):
                load_key(tmp_path, used=used)
        assert path.read_bytes() == content
    path.unlink()
    with refuses(DataError, path, "backup"):
        load_key(tmp_path, used=True)
    assert load_key(tmp_path, used=False) != made
