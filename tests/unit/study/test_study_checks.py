"""A study is checked against the machine before any job: files, sizes, delta."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.folders import folder_faults
from dpprobe.study.study import Study
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_public_files_are_named_for_each_dataset_and_backbone() -> None:
    method = {"head": "sgd", "init": "file", "init_file": "{dataset}/{backbone}.safetensors"}
    options = load_study(changed("methods.sgd", method)).methods["sgd"]
    located = options.fill_paths(dataset="digits", backbone="pixels")
    assert located.input_files() == ("digits/pixels.safetensors",)


def test_delta_above_one_over_n_is_refused_and_one_over_n_warned_of() -> None:
    counted = load_study(STUDY).datasets["digits"].count_rows()
    assert counted is not None
    rows = counted[0]
    assert check_study(load_study(STUDY)) == []
    with pytest.raises(ConfigError, match="above 1/n"):
        check_study(load_study(changed("delta", 1.01 / rows)))
    assert "1/n" in check_study(load_study(changed("delta", 1 / rows)))[0]


OPTION = "allow_delta_above_one_over_n"
ABOVE = [
    "datasets.digits: delta 0.1 is above 1/n = 0.000695 (n = 1438 training rows): this delta "
    "would allow a mechanism that publishes a random row. "
    "No result with this delta may be released."
]


def test_a_delta_above_one_over_n_is_warned_of_once_a_dataset_where_it_is_allowed() -> None:
    assert check_study(load_study(changed("delta", 0.1) | {OPTION: True})) == ABOVE
    whole = {"source": "sklearn", "name": "digits", "delta": 0.1}
    assert check_study(load_study(changed("datasets.digits", whole | {OPTION: True}))) == ABOVE


def test_the_option_says_nothing_of_a_delta_that_is_not_above_one_over_n() -> None:
    assert check_study(load_study(changed(OPTION, True))) == []
    at = changed("delta", 1 / 1438)
    assert check_study(load_study(at | {OPTION: True})) == check_study(load_study(at))


def test_no_option_allows_a_release_a_delta_above_one_over_n() -> None:
    release = {
        "dataset": "digits", "backbone": "pixels", "method": "exact", "epsilon": 1.0,
    }  # fmt: skip
    study = changed("datasets.digits.split_by", "id") | {
        "methods": {"exact": {"head": "sgd", "engine": "exact"}},
        "delta": 0.1, OPTION: True, "releases": {"first": release},
    }  # fmt: skip
    rows = load_study(study).datasets["digits"].count_rows()
    assert rows is not None
    above = f"delta 0.1 is above 1/n = {1 / rows[0]:.3g} (n = {rows[0]} training rows)"
    with pytest.raises(ConfigError) as caught:
        check_study(load_study(study))
    assert str(caught.value) == f"config: releases.first: {above}; write a smaller delta"
    study["releases"] = {"first": release | {"delta": 1e-5}}
    assert len(check_study(load_study(study))) == 1
    study["releases"] = {"first": release | {"delta": 1e-5, "epsilon": 7.5}}
    (unmeasured,) = set(check_study(load_study(study))) - set(
        check_study(load_study(study | {"releases": {}}))
    )
    assert unmeasured.startswith("releases.first: epsilon 7.5 is not in `epsilons`, so no")
    study["releases"] = {"first": release | {"delta": 1e-5}}
    study["privacy"] = {"max_epsilon": 3.0}
    with pytest.raises(
        ConfigError, match=r"max_epsilon of digits uses the dataset's delta: delta 0\.1 is"
    ):
        check_study(load_study(study))
    study["privacy"] = {"max_risk": {"advantage": 0.5}}
    with pytest.raises(
        ConfigError, match=r"max_risk of digits uses the dataset's delta: delta 0\.1 is"
    ):
        check_study(load_study(study))


@pytest.mark.parametrize(
    ("risk", "message"),
    [
        ({}, "write advantage, such as"),
        ({"at": 0.01}, "or true_positives with at"),
        ({"true_positives": 0.01, "at": 0.1}, "guessing reaches"),
        ({"advantage": 2}, "advantage"),
        ({"advantages": 0.1}, "advantages"),
    ],
)
def test_a_limit_on_risk_is_one_that_means_something(risk: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(changed("privacy", {"max_risk": risk}))


@pytest.mark.parametrize(
    ("epsilons", "message"),
    [
        ([{"advantage": 0.1}, 1, {"advantage": 0.10}], "epsilons: advantage 0.1 appears twice"),
        ([{"advantage": 1}], "epsilons: advantage 1.0: write a number between 0 and 1"),
        ([{"true_positives": 0.01, "at": 0.1}], "epsilons: true_positives .* guessing reaches"),
        ([{"advantages": 0.1}], "epsilons: risk: no key 'advantages'"),
        ([{"advantage": 0.001}], "epsilons: advantage 0.001: at delta .* permit a larger risk"),
    ],
)
def test_permitted_risks_of_a_study_mean_something(epsilons: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(changed("epsilons", epsilons))


def test_a_method_that_promises_nothing_cannot_keep_to_a_risk() -> None:
    search = {"space": {"learning_rate": [0.1, 1.0]}, "trials": 2}
    study = changed("methods", {"net": {"head": "fine_tune", "tune": "head", "search": search}})
    assert load_study(study | {"epsilons": [1]}).epsilons == ("1",)
    message = "methods.net: no epsilon covers the options, because a search chose"
    with pytest.raises(ConfigError, match=message):
        load_study(study | {"epsilons": [1, {"advantage": 0.1}]})


def test_permitted_risks_are_cells_like_epsilons() -> None:
    risks = [{"advantage": 0.1}, {"true_positives": 0.01, "at": 0.001}]
    study = load_study(changed("epsilons", [1, *risks, "inf"]))
    assert study.epsilons == ("1", "advantage-0.1", "tpr-0.01-at-0.001", "inf")
    assert {cell.epsilon for cell in study.list_cells()} == set(study.epsilons)


@pytest.mark.parametrize("metric", ["auc", "macro_accuracy"])
def test_a_release_never_takes_the_metric_of_its_dataset(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` writes it by the labels; and a mean over classes would silently be accuracy."""
    monkeypatch.setattr("dpprobe.data.sklearn_datasets.Options.count_classes", lambda _: 2)
    release = {"dataset": "digits", "backbone": "pixels", "method": "exact", "epsilon": 1.0}
    study = changed("datasets.digits", {
        "source": "sklearn", "name": "digits", "split_by": "id", "metric": metric,
    }) | {"methods": {"exact": {"head": "sgd", "engine": "exact"}}}  # fmt: skip
    for evaluate in (None, {"epsilon": 1, "metric": "accuracy"}, {"epsilon": 1, "metric": "auc"}):
        study["releases"] = {"first": release | {"evaluate": evaluate}}
        check_study(load_study(study))
    study["releases"] = {"first": release | {"evaluate": {"epsilon": 1}}}
    with pytest.raises(ConfigError) as caught:
        check_study(load_study(study))
    assert str(caught.value) == (
        f"config: releases.first: evaluate: tables show {metric} of digits, but the release would "
        "measure accuracy; write the `metric` in `evaluate`, where it is published"
    )
    study["datasets"]["digits"]["metric"] = "accuracy"
    check_study(load_study(study))


@pytest.mark.parametrize(
    ("method", "cure"),
    [
        ({"head": "sgd"}, "takes one; write `loss: sigmoid` in the method"),
        ({"head": "feature_covariance"}, "takes one; write `loss: sigmoid` in the method"),
        ({"head": "tuned", "base": {"head": "sgd"}}, "write `loss: sigmoid` in the method's base"),
    ],
)
def test_a_head_of_one_label_is_told_what_lets_it_take_several(
    monkeypatch: pytest.MonkeyPatch, method: dict[str, Any], cure: str
) -> None:
    study = load_study(changed("methods.sgd", method))
    monkeypatch.setattr(type(study.datasets["digits"]), "multi_label", lambda _: True)
    with pytest.raises(ConfigError) as caught:
        check_study(study)
    start = "config: methods.sgd on datasets.digits: the rows have several labels, but head "
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(cure)
    assert len(str(caught.value).splitlines()) == 1
    fixed = {"head": "sgd", "loss": "sigmoid"}
    mended = {**method, "base": fixed} if "base" in method else {**method, "loss": "sigmoid"}
    check_study(load_study(changed("methods.sgd", mended)))


def test_balance_of_classes_is_refused_for_rows_of_several_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = {"head": "sgd", "loss": "sigmoid", "class_weights": [1.0] * 10}
    auto = {"head": "auto", "balanced": True}
    study = load_study(changed("methods", {"sgd": weights, "auto": auto}))
    monkeypatch.setattr(type(study.datasets["digits"]), "multi_label", lambda _: True)
    with pytest.raises(ConfigError) as caught:
        check_study(study)
    assert "sgd on datasets.digits: class_weights need one label per row" in str(caught.value)
    assert "auto on datasets.digits: balanced needs one label per row" in str(caught.value)


def test_planning_a_study_imports_nothing_heavy(repository: Path) -> None:
    code = (
        "import sys, yaml; from dpprobe.study.study_checks import check_study;"
        "from dpprobe.study.cuts import study_cuts;"
        "from dpprobe.study.dimension_checks import check_dimensions;"
        "from dpprobe.study.study_file import load_study;"
        "study = load_study(yaml.safe_load(open('config.yaml')));"
        "check_study(study), check_dimensions(study), study_cuts(study);"
        "print([m for m in ('torch','numpy','pandas','pyarrow','sklearn','timm','mlflow') "
        "if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_text_encoder_that_cannot_run_is_warned_of() -> None:
    siglip = {"family": "open_clip", "model": "ViT-B-16-SigLIP.webli"}
    clip = {"family": "open_clip", "model": "ViT-B-32-quickgelu.openai"}
    study = load_study(STUDY | {"backbones": {"siglip": siglip, "clip": clip}})
    assert [backbone.reads_text for backbone in study.backbones.values()] == [False, True]
    (warning,) = check_study(study)
    assert warning.startswith("backbones.siglip: ViT-B-16-SigLIP needs the package")


def test_sizes_that_can_be_counted_are_held_against_what_is_expected() -> None:
    study = load_study(changed("datasets.digits.expect", {"train": 1, "test": 2, "classes": 3}))
    with pytest.raises(ConfigError) as caught:
        check_study(study)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    rows = study.datasets["digits"].count_rows()
    assert rows is not None
    assert lines[0].startswith(
        f"config: datasets.digits: expect.train: 1, but there are {rows[0]} train rows; complete"
    )
    assert "but there are 10 classes" in lines[2]
    right = {"train": rows[0], "test": rows[1], "classes": 10}
    assert check_study(load_study(changed("datasets.digits.expect", right))) == []


def test_tables_that_are_there_are_held_against_what_is_expected(tmp_path: Path) -> None:
    """Only the tables of a download give its sizes, if they are of the same options."""
    files = [{"url": "http://h/x.zip", "sha256": "0" * 64}]
    layout = {"source": "imagefolder", "path": "x"}
    scans: dict[str, Any] = {"source": "url", "files": files, "layout": layout}
    sizes = {"train": 9_000, "test": 90}

    def load(**values: Any) -> Study:
        return load_study(
            STUDY | {"data_dir": str(tmp_path), "datasets": {"scans": scans | values}}
        )

    path = tmp_path / "scans/dataset.json"
    path.parent.mkdir()
    info = {
        "source": load().datasets["scans"].preparation_params(),
        "splits": {"train": {"rows": 9_000}, "test": {"rows": 80}},
        "class_names": ["a", "b"],
    }
    path.write_text(json.dumps(info))
    with pytest.raises(ConfigError) as caught:
        check_study(load(expect=sizes))
    assert str(caught.value) == (
        "config: datasets.scans: expect.test: 90, but there are 80 test rows; correct `expect`, "
        f"or delete {path} to recreate the tables"
    )
    # Of other options the tables are made again.
    other = load(expect=sizes, layout=layout | {"split_seed": 1})
    assert all("expect" not in line for line in check_study(other))
    path.unlink()
    check_study(load(expect=sizes))


@pytest.mark.parametrize("key", ["datasets", "public_datasets"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_source_in_the_place_of_its_split_table_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, linked: bool
) -> None:
    """Snakemake deletes what it is about to make: the user's only copy."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data/mine"
    folder.mkdir(parents=True)
    images = [{"bytes": b"", "path": None}] * 2
    pq.write_table(pa.table({"image": images, "label": [0, 1]}), folder / "train.parquet")
    source = folder / "train.parquet"
    if linked:
        source = tmp_path / "elsewhere.parquet"
        source.symlink_to(folder / "train.parquet")
    dataset = {
        "source": "parquet", "train": str(source), "test": str(source), "class_names": ["a", "b"],
        "duplicates": "warn",
    }  # fmt: skip
    others = STUDY.get(key, {})
    study = load_study(STUDY | {key: {**others, "mine": dataset}})
    with pytest.raises(
        ConfigError, match=rf"{key}.mine: .*would overwrite this file; move it elsewhere"
    ):
        check_study(study)
    assert (folder / "train.parquet").exists()


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (
            {"results_dir": "same", "data_dir": "same"},
            "results_dir: .*/same: it is the data_dir too",
        ),
        ({"results_dir": "images/out"}, "results_dir: .* looks for images, and would be read"),
        ({"data_dir": "images"}, "data_dir: .*/images: files written there would lie in .*/images"),
        ({"data_dir": "images/a"}, "data_dir: .* dataset scans looks for images"),
        ({"data_dir": "out", "results_dir": "out/scans"}, "where the split tables of scans go"),
        ({"data_dir": "out", "results_dir": "out/downloads"}, "where downloads go"),
        ({"data_dir": "out", "results_dir": "out/results"}, None),
        (
            {"results_dir": "results/cells"},
            "results_dir: .*: cells is a name that the default study writes",
        ),
        ({"results_dir": "results/mine/releases"}, "another, such as results/releases_study"),
        ({"results_dir": "results/mine"}, None),
        ({"results_dir": "elsewhere/cells"}, None),
        ({"data_dir": "out/data", "results_dir": "out"}, None),
    ],
)
def test_folders_that_would_be_written_into_each_other_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, str], message: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/1.png", "b/2.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    scans = {"source": "imagefolder", "path": str(tmp_path / "images")}
    places = {name: str(tmp_path / folder) for name, folder in folders.items()}
    study = load_study(STUDY | {"datasets": {"scans": scans}} | places)
    faults = folder_faults(study)
    if message is None:
        assert not faults
        return
    assert re.search(message, faults[0])
    with pytest.raises(ConfigError, match="config: (results|data)_dir: "):
        check_study(study)


def test_tables_may_lie_beside_the_images_they_are_made_from(tmp_path: Path) -> None:
    scans = {"source": "imagefolder", "path": str(tmp_path / "data/images")}
    study = STUDY | {"datasets": {"scans": scans}, "data_dir": str(tmp_path / "data")}
    assert not folder_faults(load_study(study))
    named = study | {"datasets": {"images": scans}}
    assert "data_dir: " in folder_faults(load_study(named))[0], "data/images is in the way"
