"""No unit pays more than max_epsilon because it stands in two datasets, or was renamed."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.release import bundle
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from dpprobe.release.ledger.ledger_units import KEY_FILE, read_hashes
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.release_study import ROWS, release, study, write_features
from tests.support.split_tables import write_tables


def images(name: str) -> dict[str, list[str]]:
    return {split: [f"{name} {split} {row}" for row in range(rows)] for split, rows in ROWS.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(tmp_path, "toy", images("lesion"))
    return tmp_path


def prepare(folder: Path, dataset: str, of: dict[str, list[str]], **features: Any) -> None:
    """Makes tables of images, and the features that the next release takes."""
    fingerprint = write_tables(folder / "data" / dataset, of, units=features.pop("units", None))
    write_features(folder, fingerprint=fingerprint, **features)


def release_of(folder: Path, dataset: str, name: str, **release_options: Any) -> Path:
    made = study(folder, called=dataset, name=name, epsilon=1, **release_options)
    return release(folder, made, name)


def entries(folder: Path, dataset: str) -> int:
    return len(Ledger.of_dataset(folder / "data", dataset).read_entries())


def test_a_copy_under_another_name_is_refused(folder: Path) -> None:
    """Three releases under a limit of 1 cost 1.87 together before."""
    release_of(folder, "toy", "first", max_epsilon=1)
    prepare(folder, "copy", images("lesion"), shift=0.1)  # features of another backbone
    said = r"images of dataset copy are also in entry 1 of .*/data/toy/ledger.jsonl \(first\)"
    with pytest.raises(PrivacyError, match=rf"{said}, .* `same_units_as: toy` under datasets"):
        release_of(folder, "copy", "second", max_epsilon=1)
    with pytest.raises(PrivacyError, match=said):  # names are no excuse for equal images
        release_of(folder, "copy", "second", more={"other_units_than": ["toy"]})
    assert entries(folder, "copy") == 0


def test_ledgers_that_belong_together_are_added_up(folder: Path) -> None:
    release_of(folder, "toy", "first", max_epsilon=1)
    prepare(folder, "copy", images("lesion"))
    same = {"same_units_as": "toy"}
    with pytest.raises(PrivacyError, match=r"would be 1\.4.* above max_epsilon 1;"):
        release_of(folder, "copy", "second", max_epsilon=1, more=same)
    output = release_of(folder, "copy", "second", max_epsilon=1.6, more=same)
    stated = bundle.read_bundle(output).statement["ledger"]
    assert stated["releases"] == 2
    assert 1.4 < stated["epsilon"] < 1.6
    # The first dataset need not say so again.
    prepare(folder, "toy", images("lesion"))
    with pytest.raises(PrivacyError, match="above max_epsilon"):
        release_of(folder, "toy", "third", max_epsilon=1.6)
    printed = describe_ledger(Ledger.of_dataset(folder / "data", "toy"), delta=None)
    assert "With the ledgers of copy, which same_units_as adds to this one: 2 entries" in printed


@pytest.mark.parametrize("name", ["tyo", "toy", "copy"])
def test_a_name_without_a_ledger_is_refused_and_never_booked(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of tables alone is no ledger, and nothing would be added up.

    A ledger may be gone by the time of the booking, which refuses the name once more.
    """
    prepare(folder, "copy", images("lesion"))
    if name == "toy":  # its own name, though it has a ledger
        release_of(folder, "toy", "before")
    booked = entries(folder, "toy")
    with pytest.raises(ConfigError, match=rf"same_units_as: {name}: .*`same_units_as: toy` under"):
        release_of(folder, "toy", "first", more={"same_units_as": name})
    monkeypatch.setattr("dpprobe.release.make.release_faults", lambda *_, **__: [])
    with pytest.raises(PrivacyError, match=rf"same_units_as: {name}: .*`same_units_as: toy` under"):
        release_of(folder, "toy", "first", more={"same_units_as": name})
    assert entries(folder, "toy") == booked


def test_a_dataset_that_is_released_later_counts_then(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = study(folder, name="first", epsilon=1).model_dump(mode="json")
    values["datasets"]["copy"] = dict(values["datasets"]["toy"])
    values["datasets"]["toy"]["same_units_as"] = "copy"
    named = load_study(values)
    check_study(named)
    release(folder, named, "first")
    said = "same_units_as: copy: this dataset has no ledger yet, so nothing is added up now"
    assert said in caplog.text
    prepare(folder, "copy", images("lesion"))
    output = release_of(folder, "copy", "second")
    assert bundle.read_bundle(output).statement["ledger"]["releases"] == 2
    check_study(study(folder, called="other", more={"same_units_as": "toy"}))


def test_key_and_hashes_are_private_and_in_no_bundle(folder: Path) -> None:
    output = release_of(folder, "toy", "first", evaluate={"epsilon": 1})
    key = folder / "data" / KEY_FILE
    (hashes,) = (folder / "data/toy").glob("units-*.safetensors")
    assert len(key.read_bytes()) == 32
    assert {stat.S_IMODE(path.stat().st_mode) for path in (key, hashes)} == {0o600}
    (entry,) = Ledger.of_dataset(folder / "data", "toy").read_entries()
    assert entry.booking.units is not None
    read = read_hashes(folder / "data/toy", entry.booking.units, key.read_bytes())
    assert {part: len(values) for part, values in read.items()} == {
        "train.images": 300,
        "test.images": 120,
    }
    for path in output.iterdir():
        for secret in (key.read_bytes(), entry.booking.units.encode(), b"units-"):
            assert secret not in path.read_bytes(), path.name
    release_of(folder, "toy", "second")
    assert len(list((folder / "data/toy").glob("units-*"))) == 1, "equal units share a file"
    assert len(key.read_bytes()) == 32


def test_a_lost_key_or_file_is_no_way_around(folder: Path) -> None:
    release_of(folder, "toy", "first")
    prepare(folder, "copy", images("lesion"))
    key = folder / "data" / KEY_FILE
    (hashes,) = (folder / "data/toy").glob("units-*.safetensors")
    for path, change, said in (
        (key, None, r"units.key: missing, but ledgers contain hashes"),
        (key, lambda _: bytes(32), r"units-.*: cannot be used \(made with another key"),
        (key, lambda kept: kept[:20], r"units.key: 20 bytes, not 32; restore the file"),
        (
            hashes,
            lambda kept: kept[:-1] + bytes([kept[-1] ^ 1]),
            r"cannot be used \(the file differs from its ledger's record\); restore",
        ),
        (hashes, None, r"cannot be used \(.*No such file"),
    ):
        kept = path.read_bytes()
        path.unlink() if change is None else path.write_bytes(change(kept))
        with pytest.raises(DataError, match=said):
            release_of(folder, "copy", "second")
        path.write_bytes(kept)
    assert entries(folder, "copy") == 0


def test_missing_tables_are_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "data/toy/train.parquet").unlink()
    release_of(folder, "toy", "first")
    assert "so only names of units are compared with other datasets" in caplog.text
