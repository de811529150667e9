"""Parquet files of images: labels, class names and columns over all files of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError, DataError
from tests.support.shards import CLASSES, png
from tests.support.sources import prepare, write_parquet

LABELS = [number % 3 % 2 for number in range(30)]  # 20 cats, 10 dogs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files: list[tuple[str, list[Any], Any]] = [
        ("p0", LABELS, CLASSES),
        ("p1", LABELS, CLASSES),
        ("several", [[1, 0], [1, 1]], None),
        ("unnamed", [0, 1], None),
        ("lists", [[0], [0, 1]], CLASSES),
        ("turned", [0, 1], CLASSES[::-1]),
    ]
    for name, labels, names in files:
        who = [f"p{number // 2}" for number in range(len(labels))]
        age = [float(number) for number in range(len(labels))]
        write_parquet(f"{name}.parquet", labels, names, who=who, age=age)
    Path("text.parquet").write_text("a")
    Path("r.json").write_text("[[0]]")
    return tmp_path


def of(train: Any = "p0.parquet", **changed: Any) -> Any:
    return dataset_options({"source": "parquet", "train": train} | changed)


THREE = {"class_names": ["x", "y", "z"]}
PAIR = {"test": "p1.parquet"}


@pytest.mark.parametrize(
    ("train", "changed", "message"),
    [
        ("none.parquet", {}, "train: no file none.parquet; correct the path"),
        (["p0.parquet", "none.parquet"], {}, "train: no file none.parquet"),
        (["several.parquet", "p1.parquet", "p*.parquet"], {}, "p1.parquet is named twice"),
        ("p0.parquet", {"test": "none.parquet"}, "test: no file none.parquet"),
        ("text.parquet", {}, "text.parquet: not a readable parquet file .*; replace it"),
        ("unnamed.parquet", {}, "unnamed.parquet does not name its classes; write class_names"),
        ("lists.parquet", {}, "labels are lists of class numbers; store lists of 0 and 1"),
        (["p0.parquet", "turned.parquet"], {}, "turned.parquet: labels or class names differ"),
        (["p0.parquet", "several.parquet"], {}, "several.parquet: labels or class names differ"),
        ("p0.parquet", {"test": "turned.parquet"}, "turned.parquet: labels or class names differ"),
        ("p0.parquet", {"class_names": CLASSES[::-1]}, "already names the classes .cat, dog.; rem"),
        ("p0.parquet", {"label_column": "age"}, "labels are double; store integers, or lists"),
        ("p0.parquet", {"label_column": "who"}, "labels are string; store integers, or lists"),
        ("p0.parquet", {"image_column": "label"}, "column 'label' is int64, not a struct"),
        ("p0.parquet", {"unit_column": "nobody"}, "p0.parquet: no column 'nobody'"),
        ("p0.parquet", {"group_columns": ["sex"]}, "p0.parquet: no column 'sex'"),
        ("p0.parquet", {"limit": {"test": 3}}, "limit.test: the dataset has no `test`"),
        ("p0.parquet", {"accepted_labels": {"file": "r.json"}}, "they apply to test rows"),
        (
            "p0.parquet",
            PAIR | {"accepted_labels": {"file": "none.json"}},
            "accepted_labels.file: no file none.json; correct the path",
        ),
    ],
)
def test_files_that_are_refused(train: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(train, **changed).check_files()


@pytest.mark.parametrize(
    ("train", "changed", "rows"),
    [
        ("p0.parquet", PAIR, (30, 30)),
        ("p*.parquet", {}, (48, 12)),
        (["p0.parquet", "p1.parquet"], {}, (48, 12)),
        ("p0.parquet", PAIR | {"limit": {"train": 9, "test": 40}}, (9, 30)),
        ("p*.parquet", PAIR | {"limit": {"train": 31}}, (31, 30)),
        ("unnamed.parquet", PAIR | THREE | {"test": "unnamed.parquet"}, (2, 2)),
        ("p0.parquet", PAIR | {"unit_column": "who", "max_images_per_patient": 1}, (15, 30)),
    ],
)
def test_rows_equal_those_of_all_files_up_to_the_limit(
    train: Any, changed: dict[str, Any], rows: tuple[int, int]
) -> None:
    options = of(train, **changed)
    if train != "p*.parquet" or "test" not in changed:
        options.check_files()
    assert options.count_rows() == rows
    assert options.has_test() == ("test" in changed)


def test_limits_take_the_first_rows() -> None:
    """The first 9 labels repeat cat, dog, cat three times."""
    options = of(**PAIR, limit={"train": 9, "test": 2})
    assert options.count_class_units().train == {"cat": 6, "dog": 3}
    assert options.count_class_units().test == {"cat": 1, "dog": 1}


def test_several_labels_are_lists_of_0_and_1() -> None:
    options = of("several.parquet", test="several.parquet", class_names=["x", "y"])
    options.check_files()
    assert options.multi_label()
    assert not of().multi_label()
    assert options.count_class_units().train == {"x": 2, "y": 1}
    assert options.class_rows() is None


def test_files_are_inputs_and_their_images_are_the_dataset_s(folder: Path) -> None:
    options = of("p*.parquet", test="turned.parquet", accepted_labels={"file": "r.json"})
    files = ("p0.parquet", "p1.parquet", "turned.parquet")
    assert options.input_files() == (*files, "r.json")
    assert options.image_files() == tuple(str(folder / name) for name in files)


# Each file needs the columns of the first file, of the same kinds.


def rows(**changed: Any) -> pa.Table:
    images = pa.array([{"bytes": png(row), "path": None} for row in (1, 2)])
    columns = {"image": images, "label": [0, 1], "sex": ["f", "m"]} | changed
    return pa.table({name: part for name, part in columns.items() if part is not None})


LARGE = pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())])


def image(data: Any, path: Any, kind: Any = None) -> dict[str, Any]:
    return {"image": pa.array([{"bytes": data, "path": path}] * 2, kind)}


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, True),
        ({"more": [1, 2]}, True),
        ({"label": pa.array([0, 1], pa.uint8())}, True),
        (image(b"x", "a.png"), True),
        (image(b"x", "a", LARGE), True),
        ({"label": [0.0, 1.0]}, False),
        ({"label": pa.array([0, 1], pa.timestamp("s"))}, False),
        ({"label": pa.array(["cat", "dog"]).dictionary_encode()}, False),
        ({"label": pa.array([[0, 1], [1, 0]], pa.list_(pa.float32()))}, False),
        ({"label": [[0, 1], [1, 0]]}, False),  # next to a file of single labels
        ({"image": [b"x"] * 2}, False),
        (image("x", None), False),
        (image(1, None), False),
        (image([1], None), False),
        (image(b"x", 3), False),
        (image(b"x", b"x"), False),
        ({"sex": None}, False),
        ({"sex": [["f"], ["m"]]}, False),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_all_files_have_columns_of_one_kind(
    changed: dict[str, Any], good: bool, first: bool
) -> None:
    """The order of the two files does not matter."""
    pair = [rows(**changed), rows()]
    for number, each in enumerate(pair if first else pair[::-1]):
        pq.write_table(each, f"x-{number}.parquet")
    for named in ({"group_columns": ["sex"]}, {"unit_column": "sex"}, {"id_column": "sex"}):
        options = of("x-*.parquet", class_names=CLASSES, **named)
        if good:
            options.check_files()
            continue
        with pytest.raises(ConfigError, match=r"x-[01]\.parquet"):
            options.check_files()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.int64(), 2)]
)
def test_lists_of_whole_numbers_are_several_labels(kind: pa.DataType) -> None:
    pq.write_table(rows(label=pa.array([[0, 1], [1, 1]], kind)), "x.parquet")
    options = of("x.parquet", test="x.parquet", class_names=CLASSES)
    options.check_files()
    assert options.multi_label()
    assert options.count_class_units().train == {"cat": 1, "dog": 2}


def feature(label: Any) -> str:
    return json.dumps({"info": {"features": {"label": label}}})


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"huggingface": feature({"names": ["a", "b"]})}, ["a", "b"]),
        ({"dpprobe": '{"class_names": ["a", "b"]}'}, ["a", "b"]),
        (
            {"huggingface": '{"info": {"features": []}}', "dpprobe": '{"class_names": ["b", "a"]}'},
            ["b", "a"],
        ),
        (
            {
                "huggingface": feature({"names": ["a", "b"]}),
                "dpprobe": '{"class_names": ["c", "d"]}',
            },
            ["a", "b"],
        ),
        (None, None),
        ({"huggingface": "[]"}, None),
        ({"huggingface": feature(3), "dpprobe": "[]"}, None),
        ({"huggingface": feature({"names": []})}, None),
        ({"dpprobe": "{}"}, None),
        ({"dpprobe": "3"}, None),
    ],
)
def test_metadata_may_name_the_classes(
    metadata: dict[str, str] | None, names: list[str] | None
) -> None:
    pq.write_table(rows().replace_schema_metadata(metadata), "x.parquet")
    options = of("x.parquet", test="x.parquet")
    if names is None:
        assert options.count_classes() is None
        with pytest.raises(ConfigError, match="does not name its classes"):
            options.check_files()
    else:
        options.check_files()
        assert options.count_class_units().train == dict.fromkeys(names, 1)
        of("x.parquet", class_names=names).check_files()  # the option may repeat the file's names


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"huggingface": "{"}, "its metadata is not JSON .*; replace the file"),
        ({"dpprobe": '{"class_names": ["a", 2]}'}, "should name the classes, but has .'a', 2."),
        ({"huggingface": feature({"names": "ab"})}, "should name the classes, but has 'ab'"),
        ({"huggingface": feature({"names": ["a", None]})}, "should name the classes"),
    ],
)
def test_damaged_metadata_is_refused(metadata: dict[str, str], message: str) -> None:
    pq.write_table(rows().replace_schema_metadata(metadata), "x.parquet")
    with pytest.raises(ConfigError, match=f"x.parquet: .*{message}"):
        of("x.parquet").check_files()


def test_a_missing_label_counts_for_no_class() -> None:
    pq.write_table(rows(label=[1, None]), "x.parquet")
    units = of("x.parquet", test="x.parquet", class_names=CLASSES).count_class_units()
    assert units.train == {"cat": 0, "dog": 1}


# The two files number the same people, ids and groups differently.
TRAIN = {"who": ["ann", "bob"], "key": ["t0", "t1", "t2", "t3"], "sex": ["f", "m"]}
TEST = {"who": ["eve", "zoe", "ann"], "key": ["x", "u0", "u1"], "sex": ["m", "f"]}
CODED = {
    "train": "train.parquet",
    "test": "test.parquet",
    "unit_column": "who",
    "id_column": "key",
    "group_columns": ["sex"],
}


def write_coded(*, test_who: list[int | None]) -> None:
    whose, sexes = [0, 1, 0, 1], [0, 1, 1, 0]
    write_parquet("train.parquet", [0, 1] * 2, codes=TRAIN, who=whose, key=[0, 1, 2, 3], sex=sexes)
    write_parquet("test.parquet", [0, 1], first=9, codes=TEST, who=test_who, key=[1, 2], sex=[0, 1])


def test_class_numbers_of_people_ids_and_groups_are_names(tmp_path: Path) -> None:
    write_coded(test_who=[0, 1])
    tables = prepare(tmp_path / "out", source="parquet", **CODED)
    assert [table.read_units() for table in tables] == [["ann", "bob"] * 2, ["eve", "zoe"]]
    assert [table.read_ids() for table in tables] == [TRAIN["key"], ["u0", "u1"]]
    sexes = [table.read_groups()["group_sex"] for table in tables]
    assert sexes == [["f", "m", "m", "f"], ["m", "f"]]


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (2, "patient 'ann' has images in both splits"),
        (-1, "no patient: who is blank"),
        (None, "no patient: who is blank"),
        (3, "column 'who': the class number 3 has no name"),
    ],
)
def test_faulty_numbers_of_people_are_reported(tmp_path: Path, number: int, fault: str) -> None:
    write_coded(test_who=[number, 1])
    with pytest.raises(DataError, match=fault):
        prepare(tmp_path / "out", source="parquet", **CODED)
    if number != 3:
        assert fault in of(**CODED).judge_units()[0][0]
