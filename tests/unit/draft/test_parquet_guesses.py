"""A drafted study has its parquet file's rows, classes, people, groups and split."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sources import write_parquet
from tests.unit.draft.conftest import Desk, slowly

FILE = "skin.parquet"
LABELS = [n % 2 for n in range(60)]


def write(desk: Desk, path: str = FILE, names: Any = None, **columns: Any) -> str:
    """Writes columns, by default including images and labels; `init` opens no image."""
    usual = {"image": [{"bytes": b"x", "path": None}] * 60, "label": LABELS}
    table = pa.table({name: each for name, each in (usual | columns).items() if each is not None})
    told = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
    (desk.folder / path).parent.mkdir(exist_ok=True)
    pq.write_table(table, desk.folder / path)
    return path


@settings(slowly, max_examples=8)
@given(st.data())
def test_the_study_has_the_file_s_rows_classes_and_people(desk: Desk, data: st.DataObject) -> None:
    """The study equals that of a CSV table with the same rows, for any order of columns."""
    classes = data.draw(st.lists(st.sampled_from("abcde"), min_size=2, max_size=5, unique=True))
    numbers = st.integers(0, len(classes) - 1)
    labels = [*range(len(classes)), *data.draw(st.lists(numbers, min_size=20, max_size=50))]
    people = data.draw(st.lists(st.integers(0, 20), min_size=len(labels), max_size=len(labels)))
    people[:2] = [98, 99]
    columns = {
        "image": [{"bytes": b"x", "path": None}] * len(labels),
        "label": labels,
        "patient_id": people,
        "sex": ["fm"[n % 2] for n in range(len(labels))],
        "weight": [0.5 * n for n in people],
    }
    order = data.draw(st.permutations(list(columns)))
    told = {"names": classes, "_type": "ClassLabel"}
    table = pa.table({name: columns[name] for name in order}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"label": told}}})}
    )
    pq.write_table(table, desk.folder / FILE)
    drafted = desk.draft(FILE)
    assert drafted.said.splitlines()[0] == (
        f"{FILE}: {len(labels)} images of {len({*people})} patients, {len(classes)} classes"
    )
    keys = {name: value for name, value in drafted.keys.items() if name != "metric"}
    assert keys == {
        "source": "parquet",
        "train": FILE,
        "image_column": "image",
        "label_column": "label",
        "unit_column": "patient_id",
        "group_columns": ["sex"],
        "test_fraction": 0.2,
        "split_by": "id",
    }
    frame = pd.DataFrame({"label": [classes[n] for n in labels], "person": people})
    of_class = frame.groupby("label").person.nunique()
    for name, (images, train, test) in drafted.counted.items():
        assert (images, train + test) == (Counter(frame.label)[name], of_class[name]), name
    frame = frame.rename(columns={"person": "patient"}).assign(file="x.jpg")
    rows: Any = frame.to_dict("records")
    desk.file("x.jpg")
    desk.table("t.csv", rows)
    assert desk.draft("t.csv").counted == drafted.counted


def test_people_and_groups_are_counted_by_their_names(desk: Desk) -> None:
    """A number without a name is refused, and -1 is a blank."""
    rows: dict[str, Any] = {
        "patient_id": [n % 3 - 1 for n in range(60)],
        "sex": [n % 2 for n in range(60)],
    }
    names = {"patient_id": ["ann", "bob"], "sex": ["f", "m"]}
    for file, people in (("train", ["ann", "bob"]), ("test", ["zoe", "ann"])):
        codes = names | {"patient_id": people}
        write_parquet(desk.folder / f"{file}.parquet", LABELS, codes=codes, **rows)
    drafted = desk.draft("train.parquet")
    assert drafted.keys["test"] == "test.parquet"
    assert "120 images of 3 patients" in drafted.said  # ann, bob, zoe
    assert "column patient_id is blank in 20 rows" in drafted.said
    assert "patient 'ann' has images in both splits" in drafted.said
    rows["patient_id"][7] = 2
    write_parquet(desk.folder / "train.parquet", LABELS, codes=names, **rows)
    assert "'patient_id': the class number 2 has no name" in desk.init("train.parquet")


def test_named_columns_come_before_guesses(desk: Desk) -> None:
    path = write(
        desk,
        picture=[{"bytes": b"y", "path": None}] * 60,
        kind=[n % 3 for n in range(60)],
        who=[f" {n // 2}"[n % 2 :].encode() for n in range(60)],
        patient=[b"p"] * 60,
    )
    words = ("--image", "picture", "--label", "kind", "--patient", "who")
    keys = desk.draft(path, *words).keys
    named = [keys[f"{name}_column"] for name in ("image", "label", "unit")]
    assert named == ["picture", "kind", "who"]
    assert keys["class_names"] == ["0", "1", "2"]


REFUSED: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "words": ({"label": ["a", "b"] * 30}, "", ["labels are string", "store integers"]),
    "fractions": ({"label": [0.0, 1.0] * 30}, "", ["labels are double", "store integers"]),
    "lists of classes": (
        {"label": [[n % 2] for n in range(59)] + [[0, 1]]},
        "",
        ["column label has lists of class numbers", "store lists of 0 and 1"],
    ),
    "lists of numbers": (
        {"label": [[n % 2, 2] for n in range(60)]},
        "",
        ["column label has lists of class numbers", "store lists of 0 and 1"],
    ),
    "more than a thousand": (
        {"label": [1000, 0] * 30},
        "",
        ["has the label 1000", "at most 1,000 classes", "--label", "class_names"],
    ),
    "one class": ({"label": [0] * 60}, "", ["only one class, 0", "add images of a second class"]),
    "a folder": (
        {},
        "--root skin.parquet",
        ["--root skin.parquet: ", "contains its images", "leave out --root"],
    ),
    "people in lists": (
        {"who": [[n] for n in range(60)]},
        "--patient who",
        ["--patient who", "lists or structs", "a string or a number in each row"],
    ),
    "no such column": ({}, "--label kind", ["--label kind", "no column", "image, label"]),
    "no label": (
        {"label": None, "kind": LABELS},
        "",
        ["no column has a usual name for labels", "--label: kind"],
    ),
    "no image": ({"image": None, "scan": LABELS}, "", ["no column 'image'", "label, scan"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_that_no_study_can_read_is_refused(desk: Desk, fault: str) -> None:
    columns, words, facts = REFUSED[fault]
    said = desk.refuse(write(desk, **columns), *words.split())
    assert [fact for fact in [FILE, *facts] if fact not in said] == [], said


def test_unreadable_parquet_files_and_duplicate_columns_are_refused(desk: Desk) -> None:
    desk.file(FILE)
    assert desk.refuse(FILE).startswith(f"{FILE}: not a readable parquet file (")
    twice = pa.table([["x"], [1], [1]], names=["image", "label", "label"])
    pq.write_table(twice, desk.folder / FILE)
    assert "two columns are named 'label'; rename one" in desk.refuse(FILE)
