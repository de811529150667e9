"""Faults of a dataset are found before extraction and reported together."""

from __future__ import annotations

import csv
import errno
import io
import json
import random
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.counted_nouns import count_noun
from dpprobe.data import dataset_preparation, problems, table_writer
from dpprobe.data.dataset_preparation import prepare_dataset
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.programs import run_program
from tests.support.shards import CLASSES, png
from tests.support.small_study import STUDY
from tests.support.sources import write_images, write_manifest, write_parquet


def noise(seed: int, *, size: int = 24, kind: str = "JPEG") -> bytes:
    """Returns an image that is unique to its seed."""
    picture = Image.frombytes("L", (size, size), random.Random(seed).randbytes(size * size))
    stream = io.BytesIO()
    picture.save(stream, format=kind)
    return stream.getvalue()


def animation() -> bytes:
    frames = [Image.new("L", (4, 4), value) for value in (0, 90)]
    stream = io.BytesIO()
    frames[0].save(stream, format="GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


class Rows:
    """Rows of both splits, without faults until a test adds some."""

    def __init__(self, directory: Path, train: int = 6, test: int = 4) -> None:
        self.directory = directory
        self.splits = {
            name: [self._row(name, number) for number in range(count)]
            for name, count in (("train", train), ("test", test))
        }

    def _row(self, name: str, number: int) -> dict[str, Any]:
        path = self.directory / "images" / f"{name}{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(number + (1000 if name == "test" else 0)))
        return {
            "id": f"{name}-{number}",
            "path": path,
            "label": number % 2,
            "unit": f"{name[0]}{number // 2}",
            "sex": "fm"[number % 2],
            "origin": f"{name}.csv line {number + 2}",
        }

    def write(self, **changed: Any) -> None:
        plain, embed = changed.pop("plain", False), changed.pop("embed", False)
        values = {"source": "sklearn", "name": "digits"} | changed
        table_writer.write_dataset(
            self.directory / "out",
            self._batches(plain=plain),
            options=dataset_options(values),
            class_names=CLASSES,
            rows=sum(map(len, self.splits.values())),
            chosen_test=True,
            units=not plain,
            groups=["group_sex"],
            embed=embed,
        )

    def _batches(self, *, plain: bool = False) -> Iterator[tuple[str, pa.Table]]:
        for name, rows in self.splits.items():
            for start in range(0, len(rows), 3):
                part = {key: [row[key] for row in rows[start : start + 3]] for key in rows[0]}
                yield (
                    name,
                    table_writer.make_batch(
                        ids=part["id"],
                        labels=part["label"],
                        images=[None] * len(part["id"]),
                        paths=[*map(str, part["path"])],
                        groups={"group_sex": part["sex"]},
                        units=None if plain else part["unit"],
                        origins=None if plain else part["origin"],
                    ),
                )

    def has_report(self) -> bool:
        return (self.directory / "out/problems.csv").exists()

    def report(self) -> list[dict[str, str]]:
        with (self.directory / "out/problems.csv").open(newline="") as stream:
            return list(csv.DictReader(stream))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


Spoil = Callable[[Rows], None]


def content(data: bytes) -> Spoil:
    def spoil(rows: Rows) -> None:
        rows.splits["train"][4]["path"].write_bytes(data)

    return spoil


def change(**changed: Any) -> Spoil:
    return lambda rows: rows.splits["train"][4].update(changed)


def set_all(split: str, **changed: Any) -> Spoil:
    def spoil(rows: Rows) -> None:
        for row in rows.splits[split]:
            row.update(changed)

    return spoil


def copy(source: int, *targets: int, split: str = "train", kind: str = "") -> Spoil:
    """Copies a training row's image into other rows, or its pixels into another file format."""

    def spoil(rows: Rows) -> None:
        path = rows.splits["train"][source]["path"]
        for target in targets:
            if kind:
                Image.open(path).save(rows.splits[split][target]["path"], format=kind)
            else:
                rows.splits[split][target]["path"].write_bytes(path.read_bytes())

    return spoil


def write_spoiled(rows: Rows, *spoils: Spoil, **options: Any) -> list[str]:
    """Writes good tables, adds faults, writes again; returns the lines of the error, if any.

    Checks that no tables and no description are left from the first time.
    """
    rows.write()
    for spoil in spoils:
        spoil(rows)
    lines: list[str] = []
    try:
        rows.write(**options)
    except DataError as error:
        lines = str(error).splitlines()
    left = {path.name for path in (rows.directory / "out").iterdir()}
    if lines:
        assert left == {"problems.csv"}, "an error leaves the report alone"
    else:
        assert left - {"problems.csv"} == {"dataset.json", "test.parquet", "train.parquet"}
    return lines


def facts_of(rows: Rows) -> dict[str, Any]:
    return dict(json.loads((rows.directory / "out/dataset.json").read_text()))


HASH, WARN = {"verify": "hash"}, {"duplicates": "warn"}
UNREADABLE = ("unreadable image", "replace the file or leave the image out")
MISSING = ("missing image", "restore the file or leave the image out")
NO_ID = ("id missing or twice", "give every row its own id")
NO_CLASS = ("label without a class", "correct the label or leave the image out")
NO_PATIENT = (
    "missing patient, patient in both splits, or patient with two names",
    "keep each patient's images in one split, under one name",
)
# The fault in training row 4, a cat; its problem and remedy in problems.csv; the error.
NUL = "embedded" if sys.version_info < (3, 13) else "stat: embedded"
FAULTS: dict[str, tuple[Spoil, tuple[str, str], str]] = {
    "truncated": (content(noise(4)[:-100]), UNREADABLE, "no end marker"),
    "empty": (content(b""), UNREADABLE, "it is empty"),
    "page": (content(b"<!DOCTYPE html><p>"), UNREADABLE, "it is a web page"),
    "animation": (content(animation()), UNREADABLE, "2 images in one file"),
    "no file": (change(path="none.jpg"), MISSING, "cannot be read (No such file or directory)"),
    "capitals": (
        lambda rows: rows.splits["train"][4].update(path=rows.directory / "images/TRAIN4.jpg"),
        MISSING,
        "(No such file or directory): there is 'train4.jpg', with a different spelling",
    ),
    "backslashes": (change(path=r"images\train4.jpg"), MISSING, "as on Windows; use / instead"),
    "NUL": (change(path="images/\0.jpg"), MISSING, f"cannot be read ({NUL}"),
    "id of a dog": (
        change(id="train-1"),
        NO_ID,
        "id 'train-1' appears twice, under two labels: dog and cat",
    ),
    "id of a cat": (change(id="train-2"), NO_ID, "id 'train-2' appears twice"),
    "no id": (change(id=""), NO_ID, "no id"),
    "no patient": (change(unit=""), NO_PATIENT, "no patient"),
    **{
        f"label {label}": (
            change(label=label),
            NO_CLASS,
            f"label {label} is not a number from 0 to 1",
        )
        for label in (7, 2, -1, None)
    },
}
ONLY_DECODED = {"truncated", "empty", "page", "animation"}


@pytest.mark.parametrize("options", [{}, HASH, {"embed": True}], ids=["decode", "hash", "embed"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_with_a_fault_is_named(rows: Rows, fault: str, options: dict[str, Any]) -> None:
    spoil, (kind, remedy), said = FAULTS[fault]
    lines = write_spoiled(rows, spoil, **options)
    if options == HASH and fault in ONLY_DECODED:
        assert not lines, "only decoding finds damage"
        return
    (line,), (row,), bad = lines, rows.report(), rows.splits["train"][4]
    path = str(bad["path"]).replace("\0", r"\x00")
    assert [*row.values()][:5] == ["train", "4", bad["id"], path, kind]
    assert row["detail"].startswith("train.csv line 6: ")
    assert row["detail"].endswith(said) or not said.endswith(")")
    assert said in row["detail"]
    where = f"train row 4 (id {bad['id']})" if bad["id"] else "train row 4"
    assert line.replace("\0", r"\x00") == f"{where}, {path}: {row['detail']}; {remedy}"


def test_both_splits_may_share_an_id_and_a_wrong_label_is_reported_once(rows: Rows) -> None:
    assert not write_spoiled(rows, change(id="test-1"))
    (line,) = write_spoiled(rows, change(id="test-1", label=2), plain=True)
    assert re.fullmatch(r"train row 4 \(id test-1\), .*train4\.jpg: label 2 is not .*", line)


def test_damaged_images_are_not_reported_as_duplicates(rows: Rows) -> None:
    for split, number in (("train", 1), ("train", 4), ("test", 0)):
        rows.splits[split][number]["path"].write_bytes(b"")
    with pytest.raises(DataError, match=": 3 unreadable images; "):
        rows.write()
    assert {row["problem"] for row in rows.report()} == {"unreadable image"}


def test_all_problems_are_reported_at_once_by_kind(rows: Rows) -> None:
    train, test = rows.splits["train"], rows.splits["test"]
    head, *lines = write_spoiled(
        rows,
        lambda _: train[0]["path"].write_bytes(b""),
        lambda _: train[1]["path"].write_bytes(train[1]["path"].read_bytes()[:-100]),
        lambda _: train[2]["path"].unlink(),
        lambda _: train[3].update(id="train-2"),
        lambda _: train[4].update(label=9),
        lambda _: test[0]["path"].write_bytes(train[5]["path"].read_bytes()),
        set_all("test", label=0),
        expect={"train": 7, "test": 3, "classes": 3},
    )
    out, report = rows.directory / "out", rows.report()
    places = [(row["split"], row["row"]) for row in report]
    assert places == [
        *(("train", str(number)) for number in range(5)),
        ("test", "0"),
        ("test", ""),
        *[("", "")] * 3,
    ]
    # for each kind of fault, in the error's order: the count, and its lines in the report
    kinds = {
        "1 missing image": [2],
        "2 unreadable images": [0, 1],
        "1 id missing or twice": [3],
        "1 label without a class": [4],
        "1 image in train and test": [5],
        "1 class without test rows": [6],
        "3 unexpected sizes": [7, 8, 9],
    }
    assert head == f"{out}: {', '.join(kinds)}; {out}/problems.csv lists all of them"
    for kind, numbers in kinds.items():
        assert lines.pop(0).startswith(f"{kind} ("), kind
        for row in (report[number] for number in numbers):
            line = lines.pop(0)
            assert line.startswith(f"  {row['split']}")
            assert line.endswith(row["detail"])
            assert row["problem"].split()[-1].rstrip("s") in kind
    assert not lines
    sizes = ["train: 6 rows, 7 expected", "test: 4 rows, 3 expected", "2 classes, 3 expected"]
    assert [row["detail"] for row in report[-3:]] == sizes


def test_expected_sizes_that_match_are_not_reported_as_problems(rows: Rows) -> None:
    assert not write_spoiled(rows, expect={"train": 6, "test": 4, "classes": 2})
    assert not rows.has_report()


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("choice", ["error", "warn"])
def test_only_test_rows_of_a_class_may_be_missing(
    rows: Rows, split: str, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines = write_spoiled(rows, set_all(split, label=0), missing_classes=choice)
    if (split, choice) == ("test", "warn"):
        assert not lines
        assert facts_of(rows)["classes_without_test_rows"] == ["dog"]
        assert "test: 1 of 2 classes have no test row (dog), so they are not tested" in caplog.text
        return
    (line,), (row,) = lines, rows.report()
    kind = {"train": "class or split without rows", "test": "class without test rows"}[split]
    assert [*row.values()] == [split, "", "", "", kind, "no row of class dog"]
    assert line.startswith(f"{split}: no row of class dog; add ")
    assert ("missing_classes: warn" in line) == (split == "test")


@pytest.mark.parametrize("verify", ["decode", "hash"])
@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (4, "", "the same bytes as train id train-4"),
        (0, "BMP", "the same pixels as train id train-0"),
        (5, "", "the same bytes as train id train-5; same picture, other label: cat and dog"),
    ],
)
def test_an_image_in_both_splits_stops_or_is_reported(
    rows: Rows, source: int, kind: str, said: str, verify: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Test row 2 is a cat. Only decoding finds equal pixels in another file format."""
    seen = verify == "decode" or not kind
    lines = write_spoiled(rows, copy(source, 2, split="test", kind=kind), verify=verify)
    if seen:
        (line,), (row,) = lines, rows.report()
        assert [*row.values()][:3] == ["test", "2", "test-2"]
        assert row["problem"] == "image in train and test"
        assert row["detail"] == f"test.csv line 4: {said}"
        assert line.endswith(
            f": {row['detail']}; remove the image from one split, or write `duplicates: warn`"
        )
    caplog.clear()
    rows.write(verify=verify, **WARN)
    assert facts_of(rows)["duplicates_across_splits"] == seen
    told = [f"test row 2 (id test-2): {said}", "1 image in train and in test"]
    assert [text for text in caplog.messages if "test" in text.partition("class")[0]] == told * seen


# Training rows that get another row's image, and the report on each copy. Rows 0, 2 and 4 are cats;
# patient t0 has rows 0 and 1, t1 has 2 and 3, t2 has 4 and 5.
OTHER_LABEL = "; same picture, other label: dog and cat"
COPIES: list[tuple[tuple[Spoil, ...], dict[int, str]]] = [
    ((), {}),
    ((copy(0, 4),), {4: "bytes as train row 0 (id train-0), of another patient: 't2' and 't0'"}),
    ((copy(0, 1),), {1: f"bytes as train row 0 (id train-0){OTHER_LABEL}"}),
    (
        (copy(0, 1, kind="BMP"), copy(0, 4)),
        {
            1: f"pixels as train row 0 (id train-0){OTHER_LABEL}",
            4: "bytes as train row 0 (id train-0), of another patient: 't2' and 't0'",
        },
    ),
    (
        (copy(2, 3, 4, 5),),
        {
            3: f"bytes as train row 2 (id train-2){OTHER_LABEL}",
            4: "bytes as train row 2 (id train-2), of another patient: 't2' and 't1'",
            5: "bytes as train row 2 (id train-2), of another patient: 't2' and 't1'" + OTHER_LABEL,
        },
    ),
]


@pytest.mark.parametrize("plain", [False, True], ids=["patients", "images"])
@pytest.mark.parametrize("verify", ["decode", "hash"])
@pytest.mark.parametrize(("spoils", "told"), COPIES)
def test_copies_among_training_rows_are_listed_and_counted(
    rows: Rows,
    spoils: Sequence[Spoil],
    told: dict[int, str],
    verify: str,
    plain: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = {row: text for row, text in told.items() if verify == "decode" or "pixels" not in text}
    assert not write_spoiled(rows, *spoils, verify=verify, plain=plain)
    report = rows.report() if told else []
    assert told or not rows.has_report()
    for row, copy in zip(report, told.items(), strict=True):
        assert [*row.values()][:3] == ["train", f"{copy[0]}", f"train-{copy[0]}"]
        assert row["problem"] == "training image that appears twice"
        origin = "" if plain else f"train.csv line {copy[0] + 2}: "
        wanted = re.sub(", of another patient: '..' and '..'", "", copy[1]) if plain else copy[1]
        assert row["detail"] == f"{origin}the same {wanted}"
    # all copies in a case are of one image; a copy with another patient adds that patient
    patients = {text.partition("patient: ")[2][:4] for text in told.values()} - {""}
    by = {"decode": "bytes and pixels", "hash": "bytes"}[verify]
    counts = {"image": {"rows": len(told), "most": len(told) + 1, "by": by}}
    if not plain:
        counts["patient"] = {"rows": len(patients), "most": len(patients) + 1, "by": by}
    assert facts_of(rows)["train_copies"] == counts
    assert facts_of(rows)["duplicates_within_train"] == len(told)
    said = [text for text in caplog.messages if text.startswith("train: ")]
    contradictions = sum(OTHER_LABEL in text for text in told.values())
    starts = [
        (contradictions, "with an image of another row, but with another label"),
        (len(told), f"with the image of an earlier row; one image occurs {len(told) + 1} times"),
        (0 if plain else len(patients), "with the image of another patient"),
    ]
    wanted_starts = [f"train: {count_noun(n, 'row')} {text}" for n, text in starts if n]
    assert len(said) == len(wanted_starts), said
    for text, beginning in zip(said, wanted_starts, strict=True):
        assert text.startswith(beginning)
        assert str(rows.directory / "out/problems.csv") in text or "patient" in beginning


def test_groups_in_two_spellings_stop(rows: Rows) -> None:
    for number, unknown in ((2, ""), (3, " ")):
        rows.splits["train"][number]["sex"] = unknown  # in any spelling
    (line,) = write_spoiled(rows, change(sex="M"))
    assert line.startswith("sex: 'm' and 'M' are separate groups; ")
    assert "`ignore_case: true` in group_columns" in line
    rows.splits["train"][5].update(sex="F")
    with pytest.raises(DataError) as refused:
        rows.write()
    _, _, *lines = str(refused.value).splitlines()
    groups = [f"sex: {one!r} and {one.upper()!r} are separate groups" for one in "fm"]
    assert [line.strip() for line in lines] == groups
    assert [[*row.values()] for row in rows.report()] == [
        ["", "", "", "", "group in two spellings", group] for group in groups
    ]


@pytest.mark.parametrize("high", [255, 256, 1000, 4010, 32767, 32768, 65535])
def test_dark_images_of_16_bits_are_reported_with_the_bits_of_the_brightest(
    rows: Rows, high: int, caplog: pytest.LogCaptureFixture
) -> None:
    for number, row in enumerate((*rows.splits["test"], *rows.splits["train"])):
        most = high if number == 1 else high // (2 + number)
        values = np.linspace(number, most, 64).astype(np.uint16).reshape(8, 8)
        Image.fromarray(values).save(row["path"], format="PNG")
    rows.write()
    said, white = [text for text in caplog.messages if "16-bit" in text], 2 ** high.bit_length() - 1
    if white == 65535:
        assert not said
        return
    (text,) = said
    assert text.startswith(f"10 images of 16-bit grey: no value is above {white:,}, although white")
    assert f"If white is {white:,}, write `grey_bits: {high.bit_length()}` in each backbone" in text


def test_a_good_run_clears_the_report(rows: Rows) -> None:
    for spoil in (content(b""), copy(0, 4)):
        spoil(rows)
        with suppress(DataError):
            rows.write()
        assert rows.report()
    content(noise(4))(rows)
    rows.write()
    assert not (rows.directory / "out/problems.csv").exists()
    assert SplitTable(rows.directory / "out/train.parquet").rows == 6


def test_an_interrupted_check_writes_neither_a_report_nor_a_description(rows: Rows) -> None:
    rows.write()
    rows.splits["train"][4]["path"].write_bytes(b"")

    def batches() -> Iterator[tuple[str, pa.Table]]:
        yield from rows._batches()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table_writer.write_dataset(
            rows.directory / "out",
            batches(),
            options=dataset_options({"source": "sklearn", "name": "digits"}),
            class_names=CLASSES,
            units=True,
            groups=["group_sex"],
            rows=10,
        )
    left = sorted(path.name for path in (rows.directory / "out").iterdir())
    assert left == ["test.parquet", "train.parquet"]
    assert SplitTable(rows.directory / "out/train.parquet").rows == 6


def test_memory_does_not_grow_with_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With five times the rows, memory is the same; cached images of 60 kB would show."""
    monkeypatch.setattr(table_writer, "BATCH_ROWS", 8)

    def read(_: str, number: int) -> tuple[str, int, bytes]:
        return f"{number}", number % 2, noise(number, size=240, kind="BMP")

    def peak(name: str, count: int) -> int:
        folder, parts = tmp_path / name, {"train": range(count), "test": range(10_000, 10_008)}
        options = dataset_options({"source": "sklearn", "name": "digits"})
        tracemalloc.start()
        table_writer.write_dataset(
            folder,
            table_writer.batch_images(parts, read),
            options=options,
            class_names=CLASSES,
            rows=count + 8,
        )
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read_info(folder / "dataset.json").train_rows == count
        return top

    peak("first", 8)  # so that imports are not counted below
    small, large = peak("small", 24), peak("large", 120)
    assert large < small + (2 << 20), f"{small} bytes for 24 rows, {large} for 120"


def test_problems_are_counted_not_kept(tmp_path: Path) -> None:
    tracemalloc.start()
    with problems.Problems(tmp_path) as gathered:
        for row in range(20_000):
            assert row != problems.SHOWN or "more" not in str(gathered.make_error())
            gathered.add_problem(
                "label", f"label {row} is none", split="train", row=row, row_id=f"id{row}"
            )
        error = gathered.make_error()
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert top < 1 << 20
    assert "20000 labels without a class" in str(error)
    assert str(error).count(" is none") == problems.SHOWN
    assert "  and 19980 more" in str(error)
    assert len((tmp_path / "problems.csv").read_text().splitlines()) == 20_001


def test_a_report_of_an_earlier_run_does_not_survive(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/problems.csv").write_text("split,row,id,path,problem,detail\n")
    gone = dataset_options({"source": "imagefolder", "path": str(tmp_path / "none")})
    with pytest.raises(ConfigError):
        dataset_preparation.prepare_dataset(gone, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_disk_that_fills_under_the_tables_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
    write_images(tmp_path / "images", [f"{kind}/{n}.png" for kind in CLASSES for n in range(4)])
    options = dataset_options({"source": "imagefolder", "path": str(tmp_path / "images")})
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DataError, match="the disk filled up while the split tables were written"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# Errors name the reason and a remedy that can be pasted.


def make_images(root: Path, names: list[str]) -> str:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(number))
    return str(root)


def test_a_locked_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = np.zeros((3, 2))
        file.create_group("obs")
        file.flush()
        code = (
            "from pathlib import Path; "
            "from dpprobe.data.sources.embedding_files import open_embeddings; "
            f"open_embeddings(Path({str(path)!r}), option='train').columns"
        )
        found = run_program([sys.executable, "-c", code], check=False)
    assert "another program is writing it: close the file there" in found.stderr
    assert open_embeddings(path, option="train").columns == ()


@pytest.mark.parametrize(
    ("labels", "names", "read"),
    [
        ([0.0, 1.0], ["cat", "dog"], [0, 1]),
        ([0.0, 1.0], {"0": "cat", "1": "dog"}, [0, 1]),
        ([0.0, 1.0], ["0", "1"], [0, 1]),
        # "0.0" is a class of its own and is sorted last; the other two texts are no classes
        ([0.0, 1.5, 2.0], {"0.0": "a", "0": "b", "1": "c"}, [2, -1, -1]),
    ],
)
def test_labels_that_became_floats_are_read(
    tmp_path: Path, labels: list[float], names: object, read: list[int]
) -> None:
    np.savez(tmp_path / "x.npz", X=np.eye(len(labels)), kind=np.array(labels))
    options: Any = dataset_options(
        {
            "source": "embeddings",
            "root": str(tmp_path),
            "train": "x.npz",
            "label_column": "kind",
            "class_names": names,
        }
    )
    assert np.maximum(options.read_index().labels("train"), -1).tolist() == read


ROWS = [
    {"path": f"{row}.png", "kind": "ab"[row % 2], "sex": ("f", "F", "m")[row % 3]}
    for row in range(12)
]
GROUPED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "csv": lambda root: write_manifest(root, ROWS, class_names=["a", "b"]),
    "parquet": lambda root: {
        "source": "parquet",
        "train": write_parquet(root / "a.parquet", [0, 1] * 6, sex=[row["sex"] for row in ROWS]),
    },
}


@pytest.mark.parametrize("source", GROUPED)
def test_a_check_says_that_a_run_refuses_groups_in_two_cases(tmp_path: Path, source: str) -> None:
    block = GROUPED[source](tmp_path)
    found: dict[str, Any] = {}
    for name, groups in (
        ("refused", ["sex"]),
        ("merged", {"sex": {"column": "sex", "ignore_case": True}}),
    ):
        options: Any = dataset_options(block | {"group_columns": groups})
        found[name], _ = options.judge_units()
        with nullcontext() if name == "merged" else pytest.raises(DataError):
            prepare_dataset(options, tmp_path / name)
    assert found["merged"] == ()
    (fault,) = found["refused"]
    assert "sex: 'f' and 'F' are separate groups" in fault
    assert "`ignore_case: true`" in fault
    assert "'f' and 'F' are separate groups" in (tmp_path / "refused/problems.csv").read_text()


def test_a_check_of_a_study_by_hand_refuses_class_folders_in_two_cases(tmp_path: Path) -> None:
    path = make_images(tmp_path, [f"{name}/{row}.png" for name in "fFm" for row in range(9)])
    study = load_study(STUDY | {"datasets": {"pics": {"source": "imagefolder", "path": path}}})
    with pytest.raises(ConfigError, match="class folders 'F' and 'f' are spellings of one name"):
        check_study(study)
