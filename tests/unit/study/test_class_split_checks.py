"""Classes that a split leaves nothing of to test are found before anything is computed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data.train_test_split import choose_by_id
from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


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
        "source": "csv", "root": str(folder), "train": "a.csv", "path_column": "file",
        "label_column": "kind", "class_names": ["benign", "malignant"], "unit_column": "who",
        "split_by": "id", "metric": "auc", **more,
    }  # fmt: skip


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


def test_twenty_patients_of_whom_none_is_tested(tmp_path: Path) -> None:
    rare = named(20, tested=False)
    errors, _ = check(clinic(tmp_path, rare))
    would = [sum(choose_by_id(rare, fraction=f, seed=0)) for f in (0.3, 0.4, 0.5)]
    (error,) = errors
    for said in (
        "`metric: auc`", "malignant (20 train, 0 test)", "`split_column`", "`split_seed`",
        f"test_fraction 0.3, 0.4, 0.5 it would have {would[0]}, {would[1]}, {would[2]}",
    ):  # fmt: skip
        assert said in error
    assert would[1] >= 5
    assert check(clinic(tmp_path, rare, test_fraction=0.4)) == ([], [])


def test_a_release_is_told_no_seed(tmp_path: Path) -> None:
    dataset = clinic(tmp_path, named(20, tested=False), metric="accuracy")
    release = {"dataset": "clinic", "backbone": "pixels", "method": "exact", "epsilon": 1.0}
    study: dict[str, Any] = {"methods": {"exact": {"head": "sgd", "engine": "exact"}}}
    assert check(dataset, **study)[0] == [], "a warning: accuracy needs no class"
    for metric in ("auc", "macro_accuracy"):
        evaluate = {"epsilon": 1, "metric": metric}
        (error,) = check(dataset, **study, releases={"v1": release | {"evaluate": evaluate}})[0]
        assert "which `evaluate` of release v1 needs: malignant (20 train, 0 test)" in error
        assert "seed" not in error
        assert "split_by" not in error
    accuracy = {"evaluate": {"epsilon": 1, "metric": "accuracy"}}
    errors, (warning,) = check(dataset, **study, releases={"v1": release | accuracy})
    assert not errors
    assert "1 class has no test patient: malignant" in warning
    assert "seed" not in warning


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


@pytest.mark.parametrize("metric", ["macro_accuracy", "auc", "accuracy", None])
@pytest.mark.parametrize("waived", [False, True])
def test_what_needs_the_class(metric: str | None, waived: bool, tmp_path: Path) -> None:
    """Two classes are what every metric but accuracy needs; more, only what is a mean over them."""
    more = {"missing_classes": "warn"} if waived else {}
    two = clinic(tmp_path, named(20, tested=False), metric=metric, **more)
    assert bool(check(two)[0]) == (metric == "auc" or (metric != "accuracy" and not waived))
    if metric == "auc":
        return  # of three classes there is none
    three = two | {"class_names": ["benign", "malignant", "odd"]}
    with (tmp_path / "a.csv").open("a") as stream:
        stream.writelines(f"\n{who}.jpg,odd,{who}" for who in named(40, tested=True, prefix="o"))
        stream.writelines(f"\n{who}.jpg,odd,{who}" for who in named(40, tested=False, prefix="o"))
    errors, warnings = check(three)
    assert bool(errors) == (metric == "macro_accuracy" and not waived)
    assert len(errors) + len(warnings) == 1
    assert ("`missing_classes: warn`" in "".join(errors)) == bool(errors)


def test_labels_without_a_test_patient(tmp_path: Path) -> None:
    rare, rows = {*named(20, tested=False)}, [f"b{n}" for n in range(300)]
    lines = [f"{who}.jpg,{who},{int(who in rare)},{n % 2}" for n, who in enumerate([*rows, *rare])]
    (tmp_path / "a.csv").write_text("\n".join(["path,who,scar,tall", *lines]))
    dataset = {
        "source": "csv", "root": str(tmp_path), "train": "a.csv", "unit_column": "who",
        "label_columns": ["scar", "tall"], "split_by": "id",
    }  # fmt: skip
    methods = {"methods": {"sgd": {"head": "sgd", "loss": "sigmoid"}}}
    (error,), _ = check(dataset, **methods)
    assert "1 label has no test patient, which the metric needs: scar (20 train, 0 test)" in error
    assert "write `missing_classes: warn` to leave it out of the metric" in error
    assert "`split_by: class`" not in error, "labels are not what it splits by"
    errors, (warning,) = check(dataset | {"missing_classes": "warn"}, **methods)
    assert not errors
    assert "1 label has no test patient: scar" in warning
