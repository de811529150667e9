"""All sources, the estimator and the ledger agree on which spellings are one person."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from itertools import product
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
from dpprobe.data.people import person_names
from dpprobe.data.people.patient_sides import find_mistaken
from dpprobe.data.people.person_names import (
    ALIKE,
    find_alike_people,
    find_equal_numbers,
    list_spellings,
    name_warnings,
    person_name,
)
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable
from dpprobe.data.train_test_split import choose_by_id
from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.estimator.array_inputs import number_groups
from dpprobe.heads.patient_groups import Units
from dpprobe.release.ledger import ledger_units
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.shards import CLASSES, pack, png
from tests.support.small_study import STUDY
from tests.support.sources import write_table

OTHERS = ["p3", "p4", "p5"]
TESTED = ["q1", "q2"]
LOOK = f"{ALIKE}, but count as 2 people"
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
    """Writes one file per row, so that each name keeps its type."""
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
    who = names if isinstance(names, np.ndarray) else np.array([as_text(name) for name in names])
    np.savez(folder / f"{split}.npz", X=rows, label=np.array(labels), who=who)
    return f"{split}.npz"


SOURCES: dict[str, tuple[Callable[[Path, str, Names], Any], dict[str, Any]]] = {
    "csv": (write_csv, {"label_column": "label"}),
    "parquet": (write_parquet, {}),
    "webdataset": (write_shards, {"label_column": "label"}),
    "embeddings": (write_vectors, {"label_column": "label"}),
}


def prepare(folder: Path, source: str, train: Names, test: Names = (), **more: Any) -> list[str]:
    """Prepares a dataset; returns the names of its training units."""
    write, given = SOURCES[source]
    root = {"root": str(folder)} if source in ("csv", "embeddings") else {}
    splits = {"train": train} | ({"test": test} if test else {})
    files = {split: write(folder, split, names) for split, names in splits.items()}
    options: Any = dataset_options(
        {"source": source, "class_names": CLASSES, "unit_column": "who"}
        | root
        | given
        | files
        | {"missing_classes": "warn"}
        | more
    )
    try:
        dataset_preparation.prepare_dataset(options, folder / "out")
    except DataError:
        raise DataError((folder / "out/problems.csv").read_text()) from None
    return sorted(set(SplitTable(folder / "out/train.parquet").read_units() or ()))


def judge(tmp_path: Path, door: str, names: Names, caplog: Any) -> tuple[str, int]:
    """Passes rows to a source or the estimator; returns the text and the number of people."""
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
    ("0007", "7", "refused"),
    (12, 12.0, "refused"),
    ("12", "12.00", "refused"),
    ("1e+17", 10**17, "refused"),
    (12345678901234567, 1.2345678901234568e16, "refused"),
    ("１２", "12", "refused"),
    ("-0", "0", "refused"),
    ("p1 ", "p1", "one"),
    (b"p1", "p1", "one"),
    ("P1", "p1", "warned"),
    ("p\u00a01", "p  1", "warned"),
    ("\u00e9va", "e\u0301va", "warned"),
    ("p\u200b1", "p1", "warned"),
    ("ｐ１", "p1", "warned"),
    ("P1\ufe0f", "P1", "warned"),
    ("P\u20521", "P-1", "warned"),
    ("12\u034f", "12", "refused"),
    ("p1", "p2", "two"),
    ("sub-01", "sub-1", "warned"),
    ("MRN007", "MRN7", "warned"),
    ("p\u20131", "p-1", "warned"),
    ("1,000", "1000", "warned"),
    ("1e3", "1000", "warned"),
    ("31.01.2020", "2020-01-31", "warned"),
    (1e5, "1e5x", "two"),
    ("00012345678901234567", "00012345678901234568", "two"),
]


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
    said = "row 3 has no name" if door == "estimator" else "no patient: who is blank"
    assert text.count(said) == 1


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("own_test", [True, False])
def test_two_spellings_of_a_patient_in_different_splits_are_refused(
    tmp_path: Path, source: str, own_test: bool
) -> None:
    crossed = (f"P{number}" for number in range(100))
    name = next(
        name
        for name in crossed
        if choose_by_id([name, name.lower()], fraction=0.2, seed=0) == [False, True]
    )
    others = [f"r{number}" for number in range(20)]
    sides = (
        ([name, *others], [name.lower(), *TESTED])
        if own_test
        else ([name, name.lower(), *others], ())
    )
    with pytest.raises(DataError, match=f"patient '{name}' looks like '{name.lower()}' in the"):
        prepare(tmp_path, source, *sides, **({} if own_test else {"split_by": "id"}))


@pytest.mark.parametrize(("first", "second", "outcome"), SPELLINGS)
def test_ledgers_recognise_a_person_by_either_spelling(
    first: Any, second: Any, outcome: str
) -> None:
    def hashes(name: Any) -> ledger_units.Hashes:
        units = ledger_units.Units(names={"train": [person_name(name)]}, tables=None)
        return units.hash_with(bytes(32))

    same = ledger_units.share_units(hashes(first), hashes(second), "names")
    assert same == (outcome != "two" and first != 12345678901234567)


def test_hashes_of_earlier_ledgers_still_match() -> None:
    """An earlier ledger has the hash of the unfolded name."""
    for name in ("7", "12", "p1", "P1", "patient 3", "12.0", "0007"):
        assert name in list_spellings(name)
    assert len(list_spellings("12")) == len(list_spellings("p1")) == 1

    digest = hashlib.sha256()
    for letters in (each for length in range(1, 6) for each in product("aF01.-", repeat=length)):
        digest.update(repr(sorted(list_spellings("".join(letters)))).encode())
    # computed before invisible characters and more dashes were folded
    assert digest.hexdigest().startswith("7b01251a7cb4bf0f615a86a6eccfa621b3307f592bcc392e7d2d")


@pytest.mark.parametrize(
    ("name", "earlier"),
    [
        ("P1\ufe0f", {"p1\ufe0f"}),
        ("2020\u201301\u201331", {"2020-1-31"}),
        ("P\u20521", {"p\u20521"}),
        ("2020-01-31 00:00:00+00:00", {"2020-1-31-0-0-0+0-0"}),
        ("p\u3164 1", {"p\u1160 1", "p\u11601"}),
        ("\u221207", {"-7"}),
    ],
)
def test_names_keep_the_spellings_of_earlier_ledgers(name: str, earlier: set[str]) -> None:
    """So an earlier ledger still recognises each person; and splits hash the name as written."""
    assert list_spellings(name) >= earlier | {name}
    assert person_name(name) == name


INVISIBLE = "\u00ad\u034f\u061c\u115f\u17b4\u180b\u180f\u200d\u2065\ufe0f\ufff0\U000e0100\U000e0fff"
DASHES = [chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)) == "Pd"]


@given(st.text("aB17-. ", min_size=1), st.sampled_from(INVISIBLE), st.integers(0, 9))
def test_an_invisible_character_makes_no_other_person(name: str, mark: str, place: int) -> None:
    marked = name[:place] + mark + name[place:]
    assert find_alike_people([name, marked]) == [(name, marked)]
    assert list_spellings(name) & list_spellings(marked)


@pytest.mark.parametrize("dash", [*DASHES, *"\u02d7\u2043\u2052\u2212\u2796"])
def test_every_dash_is_a_dash(dash: str) -> None:
    assert find_alike_people(["p.1", f"a{dash}b", "a-b"]) == [(f"a{dash}b", "a-b")][dash == "-" :]


def test_tables_of_an_earlier_version_are_judged_too() -> None:
    for names, message in (
        (["7", "0007"], "'0007' is '7' in other rows"),
        (["nan", "p1"], "'nan' is not a name"),
    ):
        with pytest.raises(PrivacyError, match=message):
            Units.number_units(names)
    assert Units.number_units(["p1\0", "p1"]).count == 2


@given(st.integers(-(10**20), 10**20), st.integers(0, 5), st.integers(0, 3))
def test_a_whole_number_has_one_spelling(number: int, zeros: int, places: int) -> None:
    sign, digits = ("-" if number < 0 else ""), str(abs(number))
    written = sign + "0" * zeros + digits + ("." + "0" * places if places else "")
    found = find_equal_numbers(dict.fromkeys([str(number), written, "1.50", "1.5"]))
    assert found.pop("1.50") == "1.5"
    assert bool(found) == (written != str(number))


ONE_PERSON = [
    ("sub-01", "sub-1"),
    ("sub_001_a", "SUB-1-A"),
    ("MRN007", "MRN7"),
    ("site 02/12", "site2/12"),
    ("p\u20131", "p-1"),
    ("p\u22121", "p-1"),
    ("O\u2019Neil", "O'Neil"),
    ("Doe, J.", "doe J"),
    ("1,000", "1000"),
    ("1'234'567", "1234567"),
    ("1\u00a0000", "1000"),
    ("1e3", "1000"),
    ("2.5E4", "25000"),
    ('="007"', "7"),
    ("'p1", "p1"),
    ("b'p1'", "p1"),
    ("\u0663\u0664", "34"),
    ("2020-01-31", "31/01/2020"),
    ("20200131", "Jan 31, 2020"),
    ("1/31/2020", "31-Jan-2020"),
    ("2020-01-31 00:00:00", "2020-01-31"),
    ("3/4/2020", "03/04/2020"),
    ("2020-12-31", "31 December 2020"),
    ("p\u200b01", "P1"),
    ("ann\u2800lee", "ann lee"),
    ("\u3164P1", "P1"),
    ("P1\uffa0", "P1"),
    ("2020-01-31 00:00:00+00:00", "2020-01-31"),
    ("2020-01-31T00:00:00.000Z", "2020-01-31 00:00 UTC"),
    ("2020\u201301\u201331", "31/01/2020"),
    ("ward-03_bed-10", "ward3 bed10"),
    ("john_smith_07", "John Smith 7"),
    ("sub__01", "sub-01"),
    ("J. Doe", "j-doe"),
    ("12/_3", "12-3"),
    ("mary_ann", "Mary Ann"),
    ("scan_3_", "scan 3"),
]
TWO_PEOPLE = [
    ("p1", "p10"),
    ("p10", "p01"),
    ("1-23", "12-3"),
    ("1.23", "12.3"),
    ("00a5", "0a05"),
    ("3f0a9c", "3f00a9c"),
    ("1e5", "1e5x"),
    ("2020-03-04", "2020-04-03"),
    ("3-10-2020", "10-3-2020"),
    ("1.2.3", "1.23"),
    ("2020-13-31", "31-13-2020"),
    ("sub-1", "sub-1a"),
    ("-7", "7"),
    ("p0", "p00x"),
    ("1,00", "100"),
    ("1e3", "100"),
    ("__main__", "main"),
    ("pkg/__main__.py", "pkg/main.py"),
    ("_private", "private"),
    ("io_", "io"),
    ("a__b", "a_b"),
    ("left/eye", "left_eye"),
    ("__init__.py", "init.py"),
]


@pytest.mark.parametrize(("first", "second"), ONE_PERSON)
def test_spellings_of_one_person_are_found(first: str, second: str) -> None:
    others = ["x1", "x2", "4-5"]
    assert find_alike_people([first, *others, second, first]) == [(first, second)]
    assert list_spellings(first) & list_spellings(second)
    for here, there in ((first, second), (second, first)):
        assert set(find_mistaken({"train": [here], "test": [there]})) == {first, second}


@pytest.mark.parametrize(("first", "second"), TWO_PEOPLE)
def test_names_of_two_people_are_not_reported_as_similar(first: str, second: str) -> None:
    assert find_alike_people([first, second]) == []
    assert find_mistaken({"train": [first], "test": [second]}) == {}


def test_padded_numbers_are_all_different_people() -> None:
    """Datasets name people by counters, dates or random hashes."""
    generator = np.random.default_rng(0)
    hashes = {bytes(row).hex() for row in generator.integers(0, 256, (20_000, 4), dtype=np.uint8)}
    days = pd.date_range("2000-01-01", "2009-12-31")
    for names in (
        [f"p{number:05d}" for number in range(20_000)],
        [f"{n}-{m}" for n in range(99) for m in range(99)],
        sorted(hashes),
        days.strftime("%Y-%m-%d"),
        days.strftime("%d/%m/%Y"),
        [f"{day.day}.{day.month}.{day.year}" for day in days],
        days.strftime("%Y%m%d"),
    ):
        assert find_alike_people(names) == []


LONG = [1234567890123456789 + 1000003 * step for step in range(6)]


@pytest.mark.parametrize(
    "names",
    [
        [float(LONG[0]), "p1"],
        [str(int(float(each))) for each in LONG],
        [f"{float(each):.1f}" for each in LONG],
        [f"{each // 10**6}000000" for each in LONG],
        [f"{each // 10**4}00" for each in LONG],  # spreadsheets only keep 15 digits
        [str(each) for each in np.array(LONG, dtype=float).tolist()],
        ["12345678901234567168.0"],
    ],
)
def test_long_numbers_that_lost_digits_are_reported(names: Sequence[Any]) -> None:
    (line,) = name_warnings([person_name(name) for name in names])
    assert "lost their last digits" in line
    with pytest.warns(UserWarning, match="lost their last digits"):
        number_groups(names, len(names))


ROUNDED = [
    ("f2", 2**11, "float16, which rounds whole numbers from 2,048 on"),
    ("f4", 2**24, "float32, which rounds whole numbers from 16,777,216 on"),
    ("f4", -(2**24), "float32, which"),
    ("f2", 2**11 - 4, None),
    ("f4", 2**24 - 4, None),
    ("f8", 2**24, None),
    ("i4", 2**24, None),
]


@pytest.mark.parametrize("source", ["parquet", "embeddings"])
@pytest.mark.parametrize(("kind", "first", "told"), ROUNDED)
def test_numbers_that_a_short_float_rounds_are_reported(
    tmp_path: Path, caplog: Any, source: str, kind: str, first: int, told: str | None
) -> None:
    write, given = SOURCES[source]
    train: Any = np.array([first, first + 1, first + 2, first + 3]).astype(kind)
    test: Any = np.array([2**26, 2**26 + 1])  # integers, which nothing rounds
    files = {"train": write(tmp_path, "train", train), "test": write(tmp_path, "test", test)}
    root = {"root": str(tmp_path)} if source == "embeddings" else {}
    options: Any = dataset_options(
        {"source": source, "class_names": CLASSES, "unit_column": "who"} | root | given | files
    )
    with caplog.at_level(logging.WARNING, "dpprobe"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        number_groups(train, 4)
        number_groups([*train], 4)
    by_run = [line for line in caplog.messages if "stored as" in line]
    by_fit = [str(each.message) for each in caught]
    if told is None:
        assert (by_run, by_fit, options.judge_units()[1]) == ([], [], ())
        return
    assert by_run == [*options.judge_units()[1]]
    for line in (*by_run, *by_fit):
        assert line.startswith("people: '")
        assert f"stored as {told}" in line
    assert (len(by_run), len(by_fit)) == (1, 2)


def test_exact_long_numbers_cause_no_warning() -> None:
    assert name_warnings(map(str, LONG)) == []
    assert name_warnings(f"{each // 10**3}000" for each in LONG) == [], "16 digits are left"
    assert name_warnings(["12345678901234567", "1e-5", "p" * 40, "123456789012.5"]) == []


@pytest.mark.parametrize("source", ["csv", "parquet", "embeddings"])
def test_a_check_says_what_a_run_refuses(tmp_path: Path, source: str) -> None:
    write, given = SOURCES[source]
    root = {"root": str(tmp_path)} if source != "parquet" else {}
    files = {"train": write(tmp_path, "train", ["sub-01", "sub-02", "a", "A"])}
    files["test"] = write(tmp_path, "test", ["sub-1", "sub-3", "sub-4"])
    options: Any = dataset_options(
        {"source": source, "class_names": CLASSES, "unit_column": "who"} | root | given | files
    )
    faults, lines = options.judge_units()
    assert "patient 'sub-01' looks like 'sub-1' in the other split (1 row)" in faults[0]
    assert "'sub-01' and 'sub-1'" in lines[0]
    datasets = {"mine": options.model_dump(mode="json", exclude_unset=True)}
    external = {"family": "external", "model": "m", "each_by_itself": True}
    backbones = {"mine": external} if source == "embeddings" else STUDY["backbones"]
    study = load_study(STUDY | {"datasets": datasets, "backbones": backbones})
    with pytest.raises(
        ConfigError, match="datasets.mine: unit_column: who: patient 'sub-01' looks"
    ):
        check_study(study)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((each, "") for each in (None, float("nan"), "", " ", "nan", "N/A", "unknown", "?")),
        *((each, "") for each in ("#REF!", "#n/a", "1.23E+12", "1E+16")),
        (" p1 ", "p1"),
        ("P1", "P1"),
        (12, "12"),
        (12.0, "12.0"),
        (b" a\xff", "a\\xff"),
        (True, "True"),
        ("1e+16", "1e+16"),
        ("1.23E+12x", "1.23E+12x"),
        ("-1", "-1"),
    ],
)
def test_a_name_is_text_and_blank_if_it_is_missing(value: Any, name: str) -> None:
    assert person_names.person_name(value) == name


def test_warnings_name_the_first_group_and_count_the_others() -> None:
    assert person_names.name_warnings(["p", "q", "p"]) == []
    (line,) = person_names.name_warnings(["p", "P"])
    assert line.startswith("people: 'p' and 'P' differ only in case")
    assert "but count as 2 people; use one spelling per person" in line
    (line,) = person_names.name_warnings(["p", "P", "q1", "q01", "q-1"])
    assert "count as 2 people (and 1 more such groups of names); use one" in line
