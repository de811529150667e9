"""Split tables: what is written is what is read, and what is wrong is named."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.artifacts import read_json
from dpprobe.data import table
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import EncodedImage, SplitTable, read_info
from dpprobe.errors import DataError
from tests.support.shards import png
from tests.support.stored_records import answer_of, check_values

DIGITS: dict[str, Any] = {"source": "sklearn", "name": "digits", "delta": 1e-4}


def options(**values: Any) -> DatasetOptions:
    return dataset_options(values or DIGITS)


def make_rows(name: str, labels: Sequence[Any], **columns: Any) -> tuple[str, pa.Table]:
    rows = range(len(labels))
    first = 100 if name == "test" else 0  # no image stands in both splits
    given: dict[str, Any] = {
        "ids": [f"{name}-{row}" for row in rows],
        "images": [png(first + row) for row in rows],
        "paths": [None] * len(labels),
    }
    return name, table.make_batch(**given | {"labels": labels} | columns)


def write(directory: Path, batches: Sequence[tuple[str, pa.Table]], **changed: Any) -> None:
    rows = sum(batch.num_rows for _, batch in batches)
    arguments: dict[str, Any] = {"class_names": ["cat", "dog"], "options": options(), "rows": rows}
    table.write_dataset(directory, iter(batches), **(arguments | changed))


def write_pair(directory: Path, **changed: Any) -> None:
    write(directory, [make_rows("train", [0, 1, 1], **changed), make_rows("test", [1, 0])])


@pytest.fixture(params=[False, True], ids=["one label", "several labels"])
def grouped(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SplitTable, list[Any]]:
    """A table of twenty rows in groups of seven, which are read by three, and its labels."""
    monkeypatch.setattr(table, "GROUP_ROWS", 7)
    monkeypatch.setattr(table, "READ_ROWS", 3)
    labels = [[row % 2, int(row % 3 == 0)] if request.param else row % 2 for row in range(20)]
    given: Any = {"groups": {"group_g": ["x"]}}
    batches = [
        make_rows("train", [label], ids=[f"r{row}"], images=[png(row)], **given)
        for row, label in enumerate(labels)
    ]
    tested = make_rows("test", labels[:2], groups={"group_g": ["x", "x"]})
    write(tmp_path, [*batches, tested], multi_label=request.param, groups=["group_g"])
    assert pq.ParquetFile(tmp_path / "train.parquet").num_row_groups == 3
    return SplitTable(tmp_path / "train.parquet"), labels


Grouped = tuple[SplitTable, list[Any]]


def test_images_of_any_ranges_are_streamed_across_row_groups(grouped: Grouped) -> None:
    for start, length in itertools.product((0, 1, 6, 7, 8, 19), (0, 1, 7, 30)):
        end = start + length
        for more in ([], [range(end, end + 2)], [range(max(end, 19), 40)]):
            ranges = [range(start, end), *more]
            wanted = [row for one in ranges for row in one if row < 20]
            images = list(grouped[0].read_ranges(ranges))
            assert [image.row for image in images] == wanted
            assert [image.id for image in images] == [f"r{row}" for row in wanted]
            assert [image.data for image in images] == [png(row) for row in wanted]


def test_columns_of_a_range_are_read_without_the_others(
    grouped: Grouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard's job reads the row groups of its rows: not all names of a hundred million images."""
    (train, labels), read = grouped, list[int]()
    original = pq.ParquetFile.read_row_groups

    def spied(file: Any, groups: list[int], *rest: Any) -> Any:
        read.extend(groups)
        return original(file, groups, *rest)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", spied)
    for start, stop in ((0, 20), (0, 1), (6, 8), (7, 14), (13, 20), (19, 20)):
        read.clear()
        assert train.read_ids(start, stop) == [f"r{row}" for row in range(start, stop)]
        assert set(read) == {row // 7 for row in range(start, stop)}
        assert train.read_labels(start, stop).tolist() == labels[start:stop]
        assert train.read_groups(start, stop) == {"group_g": ["x"] * (stop - start)}
        assert train.read_units(start, stop) is None


TRAIN, TEST = make_rows("train", [0, 1, 1]), make_rows("test", [1, 0])
GROUPED = make_rows("train", [0, 1, 1], groups={"group_sex": ["f", "m", "m"]})


LIMITED: dict[str, Any] = {
    "source": "csv",
    "train": "x.csv",
    "label_column": "kind",
    "class_names": ["cat", "dog"],
    "unit_column": "who",
    "max_images_per_patient": 1,
}
UNNAMED = [
    (name, each.append_column("unit", pa.array([None, *"pq"][: len(each)])))
    for name, each in (TRAIN, TEST)
]
# Batches and what a source says of them.
WRONG: list[tuple[list[tuple[str, pa.Table]], dict[str, Any]]] = [
    *(
        ([TRAIN, TEST], said)
        for said in (
            {"rows": 6},
            {"rows": 4},
            {"groups": ["group_sex"]},
            {"units": True},
            {"multi_label": True},
            {"accepted": True},
            {"chosen_test": True, "rows": 0},
        )
    ),
    *(([TRAIN, TEST], {"options": LIMITED, "rows": rows}) for rows in (4, 6)),
    ([], {"rows": 5}),
    ([TRAIN, TEST, ("validation", TEST[1])], {}),
    ([TRAIN], {}),
    ([TEST], {}),
    ([GROUPED, TEST], {"groups": ["group_sex"]}),
    ([GROUPED, TEST], {}),
    (UNNAMED, {"units": True}),
    (UNNAMED, {}),
    *(
        ([TRAIN, make_rows("test", [1, 0], accepted=right)], {"accepted": True})
        for right in ([[2], []], [[0], [-1]], [[1], [1, 2]], [[0], None], [[0], [None]], [[3], []])
    ),
    ([TRAIN, make_rows("test", [1, 0], accepted=[[1], [0]])], {}),
    *(
        ([make_rows("train", labels), TEST], {})
        for labels in (
            [0.0, 1.0],
            ["cat", "dog"],
            [[0, 1], [1, 0]],
            [None, None],
            [False, True],
            pa.array([0, 1], pa.uint8()),
            pa.array([1, 2], pa.uint64()),
        )
    ),
    ([make_rows("train", [["cat"], ["dog"]]), TEST], {"multi_label": True}),
    *(([make_rows("train", [0, 1]), make_rows("test", [0, label])], {}) for label in (-1, 2, None)),
    *(
        (
            [make_rows("train", [[0, 1], [1, 0]]), make_rows("test", [[0, 1], label])],
            {"multi_label": True},
        )
        for label in (None, [0], [0, 2], [0, None], [0, 1, 1])
    ),
    ([make_rows("train", [0, 1, 1], images=[png(0), None, png(2)]), TEST], {}),
    *(
        ([TRAIN, TEST], {"class_names": names})
        for names in (["cat"], ["cat", "cat"], [], ["Cat", "cat "], ["cat", "dog", "owl"])
    ),
]


def test_a_source_gives_what_it_says(tmp_path: Path) -> None:
    answers = []
    for number, (batches, said) in enumerate(WRONG):
        folder = tmp_path / str(number)
        given = {"options": options(**said["options"])} if "options" in said else {}
        try:
            write(folder, batches, **said | given)
            answer: Any = len(SplitTable(folder / "train.parquet").read_labels())
        except DataError as error:
            answer = str(error).replace(str(folder), "FOLDER")
            assert not [*folder.glob("*.parquet"), *folder.glob("*.json")]
        answers.append([str(said), answer])
    check_values("data_wrong_tables", answers)


# Columns of three rows, and what a source says of them.
NAN, VECTORS = float("nan"), LIMITED | {"source": "embeddings", "train": "x.npz"}
GROUPS = {
    "group_a": [1.5, NAN, None],
    "group_b": [1, None, 3],
    "group_c": [True, None, False],
    "group_d": ["x", "", None],
    "group_e": pa.array(["y", None, "z"]).dictionary_encode(),
}
DESCRIBED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"class_names": ["dog", "cat"], "revision": "v1", "options": DIGITS | {"catalog": "x"}}),
    ({}, {"accepted": True}),
    ({"accepted": [[0, 1], [], None]}, {"accepted": True}),
    ({"units": ["q", "p", "q"]}, {"units": True}),
    ({}, {"options": VECTORS}),
    ({"groups": GROUPS}, {"groups": [f"group_{name}" for name in "dcbea"]}),
    (
        {"labels": [[0, 1], [1, 1], [0, 0]], "units": ["p", "p", "r"]},
        {"multi_label": True, "units": True},
    ),
    ({"images": [b"x", b"y", b"x"], "labels": [2, 0, 1]}, {"class_names": ["a", "b", "c"]}),
]


def test_each_kind_of_table_is_described_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "GROUP_BYTES", 1)
    answers = []
    for columns, said in DESCRIBED:
        given: dict[str, Any] = {"labels": [0, 1, 1], "images": [b"0", b"1", b"2"]} | columns
        train = make_rows("train", **given)[1]
        test = make_rows("test", **given | {"images": [b"3", b"4", b"5"]})[1][:2]
        plain = {"verify": "hash", "missing_classes": "warn"} | said.get("options", DIGITS)
        batches = [("train", train[:2]), ("test", test), ("train", train[2:])]
        write(tmp_path, batches, **said | {"options": options(**plain)})
        path, info = tmp_path / "train.parquet", read_info(tmp_path / "dataset.json")
        described = read_json(tmp_path / "dataset.json")
        for name, part in described["splits"].items():
            data = (tmp_path / f"{name}.parquet").read_bytes()
            assert part.pop("bytes") == len(data)
            assert part.pop("sha256") == hashlib.sha256(data).hexdigest()
        file, read, schema = pq.ParquetFile(path), SplitTable(path), pq.read_schema(path)
        ours = [json.loads(schema.metadata[name]) for name in (b"dpprobe", b"huggingface")]
        answers.append(
            [
                described,
                ours,
                {each.name: str(each.type) for each in schema},
                file.num_row_groups,
                read.class_names,
                read.multi_label,
                read.holds_vectors,
                read.group_names,
                read.read_labels(),
                read.read_groups(),
                read.read_accepted(),
                read.read_units(),
                read.content_hashes(),
                info.untested_classes,
                info.num_classes,
                info.rare_classes_note,
                info.train_rows,
                info.test_rows,
                [answer_of(info.train_units, unit) for unit in ("image", "patient")],
            ]
        )
    check_values("described_tables", answers)


def fingerprint(directory: Path, **changed: Any) -> str:
    write_pair(directory, **changed)
    return read_info(directory / "dataset.json").fingerprint


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    images = [png(row) for row in range(3)]
    paths: list[str | None] = []
    for row, data in enumerate(images):
        (tmp_path / f"{row}.png").write_bytes(data)
        paths.append(str(tmp_path / f"{row}.png"))
    base = fingerprint(tmp_path / "base")
    assert fingerprint(tmp_path / "linked", images=[None] * 3, paths=paths) == base
    assert fingerprint(tmp_path / "named", paths=["a", "b", "c"]) == base

    others = {
        fingerprint(tmp_path / "ids", ids=["x", "train-1", "train-2"]),
        fingerprint(tmp_path / "pixels", images=[images[0], images[1], png(99)]),
        fingerprint(tmp_path / "order", images=[images[1], images[0], images[2]]),
    }
    write(tmp_path / "labels", [make_rows("train", [1, 0, 1]), make_rows("test", [1, 0])])
    write(
        tmp_path / "names",
        [make_rows("train", [0, 1, 1]), make_rows("test", [1, 0])],
        class_names=["cat", "wolf"],
    )
    others |= {read_info(tmp_path / x / "dataset.json").fingerprint for x in ("labels", "names")}
    assert len(others) == 5
    assert base not in others


@pytest.mark.parametrize(
    ("multi_label", "golden"),
    [
        (False, "0b78156d37f95862668b2bc35829b2506c486c9c67a9273616fa310e1a7a9148"),
        (True, "412252b1af68af3877f9074856f5e3e91e8f66301e0bdd9374e01c0b515ef722"),
    ],
)
def test_fingerprints_stay_what_they_were(tmp_path: Path, multi_label: bool, golden: str) -> None:
    """Golden values of the program of 20 November 2026, before `accepted` was there."""
    labels: dict[str, list[Any]] = {"train": [0, 1, 1], "test": [1, 0]}
    if multi_label:
        labels = {"train": [[0, 1], [1, 0], [1, 1]], "test": [[1, 1], [0, 0]]}
    batches = [
        make_rows(
            name,
            values,
            ids=[f"{name}{row}" for row in range(len(values))],
            images=[f"{name} {row}".encode() for row in range(len(values))],
            groups={"group_sex": ["f", None, "m"][: len(values)]},
        )
        for name, values in labels.items()
    ]
    plain = dataset_options({"source": "sklearn", "name": "digits", "verify": "hash"})
    write(tmp_path, batches, groups=["group_sex"], multi_label=multi_label, options=plain)
    assert read_info(tmp_path / "dataset.json").fingerprint == golden
    assert "accepted" not in json.loads((tmp_path / "dataset.json").read_text())
    assert SplitTable(tmp_path / "train.parquet").read_accepted() is None
    assert not read_info(tmp_path / "dataset.json").accepted


def read_one(directory: Path, data: bytes | None, path: str | None = None) -> EncodedImage:
    digest = hashlib.sha256(data or b"").digest()
    return EncodedImage(3, data, path or str(directory / "x.png"), "an-id", digest)


@pytest.mark.parametrize(
    "data",
    [b"", b"not an image", png(1)[:40], png(1)[:-20], b"\xff\xd8\xff\xe0" + b"\0" * 50],
    ids=["empty", "text", "truncated early", "truncated late", "broken jpeg"],
)
def test_undecodable_image_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(
        DataError, match=r"test row 3 \(id an-id\), .*x.png: cannot be decoded"
    ) as e:
        table.decode_image(read_one(tmp_path, data), split="test")
    assert "\n" not in str(e.value)


def test_image_changed_since_it_was_prepared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(png(1))
    image = EncodedImage(0, None, str(path), "a", hashlib.sha256(png(1)).digest())
    assert table.decode_image(image, split="train").getpixel((0, 0)) == 1
    path.write_bytes(png(2))
    for changed in (image, image._replace(data=png(2)), image._replace(data=png(2), path=None)):
        with pytest.raises(DataError, match="changed since the dataset was prepared"):
            table.decode_image(changed, split="train")
    path.unlink()
    with pytest.raises(DataError, match=r"train row 0 \(id a\): cannot read .*x.png"):
        table.decode_image(image, split="train")


@pytest.mark.parametrize("content", [None, b"PAR1 nothing", b"", {"image": [1]}])
def test_reader_refuses_what_is_no_split_table(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "train.parquet"
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"train.parquet: (cannot be read|not a split table)"):
        SplitTable(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "read"),
        ("[]", "dataset"),
        ('{"format": "x"}', "dataset"),
        ('{"format": "dpprobe-dataset", "format_version": 0}', "dataset 0, not"),
        ('{"format": "dpprobe-dataset", "format_version": 99}', "version 99"),
    ],
)
def test_damaged_description_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "dataset.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_info(path)
