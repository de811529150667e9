"""A drafted study has its table's rows, classes, people, groups, split and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import DataError
from tests.support.shards import png
from tests.support.sources import prepare
from tests.unit.draft.conftest import Desk, lesions, slowly

TABLE = "scans/lesions.csv"
# Words that YAML would read as other values, or not at all.
HARD = (
    *("yes", "no", "null", "~", "true", "1e3", "0x1F", "2024-01-01", "12:30:00", "- a", "b: c"),
    *("# d", "{e}", "'", '"', "%", "@g", "&h", "*i", "!j", ">", "?", "é", "日本", "k ", "-1", "=m"),
)
LETTERS = st.characters(categories=["L", "N", "P", "S"], exclude_characters="|;,")
names = st.one_of(st.sampled_from(HARD), st.text(LETTERS, max_size=12)).map(str.strip)


@pytest.fixture
def scans(desk: Desk) -> Desk:
    desk.images("scans/files", count=80)
    return desk


@st.composite
def tables(draw: st.DrawFn) -> pd.DataFrame:
    """Draws tables with several classes, in which people have images of several classes."""
    words = draw(st.lists(names, min_size=2, max_size=5))
    classes = [f"{letter}{word}" for letter, word in zip("vwxyz", words, strict=False)]
    more = draw(st.lists(st.sampled_from(classes), min_size=15, max_size=70))
    labels = draw(st.permutations([*classes, *more]))
    people = draw(st.lists(st.integers(0, 30), min_size=len(labels), max_size=len(labels)))
    people[:2] = [98, 99]
    rows = {"file": [f"files/{n}.jpg" for n in range(len(labels))], "dx": labels}
    return pd.DataFrame(rows | {"patient": [f"p{n}" for n in people], "note": "x"})


def write(desk: Desk, frame: pd.DataFrame, path: str = TABLE, delimiter: str = ",") -> str:
    rows: Any = frame.to_dict("records")
    desk.table(path, rows, delimiter)
    return path


@slowly
@given(frame=tables())
def test_the_study_has_the_table_s_rows_classes_and_people(
    scans: Desk, frame: pd.DataFrame
) -> None:
    """Counts equal those of pandas, and each person is on one side of the split."""
    drafted = scans.draft(write(scans, frame))
    classes, people = frame.dx.value_counts(), frame.patient.nunique()
    assert drafted.keys["class_names"] == sorted(classes.index)
    assert drafted.keys["unit_column"] == "patient"
    assert sum(drafted.dataset.count_rows()) == len(frame)
    first = f"{TABLE}: {len(frame)} images of {people} patients, {len(classes)} classes"
    assert drafted.said.splitlines()[0] == first
    of_class = frame.groupby("dx").patient.nunique()
    for name, (images, train, test) in drafted.counted.items():
        assert (images, train + test) == (classes[name], of_class[name]), name
    assert [*drafted.counted] == sorted(classes.index, key=lambda name: (-classes[name], name))
    ratio = classes.max() / classes.min()
    assert f"imbalance:   {ratio:.1f} to 1; " in drafted.said
    assert drafted.dataset.metric == ("macro_accuracy" if ratio > 2 else None)
    # the share of the largest class among each person's images, averaged over people
    shares = pd.crosstab(frame.patient, frame.dx, normalize="index").mean()
    if ratio > 2:
        assert f"an accuracy of {100 * shares.max():.1f}% (mean over patients)" in drafted.said
    rare = [name for name in sorted(classes.index) if classes[name] < 10]
    told = [note for note in drafted.notes() if note.startswith("classes of fewer than 10 images")]
    assert [note.partition(": ")[2].partition(". Names")[0] for note in told] == (
        [", ".join(rare)] if rare else []
    )


def test_the_printed_counts_equal_those_of_the_tables_that_a_run_makes(desk: Desk) -> None:
    rows = lesions(50)
    for number, row in enumerate(rows):
        desk.file(f"scans/{row['file']}").write_bytes(png(number))
    desk.table(TABLE, rows)
    drafted = desk.draft(TABLE)
    tables = prepare(desk.folder / "made", **drafted.keys)
    assert [table.rows for table in tables] == [*drafted.dataset.count_rows()]
    for side, table in enumerate(tables, 1):
        frame = pq.read_table(table.path).to_pandas()
        kinds = frame.label.map(dict(enumerate(drafted.keys["class_names"])))
        people = frame.assign(kind=kinds).groupby("kind").unit.nunique()
        assert {name: counts[side] for name, counts in drafted.counted.items()} == people.to_dict()
        if side == 1:
            assert f"training:    {frame.unit.nunique()} patients" in drafted.said


def rows_of(count: int = 60, /, **columns: Any) -> pd.DataFrame:
    """Returns rows with a file, and columns computed by functions of the row number."""
    values = {name: [of(n) for n in range(count)] for name, of in columns.items()}
    return pd.DataFrame({"file": [f"files/{n}.jpg" for n in range(count)]} | values)


def half(n: int) -> str:
    return "ab"[n % 2]


@pytest.mark.parametrize("column", ["patient_id", "PatientID", "Patient-Id", "subject", "MRN"])
def test_a_column_named_after_people_is_the_unit_of_privacy(scans: Desk, column: str) -> None:
    """It is preferred over the lesion, of which a person may have several."""
    frame = rows_of(label=half, lesion_id=lambda n: n // 2, **{column: lambda n: f"p{n // 5}"})
    drafted = scans.draft(write(scans, frame))
    assert drafted.keys["unit_column"] == column
    assert sum(drafted.counted["a"][1:]) == frame[frame.label == "a"][column].nunique()
    assert "Guessed from the column's name: the patient of each image" in drafted.text
    assert not any("lesion_id" in note or "--patient" in note for note in drafted.notes())


@pytest.mark.parametrize("column", ["lesion_id", "case", "Exam ID"])
def test_a_column_of_cases_is_the_unit_with_a_warning(scans: Desk, column: str) -> None:
    frame = rows_of(label=half, patient=lambda _: "one", **{column: lambda n: n // 3})
    drafted = scans.draft(write(scans, frame))
    assert drafted.keys["unit_column"] == column
    (note,) = drafted.notes()
    assert f"column {column} is the unit of privacy, but a person may have several" in note
    assert "--patient" in note
    assert "the guarantee covers each value separately" in " ".join(
        drafted.text.replace("#", "").split()
    )


@slowly
@given(chosen=st.permutations(["kind", "who", "where"]))
def test_named_columns_come_before_guesses(scans: Desk, chosen: list[str]) -> None:
    label, patient, image = chosen
    frame = rows_of(diagnosis=half, patient=lambda n: n // 2).assign(
        **{
            label: ["uvw"[n % 3] for n in range(60)],
            patient: [f"q{n // 4}" for n in range(60)],
            image: [f"{n}" for n in range(60)],
        }
    )
    scans.file("scans/deep/er/0.png")
    words = ("--label", label, "--patient", patient, "--image", image, "--root", "scans")
    drafted = scans.draft(write(scans, frame), *words)
    keys = drafted.keys
    assert (keys["label_column"], keys["unit_column"]) == (label, patient)
    assert keys["path_template"] == f"files/{{{image}}}.jpg"
    assert keys["class_names"] == ["u", "v", "w"]
    assert "The patient of each image" in drafted.text
    assert "Check this column" not in drafted.text


def test_groups_are_columns_of_few_values(scans: Desk) -> None:
    """Ages are binned, words ignore case, and columns with one or many values are skipped."""
    frame = rows_of(
        label=half,
        Age=lambda n: n if n % 9 else "unknown",
        gender=lambda n: ("f", "m", "F")[n % 3],
        site=lambda n: n % 20,
        hospital=lambda n: n % 21,
        race=lambda _: "one",
        weight=lambda n: n % 3,
        **{"Skin Type": lambda n: "I" * (n % 3 + 1)},
    )
    assert scans.draft(write(scans, frame)).keys["group_columns"] == {
        "gender": {"column": "gender", "ignore_case": True},
        "age": {"column": "Age", "bins": [18, 40, 60, 80]},
        "skin_type": "Skin Type",
        "site": "site",
    }


@pytest.mark.parametrize(
    ("words", "train", "test"),
    [
        ("Train Test", ["Train"], ["Test"]),
        ("train val test", ["train"], ["test"]),
        ("training valid", ["training"], ["valid"]),
        ("isic_train isic_test", ["isic_train"], ["isic_test"]),
        ("train trainval test", ["train", "trainval"], ["test"]),
    ],
)
def test_a_column_of_splits_is_the_split(
    scans: Desk, words: str, train: list[str], test: list[str]
) -> None:
    """The column also wins over a second file."""
    parts = words.split()
    frame = rows_of(label=half, Set=lambda n: parts[n // 2 % len(parts)])
    scans.file("scans/test.csv", "file,label\nfiles/0.jpg,a\n")
    drafted = scans.draft(write(scans, frame, "scans/train.csv"))
    keys = drafted.keys
    assert (keys["split_column"], keys["train_values"], keys["test_values"]) == ("Set", train, test)
    assert not {"test_fraction", "split_by", "test"} & {*keys}
    assert drafted.dataset.count_rows() == (frame.Set.isin(train).sum(), frame.Set.isin(test).sum())


def test_a_second_file_is_the_test_split(scans: Desk) -> None:
    write(scans, rows_of(10, label=half), "scans/Testing.csv")
    drafted = scans.draft(write(scans, rows_of(50, label=half), "scans/Training.csv"))
    assert drafted.keys["test"] == "Testing.csv"
    assert "test_fraction" not in drafted.keys
    assert drafted.dataset.count_rows() == (50, 10)
    assert drafted.counted == {"a": (30, 25, 5), "b": (30, 25, 5)}


PLACES = {
    # the table, the image column and its values; the image files; further words
    "beside": ("t.csv", "path", "{n}.jpg", "{n}.jpg", ""),
    "without an ending": ("in/t.csv", "id", "{n}", "in/{n}.PNG", ""),
    "in a folder that is not named": ("in/t.csv", "image_id", "{n}", "in/deep/{n}.png", ""),
    "of the working directory": ("in/t.csv", "file", "all/{n}.jpg", "all/{n}.jpg", ""),
    "above": ("a/in/t.csv", "file", "all/{n}.jpg", "a/all/{n}.jpg", ""),
    "elsewhere": ("in/t.csv", "file", "{n}.jpg", "far/{n}.jpg", "--root far"),
    "deep elsewhere": ("in/t.csv", "id", "{n}", "far/er/{n}.dcm", "--root far"),
    "in braces": ("in/t.csv", "id", "{n}", "in/{{x}}/{n}.jpg", ""),
    "of no usual name": ("in/t.csv", "scan", "{n}.jpg", "in/deep/{n}.jpg", ""),
    "a name with marks": ("in/t.csv", "the scan: 1", "{n}.jpg", "in/{n}.jpg", ""),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_study_finds_each_image(desk: Desk, place: str) -> None:
    table, column, value, file, words = PLACES[place]
    for n in range(40):
        desk.file(file.format(n=n))
    values = [value.format(n=n) for n in range(40)]
    frame = pd.DataFrame({column: values, "y": [half(n) for n in range(40)]})
    if column in ("path", "id", "file"):
        frame["image"] = ""  # a usual name, but an empty column
    drafted = desk.draft(write(desk, frame, table), *words.split())
    keys = drafted.keys
    template = keys.get("path_template", f"{{{keys.get('path_column')}}}")
    assert ("path_template" in keys) == (template != f"{{{column}}}")
    root = desk.folder / keys["root"]
    assert (root / keys["train"]).samefile(desk.folder / table)
    for n, text in enumerate(values):
        path = root / template.replace(f"{{{column}}}", text).replace("{{", "{").replace("}}", "}")
        assert path.samefile(desk.folder / file.format(n=n))


def test_images_in_two_folders_are_one_dataset(desk: Desk) -> None:
    """As in HAM10000: neither do ids reveal the folder, nor does the split depend on the folder."""
    rows = lesions(50)
    for number, row in enumerate(rows):
        row["image_id"] = Path(row.pop("file")).stem
        folder = f"scans/HAM_images_part_{1 + (number > 30)}"
        desk.file(f"{folder}/{row['image_id']}.jpg").write_bytes(png(number))
    desk.table(TABLE, rows)
    drafted = desk.draft(TABLE)
    assert drafted.keys["path_template"] == "HAM_images_part_*/{image_id}.jpg"
    frames = [
        pq.read_table(table.path).to_pandas()
        for table in prepare(desk.folder / "made", **drafted.keys)
    ]
    for frame in frames:
        for name, image in zip(frame.id, frame.image, strict=True):
            number = next(
                n for n, row in enumerate(rows) if name.endswith(f"/{row['image_id']}.jpg")
            )
            assert Path(image["path"]).read_bytes() == png(number)
            assert name == f"HAM_images_part_*/{rows[number]['image_id']}.jpg"
    last = rows[-1]["image_id"]
    desk.file(f"scans/HAM_images_part_1/{last}.jpg").write_bytes(png(49))
    with pytest.raises(DataError, match=rf"line 51: {last}\.jpg is in .*part_1 and in .*part_2; k"):
        prepare(desk.folder / "again", **drafted.keys)


def test_a_linked_folder_is_left_by_its_real_parent(desk: Desk) -> None:
    """`link/..` is not the folder that contains the link."""
    desk.images("deep/files", count=60)
    write(desk, rows_of(label=half), "deep/real/t.csv")
    (desk.folder / "link").symlink_to("deep/real")
    keys = desk.draft("link/t.csv").keys
    assert (desk.folder / keys["root"]).samefile(desk.folder / "deep")
    assert (desk.folder / keys["root"] / keys["train"]).samefile(desk.folder / "deep/real/t.csv")


@pytest.mark.parametrize(
    ("zero", "one"), [("0", "1"), ("0.0", "1.0"), ("False", "TRUE"), ("false", "true")]
)
def test_several_columns_of_0_and_1_are_labels_of_an_image(
    scans: Desk, zero: str, one: str
) -> None:
    """Such columns are not used as people, groups or splits, whatever other columns exist."""
    frame = rows_of(
        nev=lambda n: (zero, one)[n % 2],
        mel=lambda n: (zero, one)[n % 3 == 0],
        sex=lambda n: (zero, one)[n % 2],
        case=lambda _: zero,
        fold=lambda n: (zero, one)[n % 2],
        grade=lambda n: n % 3,
    )
    drafted = scans.draft(write(scans, frame))
    assert drafted.keys["label_columns"] == ["nev", "mel"]
    assert "class_names" not in drafted.keys
    assert drafted.said.startswith(f"{TABLE}: 60 images, 2 labels\n")
    assert {name: images for name, (images, *_) in drafted.counted.items()} == {
        "nev": 30,
        "mel": 20,
    }
    assert "imbalance:   1.5 to 1; metric: mean AUC over the labels" in drafted.said
    assert "metric: auc}" in drafted.text
    assert "balanced:" not in drafted.text


HEAD, ROW = "file,label\n", "files/0.jpg,a\n"
REFUSED: list[tuple[str, str, list[str]]] = [
    # the table's text, further words; words in the error
    ("file,kind\n" + ROW, "", [TABLE, "no column has a usual name for labels", "file, kind"]),
    ("scan,label\n0,a\n1,b\n", "", [TABLE, "for images", "with --image: scan, label"]),
    (HEAD + 2 * ROW, "", [TABLE, "two to 1000 values", "--label: file, label"]),
    (HEAD + 2 * ROW, "--label label", ["label has 1 class,", "another column with --label"]),
    (HEAD + ROW, "--label labl", ["--label labl", "no column with this name", "file, label"]),
    (HEAD + ROW, "--image img", ["--image img", "no column with this name", "file, label"]),
    (HEAD + ROW, "--patient who", ["--patient who", "no column with this name", "file, label"]),
    (HEAD, "", [TABLE, "no row below the header", "fill the file"]),
    ("", "", ["lesions.csv is empty", "first line must name the columns"]),
    ("file,file\n1,2\n", "", ["two columns are named 'file'", "rename one"]),
    (HEAD + ROW + ROW.replace("a", "A"), "", ["'A' and 'a'", "use one spelling"]),
    (HEAD + "0,1.0\n0,1\n", "--image file", ["'1' and '1.0'", "use one spelling"]),
    (HEAD + "no\\0.jpg,a\n0,b\n", "", ["'no\\\\0.jpg'", "under scans or .:", "use / instead"]),
    (HEAD + "no/0.jpg,a\n0,b\n", "", ["'no/0.jpg'", "not under scans or .;", "--root", "--image"]),
    (HEAD + "no.jpg,a\n0,b\n", "--root nowhere", ["'no.jpg'", "not under nowhere;"]),
    (HEAD + "files/0.jpg,na\udcefve\n", "", ["line 2", "not UTF-8", "save it as UTF-8"]),
    (HEAD + ROW + "1.jpg,b,c\n", "", ["line 3", "3 values for 2 columns", "correct the line"]),
    (HEAD + ROW + "files/1.jpg,['b']\n", "", ["\"['b']\" is a list of labels", "label_columns"]),
]


@pytest.mark.parametrize(("content", "words", "facts"), REFUSED)
def test_a_table_that_no_study_can_read_is_refused(
    scans: Desk, content: str, words: str, facts: list[str]
) -> None:
    (scans.folder / TABLE).write_bytes(content.encode(errors="surrogateescape"))
    said = scans.refuse(TABLE, *words.split())
    assert [fact for fact in facts if fact not in said] == [], said
