"""Copies of catalog entries apply to all parts of a study that name the entry, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.study.check_command import read_study
from dpprobe.study.snapshot import check_run
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.sources import write_parquet

STUDY: dict[str, Any] = {
    "datasets": {
        "mine": {"catalog": "cifar10", "subsample": {"per_class": 2}},
        "own": {"catalog": "cifar10", "source": "parquet", "train": "own.parquet"},
        "digits": {"source": "sklearn", "name": "digits"},
    },
    "public_datasets": {"cifar10": {"catalog": "cifar10"}},
    "backbones": {
        "small": {"catalog": "mobilenetv2", "preprocessing": {"size": 64}},
        "kept": {"catalog": "mobilenetv2", "checkpoint": "own.safetensors"},
        "other": {"catalog": "vit_b16"},
    },
    "methods": {"head": {"head": "nonprivate"}},
    "epsilons": ["inf"],
}
WEIGHTS = {
    "checkpoint": "w.safetensors",
    "model": "mobilenetv2_100",
    "preprocessing": {"mean": 0.5},
}


def study(**copies: Any) -> Study:
    return load_study(STUDY | {"copies": copies})


def test_every_part_that_names_an_entry_takes_its_copy() -> None:
    """The result is as if the copy's options were written there; other parts do not change."""
    files = {"source": "parquet", "train": ["a.parquet"], "test": "b.parquet"}
    given = study(datasets={"cifar10": files}, backbones={"mobilenetv2": WEIGHTS})
    written: dict[str, Any] = yaml.safe_load(yaml.safe_dump(STUDY))
    written["datasets"]["mine"] |= files
    written["public_datasets"]["cifar10"] |= files
    written["backbones"]["small"] |= WEIGHTS | {"preprocessing": {"size": 64, "mean": 0.5}}
    wanted = load_study(written)
    for part in ("datasets", "public_datasets", "backbones"):
        assert getattr(given, part) == getattr(wanted, part)
    mine = given.datasets["mine"]
    # the catalog's facts still hold for the copy, and its record contains the copy's files
    assert (mine.expect.train, mine.metric, mine.duplicates) == (50_000, "accuracy", "warn")
    assert mine.preparation_params()["train"] == ["a.parquet"]
    assert "catalog" not in mine.preparation_params()
    # a job reads the run's study again without changes
    values = STUDY | {"copies": given.copies.model_dump()}
    check_run({"study": given.model_dump(mode="json")} | versions(), load_study(values))
    assert load_study(given.model_dump(mode="json")) == given


def versions() -> dict[str, Any]:
    from dpprobe.versions import VERSIONS

    return {"versions": VERSIONS}


def test_a_study_without_copies_does_not_mention_them() -> None:
    assert "copies" not in load_study(STUDY).model_dump(mode="json")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"datasets": {"cifar11": {}}}, "copies.datasets: cifar11: catalog: no dataset 'cifar11'"),
    ({"backbones": {"vit": {}}}, "copies.backbones: vit: catalog: no backbone 'vit'; choose vit_"),
    ({"backbones": {"vit_b16": {"catalog": "vit_l16"}}}, "copies.backbones: vit_b16: catalog: the"),
    ({"weights": {}}, "copies.weights: unknown key"),
    ({"datasets": {"cifar10": "data"}}, "copies.datasets.cifar10: 'data': must be a mapping"),
    ({"datasets": {"cifar10": {"delta": 0.1}}}, "copies.datasets: cifar10: delta: only a study"),
    ({"datasets": {"mnist": {"expect": {}}}}, "copies.datasets: mnist: expect: only a study"),
    ({"datasets": {"cifar10": {"source": "parquet"}}}, "datasets.mine.train: missing"),
    (
        {"backbones": {"mobilenetv2": {"preprocessing": {"size": 128}}}},
        "copies.backbones.mobilenetv2.preprocessing.size: 128, but "
        "backbones.small.preprocessing.size is 64; remove one",
    ),
]


@pytest.mark.parametrize(("copies", "said"), WRONG)
def test_a_wrong_copy_is_one_clear_error(copies: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(**copies)
    assert str(caught.value).startswith(f"config: {said}")


@pytest.mark.parametrize("entry", ["chest_xray_patients", "chexpert", "eyepacs", "mimic_cxr"])
def test_a_copy_keeps_the_patients_of_the_entry(entry: str) -> None:
    """Otherwise a study of patients would silently protect only images."""
    copy = {"source": "parquet", "train": "images.parquet"}
    with pytest.raises(ConfigError, match=f"{entry}: unit_column: missing; .* protects patients"):
        study(datasets={entry: copy})
    dataset = {"a": {"catalog": entry}}
    values = STUDY | {
        "datasets": dataset,
        "copies": {"datasets": {entry: copy | {"unit_column": "p"}}},
    }
    assert load_study(values).dataset_unit("a") == "patient"


CHEXPERT = {"a": {"catalog": "chexpert"}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"unit_column": None}, "unit_column: null, but the catalog's dataset protects each pati"),
        ({"unit_column": "Path"}, "unit_column: Path, but .*; remove this key"),
        ({"extract": {"patient": {"column": "Path", "pattern": "(view)"}}}, "extract.patient: {"),
        ({"extract": {}}, "extract.patient: missing, but .* another pattern; remove `extract`"),
        ({"layout": {"source": "csv"}}, "layout.unit_column: null"),
    ],
)
def test_a_copy_of_the_entry_s_source_names_no_other_patients(
    changed: dict[str, Any], said: str
) -> None:
    """Of 240 images of 80 patients, n would be 240; other options of the copy are accepted."""
    copy = {"root": "x", "split_by": "id", "joins": [], "unit_column": "patient"}
    values = STUDY | {"datasets": CHEXPERT}
    made = load_study(values | {"copies": {"datasets": {"chexpert": copy}}})
    assert made.dataset_unit("a") == "patient"
    with pytest.raises(ConfigError, match=f"^config: copies.datasets: chexpert: {said}"):
        load_study(values | {"copies": {"datasets": {"chexpert": {"root": "x"} | changed}}})


def test_errors_name_the_line_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors are a wrong key and a missing file; study and copies are in separate files."""
    monkeypatch.chdir(tmp_path)
    write_parquet("test.parquet", [0, 1] * 5)
    datasets = {"mine": STUDY["datasets"]["mine"]}
    values = STUDY | {"datasets": datasets, "public_datasets": {}}
    Path("study.yaml").write_text(yaml.safe_dump(values))
    lines = [
        "copies:",
        "  datasets:",
        "    cifar10:",
        "      source: parquet",
        "      train: none.parquet",
        "      test: test.parquet",
        "      colour: grey",
    ]
    Path("copies.yaml").write_text("\n".join(lines))
    files = [Path("study.yaml"), Path("copies.yaml")]
    with pytest.raises(ConfigError, match=r"^copies\.yaml:7: datasets\.mine\.colour: unknown key"):
        read_study(files)
    Path("copies.yaml").write_text("\n".join(lines[:-1]))
    with pytest.raises(ConfigError, match=r"(?m)^copies\.yaml:5: datasets\.mine: train: no file"):
        read_study(files)


def test_a_smaller_copy_is_not_the_public_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy's images and classes are counted, and compared with the catalog's numbers."""
    monkeypatch.chdir(tmp_path)
    write_parquet("train.parquet", [0, 1] * 5)
    write_parquet("test.parquet", [0, 1] * 5, first=50)
    datasets = {"cifar10": {"catalog": "cifar10"}}
    copy = {"cifar10": {"source": "parquet", "train": "train.parquet", "test": "test.parquet"}}
    pixels = {"pixels": {"family": "pixels"}}
    values = STUDY | {"datasets": datasets, "public_datasets": {}, "backbones": pixels}
    Path("study.yaml").write_text(yaml.safe_dump(values | {"copies": {"datasets": copy}}))
    with pytest.raises(ConfigError) as caught:
        read_study([Path("study.yaml")])
    for said in ("train: 50000, but there are 10", "test: 10000", "classes: 10, but there are 2"):
        assert f"datasets.cifar10: expect.{said}" in str(caught.value)
