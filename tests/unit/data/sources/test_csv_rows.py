"""Rows of CSV manifests agree with other readers; joins and filters agree with plain loops."""

from __future__ import annotations

import csv
import gzip
import io
import re
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import csv_rows
from dpprobe.errors import ConfigError

HEADER = "path,kind,age,note"
CAT, DOG = "a.png,cat,7,x", "b.png,dog,,y"
PLAIN = f"{HEADER}\n{CAT}\n{DOG}\n"
CSV: dict[str, Any] = {
    "source": "csv",
    "train": "a.csv",
    "test": "a.csv",
    "label_column": "kind",
    "class_names": ["cat", "dog"],
    "group_columns": ["age", "note"],
}
SEVERAL = {
    "label_column": None,
    "class_names": None,
    "label_columns": ["kind", "age"],
    "group_columns": ["note"],
}
slowly = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options_of(**changed: Any) -> Any:
    options = dataset_options(CSV | changed)
    options.check_files()
    return options


def read(content: str | bytes = PLAIN, *, file: str = "a.csv", **changed: Any) -> pd.DataFrame:
    """Returns the test rows of a file with this content."""
    data = content if isinstance(content, bytes) else content.encode()
    Path(file).write_bytes(data)
    rows = csv_rows.read_rows(options_of(train=file, test=file, **changed))["test"].frame
    return rows.rename(columns={csv_rows.LINE: "line"})


def batch(content: str = PLAIN, **changed: Any) -> dict[str, list[Any]]:
    """Returns the columns of the test rows' only batch."""
    Path("a.csv").write_text(content)
    options = options_of(**changed)
    parts = csv_rows.read_rows(options)
    made = [part for name, part in csv_rows.make_batches(options, parts) if name == "test"]
    assert len(made) == 1
    columns: dict[str, list[Any]] = made[0].to_pydict()
    return columns


def table(header: str, *lines: str) -> str:
    return "\n".join([header, *lines]) + "\n"


# The content of a text file.


def packed(rows: list[list[str]], delimiter: str) -> bytes:
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return gzip.compress(stream.getvalue().encode(), mtime=0)


@pytest.mark.parametrize(
    ("file", "content", "changed"),
    [
        ("a.csv", PLAIN.replace("\n", "\r\n"), {}),
        ("a.csv", "\ufeff" + PLAIN, {}),
        ("a.csv", PLAIN.rstrip("\n"), {}),
        ("a.csv", PLAIN.replace(",", " , "), {}),
        ("a.csv", PLAIN.replace("cat", '"cat"').replace(",7", ', "7"'), {}),
        ("a.csv", PLAIN.replace(",", ";"), {"delimiter": ";"}),
        ("a.csv", "sep=;\n" + PLAIN.replace(",", ";"), {}),
        ("a.csv", "SEP=,,\r\n" + PLAIN, {}),
        ("a.csv", '"sep=|"|||\n' + PLAIN.replace(",", "|"), {}),
        ("a.csv", "sep=\t\n" + PLAIN.replace(",", "\t"), {}),
        ("a.tsv", PLAIN.replace(",", "\t"), {}),
        ("a.tsv", PLAIN, {"delimiter": ","}),
        ("a.CSV.gz", gzip.compress(PLAIN.encode(), mtime=0), {}),
        ("a.tsv.gz", gzip.compress(PLAIN.replace(",", "\t").encode(), mtime=0), {}),
    ],
)
def test_one_table_in_many_forms(file: str, content: str | bytes, changed: dict[str, Any]) -> None:
    columns = ["path", "kind", "age", "note"]
    rows = read(content, file=file, **changed)
    assert rows[columns].to_numpy().tolist() == [CAT.split(","), DOG.split(",")]
    declared = isinstance(content, str) and content.lower().lstrip('"').startswith("sep=")
    assert rows["line"].tolist() == ([3, 4] if declared else [2, 3])


cells = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff") | st.just("\n"),
    max_size=6,
)


@slowly
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8), st.sampled_from(",;\t|"))
def test_cells_are_those_that_pandas_reads(rows: list[tuple[str, str]], delimiter: str) -> None:
    """Spaces at the ends of cells are removed; each row has the number of its last line."""
    lines = [[f"{n}.png", "cat", age, note] for n, (age, note) in enumerate(rows)]
    data = packed([HEADER.split(","), *lines], delimiter)
    made = read(data, file="a.csv.gz", delimiter=delimiter)
    wanted = pd.read_csv(
        io.BytesIO(data), compression="gzip", sep=delimiter, dtype=str, keep_default_na=False
    )
    for name in ("path", "kind", "age", "note"):
        assert made[name].tolist() == [text.strip() for text in wanted[name]]
    last, numbers = 1, []
    for row in lines:
        last += 1 + sum(cell.count("\n") for cell in row)
        numbers.append(last)
    assert made["line"].tolist() == numbers


def test_a_byte_order_mark_within_a_line_is_a_character() -> None:
    """Within a line, U+FEFF is Unicode's zero-width no-break space; the csv module keeps it too."""
    content = table(HEADER, "a\ufeffb.png,cat,7,x\ufeff")
    rows = read(content)[["path", "kind", "age", "note"]].to_numpy().tolist()
    assert rows == [*csv.reader(io.StringIO(content))][1:]


def test_blank_lines_are_left_out_and_counted() -> None:
    rows = read(table(HEADER, "", CAT, ",,,", "", DOG, "b.png,dog,,"))
    assert rows["line"].tolist() == [3, 6, 7]


def test_a_row_may_begin_as_the_header_does() -> None:
    assert len(read(table(HEADER, CAT, "path,dog,1,y"))) == 2


def test_only_named_columns_are_read() -> None:
    rows = read(group_columns=[])
    assert [*rows.columns] == ["kind", "path", "line"]


GZ = gzip.compress((HEADER + "\n" + f"{CAT}\n" * 50).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "train: a.csv is empty; its first line must name the columns"),
        (HEADER + "\n", "a.csv: no train row below the header; fill the file"),
        ("path,path,kind\n", "two columns are named 'path'; rename one"),
        (table(HEADER, CAT, "b.png"), "a.csv line 3: 1 values for 4 columns; correct the line"),
        (table(HEADER, "a,b,c,d,e"), "a.csv line 2: 5 values for 4 columns"),
        (table(HEADER, '"a.png,cat'), "a.csv line 3: cannot be read"),
        (table(HEADER, CAT, HEADER, DOG), "a.csv line 3: repeats the header.*remove the line"),
        (table(HEADER, CAT, "\ufeff" + DOG), "line 3: a byte order mark, as in .*joined files"),
        (table(HEADER, CAT, "b.png,d\0og,1,"), "line 3: a NUL byte, as in .*damaged files"),
        (PLAIN.encode("utf-16"), "line 1: encoded as UTF-16.*CSV UTF-8"),
        (PLAIN.encode("utf-16-le"), "a.csv line 1: a NUL byte"),
        (b"PK\x03\x04" + bytes(20), "a workbook or an archive, not text.*CSV UTF-8"),
        (f"{HEADER}\n".encode() + b"\xff\xfe.png,cat,1,\n", "line 2: not UTF-8 .byte 0xff at pos"),
        (
            f"{HEADER}\n".encode() + f"{CAT}\n".encode() * 3000 + b"b\xe4.png,cat,1,\n",
            r"a.csv line 3002: not UTF-8 \(byte 0xe4 at position 2\); .*WINDOWS-1252",
        ),
        (PLAIN.replace(",", ";"), "no column 'path'; it has path;kind;age;note.*delimiter: \";\""),
        (PLAIN.replace(",", "\t"), r'no column .*`delimiter: "\\t"`'),
        (PLAIN.replace("path", "Path"), "path_column: a.csv: no column 'path'.*write 'Path'"),
        (PLAIN.replace("kind", "sort"), "label_column: .*no column 'kind'.*name one of them"),
        ("sep=a\n" + PLAIN, "it has sep=a"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_its_line(
    content: str | bytes, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(content)


@pytest.mark.parametrize("data", [GZ[:-9], PLAIN.encode(), GZ[:15] * 9])
def test_a_damaged_gzip_file_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"a\.csv\.gz.*cannot be read .*; replace it"):
        read(data, file="a.csv.gz")


def test_the_first_lines_say_how_many_columns_there_are() -> None:
    names = [f"c{number}" for number in range(150)]
    with pytest.raises(ConfigError, match=r"it has c0, c1.* c99 and 50 more: name one of them"):
        read(table(",".join(names)))


# Labels.


@pytest.mark.parametrize(
    ("names", "codes"),
    [
        (["cat", "dog"], {"cat": 0, "dog": 1, "0": 0, "1": 1, "1.0": 1, "0.0": 0}),
        (["1", "0"], {"1": 0, "0": 1, "1.0": 0, "0.0": 1}),
        (["cat", "2"], {"cat": 0, "2": 1, "2.0": 1}),
        (["-1", "1"], {"-1": 0, "1": 1, "1.0": 1}),
        ({"cat": "c", 10: "t", 2: "z"}, {"2": 0, "10": 1, "cat": 2, "2.0": 0, "10.0": 1}),
    ],
)
def test_a_label_is_a_name_or_its_number(names: Any, codes: dict[str, int]) -> None:
    """If names are numbers, a number is always read as a name; -1 is never a class number."""
    texts = ["cat", "dog", "0", "1", "2", "10", "-1", "1.0", "0.0", "2.0", "10.0", "07", "1e0"]
    texts += ["cat.0", "-1.0"]
    found = batch(
        table(HEADER, *(f"{n}.png,{text},1,x" for n, text in enumerate(texts))), class_names=names
    )
    assert found["label"] == [codes.get(text) for text in texts]
    for text, faults in zip(texts, found["faults"], strict=True):
        assert [kind for kind, _ in faults] == ([] if text in codes else ["label"])
        assert all(f"kind is {text!r}, which is not" in detail for _, detail in faults)


def test_faults_of_labels_name_their_remedy_and_their_line() -> None:
    texts = ["cat", "Cat", "", "cat;dog", "cat|dog", "?"]
    found = batch(table(HEADER, *(f"{n}.png,{text},1,x" for n, text in enumerate(texts))))
    details = ["".join(detail for _, detail in faults) for faults in found["faults"]]
    assert found["label"] == [0, *[None] * 5]
    assert details[0] == ""
    assert "'Cat', which is not in class_names (write 'cat' in the file" in details[1]
    assert details[2] == "kind is blank, and `missing` is error (drop would accept it)"
    # each batch gets one hint
    assert ["label_columns" in each for each in details] == [False] * 3 + [True, False, False]
    assert found["origin"] == [f"a.csv line {number}" for number in range(2, 8)]
    mapped = batch(class_names={"cat": "c", "owl": "o"})
    assert "'dog', which is not a key of class_names" in mapped["faults"][1][0][1]


@pytest.mark.parametrize("uncertain", ["error", "ones", "zeros", "drop", {"age": "ones"}])
@pytest.mark.parametrize("missing", ["error", "zeros", "drop"])
def test_several_labels_follow_their_policies(uncertain: Any, missing: str) -> None:
    """Policies drop rows; all other rows keep their order."""
    blanks, unsure = ["", "nan", "None", "?"], ["-1", "-1.0"]
    texts = ["1", "0", "1.0", "0.0", "1e0", "True", "FALSE", "2", "-2", "dog", *blanks, *unsure]
    known = dict(zip(texts[:7], (1, 0, 1, 0, 1, 1, 0), strict=True))
    pairs = [(first, other) for first in texts for other in ("1", *blanks[:1], *unsure[:1])]

    def meaning(text: str, column: str) -> Any:
        policy = uncertain.get(column, "error") if isinstance(uncertain, dict) else uncertain
        if text in blanks:
            return {"error": None, "zeros": 0}.get(missing, missing)
        if text in unsure:
            return {"error": None, "ones": 1, "zeros": 0}.get(policy, policy)
        return known.get(text)

    wanted = [
        (f"{n}.png", [meaning(first, "kind"), meaning(other, "age")])
        for n, (first, other) in enumerate(pairs)
    ]
    kept = [(name, row) for name, row in wanted if "drop" not in row]
    lines = (f"{n}.png,{first},{other},x" for n, (first, other) in enumerate(pairs))
    found = batch(table(HEADER, *lines), **SEVERAL, uncertain=uncertain, missing=missing)
    assert found["id"] == [name for name, _ in kept]
    assert found["label"] == [None if None in row else row for _, row in kept]
    assert [len(faults) for faults in found["faults"]] == [row.count(None) for _, row in kept]


def test_faults_of_several_labels_name_column_and_policy() -> None:
    found = batch(table(HEADER, "a,1,-1,x", "b,,1,x", "c,yes,0,x", "d,１,0,x"), **SEVERAL)
    assert [detail for faults in found["faults"] for _, detail in faults] == [
        "age is -1, uncertain, and `uncertain` is error (ones, zeros or drop would accept it)",
        "kind is blank, and `missing` is error (zeros or drop would accept it)",
        "kind is 'yes', which is not 1, 0, true, false, -1 or blank",
        "kind is '１', which is not 1, 0, true, false, -1 or blank",
    ]


def test_a_table_of_dropped_labels_has_no_row() -> None:
    content = table(HEADER, "a,,7,x")
    with pytest.raises(ConfigError, match="no train row is left; correct `uncertain`, `missing`"):
        read(content, missing="drop")


# Paths, ids, groups and patients.


def test_paths_and_ids() -> None:
    lines = ["~/a.png,cat,7,x", "/x/c.png,cat,,y", ",cat,1,z"]
    found = batch(table(HEADER, *lines))
    assert found["id"] == ["~/a.png", "/x/c.png", ""]
    assert [each["path"] for each in found["image"]] == ["~/a.png", "/x/c.png", None]
    assert found["faults"][2] == [["missing", "no path: path is blank"]]
    assert batch(table(HEADER, *lines), id_column="note")["id"] == ["x", "y", "z"]
    assert batch(table(HEADER, *lines), path_column="note", root=".")["id"] == ["x", "y", "z"]


def test_a_template_fills_in_what_python_formats() -> None:
    found = batch(path_template="p{kind:.1}/{age:>3}-{path}")
    wanted = "p{:.1}/{:>3}-{}".format("cat", "7", "a.png")
    assert [each["path"] for each in found["image"]] == [wanted, None]
    assert found["faults"][1] == [["missing", "no path: kind or age or path is blank"]]


def test_the_rows_of_test_have_a_path_template_of_their_own() -> None:
    Path("a.csv").write_text(PLAIN)
    Path("b.csv").write_text(PLAIN)
    paths = {"path_template": "one/{path}", "test_path_template": "two/{path}"}
    options = options_of(test="b.csv", **paths)
    parts = csv_rows.read_rows(options)
    made = {
        name: [image["path"] for image in part.to_pydict()["image"]]
        for name, part in csv_rows.make_batches(options, parts)
    }
    assert made == {"train": ["one/a.png", "one/b.png"], "test": ["two/a.png", "two/b.png"]}


def test_groups_are_the_columns_or_their_ranges() -> None:
    lines = [f"{n},cat,{age},x" for n, age in enumerate(["7", "-1", "", "7.5", "4.9", "old", "5"])]
    groups = {"age": {"column": "age", "bins": [0, 5, 7.5]}, "note": "note"}
    found = batch(table(HEADER, *lines), group_columns=groups)
    assert found["group_age"] == ["5 to <7.5", "<0", "", ">=7.5", "0-4", "", "5 to <7.5"]
    assert found["group_note"] == ["x"] * 7
    assert [len(faults) for faults in found["faults"]] == [0, 0, 0, 0, 0, 1, 0]
    assert found["faults"][5] == [["value", "age is 'old', which is not a number"]]


def test_patients_keep_their_first_training_images_alone() -> None:
    """The limit does not apply to a separate test split."""
    Path("a.csv").write_text(
        table(HEADER, *(f"{n},cat,{n % 2},p{who}" for n, who in enumerate("121331")))
    )
    Path("b.csv").write_text(table(HEADER, *(f"t{n},dog,1, q " for n in range(3))))
    options = options_of(test="b.csv", unit_column="note", max_images_per_patient=1)
    parts = csv_rows.read_rows(options)
    assert parts["train"].frame["path"].tolist() == ["0", "1", "3"]
    assert parts["test"].frame["path"].tolist() == ["t0", "t1", "t2"]
    units = [part.to_pydict()["unit"] for _, part in csv_rows.make_batches(options, parts)]
    assert units == [["p1", "p2", "p3"], ["q"] * 3]


def test_a_patient_of_both_splits_is_a_fault_of_each_row() -> None:
    Path("b.csv").write_text(table(HEADER, "c.png,dog,1,x", "d.png,dog,1,z", "e.png,dog,1,"))
    found = batch(test="b.csv", unit_column="note")
    kinds = [[kind for kind, _ in faults] for faults in found["faults"]]
    assert kinds == [["patient"], [], ["patient"]]
    assert "patient 'x' has images in both splits" in found["faults"][0][0][1]
    assert "no patient: note is blank" in found["faults"][2][0][1]


# Which rows are used.


def test_a_column_chooses_the_split(caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"{n}.png,cat,{age},x" for n, age in enumerate("123124")]
    Path("a.csv").write_text(table(HEADER, *lines))
    options = options_of(test=None, split_column="age", train_values=[1, "2"], test_values=[3])
    parts = csv_rows.read_rows(options)
    assert parts["train"].frame["path"].tolist() == ["0.png", "1.png", "3.png", "4.png"]
    assert parts["test"].frame["path"].tolist() == ["2.png"]
    assert "a.csv: 1 row of neither split, such as age '4'; not used" in caplog.text
    Path("a.csv").write_text(table(HEADER, "6.png,cat,,x", *lines))
    csv_rows.read_rows(options)
    assert "a.csv: 2 rows of neither split, such as age ''; not used" in caplog.text
    caplog.clear()
    every = options_of(test=None, split_column="age", train_values=[1, 2, 4, ""], test_values=[3])
    assert len(csv_rows.read_rows(every)["train"].frame) == 6
    assert "neither split" not in caplog.text
    wrong = options_of(test=None, split_column="age", train_values=[1], test_values=[7, 8])
    with pytest.raises(
        ConfigError,
        match="test_values: a.csv: column 'age' has no value 7 or 8; "
        'write a value that the column has: "", 1, 2, 3, 4$',
    ):
        csv_rows.read_rows(wrong)


@slowly
@given(st.lists(st.sampled_from("abcd"), min_size=1), st.sets(st.sampled_from("abcd"), min_size=1))
def test_filters_keep_the_rows_with_their_values(notes: list[str], wanted: set[str]) -> None:
    content = table(HEADER, *(f"{n}.png,cat,1,{note}" for n, note in enumerate(notes)))
    kept = [f"{n}.png" for n, note in enumerate(notes) if note in wanted]
    changed: dict[str, Any] = {"filters": {"note": sorted(wanted), "age": [1]}}
    if kept:
        assert read(content, **changed)["path"].tolist() == kept
    else:
        with pytest.raises(ConfigError, match="filters.note: a.csv: no train row has note"):
            read(content, **changed)


def test_a_filter_s_value_in_another_spelling_is_refused() -> None:
    content = table(HEADER, CAT, "b.png,dog,1,X")
    with pytest.raises(
        ConfigError,
        match=r"filters.note: a.csv line 3: note is 'X', not 'x' as in "
        r"the study; use one spelling in both, or list both: \[x, X\]",
    ):
        read(content, filters={"note": ["x"]})
    assert len(read(content, filters={"note": ["x", "X"]})) == 2


# Columns made of others, and of other files.


def test_an_extracted_column_is_what_the_pattern_finds() -> None:
    pattern = r"([a-z])(?:\.png)"
    made = read(extract={"part": {"column": "path", "pattern": pattern}}, group_columns=["part"])
    found = [re.search(pattern, path) for path in ("a.png", "b.png")]
    assert made["part"].tolist() == [each[1] for each in found if each]
    with pytest.raises(
        ConfigError,
        match=r"extract.part: a.csv line 3: path 'b.png' does not "
        r"match '\(a\)'; correct one of them",
    ):
        read(extract={"part": {"column": "path", "pattern": "(a)"}}, group_columns=["part"])


def test_a_pattern_that_tries_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MATCHING_SECONDS", 0.3)
    earlier = signal.getsignal(signal.SIGALRM)
    content = f"{HEADER}\n{'a' * 60}!,cat,7,x\n{DOG}\n"
    part = {"column": "path", "pattern": r"^((?:\w+)+)$"}
    with pytest.raises(ConfigError, match=r"extract.part: a.csv: .*takes too long; write"):
        read(content, extract={"part": part}, group_columns=["part"])
    assert signal.getsignal(signal.SIGALRM) is earlier


def join(by: Any, *columns: str, **more: Any) -> dict[str, Any]:
    return {"file": "j.csv", "by": by, "columns": columns or ["site"]} | more


keys = st.tuples(st.sampled_from(["1", "2", "3", ""]), st.sampled_from(["x", "y", ""]))


@slowly
@given(st.lists(keys, min_size=1, max_size=6), st.lists(keys, max_size=6), st.booleans())
def test_a_join_looks_up_the_first_row_of_a_key(
    ours: list[tuple[str, str]], theirs: list[tuple[str, str]], both: bool
) -> None:
    """Blank keys match nothing; the rows keep their number and their order."""
    rows = [f"{n}.png,cat,{age},{note}" for n, (age, note) in enumerate(ours)]
    other = [f"{age},{note},s{n}" for n, (age, note) in enumerate(theirs)]
    Path("j.csv").write_text(table("n,m,site", *other, "9,z,last"))
    columns = {"age": "n", "note": "m"} if both else {"age": "n"}
    changed: dict[str, Any] = {"joins": [join(columns, first=True)], "group_columns": ["site"]}
    known: dict[tuple[str, ...], str] = {}
    for number, pair in enumerate(theirs):
        if all(key := pair[: len(columns)]):
            known.setdefault(key, f"s{number}")
    wanted = [known.get(pair[: len(columns)], "") for pair in ours]
    if any(wanted):
        made = read(table(HEADER, *rows), **changed)
        assert made["site"].tolist() == wanted
        assert made["path"].tolist() == [f"{n}.png" for n in range(len(ours))]
    else:
        with pytest.raises(ConfigError, match=r"j.csv: none of its rows matches a row of a.csv"):
            read(table(HEADER, *rows), **changed)


def test_faults_of_joins_name_file_line_and_key() -> None:
    Path("j.csv").write_text(table("age,site", "7,x", "8,z", "7,y"))
    groups: dict[str, Any] = {"group_columns": ["site"]}
    with pytest.raises(
        ConfigError,
        match=r"joins: j.csv line 4: a second row with age '7'; remove "
        r"one, add a key, or write `first: true`",
    ):
        read(joins=[join("age")], **groups)
    assert read(joins=[join("age", first=True)], **groups)["site"].tolist() == ["x", ""]
    with pytest.raises(ConfigError, match=r"a.csv has note 'x', j.csv has age '7'.*correct `by`"):
        read(joins=[join({"note": "age"}, first=True)], **groups)
    Path("j.csv").write_text(table("age,site", ",x"))
    with pytest.raises(ConfigError, match=r"j.csv has no key at all"):
        read(joins=[join("age")], **groups)
    # a join is skipped if no used column comes from it
    assert len(read(joins=[join("age")])) == 2
