"""Classes that a split leaves nothing of to test are found before anything is computed."""

from __future__ import annotations

import re
from itertools import product
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
from tests.support.stored_records import check_values


def named(count: int, *, tested: bool, seed: int = 0, prefix: str = "m") -> list[str]:
    """Names of patients that a fifth by id tests, or does not."""
    names = [f"{prefix}{n}" for n in range(20 * count + 20)]
    sides = choose_by_id(names, fraction=0.2, seed=seed)
    return [name for name, side in zip(names, sides, strict=True) if side == tested][:count]


def clinic(folder: Path, rare: list[str], **more: Any) -> dict[str, Any]:
    """400 benign patients, and malignant ones; two images each."""
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
    """What a check says of classes: errors, or else warnings."""
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


LABELS = {"label_columns": ["x", "y"], "label_column": None, "class_names": None}
SOURCES: dict[str, dict[str, Any]] = {
    "by id": {},
    "by class": {"split_by": "class", "unit_column": None},
    "test file": {"test": "b.csv", "split_by": "class", "unit_column": None},
    "three classes": {"class_names": ["a", "b", "c"]},
    "labels": LABELS,
    "labels by class": LABELS | {"unit_column": None},
    "imagefolder": {
        "source": "imagefolder",
        "path": "a",
        "root": None,
        "train": None,
        "path_column": None,
        "label_column": None,
        "class_names": None,
        "unit_column": None,
        "split_by": "class",
    },
}
FIVE = dict.fromkeys("abcde", 9)
AT = {0.3: FIVE | {"a": 4, "b": 0}, 0.4: FIVE | {"a": 5, "b": 1}, 0.5: FIVE | {"a": 8, "b": 5}}
# training and test units of classes
COUNTS = {
    "one untested": (FIVE, FIVE | {"a": 0}),
    "two untested": (FIVE, FIVE | {"a": 0, "b": 0}),
    "all untested": (FIVE, dict.fromkeys(FIVE, 0)),
    "untrained and few": (FIVE | {"a": 0}, FIVE | {"b": 4, "c": 5}),
    "alone": (FIVE | {"a": 1}, FIVE | {"a": 0, "b": 0}),
    "thousands": (FIVE | {"a": 1234}, FIVE | {"a": 1}),
}
DIGITS = {"source": "sklearn", "name": "digits"}
RELEASE = {"dataset": "clinic", "backbone": "pixels", "method": "exact", "epsilon": 1.0}


def releases_of(metric: str | None) -> dict[str, Any]:
    """A release of another dataset, and one of the clinic, if with a metric."""
    other = {"dataset": "other", "evaluate": {"epsilon": 1, "metric": "macro_accuracy"}}
    mine = {"evaluate": {"epsilon": 1, "metric": metric}}
    return {"v0": RELEASE | other} | ({"v1": RELEASE | mine} if metric else {})


def test_what_each_check_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("x", "y"):
        (tmp_path / "a" / kind).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "a" / kind / "1.png")
    answers: dict[str, Any] = {}
    metrics = ("macro_accuracy", "auc", "accuracy", None)
    for (source, values), metric, waived in product(SOURCES.items(), metrics, (False, True)):
        dataset = clinic(tmp_path, []) | values | {"metric": metric}
        dataset |= {"missing_classes": "warn"} if waived else {}
        dataset = {key: value for key, value in dataset.items() if value is not None}
        for released in (None, "auc", "accuracy") if metric is None else (None,):
            study_of = STUDY | {
                "datasets": {"clinic": dataset, "other": DIGITS},
                "methods": {"exact": {"head": "sgd", "engine": "exact", "loss": "sigmoid"}},
                "releases": releases_of(released),
            }
            key = f"{source}, {metric}, {'waived' if waived else 'strict'}, release {released}"
            try:
                study = load_study(study_of)
            except ConfigError as error:
                answers[key] = str(error).replace(str(tmp_path), "FOLDER")
                continue
            for name, (train, test) in COUNTS.items():
                counts = ClassUnits(train=train, test=test, test_at=AT)
                faults = class_split_faults(study, "clinic", counts)
                answers[f"{key}, {name}"] = faults
    # The first that says something, says who is refused, and why; the others repeat it.
    first: dict[str, list[str]] = {}
    for key, answer in answers.items():
        first.setdefault(repr(answer), []).append(key)
    check_values("class_split_faults", {"; ".join(keys): told for told, keys in first.items()})
