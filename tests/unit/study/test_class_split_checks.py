"""A split that leaves a class without test units is reported before anything is computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dpprobe.data.options import ClassUnits
from dpprobe.data.train_test_split import choose_by_id
from dpprobe.errors import ConfigError
from dpprobe.study.class_split_checks import class_split_faults
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


def named(count: int, *, tested: bool, seed: int = 0, prefix: str = "m") -> list[str]:
    """Returns names of patients that a fifth by id assigns to the test split, or does not."""
    names = [f"{prefix}{n}" for n in range(20 * count + 20)]
    sides = choose_by_id(names, fraction=0.2, seed=seed)
    return [name for name, side in zip(names, sides, strict=True) if side == tested][:count]


def clinic(folder: Path, rare: list[str], **more: Any) -> dict[str, Any]:
    """Returns a dataset with 400 benign patients, and malignant ones, with two images each."""
    patients = [(f"b{n}", "benign") for n in range(400)] + [(name, "malignant") for name in rare]
    lines = ["file,kind,who"]
    lines += [f"{n}-{who}.jpg,{kind},{who}" for who, kind in patients for n in range(2)]
    (folder / "a.csv").write_text("\n".join(lines))
    return {
        "source": "csv",
        "root": str(folder),
        "train": "a.csv",
        "path_column": "file",
        "label_column": "kind",
        "class_names": ["benign", "malignant"],
        "unit_column": "who",
        "split_by": "id",
        "metric": "auc",
        **more,
    }


def check(dataset: dict[str, Any], **more: Any) -> tuple[list[str], list[str]]:
    """Returns the errors of a check about classes; without errors, its warnings."""
    study = load_study(STUDY | {"datasets": {"clinic": dataset}} | more)
    words = re.compile(
        r"(config: )?datasets\.clinic: [\d,]+ (class|classes|label|labels) ha(s|ve) "
    )
    try:
        return [], [line for line in check_study(study) if words.match(line)]
    except ConfigError as error:
        lines = str(error).splitlines()
        assert all(map(words.match, lines)), "nothing else is wrong with it"
        return lines, []


@pytest.mark.parametrize("untested", [2, 3, 5, 16, 20])
@pytest.mark.parametrize("tested", [0, 1, 4])
def test_each_advised_fraction_helps_and_no_other(
    untested: int, tested: int, tmp_path: Path
) -> None:
    rare = named(untested, tested=False) + named(tested, tested=True)
    errors, warnings = check(clinic(tmp_path, rare))
    assert (len(errors), len(warnings)) == ((0, 1) if tested else (1, 0))
    advised = re.findall(r"With test_fraction ([\d., ]+) it", "".join(errors + warnings))
    for fraction in (0.3, 0.4, 0.5):
        later, few = check(clinic(tmp_path, rare, test_fraction=fraction))
        helps = not later and (not tested or not few)
        assert helps == (f"{fraction}" in "".join(advised))
    assert check(clinic(tmp_path, rare + named(5, tested=True)[tested:])) == ([], [])


# Units of classes a to e. Larger values of `test_fraction` give a and b test units.
FIVE = dict.fromkeys("abcde", 9)
AT = {0.3: FIVE | {"a": 4, "b": 0}, 0.4: FIVE | {"a": 5, "b": 1}, 0.5: FIVE | {"a": 8, "b": 5}}
DIGITS = {"source": "sklearn", "name": "digits"}
RELEASE = {"dataset": "clinic", "backbone": "pixels", "method": "exact", "epsilon": 1.0}
LABELS = {"label_columns": ["x", "y"], "label_column": None, "class_names": None}
THREE = {"class_names": ["a", "b", "c"]}
OF_IMAGES = {"unit_column": None, "split_by": "class"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for kind in ("x", "y"):
        (tmp_path / "a" / kind).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "a" / kind / "1.png")
    return tmp_path


def faults_of(
    folder: Path,
    *,
    tested: dict[str, int],
    trained: dict[str, int] | None = None,
    released: str | None = None,
    **options: Any,
) -> tuple[list[str], list[str]]:
    """Returns errors and warnings for five classes, by test and training units after the split.

    Args:
      released: the metric that a release measures; None if another dataset is released.
    """
    dataset = {
        key: value
        for key, value in (clinic(folder, []) | {"metric": "accuracy"} | options).items()
        if value is not None
    }
    other = {"dataset": "other", "evaluate": {"epsilon": 1, "metric": "macro_accuracy"}}
    mine = {"evaluate": {"epsilon": 1, "metric": released}}
    releases = {"v0": RELEASE | other} | ({"v1": RELEASE | mine} if released else {})
    study = load_study(
        STUDY
        | {
            "datasets": {"clinic": dataset, "other": DIGITS},
            "methods": {"exact": {"head": "sgd", "engine": "exact", "loss": "sigmoid"}},
            "releases": releases,
        }
    )
    counts = ClassUnits(train=FIVE | (trained or {}), test=FIVE | tested, test_at=AT)
    return class_split_faults(study, "clinic", counts)


def told(folder: Path, **values: Any) -> list[str]:
    """Returns errors and warnings together."""
    errors, warnings = faults_of(folder, **values)
    return errors + warnings


UNTESTED = {"a": 0}


@pytest.mark.parametrize(
    ("options", "released", "need"),
    [
        # accuracy needs no class, a mean over classes needs all, and the default may be a mean
        ({}, None, None),
        ({"metric": None}, None, "the metric"),
        ({"metric": "macro_accuracy"}, None, "`metric: macro_accuracy`"),
        ({"metric": "auc"}, None, "`metric: auc`"),
        (THREE | {"metric": "macro_accuracy"}, None, "`metric: macro_accuracy`"),
        # with `missing_classes: warn` a mean may leave classes out, but not the AUC of two classes
        (THREE | {"metric": "macro_accuracy", "missing_classes": "warn"}, None, None),
        ({"metric": "auc", "missing_classes": "warn"}, None, "`metric: auc`"),
        # a release's metric is named before the metric of the study
        ({}, "accuracy", None),
        ({}, "auc", "`evaluate` of release v1"),
        ({"metric": "auc"}, "auc", "`evaluate` of release v1"),
        ({"missing_classes": "warn"}, "macro_accuracy", "`evaluate` of release v1"),
        # several labels per image
        (LABELS | {"metric": "auc"}, None, "`metric: auc`"),
        (LABELS | {"metric": "auc", "missing_classes": "warn"}, None, None),
    ],
)
def test_a_class_without_test_units_is_refused_if_a_metric_needs_it(
    made: Path, options: dict[str, Any], released: str | None, need: str | None
) -> None:
    errors, warnings = faults_of(made, tested=UNTESTED, released=released, **options)
    one = "label" if options.get("label_columns") else "class"
    (line,) = errors or warnings
    assert bool(errors) == (need is not None), line
    start = f"1 {one} has no test patient"
    needs = f", which {need} needs" if need else ""
    assert line.startswith(f"{start}{needs}: a (9 train, 0 test). ")


def test_a_class_without_training_units_is_always_refused(made: Path) -> None:
    for options in ({}, {"metric": "auc"}, THREE | {"missing_classes": "warn"}):
        errors, warnings = faults_of(made, trained={"a": 0}, tested={"b": 4, "c": 5}, **options)
        assert errors == [
            "1 class has no training patient: a (0 train, 9 test). Add patients, merge classes, or "
            "leave classes out"
        ]
        # fewer than 5 test units cause a warning, 5 do not
        (few,) = warnings
        assert few.startswith(
            "1 class has fewer than 5 test patients, too few for any conclusion: "
        )
        assert ": b (9 train, 4 test). " in few


FOLDER = {
    "source": "imagefolder",
    "path": "a",
    **dict.fromkeys(("root", "train", "path_column", "label_column", "class_names"), None),
    **OF_IMAGES,
}


@pytest.mark.parametrize(
    ("options", "unit", "ways"),
    [
        (
            {},
            "patient",
            "split it yourself (`split_column` or `test`), or merge it with another (only for "
            "benchmarks, `split_by: class` or another `split_seed`: the choice",
        ),
        (
            OF_IMAGES,
            "image",
            "or merge it with another (only for benchmarks, another `split_seed`: the choice "
            "reveals labels)",
        ),
        (
            FOLDER,
            "image",
            "split it yourself (folders `train` and `test`), or merge it with another (only for "
            "benchmarks, another `split_seed`",
        ),
        (
            THREE,
            "patient",
            "or merge it with another, or write `missing_classes: warn` to leave "
            "it out of the metric (only for benchmarks",
        ),
        (THREE | {"missing_classes": "warn"}, "patient", "or merge it with another (only"),
        (
            LABELS,
            "patient",
            "or write `missing_classes: warn` to leave it out of the metric (only for benchmarks, "
            "another `split_seed`: the choice",
        ),
    ],
)
def test_remedies_are_those_that_the_source_has(
    made: Path, options: dict[str, Any], unit: str, ways: str
) -> None:
    (line,) = told(made, tested=UNTESTED, **options)
    assert f" has no test {unit}" in line
    assert ways in line


@pytest.mark.parametrize(
    ("metric", "need"),
    [
        ("accuracy", "`missing_classes: error`"),  # a user's test file should have all classes
        (None, "the metric"),
        ("auc", "`metric: auc`"),
    ],
)
def test_a_test_file_of_one_s_own_is_completed_not_split_again(
    made: Path, metric: str | None, need: str
) -> None:
    own: dict[str, Any] = {**OF_IMAGES, "test": "b.csv", "metric": metric}
    remedy = "a (9 train, 0 test). Put some into the test split, or merge it with another"
    assert faults_of(made, tested=UNTESTED, **own) == (
        [f"1 class has no test image, which {need} needs: {remedy}"],
        [],
    )
    waived = faults_of(made, tested=UNTESTED, **own, missing_classes="warn")
    if metric == "auc":
        assert waived == faults_of(made, tested=UNTESTED, **own)
    else:
        assert waived == ([], [f"1 class has no test image: {remedy}"])


@pytest.mark.parametrize("released", [None, "accuracy", "auc"])
def test_a_release_never_gets_a_choice_of_split_that_tells_of_labels(
    made: Path, released: str | None
) -> None:
    (line,) = told(made, tested=UNTESTED, released=released)
    assert ("the choice reveals labels" in line) == (released is None)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            ["-1"],
            "200 rows have labels that match no class: '-1' (a.csv line 2); -1 often marks hidden",
        ),
        (
            ["0=benign", "1=malignant"],
            "'1=malignant' (a.csv line 3); write only the part behind `=`",
        ),
        (["true", "false"], "write the name of each label: `class_names: {'true': NAME, 'false'"),
        (["Benign"], "correct the labels, or class_names (write 'benign' in the file"),
        (["v", "w", "x", "y", "z"], "'x' (a.csv line 4) and 2 other texts; correct the labels"),
    ],
)
def test_labels_that_match_no_class_are_reported_before_counts(
    tmp_path: Path, labels: list[str], said: str
) -> None:
    dataset = clinic(tmp_path, [])
    kinds = [labels[number % len(labels)] for number in range(200)]
    lines = [f"{n}.jpg,{kind},p{n}" for n, kind in enumerate(kinds)]
    (tmp_path / "a.csv").write_text("\n".join(["file,kind,who", *lines]))
    with pytest.raises(ConfigError) as told:
        check_study(load_study(STUDY | {"datasets": {"clinic": dataset}}))
    first, second = str(told.value).splitlines()[:2]
    assert said in first
    assert "no training patient" in second
