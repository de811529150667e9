"""Options of tables: which are refused, with which remedy, and the numbers of rows they predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data.promise_facts import promise_facts
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError

CSV: dict[str, Any] = {
    "source": "csv",
    "train": "a.csv",
    "label_column": "kind",
    "class_names": ["cat", "dog"],
}
BOTH = {"label_column": None, "class_names": None, "label_columns": ["a", "b"]}
FOLD = {"split_column": "fold"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes 30 rows: cats and dogs 2 to 1, 11 patients, 4 folds, ages and two labels."""
    monkeypatch.chdir(tmp_path)
    lines = [
        f"{n}.png,{('cat', 'dog')[n % 3 == 0]},p{n % 11},{n % 4},{(3, 40, '')[n % 3]},{n % 2},"
        f"{-1 if n == 5 else 1}"
        for n in range(30)
    ]
    for name, kept in (("a.csv", lines), ("b.csv", lines[:7])):
        Path(name).write_text("\n".join(["path,kind,who,fold,age,a,b", *kept]))
    Path("j.csv").write_text("who,site,age,name\np1,x,3,p\np2,y,40,p2\n")
    return tmp_path


def of(**changed: Any) -> Any:
    return dataset_options(CSV | changed)


def join(by: Any = "who", *columns: str, **more: Any) -> dict[str, Any]:
    return {"joins": [{"file": "j.csv", "by": by, "columns": columns or ("site",)} | more]}


def extract(pattern: str, column: str = "path", name: str = "part") -> dict[str, Any]:
    return {"extract": {name: {"column": column, "pattern": pattern}}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test": "b.csv"} | FOLD, "test, split_column: both choose the test rows; remove one"),
        (FOLD | {"train_values": ["test"]}, "test_values: test: also in train_values; remove it"),
        (
            FOLD | {"train_values": [2, 1, "x"], "test_values": ["x", "1", 7]},
            "test_values: 1, x: also in train_values",
        ),
        ({"label_column": None}, "label_column, label_columns: set exactly one of the two"),
        ({"label_columns": ["a", "b"]}, "label_column, label_columns: set exactly one of the two"),
        ({"class_names": None}, "class_names: missing; with label_column list all classes"),
        ({"class_names": ["a", "a"]}, "class_names: a, a: a name appears twice"),
        ({"class_names": ["cat", "Cat"]}, "'cat' and 'Cat' are spellings of one name"),
        ({"class_names": {0: "a", 1: "a"}}, "class_names: a, a: a name appears twice"),
        ({"class_names": {0: "a", "0 ": "b", 1: "c"}}, "a label is blank or appears twice"),
        ({"class_names": {"": "a", 1: "b"}}, "a label is blank or appears twice"),
        (
            {"class_names": {True: "a", False: "b"}},
            "True: not a label, which is a string.*in quotes",
        ),
        (
            {"class_names": {1.5: "a", 2: "b"}},
            "1.5: not a label, which is a string or a whole number",
        ),
        ({"class_names": {0: "a"}}, "class_names"),
        ({"class_names": ["a"]}, "class_names"),
        ({"class_names": ["['cat', 'dog']", "dog"]}, "is a list of labels, written as a string"),
        (BOTH | {"class_names": {"a": "x", "b": "y"}}, "a mapping works only with label_column"),
        (BOTH | {"class_names": ["x", "y", "z"]}, "not as many names as label_columns"),
        (BOTH | {"label_columns": ["a"]}, "label_columns"),
        (BOTH | {"uncertain": {"c": "ones"}}, "uncertain.c: not one of label_columns"),
        (BOTH | {"uncertain": dict.fromkeys("gdc", "ones")}, "uncertain.c: not one of"),
        (BOTH | {"uncertain": "twos"}, "uncertain"),
        ({"uncertain": "ones"}, "uncertain: works only with label_columns; remove it"),
        ({"missing": "zeros"}, "missing: zeros works only with label_columns; use drop or error"),
        ({"delimiter": ",,"}, "delimiter"),
        (extract("("), r"extract.part.pattern: '\(' is not a regular expression .*; correct it"),
        (extract("c"), "'c' has 0 groups, but needs one"),
        (extract("(a)(b)"), r"'\(a\)\(b\)' has 2 groups, but needs one"),
        (join(()), "joins"),
        (
            {"path_column": "a", "path_template": "{a}"},
            "path_column, path_template: set only one of",
        ),
        ({"test_path_template": "{a}"}, "test_path_template: needs path_template, for the rows"),
        (
            {"path_template": "{a}{b}", "test_path_template": "{a}"},
            "test_path_template: names other columns than path_template; use the same",
        ),
        ({"path_template": "plain.jpg"}, "'plain.jpg' names no column; write at least one"),
        *(
            ({"path_template": text}, "is not a path template .*; correct it")
            for text in ("{}.jpg", "{a!r}.jpg", "{a:{b}}.jpg", "{a:d}.jpg", "{a", "}")
        ),
        ({"unit": "patient"}, "unit: patient needs a unit_column; name the column"),
        ({"max_images_per_patient": 3}, "max_images_per_patient: 3 needs a unit_column"),
        ({"unit_column": "who", "max_images_per_patient": 0}, "max_images_per_patient"),
        ({"unit_column": "who", "unit": "family"}, "unit"),
        ({"group_columns": ["a/b"]}, "'a/b' cannot be the name of a group, because /"),
        ({"group_columns": {"": "age"}}, "'' cannot be the name of a group"),
        ({"group_columns": ["a", "group_a"]}, "two groups would be named 'group_a'"),
        *(
            ({"group_columns": {"a": {"column": "age", "bins": bins}}}, "limits must ascend")
            for bins in ([2, 1], [2, 2], [2, 4, 3])
        ),
    ],
)
def test_options_that_contradict_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"root": "no/such"}, "root: no folder no/such; correct the path"),
        ({"train": "none.csv"}, r"train: no file none.csv under root \(.\); correct the path"),
        ({"test": "none.csv"}, "test: no file none.csv"),
        ({"train": "a.xlsx"}, "train: a.xlsx: not the name of a CSV file.*for a workbook"),
        ({"delimiter": ";"}, 'no column .*separated by ,: write `delimiter: ","`'),
        ({"split_column": "nothing"}, "split_column: a.csv: no column 'nothing'"),
        ({"unit_column": "nobody"}, "unit_column: a.csv: no column 'nobody'; it has path, kind"),
        ({"id_column": "nobody"}, "id_column: a.csv: no column 'nobody'"),
        ({"group_columns": ["Age"]}, "group_columns: .*write 'age', as the file spells it"),
        ({"filters": {"nothing": ["PA"]}}, "filters: a.csv: no column 'nothing'"),
        ({"path_column": "file"}, "path_column: a.csv: no column 'file'"),
        ({"path_template": "{kind.__class__}"}, "path_template: .*no column 'kind.__class__'"),
        (BOTH | {"label_columns": ["a", "c"]}, "label_columns: a.csv: no column 'c'"),
        # the split column must be in the file itself
        (extract("(.)") | {"split_column": "part"}, "split_column: a.csv: no column 'part'"),
        (extract("(a)", "nothing"), "extract.part: a.csv: no column 'nothing'"),
        (extract("(a)", name="kind"), "extract.kind: a.csv already has a column with this name"),
        (join(file="k.csv"), "joins.0.file: no file k.csv"),
        (join("x"), "joins.0.by: a.csv: no column 'x'"),
        (join({"who": "empty"}), "joins.0.by: j.csv: no column 'empty'"),
        (join("who", "x"), "joins.0.columns: j.csv: no column 'x'"),
        (join("who", "age"), "joins.0.columns: 'age' is already a column; remove it from this"),
        ({"joins": join()["joins"] * 2}, "joins.1.columns: 'site' is already a column"),
        (
            {"joins": join({"name": "who"})["joins"] + join("who", "name")["joins"]},
            "joins.0.by: a.csv: no column 'name'",
        ),
    ],
)
def test_files_without_what_options_name_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(**changed).check_files()


def test_added_columns_may_be_named_by_other_options() -> None:
    of(**extract("(.)", "who"), **join({"part": "name"}), unit_column="site").check_files()
    of(
        **extract("(x)"), filters={"part": [1]}, group_columns=["part"], id_column="part"
    ).check_files()


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["cat", "dog"], {"cat": 0, "dog": 1, "0": 0, "1": 1}),
        (["1", "0"], {"1": 0, "0": 1}),
        (["cat", "+1"], {"cat": 0, "+1": 1}),
        (["-3", "elk"], {"-3": 0, "elk": 1}),
        ({10: "dog", 2: "cat", "x": "owl", "-3": "elk"}, {"-3": 0, "2": 1, "10": 2, "x": 3}),
        ({"b": "x", "a": "y"}, {"a": 0, "b": 1}),
        ({1000: "x", 200: "y"}, {"200": 0, "1000": 1}),
    ],
)
def test_labels_have_the_numbers_of_their_classes(names: Any, numbers: dict[str, int]) -> None:
    """Labels of a mapping are sorted: whole numbers by value, then texts."""
    options = of(class_names=names)
    assert options.label_numbers() == numbers
    wanted = (
        names
        if isinstance(names, list)
        else [{str(key): value for key, value in names.items()}[label] for label in numbers]
    )
    assert [*options.class_names_or_labels()] == wanted
    assert options.count_classes() == len(names)


def test_several_labels_name_their_classes() -> None:
    assert of(**BOTH).class_names_or_labels() == ("a", "b")
    assert of(**BOTH | {"class_names": ["x", "y"]}).class_names_or_labels() == ("x", "y")
    assert of(**BOTH).multi_label()
    assert not of().multi_label()


def test_units_are_named_with_what_makes_their_column() -> None:
    """Columns with one name that are made in different ways are different units."""
    assert of().named_people().column is None
    assert of(unit_column="who").named_people().column == "who"
    made = of(**extract("([0-9])"), unit_column="part")
    assert made.named_people().column == "part (([0-9]) in path)"
    both = of(**extract("(.)", "who"), **join({"part": "name", "age": "age"}), unit_column="site")
    assert both.named_people().column == "site (j.csv by part ((.) in who) = name, age = age)"
    assert both.named_people().unit is None


def test_all_tables_are_input_files_once() -> None:
    assert of(test="b.csv", **join()).input_files() == ("a.csv", "b.csv", "j.csv")
    assert of(test="a.csv", root="x").input_files() == ("x/a.csv",)
    assert of(**FOLD).input_files() == ("a.csv",)
    assert of(train="/y/a.csv", root="x").input_files() == ("/y/a.csv",)


def test_images_are_the_same_whatever_labels_and_splits_them(tmp_path: Path) -> None:
    images = of().image_params()
    assert images["train"] == str(tmp_path / "a.csv")
    for changed in (
        {"unit_column": "who", "split_by": "id", "group_columns": ["age"], "test_fraction": 0.5},
        BOTH | {"uncertain": "ones", "missing": "zeros"},
        FOLD,
        join(),
        extract("(x)"),
        {"train": "./a.csv", "embed": True, "delta": 1e-6, "subsample": {"fraction": 0.5}},
    ):
        same = {
            key: value
            for key, value in of(**changed).image_params().items()
            if not key.endswith("_values")
        }
        assert same == {key: images[key] for key in same}, changed
    for changed in (
        {"train": "b.csv"},
        {"filters": {"age": [3]}},
        join() | {"filters": {"site": ["x"]}},
        extract("(x)") | {"path_column": "part"},
        {"path_column": "who"},
        {"root": ".."},
    ):
        assert of(**changed).image_params() != images, changed
    for uses in ({"filters": {"part": ["x"]}}, {"path_column": "part"}):
        one, other = (of(**extract(each), **uses).image_params() for each in ("(x)", "(y)"))
        assert one != other, uses


def test_rows_are_counted_as_a_plain_loop_counts_them() -> None:
    assert of(test="b.csv").count_rows() == (30, 7)
    # 20 cats and 10 dogs; a fifth is in the test split
    assert of().count_rows() == (24, 6)
    assert of(test_fraction=0.4).count_rows() == (18, 12)
    folds = [number % 4 for number in range(30)]
    fold = FOLD | {"train_values": [1], "test_values": [2, 3]}
    assert of(**fold).count_rows() == (folds.count(1), folds.count(2) + folds.count(3))
    # ages: 3 for dogs, 40 and blank for cats
    assert of(test="b.csv", filters={"age": [3, 40]}).count_rows() == (20, 5)
    assert of(test="b.csv", filters={"kind": ["cat"], "age": [40]}).count_rows() == (10, 2)
    # 30 rows of 11 patients, 8 of which have 3
    least = of(test="b.csv", unit_column="who", max_images_per_patient=2)
    assert least.count_units() == 11
    assert sum(least.count_rows()) == 22 + 7
    dropped = of(test="b.csv", **BOTH | {"uncertain": "drop"})
    assert dropped.count_rows() == (29, 6)


def test_units_of_classes_are_counted() -> None:
    options = of(test="b.csv")
    assert options.count_class_units().train == {"cat": 20, "dog": 10}
    assert options.count_class_units().test == {"cat": 4, "dog": 3}
    assert options.class_rows() == {"cat": 20, "dog": 10}
    people = of(test="b.csv", unit_column="who", filters={"who": ["p0", "p3", "p4"]})
    # patients 0, 3 and 4 have the rows 0, 11, 22; 3, 14, 25; and 4, 15, 26: dogs are 0, 3 and 15
    assert people.count_class_units().train == {"cat": 3, "dog": 3}
    assert people.count_class_units().test == {"cat": 1, "dog": 2}
    several = of(test="b.csv", **BOTH | {"uncertain": "ones"}).count_class_units()
    assert several.train == {"a": 15, "b": 30}
    assert of(**BOTH | {"uncertain": "ones"}).class_rows() is None


def test_a_patient_with_m_test_images_weighs_one_in_all() -> None:
    """Shares per class are only returned if they differ from the numbers of patients."""
    lines = ["0.png,cat,p,1", "1.png,dog,p,1", "2.png,dog,p,1", "3.png,dog,q,1", "4.png,elk,r,1"]
    Path("c.csv").write_text("\n".join(["path,kind,who,fold", *lines]))
    three = {"class_names": ["cat", "dog", "elk"], "filters": {"fold": [1]}}
    units = of(test="c.csv", unit_column="who", **three).count_class_units()
    assert units.test == {"cat": 1, "dog": 2, "elk": 1}
    shares = {"cat": 1 / 3, "dog": 2 / 3 + 1, "elk": 1}
    assert np.allclose([units.test_shares[name] for name in shares], [*shares.values()])
    assert of(test="c.csv", **three).count_class_units().test_shares == {}


LEAST = {"unit_column": "who", "max_images_per_patient": 1}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (LEAST, None),
        ({"missing": "drop"}, None),
        (LEAST | {"missing": "drop"}, "after missing: drop,"),
        (LEAST | {"filters": {"age": [3]}}, "after filters,"),
        (LEAST | BOTH | {"uncertain": "drop"}, "after uncertain: drop,"),
        (LEAST | BOTH | {"uncertain": {"b": "drop"}}, "after uncertain: drop,"),
        (LEAST | BOTH | {"uncertain": {"b": "ones"}, "missing": "zeros"}, None),
        (LEAST | {"missing": "drop", "filters": {"age": [3]}}, "after filters and missing: drop,"),
    ],
)
def test_images_let_each_other_in_where_values_choose_the_first(
    changed: dict[str, Any], named: str | None
) -> None:
    fault = of(**changed).public_split().images_fault
    if named is None:
        assert fault is None
    else:
        assert f"max_images_per_patient keeps the first images of a patient {named}" in fault
        assert "write `unit: patient`" in fault


CODES = {"extract": {"kind": {"column": "code", "pattern": "(.)"}}, "unit_column": "who"}
OF_KIND = {"joins": [{"file": "j.csv", "by": "kind", "columns": ["site"]}]}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"missing": "drop"}, "missing: drop"),
        (BOTH | {"uncertain": "drop"}, "uncertain: drop"),
        (BOTH | {"uncertain": {"b": "drop"}, "missing": "drop"}, "missing: drop and uncertain: dr"),
        (BOTH | {"uncertain": {"b": "ones"}, "missing": "zeros"}, None),
        ({"filters": {"kind": ["cat"], "age": [3]}}, "filters.kind"),
        (BOTH | {"filters": {"b": [1], "kind": ["cat"]}}, "filters.b"),
        ({"split_column": "kind", "train_values": ["cat"]}, "split_column: kind"),
        ({"filters": {"age": [3], "who": ["p1"]}} | FOLD, None),
        # a label under another name: made from the label, or the label is made from it
        (extract("(.)", "kind") | {"filters": {"part": ["c"]}}, "filters.part"),
        (CODES | {"filters": {"code": ["c7"]}}, "filters.code"),
        (OF_KIND | {"filters": {"site": ["x"]}}, "filters.site"),
        (join("name", "kind") | {"filters": {"name": ["p"]}}, "filters.name"),
        # a name says who is meant, but no label
        (join("who", "kind", "site") | {"id_column": "who", "filters": {"site": ["x"]}}, None),
        (join("who", "kind") | {"unit_column": "who", "filters": {"who": ["p1"]}}, None),
        (CODES | extract("(.)", "path", "view") | {"filters": {"view": ["x"]}}, None),
    ],
)
def test_n_counts_no_row_by_its_label(changed: dict[str, Any], named: str | None) -> None:
    """Who is in the data is public, and so may be a filter's values; labels are not."""
    options = of(split_by="id", **changed)
    faults = promise_facts(options).list_promise_faults("image")
    assert faults == ([] if named is None else [options.explain_labels_used()])
    if named is not None:
        assert faults[0].startswith(named)
        assert "n would reveal labels; give every row a label, or choose rows by a" in faults[0]


def test_a_lost_label_changes_n_where_rows_without_a_label_are_dropped(folder: Path) -> None:
    """So n alone would tell that the label is blank; a release with these options is refused."""
    rows = [("p", "cat"), ("q", "dog"), ("r", "cat"), ("s", "dog"), ("t", "cat"), ("u", "dog")]
    for changed, differs in (({"missing": "drop"}, 1), ({"filters": {"who": list("pqrstu")}}, 0)):
        counts = []
        for label in ("cat", ""):
            lines = [f"{who}.png,{label if who == 't' else kind},{who}" for who, kind in rows]
            (folder / "c.csv").write_text("\n".join(["path,kind,who", *lines]))
            options = of(train="c.csv", unit_column="who", split_by="id", **changed)
            counts.append(sum(options.count_rows()))
        assert counts[0] - counts[1] == differs
        assert bool(options.explain_labels_used()) == differs


def test_patients_of_both_splits_are_named_up_to_three() -> None:
    """Patient n has three images in a.csv and one in b.csv."""
    for count, more in ((3, ""), (5, ", and 2 more")):
        patients = {"filters": {"who": [f"p{n}" for n in range(count)]}}
        (fault,), _ = of(test="b.csv", unit_column="who", **patients).judge_units()
        told = ", ".join(f"patient 'p{n}' has images in both splits (4 rows)" for n in range(3))
        assert fault.startswith(f"unit_column: who: {told}{more}; a run refuses these rows")


def test_a_split_by_class_is_not_accepted_for_a_release() -> None:
    by_class = of().public_split()
    assert by_class.rule == "class, seed 0, fraction 0.2"
    assert "write `split_by: id`" in by_class.fault
    by_id = of(split_by="id", split_seed=3, test_fraction=0.5, unit_column="who").public_split()
    assert by_id.rule == "id, seed 3, fraction 0.5"
    assert by_id.fault is None
    assert by_id.follows_names
    assert not of(split_by="id").public_split().follows_names
    own = of(test="b.csv", unit_column="who").public_split()
    assert own.rule == "source"
    assert own.fault is None
    assert not own.follows_names
