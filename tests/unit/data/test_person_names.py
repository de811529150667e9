"""One person is one unit: all sources, the estimator and the ledger judge spellings alike."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data import dataset_preparation
from dpprobe.data.person_names import find_equal_numbers, list_spellings, person_name
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable
from dpprobe.data.train_test_split import choose_by_id
from dpprobe.errors import DataError, PrivacyError
from dpprobe.estimator.array_inputs import number_groups
from dpprobe.heads.patient_groups import Units
from dpprobe.release import unit_hashes
from tests.support.shards import CLASSES, pack, png
from tests.support.sources import write_table

OTHERS = ["p3", "p4", "p5"]
TESTED = ["q1", "q2"]
LOOK = "differ only in case, spaces or the coding of characters, but count as 2 people"
Names = Sequence[Any]


def as_text(name: Any) -> str:
    return "" if name is None else name.decode() if isinstance(name, bytes) else str(name)


def as_json(name: Any) -> Any:
    return name if name is None or isinstance(name, int | float) else as_text(name)


def write_csv(folder: Path, split: str, names: Names) -> str:
    rows = [
        {"path": f"{split}{row}.png", "label": CLASSES[row % 2], "who": as_text(name)}
        for row, name in enumerate(names)
    ]
    for row in range(len(names)):
        (folder / f"{split}{row}.png").write_bytes(png(row + 100 * (split == "test")))
    write_table(folder / f"{split}.csv", rows)
    return f"{split}.csv"


def write_parquet(folder: Path, split: str, names: Names) -> list[str]:
    """One file per row, so that each name keeps its type."""
    paths = []
    for row, name in enumerate(names):
        image = {"bytes": png(row + 100 * (split == "test")), "path": f"{row}.png"}
        columns = {
            "image": pa.array([image], pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "label": pa.array([row % 2]),
            "who": pa.array([name], from_pandas=name is pd.NA or name is pd.NaT),
        }
        paths.append(str(folder / f"{split}-{row:03}.parquet"))
        pq.write_table(pa.table(columns), paths[-1])
    return paths


def write_shards(folder: Path, split: str, names: Names) -> str:
    members = []
    for row, name in enumerate(names):
        fields = json.dumps({"who": as_json(name), "label": CLASSES[row % 2]}).encode()
        key = f"{split}{row:03}"
        members += [(f"{key}.png", png(row + 100 * (split == "test"))), (f"{key}.json", fields)]
    return str(pack(folder / f"{split}.tar", members))


def write_vectors(folder: Path, split: str, names: Names) -> str:
    rows = np.random.default_rng(len(split)).normal(size=(len(names), 3)).astype(np.float32)
    labels = [CLASSES[row % 2] for row in range(len(names))]
    texts = [as_text(name) for name in names]
    np.savez(folder / f"{split}.npz", X=rows, label=np.array(labels), who=np.array(texts))
    return f"{split}.npz"


SOURCES: dict[str, tuple[Callable[[Path, str, Names], Any], dict[str, Any]]] = {
    "csv": (write_csv, {"label_column": "label"}), "parquet": (write_parquet, {}),
    "webdataset": (write_shards, {"label_column": "label"}), "embeddings": (write_vectors,
     {"label_column": "label"}),
}  # fmt: skip


def prepare(folder: Path, source: str, train: Names, test: Names = (), **more: Any) -> list[str]:
    """Prepares a dataset; returns the names of its training units."""
    write, given = SOURCES[source]
    root = {"root": str(folder)} if source in ("csv", "embeddings") else {}
    splits = {"train": train} | ({"test": test} if test else {})
    files = {split: write(folder, split, names) for split, names in splits.items()}
    options = dataset_options(
        {"source": source, "class_names": CLASSES, "unit_column": "who"} | root | given | files
        | {"missing_classes": "warn"} | more
    )  # fmt: skip
    try:
        dataset_preparation.prepare_dataset(options, folder / "out")
    except DataError:
        raise DataError((folder / "out/problems.csv").read_text()) from None
    return sorted(set(SplitTable(folder / "out/train.parquet").read_units() or ()))


def judge(tmp_path: Path, door: str, names: Names, caplog: Any) -> tuple[str, int]:
    """Returns what a door answers to rows of these people, and the number of people it counts."""
    if door == "estimator":
        rows = [*OTHERS, *names]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                units = number_groups(rows, len(rows))
            except PrivacyError as error:
                return str(error), 0
        return "".join(str(each.message) for each in caught), units.count
    with caplog.at_level(logging.WARNING, "dpprobe"):
        try:
            return caplog.text, len(prepare(tmp_path, door, [*OTHERS, *names], TESTED))
        except DataError as error:
            return str(error), 0
        finally:
            judged = [each for each in caplog.messages if LOOK in each]
            assert len(judged) <= 1


SPELLINGS = [
    ("0007", "7", "refused"), (12, 12.0, "refused"), ("12", "12.00", "refused"),
    ("1e+17", 10**17, "refused"), (12345678901234567, 1.2345678901234568e16, "refused"),
    ("１２", "12", "refused"), ("-0", "0", "refused"), ("p1 ", "p1", "one"), (b"p1", "p1", "one"),
    ("P1", "p1", "warned"), ("p\u00a01", "p  1", "warned"), ("\u00e9va", "e\u0301va", "warned"),
    ("p\u200b1", "p1", "warned"), ("ｐ１", "p1", "warned"), ("p1", "p2", "two"),
    (1e5, "1e5x", "two"), ("00012345678901234567", "00012345678901234568", "two"),
]  # fmt: skip


@pytest.mark.parametrize("door", [*SOURCES, "estimator"])
@pytest.mark.parametrize(("first", "second", "outcome"), SPELLINGS)
def test_every_door_judges_two_spellings_alike(
    tmp_path: Path, caplog: Any, door: str, first: Any, second: Any, outcome: str
) -> None:
    text, count = judge(tmp_path, door, [first, second, second], caplog)
    text += caplog.text
    assert count == len(OTHERS) + {"refused": -len(OTHERS), "one": 1}.get(outcome, 2)
    if outcome != "refused":
        assert (LOOK in text) == (outcome == "warned")
    assert (" in other rows" in text) == (outcome == "refused")


@pytest.mark.parametrize("door", [*SOURCES, "estimator"])
@pytest.mark.parametrize(
    "missing",
    [None, math.nan, pd.NA, pd.NaT, "<NA>", "", "nan", "None", "NULL", "NaT", "#N/A", "1.2E+12"],
)
def test_no_door_takes_a_missing_name(tmp_path: Path, caplog: Any, door: str, missing: Any) -> None:
    text, count = judge(tmp_path, door, [missing, "p1"], caplog)
    assert count == 0
    assert "has no name" in text or "no patient: who is blank" in text


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("own_test", [True, False])
def test_spellings_put_nobody_on_both_sides(tmp_path: Path, source: str, own_test: bool) -> None:
    crossed = (f"P{number}" for number in range(100))
    name = next(
        name for name in crossed
        if choose_by_id([name, name.lower()], fraction=0.2, seed=0) == [False, True]
    )  # fmt: skip
    others = [f"r{number}" for number in range(20)]
    sides = ([name, *others], [name.lower(), *TESTED]) if own_test else ([
        name, name.lower(), *others], ())  # fmt: skip
    with pytest.raises(DataError, match=f"patient '{name}' looks like '{name.lower()}' in the"):
        prepare(tmp_path, source, *sides, **({} if own_test else {"split_by": "id"}))


@pytest.mark.parametrize(("first", "second", "outcome"), SPELLINGS)
def test_ledgers_recognise_a_person_by_either_spelling(
    first: Any, second: Any, outcome: str
) -> None:
    def hashes(name: Any) -> unit_hashes.Hashes:
        units = unit_hashes.Units(names={"train": [person_name(name)]}, tables=None)
        return units.hash_with(bytes(32))

    same = unit_hashes.share_units(hashes(first), hashes(second), "names")
    assert same == (outcome != "two" and first != 12345678901234567)


def test_hashes_of_earlier_ledgers_still_match() -> None:
    """An earlier ledger has the hash of the name as it is written."""
    for name in ("7", "12", "p1", "P1", "patient 3", "12.0", "0007"):
        assert name in list_spellings(name)
    assert len(list_spellings("12")) == len(list_spellings("p1")) == 1


def test_tables_of_an_earlier_version_are_judged_too() -> None:
    for names, message in (
        (["7", "0007"], "'0007' is '7' in other rows"), (["nan", "p1"], "'nan' is no name"),
    ):  # fmt: skip
        with pytest.raises(PrivacyError, match=message):
            Units.number_units(names)
    assert Units.number_units(["p1\0", "p1"]).count == 2


@given(st.integers(-(10**20), 10**20), st.integers(0, 5), st.integers(0, 3))
def test_a_whole_number_has_one_spelling(number: int, zeros: int, places: int) -> None:
    sign, digits = ("-" if number < 0 else ""), str(abs(number))
    written = sign + "0" * zeros + digits + ("." + "0" * places if places else "")
    found = find_equal_numbers(dict.fromkeys([str(number), written]))
    assert bool(found) == (written != str(number))
