"""Releases of cohorts: sums add up, a place is taken once, crashes and damage lose nothing."""

from __future__ import annotations

import shutil
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import BudgetError, ConfigError, DataError, PrivacyError
from dpprobe.heads.fitted import TYPICAL
from dpprobe.release import bundle, make
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from dpprobe.release.ledger.ledger_units import KEY_FILE, read_hashes
from dpprobe.release.parts.cohort.measure import read_chain
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.edited_bundles import failed
from tests.support.refusals import check_tokens, refuses
from tests.support.release_study import ROWS, release, study, write_features
from tests.support.split_tables import write_tables

MONTHS = ("january", "february", "march")


def images(name: str) -> dict[str, list[str]]:
    return {split: [f"{name} {split} {row}" for row in range(rows)] for split, rows in ROWS.items()}


def release_month(folder: Path, month: str, *, after: str | None = None, **options: Any) -> Path:
    """Makes the release of a month's own rows, in a separate study as in practice."""
    fingerprint = write_tables(folder / "data" / month, options.pop("images", images(month)))
    if options.pop("without_tables", False):
        shutil.rmtree(folder / "data")
    write_features(folder, fingerprint=fingerprint, **options.pop("features", {}))
    name = options.pop("name", f"of_{month}")
    if after:
        options["predecessor"] = str(folder / "results/releases" / f"of_{after}")
    asked = {"cohort": month, "epsilon": 1, "allow_useless": True, **options}
    return release(folder, study(folder, called=month, name=name, **asked), name)


def ledger(folder: Path, month: str) -> Ledger:
    return Ledger.of_dataset(folder / "data", month)


@pytest.mark.parametrize("horizon", [None, 3])
def test_a_chain_of_cohorts_verifies_and_states_its_earlier_releases(
    tmp_path: Path, horizon: int | None
) -> None:
    output = release_month(tmp_path, MONTHS[0], horizon=horizon)
    first = bundle.read_bundle(output)
    for before, month in pairwise(MONTHS):
        watched = {"monitor": {"epsilon": 2}} if month == "march" else {}
        output = release_month(tmp_path, month, after=before, horizon=horizon, **watched)
    read = bundle.read_bundle(output)
    assert TYPICAL in read.arrays, "the directions of all months' moment"
    stated = read.statement["cohort"]
    assert (stated["place"], stated["units"], stated["horizon"]) == (3, 900, horizon)
    assert [one["release"] for one in stated["earlier"]] == ["of_january", "of_february"]
    card = (output / bundle.CARD_FILE).read_text().replace("\\", "")
    check_tokens(card, "of_january, of_february", "900 images", 300)
    assert read.statement["epsilon_realised"] == first.statement["epsilon_realised"] <= 1
    assert read.statement["ledger"]["releases"] == 1, "no unit is in two cohorts"
    assert failed(verify_bundle(output, predecessors=[output.parent])) == []
    kept = sorted((tmp_path / "data/march").glob("cohort-*"))
    assert [path.name for path in kept] == ["cohort-of_march.entry-1.safetensors"]
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    chain = read_chain(tmp_path / "data", dataset="march", release="of_march")
    assert [bool(cohort.sums) for cohort in chain.cohorts] == [horizon is not None] * 3


def test_a_cohort_needs_no_folder_of_its_dataset(tmp_path: Path) -> None:
    """The features may come from another machine."""
    assert release_month(tmp_path, "january", without_tables=True).is_dir()
    (entry,) = ledger(tmp_path, "january").read_entries()
    assert entry.state == "closed"


def test_a_unit_is_in_one_cohort(tmp_path: Path) -> None:
    release_month(tmp_path, "january")
    again = {split: [f"january {split} 7"] * rows for split, rows in ROWS.items()}
    first = ledger(tmp_path, "january").path
    with refuses(PrivacyError, "dataset february", "entry 1", first, "of_january"):
        release_month(tmp_path, "february", after="january", images=again)
    with refuses(PrivacyError, "dataset january"):
        release_month(tmp_path, "january", after="january", name="again")
    assert ledger(tmp_path, "february").read_entries() == []


def test_two_releases_at_one_place_of_a_horizon_are_refused(tmp_path: Path) -> None:
    release_month(tmp_path, "january", horizon=3)
    with refuses(ConfigError, "horizon 4", "of_january", 3):
        release_month(tmp_path, "february", after="january", horizon=4)
    release_month(tmp_path, "february", after="january", horizon=3)
    with refuses(PrivacyError, "of_february", "dataset february", "place 2"):
        release_month(tmp_path, "march", after="january", horizon=3)
    assert ledger(tmp_path, "march").read_entries() == []


def test_added_sums_may_branch(tmp_path: Path) -> None:
    """Each branch uses the earlier released sums and its own units."""
    release_month(tmp_path, "january")
    release_month(tmp_path, "february", after="january")
    branch = bundle.read_bundle(release_month(tmp_path, "march", after="january"))
    assert branch.statement["cohort"]["units"] == 600


@pytest.mark.parametrize(("horizon", "least", "most"), [(None, 1.4, 1.5), (2, 1.5, 1.7)])
def test_the_same_people_in_two_cohorts_pay_for_both(
    tmp_path: Path, horizon: int | None, least: float, most: float
) -> None:
    """Without a horizon, squares of mu add up; with one, both cohorts' rows share noisy sums."""
    same: dict[str, Any] = {"horizon": horizon, "more": {"same_units_as": "january"}}
    release_month(tmp_path, "january", horizon=horizon)
    with pytest.raises(BudgetError, match="above max_epsilon"):
        release_month(tmp_path, "february", after="january", max_epsilon=least, **same)
    output = release_month(tmp_path, "february", after="january", max_epsilon=most, **same)
    spent = bundle.read_bundle(output).statement["ledger"]
    assert (spent["releases"], spent["exact"]) == (2, horizon is None)
    assert least < spent["epsilon"] < most


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"horizon": 5}, ("horizon 5", "of_january", None)),
        ({"epsilon": 2}, ("of_january", "of_february", "epsilon")),
        ({"method": "steps"}, ("method steps", "head sgd")),
    ],
)
def test_a_release_that_does_not_fit_its_chain_is_refused(
    tmp_path: Path, options: dict[str, Any], fault: tuple[object, ...]
) -> None:
    release_month(tmp_path, "january")
    with refuses((ConfigError, PrivacyError), *fault):
        release_month(tmp_path, "february", after="january", **options)
    assert ledger(tmp_path, "february").read_entries() == []


def test_a_predecessor_without_a_cohort_is_refused(tmp_path: Path) -> None:
    release_month(tmp_path, "january", cohort=None)
    with refuses(
        DataError, tmp_path / "data/january/cohort-of_january.entry-1.safetensors", "`cohort`"
    ):
        release_month(tmp_path, "february", after="january")


def test_an_abandoned_release_keeps_no_sums_and_frees_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_month(tmp_path, "january", horizon=2)
    with monkeypatch.context() as patched:
        patched.setattr(make, "pack_head", lambda *_, **__: (_ for _ in ()).throw(DataError("cut")))
        with pytest.raises(DataError, match="cut"):
            release_month(tmp_path, "february", after="january", horizon=2)
    with refuses(PrivacyError, "entry 1", ledger(tmp_path, "february").path, "open"):
        release_month(tmp_path, "february", after="january", horizon=2)
    with refuses(PrivacyError, "of_february", "dataset february", "place 2"):
        release_month(tmp_path, "march", after="january", horizon=2)
    ledger(tmp_path, "february").abandon_entry(1, "the test cut it short")
    release_month(tmp_path, "february", after="january", horizon=2)
    kept = sorted(path.name for path in (tmp_path / "data/february").glob("cohort-*"))
    assert kept == ["cohort-of_february.entry-2.safetensors"]


def test_a_later_cohort_is_useful_by_all_units_so_far(tmp_path: Path) -> None:
    """A benchmark would use only the later cohort's own rows."""
    useless: dict[str, Any] = {"features": {"shift": 0.0}, "allow_useless": False, "epsilon": 0.02}
    with refuses(PrivacyError, "300 training images", "3 classes"):
        release_month(tmp_path, "january", **useless)
    release_month(tmp_path, "january", epsilon=0.02)
    output = release_month(tmp_path, "february", after="january", **useless)
    assert bundle.read_bundle(output).statement["cohort"]["units"] == 600


# No unit exceeds max_epsilon by being in two datasets or under a new name.


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare(tmp_path, "toy", images("lesion"))
    return tmp_path


def prepare(folder: Path, dataset: str, of: dict[str, list[str]], **features: Any) -> None:
    """Writes tables of images, and the features for the next release."""
    fingerprint = write_tables(folder / "data" / dataset, of, units=features.pop("units", None))
    write_features(folder, fingerprint=fingerprint, **features)


def release_of(folder: Path, dataset: str, name: str, **release_options: Any) -> Path:
    made = study(folder, called=dataset, name=name, epsilon=1, **release_options)
    return release(folder, made, name)


def test_a_copy_under_another_name_is_refused(prepared: Path) -> None:
    """Before this check, three releases under a limit of 1 cost 1.87 in total."""
    release_of(prepared, "toy", "first", max_epsilon=1)
    prepare(prepared, "copy", images("lesion"), shift=0.1)  # features of another backbone
    said = ("dataset copy", "entry 1", prepared / "data/toy/ledger.jsonl", "first")
    with refuses(PrivacyError, *said, "`same_units_as: toy`"):
        release_of(prepared, "copy", "second", max_epsilon=1)
    with refuses(PrivacyError, *said):  # different names do not excuse equal images
        release_of(prepared, "copy", "second", more={"other_units_than": ["toy"]})
    assert ledger(prepared, "copy").read_entries() == []


def test_ledgers_that_belong_together_are_added_up(prepared: Path) -> None:
    release_of(prepared, "toy", "first", max_epsilon=1)
    prepare(prepared, "copy", images("lesion"))
    same = {"same_units_as": "toy"}
    with refuses(PrivacyError, "max_epsilon 1"):
        release_of(prepared, "copy", "second", max_epsilon=1, more=same)
    output = release_of(prepared, "copy", "second", max_epsilon=1.6, more=same)
    stated = bundle.read_bundle(output).statement["ledger"]
    assert stated["releases"] == 2
    assert 1.4 < stated["epsilon"] < 1.6
    # The first dataset need not declare it, too.
    prepare(prepared, "toy", images("lesion"))
    with pytest.raises(PrivacyError, match="above max_epsilon"):
        release_of(prepared, "toy", "third", max_epsilon=1.6)
    printed = describe_ledger(Ledger.of_dataset(prepared / "data", "toy"), delta=None)
    check_tokens(printed, "copy", "same_units_as", "2 entries")


@pytest.mark.parametrize("name", ["tyo", "toy", "copy"])
def test_a_name_without_a_ledger_is_refused_and_never_booked(
    prepared: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with only tables is no ledger: nothing would be added up.

    A ledger may be deleted before the booking, which therefore checks the name again.
    """
    prepare(prepared, "copy", images("lesion"))
    if name == "toy":  # its own name, even if it has a ledger
        release_of(prepared, "toy", "before")
    booked = ledger(prepared, "toy").read_entries()
    with refuses(ConfigError, "same_units_as", name, "`same_units_as: toy`"):
        release_of(prepared, "toy", "first", more={"same_units_as": name})
    monkeypatch.setattr("dpprobe.release.make.release_faults", lambda *_, **__: [])
    with refuses(PrivacyError, "same_units_as", name, "`same_units_as: toy`"):
        release_of(prepared, "toy", "first", more={"same_units_as": name})
    assert ledger(prepared, "toy").read_entries() == booked


def test_a_dataset_that_is_released_later_counts_then(
    prepared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = study(prepared, name="first", epsilon=1).model_dump(mode="json")
    values["datasets"]["copy"] = dict(values["datasets"]["toy"])
    values["datasets"]["toy"]["same_units_as"] = "copy"
    named = load_study(values)
    check_study(named)
    release(prepared, named, "first")
    check_tokens(caplog.text, "same_units_as: copy", "ledger")
    prepare(prepared, "copy", images("lesion"))
    output = release_of(prepared, "copy", "second")
    assert bundle.read_bundle(output).statement["ledger"]["releases"] == 2
    check_study(study(prepared, called="other", more={"same_units_as": "toy"}))


def test_key_and_hashes_are_private_and_in_no_bundle(prepared: Path) -> None:
    output = release_of(prepared, "toy", "first", evaluate={"epsilon": 1})
    key = prepared / "data" / KEY_FILE
    (hashes,) = (prepared / "data/toy").glob("units-*.safetensors")
    assert len(key.read_bytes()) == 32
    assert {stat.S_IMODE(path.stat().st_mode) for path in (key, hashes)} == {0o600}
    (entry,) = Ledger.of_dataset(prepared / "data", "toy").read_entries()
    assert entry.booking.units is not None
    read = read_hashes(prepared / "data/toy", entry.booking.units, key.read_bytes())
    assert {part: len(values) for part, values in read.items()} == {
        "train.images": 600,  # hashes of bytes and of pixels
        "test.images": 240,
    }
    for path in output.iterdir():
        for secret in (key.read_bytes(), entry.booking.units.encode(), b"units-"):
            assert secret not in path.read_bytes(), path.name
    release_of(prepared, "toy", "second")
    assert len(list((prepared / "data/toy").glob("units-*"))) == 1, "equal units share a file"
    assert len(key.read_bytes()) == 32


def test_a_release_is_refused_if_the_key_or_hash_file_is_lost_or_changed(prepared: Path) -> None:
    release_of(prepared, "toy", "first")
    prepare(prepared, "copy", images("lesion"))
    key = prepared / "data" / KEY_FILE
    (hashes,) = (prepared / "data/toy").glob("units-*.safetensors")
    for path, change, said in (
        (key, None, (key, "backup")),
        (key, lambda _: bytes(32), (hashes, "key")),
        (key, lambda kept: kept[:20], (key, "20 bytes", 32)),
        (hashes, lambda kept: kept[:-1] + bytes([kept[-1] ^ 1]), (hashes, "ledger")),
        (hashes, None, (hashes, "No such file")),
    ):
        kept = path.read_bytes()
        path.unlink() if change is None else path.write_bytes(change(kept))
        with refuses(DataError, *said):
            release_of(prepared, "copy", "second")
        path.write_bytes(kept)
    assert ledger(prepared, "copy").read_entries() == []


def test_missing_tables_are_reported(prepared: Path, caplog: pytest.LogCaptureFixture) -> None:
    (prepared / "data/toy/train.parquet").unlink()
    release_of(prepared, "toy", "first")
    check_tokens(caplog.text, "toy", "names of units")
