"""Splits by class and by id: partitions, their independence of other units, and releases."""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data import dataset_preparation, train_test_split
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.shards import CLASSES
from tests.support.small_study import STUDY
from tests.support.sources import write_manifest

FRACTIONS = st.floats(0.01, 0.99)
STRATA = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(rows=st.integers(0, 5000), fraction=FRACTIONS)
def test_count_test_is_the_rounded_fraction_within_its_bounds(rows: int, fraction: float) -> None:
    count = train_test_split.count_test(rows, fraction)
    if rows < 2:
        assert count == 0
    else:
        assert 1 <= count <= rows - 1
        assert abs(count - fraction * rows) <= 0.5 + 1e-9 or count in (1, rows - 1)
    assert train_test_split.count_test(rows + 1, fraction) - count in (0, 1)


@given(strata=STRATA, fraction=FRACTIONS, seed=st.integers(0, 9))
def test_the_first_of_each_class_by_hash_are_tested(
    strata: list[int], fraction: float, seed: int
) -> None:
    """Neither the order of rows nor a library matters; a row can only move rows of its class."""
    ids = [f"row-{row}" for row in range(len(strata))]
    tested = train_test_split.choose_test(ids, strata, fraction=fraction, seed=seed)
    digests = [hashlib.sha256(f"{seed}\n{name}".encode()).digest() for name in ids]
    rows = Counter(strata)
    for label, size in rows.items():
        ranked = sorted(row for row in zip(digests, strata, tested, strict=True) if row[1] == label)
        count = train_test_split.count_test(size, fraction)
        assert [row[2] for row in ranked] == [True] * count + [False] * (size - count)
    sides = tested.count(False), tested.count(True)
    assert train_test_split.count_rows(rows.values(), fraction) == sides


# (unit, class) of each image; a unit has one to three images.
Rows = list[tuple[str, int]]
ROWS: Rows = [(f"u{n}", n % 2) for n in range(60) for _ in range(1 + n % 3)]


def below(name: str, *, fraction: float, seed: int) -> bool:
    """Computes the rule in another way: a digest as a number in [0, 1), compared exactly."""
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).hexdigest()
    return Fraction(int(digest, 16), 2**256) < Fraction(fraction)


@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    fraction=FRACTIONS,
    seed=st.integers(0, 9),
)
def test_a_side_is_the_hash_of_a_name_below_the_fraction(
    name: str, fraction: float, seed: int
) -> None:
    chosen = train_test_split.choose_by_id([name], fraction=fraction, seed=seed)
    assert chosen == [below(name, fraction=fraction, seed=seed)]


CSV: dict[str, Any] = {
    "source": "csv",
    "train": "a.csv",
    "label_column": "kind",
    "class_names": CLASSES,
}


def write_rows(folder: Path, rows: Rows) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    listed = []
    for unit, label in rows:
        listed.append({"path": f"{unit}-{seen[unit]}.png", "kind": CLASSES[label], "who": unit})
        seen[unit] += 1
    return write_manifest(folder, listed)


BY_ID = {"split_by": "id", "test_fraction": 0.3}


def test_a_class_that_chance_leaves_out_of_one_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A class needs training rows, and test rows if the metric needs every class."""
    alone = next(f"u{n}" for n in range(99) if not below(f"u{n}-0.png", fraction=0.3, seed=0))
    rows = [(f"u{n}", 0) for n in range(20) if f"u{n}" != alone]
    written = write_rows(tmp_path / "in", [*rows, (alone, 1)]) | BY_ID
    for metric in (None, "auc"):
        needing = dataset_options(written | {"metric": metric})
        with pytest.raises(DataError, match="test: no row of class dog; add rows, .* enlarge"):
            dataset_preparation.prepare_dataset(needing, tmp_path / "needing")
    options = dataset_options(written | {"metric": "accuracy"})
    dataset_preparation.prepare_dataset(options, tmp_path / "out")
    assert read_info(tmp_path / "out/dataset.json").untested_classes == ("dog",)
    assert "test: 1 of 2 classes have no test row (dog), so they are not tested" in caplog.text
    tested = next(f"u{n}" for n in range(99) if below(f"u{n}-0.png", fraction=0.3, seed=0))
    rows = [(f"u{n}", 0) for n in range(20) if f"u{n}" != tested]
    options = dataset_options(write_rows(tmp_path / "other", [*rows, (tested, 1)]) | BY_ID)
    with pytest.raises(DataError, match="train: no row of class dog"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")


PARQUET: dict[str, Any] = {"source": "parquet", "train": "a.parquet", "class_names": CLASSES}
HUB: dict[str, Any] = PARQUET | {"source": "huggingface", "repo": "a/b", "revision": "0" * 40}
TAR: dict[str, Any] = {"source": "webdataset", "train": "a.tar", "class_names": CLASSES}
VECTORS: dict[str, Any] = CSV | {"source": "embeddings", "train": "a.npz", "table": "a.csv"}
FILES: list[dict[str, Any]] = [{"url": "https://example.org/a.zip", "sha256": "0" * 64}]


def in_archive(**layout: Any) -> dict[str, Any]:
    return {"source": "url", "files": FILES, "layout": layout}


def options_by(by: str, values: dict[str, Any]) -> Any:
    if "layout" in values:
        return dataset_options(values | {"layout": values["layout"] | {"split_by": by}})
    return dataset_options(values | {"split_by": by})


def key_by(by: str, values: dict[str, Any]) -> str:
    key: str = options_by(by, values).public_split().key
    return key


def test_images_are_refused_as_units_if_filters_precede_the_limit_per_patient(
    tmp_path: Path,
) -> None:
    """The limit applies after filters, so removing one image can let in another of its patient."""
    values = write_rows(tmp_path / "in", ROWS) | {"split_by": "id", "unit_column": "who"}
    bounded = values | {"max_images_per_patient": 1}

    def faults(dataset: dict[str, Any], unit: str | None) -> str:
        release = {"dataset": "photos", "backbone": "pixels", "method": "proto", "epsilon": 1}
        study = STUDY | {
            "datasets": {"photos": dataset},
            "methods": {"proto": {"head": "feature_covariance"}},
            "delta": 1e-3,
            "releases": {"one": release},
            "privacy": {"unit": unit},
        }
        try:
            check_study(load_study(study))
        except ConfigError as error:
            return str(error)
        return ""

    chosen = bounded | {"filters": {"who": [unit for unit, _ in ROWS]}}
    assert "max_images_per_patient keeps the first images of a patient after filters" in (
        faults(chosen, "image")
    )
    assert faults(chosen | {"unit": "image"}, None) == faults(chosen, "image")
    assert faults(chosen, None) == faults(chosen | {"unit": "patient"}, "image") == ""
    assert faults(bounded, "image") == ""
    assert faults(values | {"filters": {"who": [unit for unit, _ in ROWS]}}, "image") == ""
    layout = {name: value for name, value in chosen.items() if name != "root"}
    archived = dataset_options(in_archive(**layout)).public_split().images_fault
    assert archived == f"layout: {dataset_options(chosen).public_split().images_fault}"


@pytest.mark.parametrize(
    "values", [CSV, PARQUET, HUB, TAR, VECTORS], ids=lambda each: each["source"]
)
@pytest.mark.parametrize("own_test", [False, True])
@pytest.mark.parametrize(
    "columns", [(), ("id_column",), ("unit_column",), ("id_column", "unit_column")]
)
def test_a_key_changes_only_with_what_decides_the_sides(
    values: dict[str, Any], own_test: bool, columns: tuple[str, ...]
) -> None:
    """The key is the unit, else the id, path or key, else the files; for test sets, the files."""
    kind = values["train"].partition(".")[2]
    own = {"test": f"b.{kind}"} | ({"test_table": "b.csv"} if "table" in values else {})
    values = values | dict.fromkeys(columns, "who") | (own if own_test else {})
    files = {
        "train": f"c.{kind}",
        "test": f"c.{kind}",
        "table": "c.csv",
        "test_table": "c.csv",
        "revision": "1" * 40,
    }
    changes = files | {"id_column": "other", "unit_column": "other"}
    moved = {
        name
        for name in changes.keys() & values.keys()
        if key_by("id", values | {name: changes[name]}) != key_by("id", values)
    }
    numbered = values["source"] not in ("csv", "webdataset")
    of_files = files.keys() & values.keys() if own_test or numbered else set()
    assert moved == (set(columns[-1:]) if columns and not own_test else of_files)
    split = options_by("id", values).public_split()
    assert split.follows_names == (bool(columns) and not own_test)
    assert not options_by("class", values).public_split().follows_names
