"""What `init` prints and writes for tables and folders of many kinds, held against the stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpprobe.backbones.feature_dimensions import Dimensions
from dpprobe.data.options import compute_imbalance
from dpprobe.draft import available_backbone
from dpprobe.draft import column_guesses as guesses
from dpprobe.draft.seen_dataset import Seen, study_name
from dpprobe.draft.study_text import choose_delta
from tests.support.stored_records import answer_of, check_values
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
    "another file": (lesions(), "--output other.yaml"),
    "a file that is a number": (lesions(), "--output 24.yaml"),
    "most images of one patient": (
        rows_of(
            diagnosis=lambda n: "benign" if n < 16 else "malignant",
            patient=lambda n: n // 2 if n < 16 else 99,
        ),
        "",
    ),
    "blank patients": (edit(edit(lesions(), 4, PatientID=""), 9, PatientID=" "), ""),
    "one blank label": (edit(lesions(), 4, diagnosis=""), ""),
    "one patient alone": (rows_of(label=half, patient_id=lambda _: "p1"), ""),
    "two columns of units": (
        rows_of(label=half, subject=lambda n: n // 3, lesion_id=lambda n: n // 2),
        "",
    ),
    "units that are no people": (rows_of(label=half, lesion_id=lambda n: n // 3), ""),
    "the class as the patient": (rows_of(label=half), "--patient label"),
    "ages that are ranges": (
        rows_of(label=half, age=lambda n: f"{10 * (n % 5)}-{10 * (n % 5) + 9}"),
        "",
    ),
    "few ages and one sex": (rows_of(label=half, age=lambda n: n % 3, sex=lambda _: "f"), ""),
    "many places": (rows_of(label=half, site=lambda n: f"s{n % 30}", race=lambda n: n % 4), ""),
    "two columns of one group": (
        rows_of(label=half, Sex=lambda n: "fm"[n % 2], gender=lambda n: "mf"[n % 2]),
        "",
    ),
    "three classes of one size": (rows_of(dx=lambda n: "abc"[n % 3]), ""),
    "a rare one of three": (rows_of(dx=lambda n: "c" if n % 20 == 0 else half(n)), ""),
    "twelve classes": (rows_of(dx=lambda n: f"class {n % 12}"), ""),
    "a rare one of two": (rows_of(target=rare), ""),
    "exactly two to one": (rows_of(target=lambda n: "a" if n % 3 else "b"), ""),
    "just above two to one": (
        edit(rows_of(target=lambda n: "a" if n % 3 else "b"), 0, target="a"),
        "",
    ),
    "columns of labels": (rows_of(mel=lambda n: n % 2, nev=lambda n: int(n % 7 == 0)), ""),
    "words as labels": (rows_of(mel=lambda n: n % 2 == 0, nev=lambda n: n % 7 == 0), ""),
    "uncertain and blank labels": (
        edit(
            edit(rows_of(mel=lambda n: n % 2, nev=lambda n: int(n % 7 == 0)), 3, nev=-1), 5, mel=""
        ),
        "",
    ),
    "an uncertain class": (edit(rows_of(label=lambda n: n % 2), 3, label=-1), ""),
    "numbers as classes": (rows_of(label=lambda n: ("2", "10")[n % 2]), ""),
    "signs": (rows_of(label=lambda n: ("-1", "+1")[n % 2]), ""),
    "a number and a word": (rows_of(label=lambda n: ("1", "b")[n % 2]), ""),
    "a blank file": (edit(rows_of(label=half), 0, file=""), ""),
    "no images in the usual column": (
        [{"image": "", "id": "", "path": f"files/{n}.jpg", "y": half(n)} for n in range(60)],
        "",
    ),
    "an ending alone": ([{"id": f"files/{n}", "y": half(n)} for n in range(60)], "--root scans"),
    "words of YAML as classes": (rows_of(label=lambda n: ("yes", "no")[n % 2]), ""),
    "no finding and unknown": (rows_of(label=lambda n: ("nan", "a", "unknown")[n % 3]), ""),
    "joined labels": (rows_of(label=lambda n: ("a", "b", "a|b", "b|a", "a|c", "c")[n % 6]), ""),
    "a split": (rows_of(label=half, set=lambda n: ("Train", "Test")[n % 3 == 0]), ""),
    "a split in three": (
        rows_of(label=half, split=lambda n: ("train", "val", "test")[n % 5 % 3]),
        "",
    ),
    "a split without a test": (rows_of(label=half, fold=lambda n: ("train", "f2")[n % 2]), ""),
    "names without folder and ending": ([{"image_id": n, "dx": half(n)} for n in range(60)], ""),
    "ten classes and more than are shown": (rows_of(120, dx=lambda n: f"{n % 15 + n // 100}"), ""),
    "a patient of two classes": (
        rows_of(dx=lambda n: "b" if n % 3 else "a", pid=lambda n: n // 2),
        "--patient pid",
    ),
    "braces, and a second column of images": (
        [{"path": f"none/{n}.jpg", "image_id": f"z{n}", "y": half(n)} for n in range(60)],
        "",
    ),
}
FOLDERS: dict[str, Mapping[str, int]] = {
    "two classes": {"benign": 12, "naevus": 12},
    "eleven to one": {"a": 347, "malignant": 31},
    "eleven to one of three": {"a": 347, "b": 347, "malignant": 31},
    "few to test": {"a": 40, "b": 40, "c": 12},
    "four of a class": {"a": 40, "b": 4},
    "one of a class": {"a": 40, "b": 40, "c": 1},
    "rare or not": {"a": 10, "b": 9, "c": 11},
    "a split": {"Training/a": 12, "Training/b": 12, "test/a": 12, "test/b": 9, "val/a": 3},
    "fewer images than classes": {f"c{number}": 1 for number in range(12)},
    "many classes": {f"c{number}": 40 + number for number in range(11)},
    "ten classes": dict.fromkeys([f"c{number}" for number in range(10)], 40),
    "hidden": {"a": 12, "b": 12, ".thumbs/x": 5},
    "as many to train as classes": {"train/a": 1, "train/b": 1, "test/a": 2, "test/b": 1},
}


# Texts of a table, and words after its name.
HEAD, ROW = "file,label\n", "files/0.jpg,a\n"
REFUSED_TABLES = [
    ("file,kind\n" + ROW, ""),
    ("scan,label\n0,a\n1,b\n", ""),
    (HEAD + ROW + ROW, ""),
    (HEAD + ROW + ROW, "--label label"),
    (HEAD + ROW, "--label labl"),
    (HEAD, ""),
    ("", ""),
    (HEAD + ROW, "--image img"),
    (HEAD + ROW, "--patient who"),
    ("file,file\n1,2\n", ""),
    (HEAD + ROW + "files/0.jpg,A\n", ""),
    (HEAD + "files/0.jpg,1.0\nfiles/1.jpg,1\n", ""),
    (HEAD + "no\\0.jpg,a\nfiles/0.jpg,b\n", ""),
    (HEAD + "no/0.jpg,a\nfiles/0.jpg,b\n", ""),
    (HEAD + "files/0.jpg,na\udcefve\n", ""),
    (HEAD + ROW + "files/1.jpg,b,c\n", ""),
    (HEAD + "files/0.jpg,['a']\nfiles/1.jpg,['b']\n", ""),
    (HEAD + ROW, "--root nowhere"),
    (HEAD + "".join(f"files/0.jpg,c{n}\n" for n in range(1001)), "--label label"),
]
REFUSED_FOLDERS: list[list[str]] = [
    [],
    ["a/notes.txt", "b/notes.txt"],
    ["0.jpg", "1.jpg"],
    ["0.jpg", "a/1.jpg", "b/2.jpg"],
    ["0.jpg", "a/1.jpg"],
    ["in/a/1.jpg", "in/b/1.jpg"],
    ["a/1.jpg", "b/1.jpg", "list.csv"],
    ["a/1.jpg", "list.TSV.gz"],
    ["train/a/1.jpg", "train/b/1.jpg"],
    ["train/0.tar"],
    ["0.tar"],
    ["deep/train/0.TAR"],
    ["a/1.jpg"],
    ["in/a/1.jpg"],
    ["a/0.jpg", "b/caf\udce9.jpg"],
    ["train/0.jpg", "test/0.jpg"],
]
# Words after `init`, among the files that the test puts there.
CALLS = (
    "",
    "images/lesion",
    "images/none",
    "nowhere/x",
    "x.pdf",
    "x --label y",
    "x --root y",
    "x --image y --patient z",
    "x --output note.txt/x.yaml",
    "x --output note.txt",
    "caf\udce9",
    "x --checkpoint none.pth",
    "x --checkpoint w.pth",
    "x --checkpoint resnet18.pth",
    "x --model resnet18",
    "0.TAR",
    "0.tar.gz",
    "x/ --output studies/deep/er.yml",
    "~/x",
)


def draft(desk: Desk, *words: str) -> tuple[str, dict[str, str]]:
    printed = desk.init(*words)
    files = [*desk.folder.glob("*.y*ml"), *desk.folder.glob("studies/**/*.y*ml")]
    written = {str(path.relative_to(desk.folder)): path.read_text() for path in files}
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
    desk.file("scans/{x}/z0.JPG")
    answers = {}
    for name, (rows, words) in TABLES.items():
        desk.table(TABLE, rows)
        answers[name] = draft(desk, TABLE, *words.split())
    for delimiter, file in ((";", "skin.csv"), (",", "skin.tsv"), ("\t", "Skin.TSV")):
        desk.table(f"scans/{file}", lesions(), delimiter=delimiter)
        answers[f"{delimiter!r} in {file}"] = draft(desk, f"scans/{file}")
    desk.table("lesions.csv", lesions())
    answers["beside the images' folder"] = draft(desk, "lesions.csv")
    desk.table("tables/old/lesions.csv", lesions())
    answers["elsewhere"] = draft(desk, "tables/old/lesions.csv", "--root", "scans")
    answers["nowhere"] = draft(desk, "tables/old/lesions.csv", "--image", "file")
    desk.table("scans/train.csv", lesions())
    desk.table("scans/test.csv", lesions(8))
    desk.file("workflow/schemas/study.schema.json")
    answers["two files"] = draft(desk, "scans/train.csv", "--output", "studies/a/x-1.yaml")
    split = edit(lesions(set="train"), 7, set="test")
    desk.table("scans/train.csv", split)
    answers["a split beside a test file"] = draft(desk, "scans/train.csv")
    desk.table("scans/My Table.csv", lesions())
    asked = ("--label", "sex", "--patient", "PatientID", "--output", "b c.yaml")
    answers["names with spaces"] = draft(desk, "scans/My Table.csv", *asked)
    check_values("drafts_of_tables", dict(shorten(answers)))


def test_a_folder_becomes_the_stored_study(desk: Desk) -> None:
    answers = {}
    for name, classes in FOLDERS.items():
        place = name.replace(" ", "_")
        for path, count in classes.items():
            desk.images(f"images/{place}/{path}", count=count)
        answers[name] = draft(desk, f"images/{place}")
        for text in answers[name][1].values():
            assert not any(count in text for count in ("347", "31", "378", "91.8", "11.2"))
    check_values("drafts_of_folders", dict(shorten(answers)))


STATED = {
    "mean": [0.5] * 3,
    "std": [0.4] * 3,
    "input_size": [3, 192, 192],
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "classifier": "fc",
}
ABOUT = {"architecture": "mobilenetv2_100", "model_args": {"pad_type": "same"}}
MINE = "mobilenetv2_100_mine"
# A checkpoint with words after it, and the files beside it: what they state.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "of its name": ("mobilenetv2_100_imagenet", {}),
    "of capitals": ("MobileNetV2_100", {}),
    "of a tag": ("resnet18_ours --model mobilenetv2_100.ra_in1k", {}),
    "beside its folder": (MINE, {"config": ABOUT | {"pretrained_cfg": STATED}}),
    "beside it": (MINE, {MINE: ABOUT | STATED, "config": STATED | {"mean": [0.1] * 3}}),
    "no arguments": (MINE, {"config": {"pretrained_cfg": STATED}}),
    "of another model": (MINE, {"config": ABOUT | STATED | {"architecture": "resnet50"}}),
    "of other files": (MINE, {"config": {"license": "mit"}, MINE: [ABOUT | STATED]}),
    "a bad value": (MINE, {"config": ABOUT | STATED | {"mean": "x"}}),
    "broken": (MINE, {}),
    "broken model": (MINE, {}),
    "broken elsewhere": (MINE, {}),
    "of the longest": ("vit_small_patch16_224_mine", {}),
    "of an ending": ("ResNet50d_a1", {}),
}
FAULTS = {
    "broken": "checkpoint: no weights",
    "broken model": "model_args: x",
    "broken elsewhere": "no room",
}


def test_a_study_of_fetched_or_given_weights_is_as_stored(desk: Desk) -> None:
    """What looks at networks, a process of some seconds, has tests elsewhere."""
    answers = {}
    desk.images("x/a", "x/b")
    for name, (words, beside) in CHECKPOINTS.items():
        faults = {"network": FAULTS[name]} if name in FAULTS else {}
        known = Dimensions(known={"network": 1280}, faults=faults)
        desk.monkeypatch.setattr(available_backbone, "read_dimensions", lambda *_, k=known: k)
        file, *more = words.split()
        save_file({"weight": np.zeros(1, np.float32)}, desk.folder / f"{file}.safetensors")
        for stem, content in beside.items():
            desk.file(f"{stem}.json", json.dumps(content))
        answers[name] = draft(desk, "x", "--checkpoint", f"{file}.safetensors", *more)
        for path in desk.folder.glob("*.*"):
            path.unlink()
    for name in ("mobilenetv2_100.ra_in1k", "vit_base_patch16_224.augreg_in21k"):
        desk.file(f"cache/models--timm--{name}/refs/main", "0" * 40)
        desk.file(f"cache/models--timm--{name}/snapshots/{'0' * 40}/model.safetensors")
        answers[f"fetched {name}"] = draft(desk, "x")
    answers["a model alone"] = draft(desk, "x", "--model", "resnet18", "--force")
    check_values("drafts_of_checkpoints", dict(shorten(answers)))


def test_what_is_not_understood_ends_init_with_a_line(desk: Desk) -> None:
    desk.monkeypatch.setenv("HOME", str(desk.folder))
    desk.images("x/a", "x/b", "images/lesions2/a", "images/lesions/a", "scans/files")
    for name in ("x.pdf", "note.txt", "0.TAR", "0.tar.gz"):
        desk.file(name)
    for name in ("w.pth", "resnet18.pth"):
        (desk.folder / name).write_bytes(b"\x89PNG")
    calls = {call: draft(desk, *call.split()) for call in CALLS}
    assert [call for call, (_, written) in calls.items() if written] == [*CALLS[-2:]]
    answers: dict[str, Any] = {
        ascii(call): said.replace(str(desk.folder), "FOLDER").splitlines()[0]
        for call, (said, _) in calls.items()
    }
    for content, words in REFUSED_TABLES:
        table = desk.folder / "scans/lesions.csv"
        table.write_bytes(content.encode(errors="surrogateescape"))
        answers[f"{content[:60]!a} {words}"] = desk.init("scans/lesions.csv", *words.split())
    for files in REFUSED_FOLDERS:
        place = f"folders/{len(answers)}"
        desk.images(place, count=0)
        (desk.folder / place).mkdir(parents=True)
        for file in files:
            desk.file(f"{place}/{file}")
        answers[ascii(files)] = desk.init(place)
    answers["an empty word"] = desk.init("")
    said = [*answers.values()][len(CALLS) :]
    assert all(one.startswith("dpprobe: ") and "\n" not in one for one in said)
    assert not list(desk.folder.glob("*.yaml"))
    check_values("drafts_refused", answers)


def test_an_empty_class_counts_as_tables_count_it() -> None:
    counts = {"a": 30, "b": 15, "c": 0}
    seen = Seen(place="x", keys={}, counts=counts, images=45)
    assert seen.imbalance == compute_imbalance(tuple(counts.values())) == 2
    assert not seen.is_imbalanced


def test_delta_lies_below_one_over_the_patients() -> None:
    assert [choose_delta(n) for n in (0, 10_000, 10_001, 1_281_167)] == [1e-5, 1e-5, 1e-6, 1e-8]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


COLUMN_SETS: list[dict[str, list[str]]] = [
    {"label": ["a"], "Class Name": ["a", "b"], "dx": ["a", "b", "c"]},
    {"y": ["b", "a", "", "b"]},
    {"dx": numbers(1, 1000), "target": ["a", "b"]},
    {"dx": numbers(1, 1001), "y": ["10", "9.5"]},
    {"a": ["0", "1"], "b": ["1.0", "-1"], "c": ["True", "false"], "sex": ["0", "1"], "d": [""]},
    {"a": ["0", "1"], "c": ["TRUE", "-1.0"], "d": ["false", ""], "case": ["true", "false"]},
    {"a": ["0", "2"], "b": ["0", "1"]},
    {"label": ["10", "9", "1.5", "-1", "1e1x"[:3]]},
    {"label": ["nan", "NULL", "#N/A", "a", "n/a"]},
    {"y": ["Cat", "cat"]},
    {"y": ["01", "1"]},
    {"label": ["a|b", "b", "a", "c|a", "b|c", "a|b|c", "c"], "x": ["", ""]},
    {"patient": ["p"], "Subject-ID": ["p", "q", ""], "MRN": ["1", "2"], "case": ["1", "2"]},
    {"case_id": ["1", "2", "", ""], "exam_id": ["1", "2"]},
    {"patient": ["1", "2", "", ""]},
    {"age": ["3", "40", "unknown", ""], "Sex": ["f", "m"], "sex ": ["m", "w"], "site": ["s"]},
    {"age": ["old", "3"], "age_group": ["1-2", "3-4"], "race": numbers(1, 20), "hospital": ["a"]},
    {"site": numbers(1, 21), "centre": ["x", "y"], "Group Sex": ["f", "m"], "s/ex": ["f", "m"]},
    {"age": numbers(1, 99), "scanner": ["a", "b"]},
    {"set": ["a", "b"], "fold": ["Test", "Train"]},
    {"split": ["train", "val", "testing", "x"]},
    {"split": ["train", "val"]},
    {"set": ["train"]},
    {"subset": ["train", "test", *numbers(1, 999)]},
    {"set": ["test", "val"]},
    {"set": ["isic_train", "isic_test", "isic_all"]},
    {"fold": ["TRAIN", "validation", "labels"]},
    {"label": [""], "y": ["Dog", "Cat", "cat", "dog"], "Skin Type": ["1", "2"], "Sex ": ["f", "m"]},
    {"a": ["0", "1", "0.0", "1.0", "-1", "-1.0"], "b": ["1", "0"], "lesion_id": ["x", "x"]},
]


def test_columns_are_guessed_by_their_names_and_values() -> None:
    answers = []
    for columns in COLUMN_SETS:
        seen = {name: guesses.Column() for name in columns}
        for name, values in columns.items():
            for value in values:
                seen[name].add_value(value)
        labels = guesses.guess_labels(seen) or [next(iter(seen))]
        units = [guesses.find_unit(seen, named) for named in (None, next(iter(seen)))]
        answers.append(
            {
                "column": {
                    name: [
                        len(each.values),
                        each.many,
                        each.blanks,
                        each.holds_ages,
                        "".join(each.first),
                    ]
                    for name, each in seen.items()
                },
                "label": guesses.guess_label(seen),
                "labels": guesses.guess_labels(seen),
                "classes": [
                    str(answer_of(guesses.class_names, each, name, "x"))[:150]
                    for name, each in seen.items()
                ],
                "units": [
                    [
                        unit,
                        unit and unit.write_option().comment[:60],
                        guesses.unit_notes(seen, unit),
                    ]
                    for unit in units
                ],
                "groups": [guesses.guess_groups(seen, plain=plain) for plain in (False, True)],
                "split": guesses.guess_split(seen),
                "notes": guesses.uncertain_notes(seen, labels),
            }
        )
    check_values("draft_columns", answers)


def test_studies_are_named_after_their_data(desk: Desk) -> None:
    """Not as the folders of dpprobe's own files."""
    desk.monkeypatch.setenv("HOME", str(desk.folder))
    desk.images("lesions/images", "2024/Data", "a.b", "results", count=1)
    names = {
        "lesions/images": "lesions",
        "2024/Data": "2024",
        "a.b": "a_b",
        "Größe.csv": "groe",
        "___/train.csv.gz": "train",
        "日本.csv": "study",
        "x/Metadata.v2.tsv": "x",
        "lesions/list.csv": "list",
        "img/../lesions": "lesions",
        "results": "results",
        "Cells": "cells_images",
        "downloads": "downloads_images",
        "tables": "tables_images",
        "releases.parquet": "releases_images",
        "~/index": desk.folder.name.lower(),
    }
    assert {name: study_name(Path(name)) for name in names} == names


NAMES = {"info": {"features": {"label": {"names": ["benign", "malignant"], "_type": "ClassLabel"}}}}
LABELS = [int(n % 11 == 0) for n in range(60)]
PARQUET: dict[str, tuple[dict[str, Any], bool, str]] = {
    "classes with names": (
        {"patient_id": [100 + n // 2 for n in range(60)], "sex": ["f", "m"] * 30},
        True,
        "",
    ),
    "classes without names": ({}, False, ""),
    "patients of bytes": ({"patient_id": [b"p%d" % (n // 2) for n in range(60)]}, True, ""),
    "patients of lists": ({"patient_id": [[f"p{n // 2}"] for n in range(60)]}, True, ""),
    "a named list": ({"who": [[f"p{n // 2}"] for n in range(60)]}, True, "--patient who"),
    "a patient that is nan": (
        {"patient_id": [float("nan"), *(float(n // 2) for n in range(1, 60))]},
        True,
        "",
    ),
    "a split": ({"fold": ["train", "val"] * 30}, False, ""),
    "words as labels": ({"label": ["a", "b"] * 30}, True, ""),
    "lists of labels": ({"label": [[n % 2] for n in range(59)] + [[0, 1]]}, False, ""),
    "lists of 0 and 1": ({"label": [[n % 2, 1, n % 3 // 2] for n in range(60)]}, False, ""),
    "lists of other numbers": ({"label": [[n % 2, 2] for n in range(60)]}, False, ""),
    "labels up to the limit": ({"label": [29, 0] * 30}, False, ""),
    "labels beyond the limit": ({"label": [30, 0] * 30}, False, ""),
    "one class": ({"label": [0] * 60}, False, ""),
    "blank labels": ({"label": [0, None, 1] * 20}, False, ""),
    "other names": (
        {"picture": [{"bytes": b"y", "path": None}] * 60, "kind": LABELS},
        False,
        "--image picture --label kind",
    ),
    "a folder of images": ({}, True, "--root x"),
    "ages": (
        {"age": [20 + n for n in range(60)], "Patient ID": [n // 5 for n in range(60)]},
        True,
        "",
    ),
    "a named patient and groups": (
        {
            "who": [f" {n // 2}"[n % 2 :] for n in range(60)],
            "patient": [b"p"] * 60,
            "sex": ["f", "m "] * 30,
            "site": [*"abc"] * 20,
        },
        True,
        "--patient who",
    ),
    "two lists and labels beyond the names": (
        {
            "case": [[n] for n in range(60)],
            "patient": [[n] for n in range(60)],
            "label": [0, 1, 2, 5] * 15,
        },
        True,
        "",
    ),
    "labels with a point": ({"label": [0.0, 1.0, 1.0] * 20}, False, ""),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_parquet_file_becomes_the_stored_study(desk: Desk) -> None:
    answers = {}
    desk.monkeypatch.setattr(guesses, "MOST_CLASSES", 30)

    def write(file: str, columns: Mapping[str, Any], *, names: bool = True) -> None:
        values = {"image": [{"bytes": b"x", "path": None}] * 60, "label": LABELS, **columns}
        table = pa.table(values)
        if names:
            table = table.replace_schema_metadata({"huggingface": json.dumps(NAMES)})
        (desk.folder / file).parent.mkdir(exist_ok=True)
        pq.write_table(table, desk.folder / file)

    for name, (columns, names, words) in PARQUET.items():
        write("skin.parquet", columns, names=names)
        answers[name] = draft(desk, "skin.parquet", *words.split())
    desk.file("skin.parquet")
    answers["no parquet"] = draft(desk, "skin.parquet")
    for first, second in (("image", "kind"), ("scan", "label")):
        pq.write_table(pa.table({first: ["x"], second: [1]}), desk.folder / "skin.parquet")
        answers[f"{first} and {second}"] = draft(desk, "skin.parquet")
    twice = pa.table([["x"], [1], [1]], names=["image", "label", "label"])
    pq.write_table(twice, desk.folder / "skin.parquet")
    answers["two columns of one name"] = draft(desk, "skin.parquet")
    write("SKIN.PARQUET", {"lesion_id": [n // 2 for n in range(60)], "sex": ["f", ""] * 30})
    answers["capitals and units that are no people"] = draft(desk, "SKIN.PARQUET")
    for part in ("train", "test"):
        write(f"skin/{part}.parquet", {"split": ["train", "test"] * 30})
    answers["a test file"] = draft(desk, "skin/train.parquet")
    check_values("drafts_of_parquet_files", dict(shorten(answers)))
