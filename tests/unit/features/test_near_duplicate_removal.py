"""Removal of near-duplicates: the right rows go, each by itself, and n is that of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SPLITS, SplitTable, make_batch, read_info, write_dataset
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.near_duplicate_removal import remove_near_duplicates
from dpprobe.features.near_duplicate_search import DatasetSplit
from dpprobe.features.overlap_record import write_near_duplicates
from tests.unit.features.test_extraction import extract
from tests.unit.features.test_near_duplicate_search import png

OPTIONS: dict[str, Any] = {"source": "sklearn", "duplicates": "warn", "expect": {"train": 20}}
PIXELS = np.random.default_rng(3).integers(0, 256, (60, 4, 4), dtype=np.uint8)


def tables(
    folder: Path,
    train: list[int],
    test: list[int],
    *,
    patients: bool = False,
    several: bool = False,
) -> Path:
    """A dataset of some of the pictures; labels alternate, and a patient has three rows."""
    batches = []
    for split, chosen in (("train", train), ("test", test)):
        labels = [row % 2 for row in range(len(chosen))]
        batch = make_batch(
            ids=[f"picture-{number}" for number in chosen],
            labels=[[label, 1 - label] for label in labels] if several else labels,
            images=[png(PIXELS[number]) for number in chosen],
            paths=[None] * len(chosen),
            groups={"group_sex": ["fm"[row % 2] for row in range(len(chosen))]},
            units=[f"{split}-{row // 3}" for row in range(len(chosen))] if patients else None,
        )
        batches.append((split, batch))
    write_dataset(
        folder,
        batches,
        options=dataset_options({**OPTIONS, "expect": {}}),
        class_names=["even", "odd"],
        multi_label=several,
        groups=["group_sex"],
        units=patients,
        rows=len(train) + len(test),
        revision="abc",
    )
    return folder


def splits(folder: Path, dataset: str) -> list[DatasetSplit]:
    return [
        DatasetSplit(
            dataset=dataset,
            features=FeatureStore(extract(folder, folder / f"of-{name}", split=name).path),
            table=SplitTable(folder / f"{name}.parquet"),
        )
        for name in SPLITS
    ]


def removed(folder: Path, whole: Path, public: Path, *, threshold: float = 0.9999) -> Path:
    """Removes from a dataset what is near to a public one."""
    counts, matches = folder / "pixels.json", folder / "pixels.parquet"
    write_near_duplicates(
        splits(whole, "all"), splits(public, "seen"), threshold=threshold, device="cpu",
        counts=counts, matches=matches,
    )  # fmt: skip
    remove_near_duplicates(
        whole, folder / "left", dataset_options(OPTIONS), counts=counts, matches=matches
    )
    return folder / "left"


def ids(folder: Path) -> dict[str, list[str]]:
    return {split: SplitTable(folder / f"{split}.parquet").read_ids() for split in SPLITS}


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return tables(tmp_path / "public", [2, 5, 40, 41, 42, 43], [11, 21, 44, 45])


@pytest.mark.parametrize("several", [False, True])
def test_the_right_rows_go_and_no_others(tmp_path: Path, public: Path, several: bool) -> None:
    whole = tables(
        tmp_path / "whole", [*range(20)], [*range(20, 26)], patients=True, several=several
    )
    left = removed(tmp_path, whole, public)
    gone = {2, 5, 11, 21}
    assert ids(left) == {
        "train": [f"picture-{number}" for number in range(20) if number not in gone],
        "test": [f"picture-{number}" for number in range(20, 26) if number not in gone],
    }
    info, before = read_info(left / "dataset.json"), read_info(whole / "dataset.json")
    assert (info.train_rows, info.test_rows) == (17, 5)
    assert (info.train_units("image"), info.train_units("patient")) == (17, 7)
    assert info.fingerprint != before.fingerprint
    assert info.removed == {
        "backbone": "mine",
        "threshold": 0.9999,
        "public": ["seen"],
        "train": {"rows": 20, "exact": 3, "near": 3},
        "test": {"rows": 6, "exact": 1, "near": 1},
    }
    assert read_json(left / "dataset.json")["revision"] == "abc"
    table, all_rows = SplitTable(left / "train.parquet"), SplitTable(whole / "train.parquet")
    stays = [number not in gone for number in range(20)]
    np.testing.assert_array_equal(table.read_labels(), all_rows.read_labels()[stays])
    for column in ("image_hashes", "read_units"):
        assert getattr(table, column)() == [
            value for value, kept in zip(getattr(all_rows, column)(), stays, strict=True) if kept
        ]


def test_a_patient_whose_rows_all_go_is_no_unit_any_more(tmp_path: Path, public: Path) -> None:
    order = [2, 5, 11, *range(6, 11), 12, 13]
    whole = tables(tmp_path / "whole", order, [30, 31], patients=True)
    assert read_info(whole / "dataset.json").train_units("patient") == 4
    assert read_info(removed(tmp_path, whole, public) / "dataset.json").train_units("patient") == 3


def test_neighbours_stay_neighbours(tmp_path: Path, public: Path) -> None:
    # Another picture in one row moves that row alone, whether it stays, goes or stayed before.
    first = [*range(20)]
    for place, picture in ((7, 40), (2, 50), (7, 51)):
        other = [*first]
        other[place] = picture
        left = []
        for name, chosen in (("one", first), ("two", other)):
            folder = tmp_path / f"{name}-{place}-{picture}"
            whole = tables(folder / "whole", chosen, [30, 31])
            left.append(ids(removed(folder, whole, public))["train"])
        changed = {f"picture-{first[place]}", f"picture-{picture}"}
        assert set(left[0]) ^ set(left[1]) <= changed
        assert [i for i in left[0] if i not in changed] == [i for i in left[1] if i not in changed]


def test_without_near_duplicates_the_dataset_is_the_same(tmp_path: Path) -> None:
    whole = tables(tmp_path / "whole", [*range(20)], [30, 31])
    others = tables(tmp_path / "others", [50, 51, 52, 53], [54, 55])
    left = removed(tmp_path, whole, others)
    info, before = read_info(left / "dataset.json"), read_info(whole / "dataset.json")
    assert (info.fingerprint, info.splits) == (before.fingerprint, before.splits)
    assert info.removed is not None
    assert info.removed["train"] == {"rows": 20, "exact": 0, "near": 0}


def test_a_class_without_training_rows_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    whole = tables(tmp_path / "whole", [*range(6)], [30, 31])
    others = tables(tmp_path / "others", [1, 3, 5, 40], [54, 55])
    words = (
        r"each of the 3 training rows of class odd is a near-duplicate of a public image \(cosine "
        r"above 0\.9999 through mine, or the same bytes\); write a larger overlap\.threshold"
    )
    with pytest.raises(DataError, match=words):
        removed(tmp_path, whole, others)
    assert not (tmp_path / "left").exists()


def test_a_test_split_without_rows_is_an_error(tmp_path: Path) -> None:
    whole = tables(tmp_path / "whole", [*range(6)], [30, 31])
    others = tables(tmp_path / "others", [30, 31, 40], [54, 55])
    with pytest.raises(DataError, match="each of the test rows is a near-duplicate"):
        removed(tmp_path, whole, others)


def test_a_check_of_other_rows_is_refused(tmp_path: Path, public: Path) -> None:
    whole = tables(tmp_path / "whole", [*range(20)], [*range(20, 26)])
    removed(tmp_path, whole, public)
    files = {"counts": tmp_path / "pixels.json", "matches": tmp_path / "pixels.parquet"}
    options = dataset_options(OPTIONS)
    other = tables(tmp_path / "other", [*range(1, 21)], [*range(21, 26)])
    with pytest.raises(DataError, match="computed for other rows"):
        remove_near_duplicates(other, tmp_path / "again", options, **files)
    record = read_json(files["counts"])
    record["train"]["near"] += 1
    write_json(files["counts"], record)
    with pytest.raises(DataError, match=r"not those that pixels\.json counts"):
        remove_near_duplicates(whole, tmp_path / "again", options, **files)
