"""What `init` prints and writes for tables and folders of many kinds, held against the stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.stored_records import check_values
from tests.unit.draft.conftest import Desk, lesions

Rows = list[dict[str, Any]]
TABLE = "scans/lesions.csv"


def rows_of(count: int = 60, **columns: Callable[[int], Any]) -> Rows:
    """Rows with a file and what each column's function returns for the row's number."""
    return [
        {"file": f"files/{n}.jpg", **{name: of(n) for name, of in columns.items()}}
        for n in range(count)
    ]


def edit(rows: Rows, number: int, **values: Any) -> Rows:
    return [*rows[:number], rows[number] | values, *rows[number + 1 :]]


def half(n: int) -> str:
    return "ab"[n % 2]


def rare(n: int) -> str:
    return "benign" if n % 10 else "malignant"


TABLES: dict[str, tuple[Rows, str]] = {
    "patients and groups": (lesions(), ""),
    "a patient who is named": (lesions(), "--patient PatientID"),
    "a label and images that are named": (lesions(), "--label sex --image file"),
    "another delta": (lesions(), "--output other.yaml"),
    "most images of one patient": (
        rows_of(diagnosis=lambda n: "benign" if n < 16 else "malignant",
                patient=lambda n: n // 2 if n < 16 else 99), ""),
    "blank patients": (edit(edit(lesions(), 4, PatientID=""), 9, PatientID=" "), ""),
    "one blank label": (edit(lesions(), 4, diagnosis=""), ""),
    "one patient alone": (rows_of(label=half, patient_id=lambda _: "p1"), ""),
    "two columns of units": (
        rows_of(label=half, subject=lambda n: n // 3, lesion_id=lambda n: n // 2), ""),
    "units that are no people": (rows_of(label=half, lesion_id=lambda n: n // 3), ""),
    "the class as the patient": (rows_of(label=half), "--patient label"),
    "ages that are ranges": (
        rows_of(label=half, age=lambda n: f"{10 * (n % 5)}-{10 * (n % 5) + 9}"), ""),
    "few ages and one sex": (rows_of(label=half, age=lambda n: n % 3, sex=lambda _: "f"), ""),
    "many places": (rows_of(label=half, site=lambda n: f"s{n % 30}", race=lambda n: n % 4), ""),
    "two columns of one group": (
        rows_of(label=half, Sex=lambda n: "fm"[n % 2], gender=lambda n: "mf"[n % 2]), ""),
    "three classes of one size": (rows_of(dx=lambda n: "abc"[n % 3]), ""),
    "a rare one of three": (rows_of(dx=lambda n: "c" if n % 20 == 0 else half(n)), ""),
    "twelve classes": (rows_of(dx=lambda n: f"class {n % 12}"), ""),
    "a rare one of two": (rows_of(target=rare), ""),
    "exactly two to one": (rows_of(target=lambda n: "a" if n % 3 else "b"), ""),
    "just above two to one": (edit(rows_of(target=lambda n: "a" if n % 3 else "b"), 0,
                                   target="a"), ""),
    "columns of labels": (rows_of(mel=lambda n: n % 2, nev=lambda n: int(n % 7 == 0)), ""),
    "words as labels": (rows_of(mel=lambda n: n % 2 == 0, nev=lambda n: n % 7 == 0), ""),
    "uncertain and blank labels": (
        edit(edit(rows_of(mel=lambda n: n % 2, nev=lambda n: int(n % 7 == 0)), 3, nev=-1), 5,
             mel=""), ""),
    "an uncertain class": (edit(rows_of(label=lambda n: n % 2), 3, label=-1), ""),
    "numbers as classes": (rows_of(label=lambda n: ("2", "10")[n % 2]), ""),
    "words of YAML as classes": (rows_of(label=lambda n: ("yes", "no")[n % 2]), ""),
    "no finding and unknown": (rows_of(label=lambda n: ("nan", "a", "unknown")[n % 3]), ""),
    "joined labels": (rows_of(label=lambda n: ("a", "b", "a|b", "b|a", "a|c", "c")[n % 6]), ""),
    "a split": (rows_of(label=half, set=lambda n: ("Train", "Test")[n % 3 == 0]), ""),
    "a split in three": (
        rows_of(label=half, split=lambda n: ("train", "val", "test")[n % 5 % 3]), ""),
    "a split without a test": (rows_of(label=half, fold=lambda n: ("train", "f2")[n % 2]), ""),
    "names without folder and ending": (
        [{"image_id": n, "dx": half(n)} for n in range(60)], ""),
}  # fmt: skip
FOLDERS: dict[str, Mapping[str, int]] = {
    "two classes": {"benign": 12, "naevus": 12},
    "eleven to one": {"a": 347, "malignant": 31},
    "eleven to one of three": {"a": 347, "b": 347, "malignant": 31},
    "few to test": {"a": 40, "b": 40, "c": 12},
    "four of a class": {"a": 40, "b": 4},
    "one of a class": {"a": 40, "b": 40, "c": 1},
    "a split": {"Training/a": 12, "Training/b": 12, "test/a": 12, "test/b": 9, "val/a": 3},
    "fewer images than classes": {f"c{number}": 1 for number in range(12)},
    "many classes": {f"c{number}": 40 + number for number in range(11)},
}


def draft(desk: Desk, place: str, words: Sequence[str]) -> tuple[str, dict[str, str]]:
    printed = desk.init(place, *words)
    written = {path.name: path.read_text() for path in desk.folder.glob("*.yaml")}
    for name in written:
        desk.study(name, check_classes=False)
        (desk.folder / name).unlink()
    return printed, written


def shorten(answers: Mapping[str, tuple[str, dict[str, str]]]) -> Iterator[tuple[str, Any]]:
    """Yields what is printed, and of each study the lines that the one before has not."""
    known: set[str] = set()
    for name, (printed, written) in answers.items():
        lines = {file: text.splitlines() for file, text in written.items()}
        new = {file: [each for each in text if each not in known] for file, text in lines.items()}
        counts = {file: len(text) for file, text in lines.items()}
        known = {each for text in lines.values() for each in text}
        yield name, {"printed": printed.splitlines(), "lines": counts, "new": new}


def test_a_table_becomes_the_stored_study(desk: Desk) -> None:
    desk.images("scans/files", count=60)
    answers = {}
    for name, (rows, words) in TABLES.items():
        desk.table(TABLE, rows)
        answers[name] = draft(desk, TABLE, words.split())
    for delimiter, file in ((";", "skin.csv"), (",", "skin.tsv"), ("\t", "Skin.TSV")):
        desk.table(f"scans/{file}", lesions(), delimiter=delimiter)
        answers[f"{delimiter!r} in {file}"] = draft(desk, f"scans/{file}", [])
    desk.table("lesions.csv", lesions())
    answers["beside the images' folder"] = draft(desk, "lesions.csv", [])
    desk.table("tables/old/lesions.csv", lesions())
    answers["elsewhere"] = draft(desk, "tables/old/lesions.csv", ["--root", "scans"])
    answers["nowhere"] = draft(desk, "tables/old/lesions.csv", ["--image", "file"])
    check_values("drafts_of_tables", dict(shorten(answers)))


def test_a_folder_becomes_the_stored_study(desk: Desk) -> None:
    answers = {}
    for name, classes in FOLDERS.items():
        place = name.replace(" ", "_")
        for path, count in classes.items():
            desk.images(f"images/{place}/{path}", count=count)
        answers[name] = draft(desk, f"images/{place}", [])
    check_values("drafts_of_folders", dict(shorten(answers)))


NAMES = {"info": {"features": {"label": {"names": ["benign", "malignant"], "_type": "ClassLabel"}}}}
LABELS = [int(n % 11 == 0) for n in range(60)]
PARQUET: dict[str, tuple[dict[str, Any], bool, str]] = {
    "classes with names": (
        {"patient_id": [100 + n // 2 for n in range(60)], "sex": ["f", "m"] * 30}, True, ""),
    "classes without names": ({}, False, ""),
    "patients of bytes": ({"patient_id": [b"p%d" % (n // 2) for n in range(60)]}, True, ""),
    "patients of lists": ({"patient_id": [[f"p{n // 2}"] for n in range(60)]}, True, ""),
    "a named list": ({"who": [[f"p{n // 2}"] for n in range(60)]}, True, "--patient who"),
    "a patient that is nan": (
        {"patient_id": [float("nan"), *(float(n // 2) for n in range(1, 60))]}, True, ""),
    "a split": ({"fold": ["train", "val"] * 30}, False, ""),
    "words as labels": ({"label": ["a", "b"] * 30}, True, ""),
    "lists of labels": ({"label": [[n % 2] for n in range(59)] + [[0, 1]]}, False, ""),
    "a folder of images": ({}, True, "--root x"),
    "ages": ({"age": [20 + n for n in range(60)], "Patient ID": [n // 5 for n in range(60)]},
             True, ""),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_parquet_file_becomes_the_stored_study(desk: Desk) -> None:
    answers = {}

    def write(file: str, columns: Mapping[str, Any], *, names: bool = True) -> None:
        values = {"image": [{"bytes": b"x", "path": None}] * 60, "label": LABELS, **columns}
        table = pa.table(values)
        if names:
            table = table.replace_schema_metadata({"huggingface": json.dumps(NAMES)})
        (desk.folder / file).parent.mkdir(exist_ok=True)
        pq.write_table(table, desk.folder / file)

    for name, (columns, names, words) in PARQUET.items():
        write("skin.parquet", columns, names=names)
        answers[name] = draft(desk, "skin.parquet", words.split())
    desk.file("skin.parquet")
    answers["no parquet"] = draft(desk, "skin.parquet", [])
    pq.write_table(pa.table({"image": ["x"], "kind": [1]}), desk.folder / "skin.parquet")
    answers["no labels"] = draft(desk, "skin.parquet", [])
    twice = pa.table([["x"], [1], [1]], names=["image", "label", "label"])
    pq.write_table(twice, desk.folder / "skin.parquet")
    answers["two columns of one name"] = draft(desk, "skin.parquet", [])
    for part in ("train", "test"):
        write(f"skin/{part}.parquet", {})
    answers["a test file"] = draft(desk, "skin/train.parquet", [])
    check_values("drafts_of_parquet_files", dict(shorten(answers)))
