"""Split tables are read as they were written; errors name what is wrong."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data import table, table_writer
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import EncodedImage, SplitTable, read_info
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json
from tests.support.shards import png
from tests.support.split_tables import write_tables

DIGITS: dict[str, Any] = {"source": "sklearn", "name": "digits", "delta": 1e-4}


def options(**values: Any) -> DatasetOptions:
    return dataset_options(values or DIGITS)


def make_rows(name: str, labels: Sequence[Any], **columns: Any) -> tuple[str, pa.Table]:
    rows = range(len(labels))
    first = 100 if name == "test" else 0  # no image is in both splits
    given: dict[str, Any] = {
        "ids": [f"{name}-{row}" for row in rows],
        "images": [png(first + row) for row in rows],
        "paths": [None] * len(labels),
    }
    return name, table_writer.make_batch(**given | {"labels": labels} | columns)


def write(directory: Path, batches: Sequence[tuple[str, pa.Table]], **changed: Any) -> None:
    rows = sum(batch.num_rows for _, batch in batches)
    arguments: dict[str, Any] = {"class_names": ["cat", "dog"], "options": options(), "rows": rows}
    table_writer.write_dataset(directory, iter(batches), **(arguments | changed))


@pytest.fixture(params=[False, True], ids=["one label", "several labels"])
def grouped(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[SplitTable, list[Any]]:
    """Returns a table of twenty rows in groups of seven, read three at a time, and its labels."""
    monkeypatch.setattr(table_writer, "GROUP_ROWS", 7)
    monkeypatch.setattr(table, "READ_ROWS", 3)
    labels = [[row % 2, int(row % 3 == 0)] if request.param else row % 2 for row in range(20)]

    def given(*rows: int) -> dict[str, Any]:
        right = None if request.param else [[row % 2] * (row % 3) for row in rows]
        names = {"groups": {"group_g": [f"g{row}" for row in rows]}, "accepted": right}
        return names | {"units": [f"p{row}" for row in rows]}

    batches = [
        make_rows("train", [label], ids=[f"r{row}"], images=[png(row)], **given(row))
        for row, label in enumerate(labels)
    ]
    tested = make_rows("test", labels[:2], **given(20, 21))
    said: Any = {"groups": ["group_g"], "units": True, "accepted": not request.param}
    write(tmp_path, [*batches, tested], multi_label=request.param, **said)
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
    """A shard's job only reads the row groups with its rows, not a hundred million names."""
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
        assert train.read_groups(start, stop) == {"group_g": [f"g{n}" for n in range(start, stop)]}
        assert train.read_units(start, stop) == [f"p{row}" for row in range(start, stop)]
        right = [[row % 2] * (row % 3) for row in range(start, stop)]
        assert train.read_accepted(start, stop) == (None if train.multi_label else right)


Batch = tuple[str, pa.Table]
TRAIN, TEST = make_rows("train", [0, 1, 1]), make_rows("test", [1, 0])
GROUPED = make_rows("train", [0, 1, 1], groups={"group_sex": ["f", "m", "m"]})
SEVERAL = make_rows("train", [[0, 1], [1, 0]])
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


def accept(*right: list[int | None] | None) -> list[Batch]:
    return [TRAIN, make_rows("test", [1, 0], accepted=right)]


# Batches, the source's claims about them, and the error.
MULTI, RIGHT, SEX = {"multi_label": True}, {"accepted": True}, {"groups": ["group_sex"]}
WRONG: list[tuple[list[Batch], dict[str, Any], tuple[str, ...]]] = [
    ([TRAIN, TEST], {"rows": 6}, ("source sklearn: 5 rows instead of 6",)),
    ([TRAIN, TEST], {"rows": 4}, ("source sklearn: 5 rows instead of 4",)),
    ([TRAIN, TEST], {"chosen_test": True, "rows": 0}, ("5 rows instead of 0; correct the source",)),
    ([TRAIN, TEST], {"options": LIMITED, "rows": 4}, ("source csv: 5 rows instead of 4",)),
    ([], {"rows": 5}, ("source sklearn: 0 rows instead of 5",)),
    ([TRAIN, TEST], SEX, ("split 'train'", "columns image, label, id differ from its options")),
    ([TRAIN, TEST], {"units": True}, ("split 'train'", "columns image, label, id differ")),
    ([TRAIN, TEST], MULTI, ("split 'train'", "labels of type int64", "correct the source")),
    ([TRAIN, TEST, ("validation", TEST[1])], {}, ("rows of split 'validation'",)),
    ([TRAIN], {}, ("test: no row; add images",)),
    ([TEST], {}, ("train: no row; add images",)),
    ([GROUPED, TEST], SEX, ("split 'test'", "columns image, label, id differ")),
    ([GROUPED, TEST], {}, ("split 'train'", "columns image, label, id, group_sex differ")),
    (UNNAMED, {}, ("split 'train'", "columns image, label, id, unit differ")),
    (
        UNNAMED,
        {"units": True},
        ("2 rows with a missing patient", "train row 0 (id train-0): no", "test row 0 (id test-0)"),
    ),
    (accept([1], [0]), {}, ("split 'test'", "columns image, label, id, accepted differ")),
    (accept([2], []), RIGHT, ("test row 0 (id test-0): accepted labels [2] are not numbers",)),
    (accept([0], [-1]), RIGHT, ("test row 1 (id test-1): accepted labels [-1] are not",)),
    (accept([1], [1, 2]), RIGHT, ("test row 1", "[1, 2] are not numbers from 0 to 1; correct the")),
    (accept([0], [None]), RIGHT, ("test row 1", "[None]")),
    *(
        ([make_rows("train", labels), TEST], {}, ("split 'train'", f"labels of type {kind} and"))
        for labels, kind in (
            ([0.0, 1.0], "double"),
            (["cat", "dog"], "string"),
            ([[0, 1], [1, 0]], "list<item: int64>"),
        )
    ),
    ([make_rows("train", [["cat"], ["dog"]]), TEST], MULTI, ("labels of type list<item: string>",)),
    (
        [make_rows("train", [None, None]), TEST],
        {},
        (
            "2 labels without a class, 2 classes or splits without rows",
            "train row 1 (id train-1): label None",
            "train: no row of class cat\n  train: no row of class dog",
        ),
    ),
    (
        [make_rows("train", pa.array([1, 2], pa.uint64())), TEST],
        {},
        ("train row 1 (id train-1): label 2 is not", "train: no row of class cat"),
    ),
    *(
        (
            [SEVERAL, make_rows("test", [[0, 1], label])],
            MULTI,
            (f"test row 1 (id test-1): label {label} is not 2 numbers 0 or 1, one per class",),
        )
        for label in (None, [0], [0, 2], [0, None], [0, 1, 1])
    ),
    (
        [make_rows("train", [0, 1], images=[png(0), None]), TEST],
        {},
        ("(id train-1): no image; restore the file",),
    ),
    (
        [make_rows("train", [0, 1], images=[png(0), b"<p>"]), TEST],
        {},
        ("(id train-1): cannot be decoded", "; replace the file"),
    ),
    ([TRAIN, TEST], {"class_names": ["cat"]}, ("class names: only 1; name two or more",)),
    ([TRAIN, TEST], {"class_names": []}, ("class names: only 0; name two or more",)),
    ([TRAIN, TEST], {"class_names": ["cat", "cat"]}, ("cat, cat: a name appears twice; remove",)),
    ([TRAIN, TEST], {"class_names": ["Cat", "cat "]}, ("'Cat' and 'cat ' are spellings of one",)),
    ([TRAIN, TEST], {"class_names": ["cat", "dog", "owl"]}, ("train: no row of class owl; add",)),
]
WHOLE: list[tuple[list[Batch], dict[str, Any]]] = [
    ([TRAIN, TEST], RIGHT),
    ([TRAIN, TEST], {"options": LIMITED, "rows": 6}),  # rows beyond a patient's first are left out
    (accept([0], None), RIGHT),
    ([make_rows("train", [False, True]), TEST], {}),
    ([make_rows("train", pa.array([0, 1], pa.uint8())), TEST], {}),
]


def write_as_said(folder: Path, batches: list[Batch], said: dict[str, Any]) -> None:
    given = {"options": options(**said["options"])} if "options" in said else {}
    write(folder, batches, **said | given)


@pytest.mark.parametrize(("batches", "said", "facts"), WRONG)
def test_a_source_that_gives_other_rows_than_it_says_is_refused(
    tmp_path: Path, batches: list[Batch], said: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(DataError) as refused:
        write_as_said(tmp_path, batches, said)
    for fact in facts:
        assert fact in str(refused.value)
    assert not [*tmp_path.glob("*.parquet"), *tmp_path.glob("*.json")]


@pytest.mark.parametrize(("batches", "said"), WHOLE)
def test_a_source_that_matches_its_declared_facts_is_written(
    tmp_path: Path, batches: list[Batch], said: dict[str, Any]
) -> None:
    write_as_said(tmp_path, batches, said)
    for name, rows in batches:
        read = SplitTable(tmp_path / f"{name}.parquet")
        assert read.read_labels().tolist() == rows.column("label").to_pylist()


def test_what_a_source_says_of_a_row_is_reported_once(tmp_path: Path) -> None:
    faults = [[("label", "kind is blank")], [], [("value", "age is 'old'")]]
    rows = make_rows("train", [None, 1, 7], faults=faults)
    with pytest.raises(DataError) as refused:
        write(tmp_path, [rows, TEST])
    told = [
        line.strip() for line in str(refused.value).splitlines() if line.startswith("  train row")
    ]
    assert told == [
        "train row 0 (id train-0): kind is blank",
        "train row 2 (id train-2): label 7 is not a number from 0 to 1",
        "train row 2 (id train-2): age is 'old'",
    ]


# Values of group columns, and the texts they become.
GROUPS: dict[str, tuple[Any, list[str]]] = {
    "group_d": (["x", "", None], ["x", "", ""]),
    "group_c": ([True, None, False], ["true", "", "false"]),
    "group_b": ([1, None, 3], ["1", "", "3"]),
    "group_e": (pa.array(["y", None, "z"]).dictionary_encode(), ["y", "", "z"]),
    "group_a": ([1.5, float("nan"), None], ["1.5", "", ""]),
}


@dataclass(frozen=True)
class Described:
    """Three training rows; the test split has the first two rows with other images.

    `right` has the accepted labels as given to the table and as lists of classes.
    """

    labels: Sequence[Any] = (0, 1, 1)
    names: Sequence[str] = ("cat", "dog")
    images: Sequence[bytes] = (b"0", b"1", b"2")
    groups: Sequence[str] = ()
    right: tuple[Any, list[list[int]]] | None = None
    units: Sequence[str] = ()
    source: dict[str, Any] = field(default_factory=lambda: DIGITS | {"catalog": "x"})
    revision: str | None = None

    @property
    def several(self) -> bool:
        return isinstance(self.labels[0], list)

    @property
    def parts(self) -> dict[str, range]:
        return {"train": range(3), "test": range(2)}

    def image(self, split: str, row: int) -> bytes:
        return self.images[row] if split == "train" else b"test" + self.images[row]

    def batch(self, split: str, rows: range) -> Batch:
        columns = {
            "groups": {name: GROUPS[name][0] for name in sorted(self.groups)},
            "accepted": self.right and self.right[0],
            "units": self.units or None,
            "images": [self.image(split, row) for row in range(3)],
            "ids": [f"{split} \u00e9{row}" for row in range(3)],
        }
        return split, make_rows(split, self.labels, **columns)[1][rows.start : rows.stop]

    def write(self, folder: Path) -> None:
        write(
            folder,
            [
                self.batch("train", range(2)),
                self.batch("test", range(2)),
                self.batch("train", range(2, 3)),
            ],
            class_names=self.names,
            multi_label=self.several,
            groups=self.groups,
            accepted=self.right is not None,
            units=bool(self.units),
            revision=self.revision,
            options=options(**{"verify": "hash", "missing_classes": "warn"} | self.source),
        )


DESCRIBED = {
    "plain": Described(names=["dog", "cat"], revision="v1"),
    "right by default": Described(right=(None, [[0], [1], [1]])),
    "right": Described(right=([[0, 1], [], None], [[0, 1], [], [1]])),
    "patients": Described(units=["q", "p", "q"]),
    "vectors": Described(source=LIMITED | {"source": "embeddings", "train": "x.npz"}),
    "groups": Described(groups=[*GROUPS]),
    "several": Described(labels=[[0, 1], [1, 1], [0, 0]], units=["p", "p", "r"]),
    "copies": Described(labels=[2, 0, 1], names=["a", "b", "c"], images=[b"x", b"y", b"x"]),
}
each_kind = pytest.mark.parametrize("kind", DESCRIBED)


def plain_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@each_kind
def test_fingerprints_are_hashes_of_plain_json(kind: str, tmp_path: Path) -> None:
    """Fingerprints of 20 November 2026 stay valid, so that finished studies stay up to date."""
    given = DESCRIBED[kind]
    given.write(tmp_path)
    content: dict[str, Any] = {
        "class_names": [*given.names],
        "multi_label": given.several,
        "groups": [*given.groups],
    }
    content |= {"accepted": True} if given.right else {}
    if given.units:
        content["units"] = {
            split: len({*given.units[: len(rows)]}) for split, rows in given.parts.items()
        }
    described = read_json(tmp_path / "dataset.json")
    names = {*content, "accepted", "units"}
    assert {name: described[name] for name in names & described.keys()} == content
    splits = {}
    for split, rows in given.parts.items():
        text = ""
        for row in rows:
            line = [
                f"{split} \u00e9{row}",
                given.labels[row],
                [GROUPS[name][1][row] for name in given.groups],
                hashlib.sha256(given.image(split, row)).hexdigest(),
                *([given.right[1][row]] if given.right else []),
                *given.units[row : row + 1],
            ]
            text += plain_json(line) + "\n"
        splits[split] = hashlib.sha256(text.encode()).hexdigest()
        assert described["splits"][split]["fingerprint"] == splits[split]
        assert SplitTable(tmp_path / f"{split}.parquet").fingerprint == splits[split]
    whole = hashlib.sha256(plain_json(content | {"splits": splits}).encode()).hexdigest()
    assert described["fingerprint"] == whole


@each_kind
def test_each_kind_of_table_is_described(kind: str, tmp_path: Path) -> None:
    given = DESCRIBED[kind]
    given.write(tmp_path)
    described, info = read_json(tmp_path / "dataset.json"), read_info(tmp_path / "dataset.json")
    for split, rows in given.parts.items():
        data, part = (tmp_path / f"{split}.parquet").read_bytes(), described["splits"][split]
        numbers = Counter[int]()
        for label in given.labels[: len(rows)]:
            numbers.update(np.flatnonzero(label).tolist() if given.several else [label])
        assert part["rows"] == len(rows)
        assert part["per_class"] == [numbers[number] for number in range(len(given.names))]
        assert part["bytes"] == len(data)
        assert part["sha256"] == hashlib.sha256(data).hexdigest()
    assert (described["format"], described["format_version"]) == ("dpprobe-dataset", 1)
    assert described["revision"] == given.revision
    assert described["catalog"] == given.source.get("catalog")
    left_out = {"delta", "catalog", "verify", "missing_classes"}
    source = {name: value for name, value in given.source.items() if name not in left_out}
    assert source.items() <= described["source"].items()
    assert not left_out & described["source"].keys()
    untested = ["b"] if kind == "copies" else []
    assert described["classes_without_test_rows"] == [*info.untested_classes] == untested
    assert info.num_classes == len(given.names)
    assert [f"class {name}:" in info.rare_classes_note for name in given.names] == [
        name not in untested for name in given.names
    ]
    assert (info.train_rows, info.test_rows, info.train_units("image")) == (3, 2, 3)
    if given.units:
        assert info.train_units("patient") == len({*given.units})
    else:
        with pytest.raises(DataError, match="names no patients; set unit_column"):
            info.train_units("patient")


@each_kind
def test_each_kind_of_table_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "GROUP_BYTES", 1)
    given = DESCRIBED[kind]
    given.write(tmp_path)
    path = tmp_path / "train.parquet"
    read, plain = SplitTable(path), pq.read_table(path)
    digests = [hashlib.sha256(given.image("train", row)).digest() for row in range(3)]
    columns = {
        "image": [{"bytes": given.image("train", row), "path": None} for row in range(3)],
        "label": [*given.labels],
        "id": [f"train \u00e9{row}" for row in range(3)],
        "image_sha256": digests,
        "pixels_sha256": [None] * 3,
        **{name: GROUPS[name][1] for name in given.groups},
        **({"accepted": given.right[1]} if given.right else {}),
        **({"unit": [*given.units]} if given.units else {}),
    }
    assert plain.to_pydict() == columns
    assert plain.column_names == [*columns]
    assert str(plain.schema.field("label").type) == (
        "list<element: int8>" if given.several else "int64"
    )
    assert pq.ParquetFile(path).num_row_groups == 2, "one for each batch of the training rows"
    assert read.class_names == tuple(given.names)
    assert (read.multi_label, read.holds_vectors) == (given.several, kind == "vectors")
    assert read.group_names == tuple(given.groups)
    assert read.read_labels().tolist() == columns["label"]
    assert read.read_labels().dtype == (np.int8 if given.several else np.int64)
    assert read.read_groups() == {name: columns[name] for name in given.groups}
    assert read.read_accepted() == columns.get("accepted")
    assert read.read_units() == columns.get("unit")
    assert read.image_hashes() == digests
    assert columns["pixels_sha256"] == [None] * len(digests), "not decoded"


def test_pixels_that_were_not_hashed_are_hashed_when_they_are_asked_for(tmp_path: Path) -> None:
    images = {"train": [png(number) for number in range(3)], "test": [png(9)]}
    found = []
    for verify in ("hash", "decode"):
        write_tables(tmp_path, images, verify=verify)
        found.append([SplitTable(tmp_path / f"{each}.parquet").pixel_hashes() for each in images])
    assert found[0] == found[1]
    assert None not in found[0][0]


@each_kind
def test_tables_have_the_metadata_of_the_hub(kind: str, tmp_path: Path) -> None:
    """The notation is that of https://huggingface.co/docs/datasets/about_dataset_features."""
    given = DESCRIBED[kind]
    given.write(tmp_path)
    schema = pq.read_schema(tmp_path / "train.parquet")
    found = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    text, binary = ({"dtype": each, "_type": "Value"} for each in ("string", "binary"))
    assert list(found) == schema.names
    assert found.pop("image") == (
        {"bytes": binary, "path": text} if kind == "vectors" else {"_type": "Image"}
    )
    assert found.pop("label") == (
        {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "Sequence"}
        if given.several
        else {"names": [*given.names], "_type": "ClassLabel"}
    )
    if given.right:
        numbers = {"dtype": "int64", "_type": "Value"}
        assert found.pop("accepted") == {"feature": numbers, "_type": "Sequence"}
    assert found == {name: binary if "sha256" in name else text for name in found}


def test_the_fingerprint_does_not_depend_on_where_images_are_stored(tmp_path: Path) -> None:
    images = [png(row) for row in range(3)]
    paths = [tmp_path / f"{row}.png" for row in range(3)]
    for path, data in zip(paths, images, strict=True):
        path.write_bytes(data)
    found = set()
    given: dict[str, dict[str, Any]] = {
        "base": {},
        "linked": {"images": [None] * 3, "paths": [*map(str, paths)]},
        "named": {"paths": ["a", "b", "c"]},
    }
    for place, columns in given.items():
        write(tmp_path / place, [make_rows("train", [0, 1, 1], **columns), TEST])
        found.add(read_info(tmp_path / place / "dataset.json").fingerprint)
    assert len(found) == 1


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
def test_the_reader_refuses_files_that_are_not_split_tables(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "train.parquet"
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path)
    elif content is not None:
        path.write_bytes(content)
    said = "not a split table" if isinstance(content, dict) else "cannot be read"
    with pytest.raises(DataError, match=f"train.parquet: {said}"):
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
