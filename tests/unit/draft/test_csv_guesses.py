"""Studies drafted from CSV files."""

from __future__ import annotations

import re

import pytest

from dpprobe.data.csv_manifest import Options
from dpprobe.data.folder_parts import find_test_file
from dpprobe.draft.column_guesses import Column, guess_split
from dpprobe.draft.study_text import choose_delta
from tests.unit.draft.conftest import Desk, lesions


def options(desk: Desk, file: str = "lesions.yaml", *, check_classes: bool = True) -> Options:
    (dataset,) = desk.study(file, check_classes=check_classes).datasets.values()
    assert isinstance(dataset, Options)
    return dataset


@pytest.fixture
def clinic(desk: Desk) -> Desk:
    """A working directory with sixty images and no table yet."""
    desk.images("scans/files", count=60)
    return desk


def test_patients_groups_and_classes_are_told_by_names(clinic: Desk) -> None:
    clinic.table("scans/lesions.csv", lesions())
    printed = clinic.init("scans/lesions.csv")
    assert "60 images of 30 patients, 2 classes" in printed
    assert "patients (unit of privacy: patient), delta 1e-05" in printed
    assert re.search(r"malignant +6 images:.* test patients \(count as \d\.\d\)", printed)
    assert "a patient with images of several classes counts in parts" in printed
    dataset = options(clinic)
    assert (dataset.root, dataset.train, dataset.path_column) == ("scans", "lesions.csv", "file")
    assert dataset.class_names_or_labels() == ("benign", "malignant")
    assert dataset.unit_column == "PatientID"
    assert dataset.list_groups()["group_age"].bins == (18, 40, 60, 80)
    assert dataset.list_groups()["group_sex"].column == "sex"
    assert dataset.metric == "auc"
    assert dataset.count_units() == int(printed.partition("training:    ")[2].split()[0])
    guess, study = "Guessed from the column's name: the patient", clinic.folder / "lesions.yaml"
    assert guess in study.read_text()
    clinic.init("scans/lesions.csv", "--force", "--patient", "PatientID")
    assert guess not in study.read_text(), "the user named it"


def test_the_largest_class_is_that_of_the_patients(clinic: Desk) -> None:
    """Eight benign patients, one malignant one who has most of the images."""
    rows = [
        {"file": f"files/{n}.jpg", "diagnosis": "benign" if n < 16 else "malignant",
         "patient": n // 2 if n < 16 else 99}
        for n in range(60)
    ]  # fmt: skip
    clinic.table("scans/lesions.csv", rows)
    printed = clinic.init("scans/lesions.csv")
    words = "always predicting benign already has an accuracy of 88.9% (mean over patients)"
    assert words in printed
    assert "--majority 0.889" in printed


def test_delta_lies_below_one_over_the_patients() -> None:
    assert [choose_delta(n) for n in (1, 10_000, 10_001, 1_281_167)] == [1e-5, 1e-5, 1e-6, 1e-8]


@pytest.mark.parametrize(
    ("name", "delimiter", "option"),
    [("skin.csv", ";", ";"), ("skin.tsv", ",", ","), ("Skin.CSV", ",", None),
     ("Skin.TSV", "\t", None)],
)  # fmt: skip
def test_another_delimiter_is_seen(
    clinic: Desk, name: str, delimiter: str, option: str | None
) -> None:
    clinic.table(f"scans/{name}", lesions(), delimiter=delimiter)
    assert "60 images of 30 patients" in clinic.init(f"scans/{name}")
    assert options(clinic, "skin.yaml").train == name
    assert options(clinic, "skin.yaml").delimiter == option


def test_names_of_images_are_completed_to_paths(clinic: Desk) -> None:
    rows = [{"image_id": number, "dx": "ab"[number % 2]} for number in range(60)]
    clinic.table("scans/lesions.csv", rows)
    assert "no column of patients found" in clinic.init("scans/lesions.csv")
    assert options(clinic).path_template == "files/{image_id}.jpg"


def test_images_may_lie_elsewhere(clinic: Desk) -> None:
    clinic.table("tables/old/lesions.csv", lesions())
    assert "which is not under tables/old or . or tables; name" in clinic.init(
        "tables/old/lesions.csv", "--image", "file"
    )
    assert "60 images" in clinic.init("tables/old/lesions.csv", "--root", "scans")
    assert (options(clinic).root, options(clinic).train) == ("scans", "../tables/old/lesions.csv")


def test_a_folder_beside_the_table_is_looked_into(clinic: Desk) -> None:
    clinic.table("lesions.csv", lesions())
    clinic.init("lesions.csv")
    assert options(clinic).path_template == "scans/{file}"


def test_a_split_column_is_used(clinic: Desk) -> None:
    rows = [
        {"file": f"files/{number}.jpg", "label": "ab"[number % 2], "set": ["Train", "Test"][part]}
        for number in range(60)
        for part in [number % 3 == 0]
    ]
    clinic.table("scans/lesions.csv", rows)
    clinic.init("scans/lesions.csv")
    assert options(clinic).count_rows() == (40, 20)


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


@pytest.mark.parametrize("kind", [int, bool])
def test_several_labels_an_image_are_seen(clinic: Desk, kind: type) -> None:
    rows = [
        {"file": f"files/{number}.jpg", "mel": kind(number % 2), "nev": kind(number % 7 == 0)}
        for number in range(60)
    ]
    rows[3]["nev"] = -1
    clinic.table("scans/lesions.csv", rows)
    printed = clinic.init("scans/lesions.csv")
    assert "60 images, 2 labels" in printed
    assert "set `uncertain:` (ones, zeros or drop)" in printed
    assert options(clinic).label_columns == ("mel", "nev")


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


def test_what_several_images_are_of_is_better_than_nothing(clinic: Desk) -> None:
    rows = [
        {"file": f"files/{n}.jpg", "label": "ab"[n % 2], "lesion_id": n // 3} for n in range(60)
    ]
    clinic.table("scans/lesions.csv", rows)
    assert "a person may have several" in clinic.init("scans/lesions.csv")
    assert options(clinic).unit_column == "lesion_id"
    printed = clinic.init("scans/lesions.csv", "--force", "--patient", "label")
    assert "refused:     1 class has" in printed, "each class is one patient"
    assert options(clinic, check_classes=False).unit_column == "label"


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
