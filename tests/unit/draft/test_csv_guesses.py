"""Studies drafted from CSV files."""

from __future__ import annotations

import re

import pytest

from dpprobe.data.csv_manifest import Options
from dpprobe.data.folder_parts import find_test_file
from dpprobe.draft.column_guesses import Column, guess_split
from dpprobe.draft.study_text import choose_delta
from tests.unit.draft.conftest import Desk


def options(desk: Desk, file: str = "lesions.yaml", *, check_classes: bool = True) -> Options:
    (dataset,) = desk.study(file, check_classes=check_classes).datasets.values()
    assert isinstance(dataset, Options)
    return dataset


@pytest.fixture
def clinic(desk: Desk) -> Desk:
    """A working directory with sixty images and no table yet."""
    desk.images("scans/files", count=60)
    return desk


def test_delta_lies_below_one_over_the_patients() -> None:
    assert [choose_delta(n) for n in (1, 10_000, 10_001, 1_281_167)] == [1e-5, 1e-5, 1e-6, 1e-8]


@pytest.mark.parametrize(
    ("train", "test", "other"),
    [
        ("train", "test", "val"),
        ("Training", "Testing", "labels"),
        ("isic_train", "isic_test", "isic_all"),
        ("TRAIN", "validation", "labels"),
        ("train", None, "labels"),
        ("labels", None, "train"),
    ],
)
def test_files_and_words_with_usual_names_of_parts_are_the_split(
    clinic: Desk, train: str, test: str | None, other: str
) -> None:
    for name in filter(None, (train, test, other)):
        clinic.file(f"scans/{name}.csv")
    beside = find_test_file(clinic.folder / f"scans/{train}.csv")
    assert (beside and beside.stem) == test
    if test:
        columns = {"set": Column(values={train, test, other})}
        assert guess_split(columns) == ("set", [train], [test])


def test_classes_that_are_numbers_or_words_of_yaml_stay_text(clinic: Desk) -> None:
    for names in (("0", "1"), ("yes", "no"), ("nan", "a"), ("2", "10")):
        rows = [{"file": f"files/{n}.jpg", "label": names[n % 2]} for n in range(60)]
        clinic.table("scans/lesions.csv", rows)
        printed = clinic.init("scans/lesions.csv", "--force")
        assert ("usually means no label" in printed) == ("nan" in names)
        assert set(options(clinic).class_names_or_labels()) == set(names)
    assert options(clinic).class_names_or_labels() == ("2", "10")
    text = (clinic.folder / "lesions.yaml").read_text()
    assert "class_names:\n      '2': '2'\n      '10': '10'\n" in text
    assert "the class names are numbers" in clinic.init("scans/lesions.csv", "--force")
    clinic.file("lesions.yaml", text.replace("'2': '2'", "'2': normal"))
    assert options(clinic).class_names_or_labels() == ("normal", "10")


HEAD, ROW = "file,label\n", "files/0.jpg,a\n"


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("file,kind\n" + ROW, "", "name the column of labels with --label: file, kind"),
        ("scan,label\n0,a\n1,b\n", "", "name the column with --image"),
        (HEAD + ROW + ROW, "", "no column has"),
        (HEAD + ROW + ROW, "--label label", "column label has 1 classes"),
        (HEAD + ROW, "--label labl", "--label labl: "),
        (HEAD + ROW + "files/0.jpg,A\n", "", "has 'A' and 'a', which are spellings of one name"),
        (HEAD + "files/0.jpg,1.0\nfiles/1.jpg,1\n", "", "which are spellings of one name"),
        (HEAD + "no\\0.jpg,a\nfiles/0.jpg,b\n", "", "write / instead"),
        (HEAD + "no/0.jpg,a\nfiles/0.jpg,b\n", "", "names 'no/0.jpg'"),
        ("", "", "is empty; its first line must name the columns"),
        (HEAD + "files/0.jpg,na\udcefve\n", "", "not UTF-8"),
        (HEAD + ROW + "files/1.jpg,b,c\n", "", "3 values for 2 columns"),
        ("file,file\n1,2\n", "", "two columns are named 'file'"),
        (HEAD, "", "no row below the header"),
        (HEAD + "files/0.jpg,['a']\nfiles/1.jpg,['b']\n", "", "a list of labels, written as text"),
    ],
)
def test_a_table_that_is_not_understood_ends_it_with_a_line(
    content: str, words: str, message: str, clinic: Desk
) -> None:
    table = clinic.folder / "scans/lesions.csv"
    table.write_bytes(content.encode(errors="surrogateescape"))
    error = clinic.init("scans/lesions.csv", *words.split())
    assert re.match("dpprobe: (.*lesions.csv|--label)", error)
    assert message in error
    assert error.count("\n") == 0
    assert not list(clinic.folder.glob("*.yaml"))
