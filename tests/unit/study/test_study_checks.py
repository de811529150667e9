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

OPTION = "allow_delta_above_one_over_n"


def test_a_delta_above_one_over_n_needs_an_option_and_is_warned_of() -> None:
    counted = load_study(STUDY).datasets["digits"].count_rows()
    assert counted is not None
    above, at = changed("delta", 0.1), changed("delta", 1 / counted[0])
    with pytest.raises(ConfigError, match="above 1/n"):
        check_study(load_study(changed("delta", 1.01 / counted[0])))
    (warning,) = check_study(load_study(above | {OPTION: True}))
    assert warning.startswith("datasets.digits: delta 0.1 is above 1/n = 0.000695 (n = 1438 ")
    own = {"source": "sklearn", "name": "digits", "delta": 0.1, OPTION: True}
    assert check_study(load_study(changed("datasets.digits", own))) == [warning]
    (warning,) = check_study(load_study(at))
    assert "1/n" in warning
    assert check_study(load_study(at | {OPTION: True})) == [warning]
    assert check_study(load_study(changed(OPTION, True))) == check_study(load_study(STUDY)) == []


def test_no_option_allows_a_release_a_delta_above_one_over_n() -> None:
    release = {"dataset": "digits", "backbone": "pixels", "method": "exact", "epsilon": 1.0}
    study = changed("datasets.digits.split_by", "id") | {
        "methods": {"exact": {"head": "sgd", "engine": "exact"}}, "delta": 0.1, OPTION: True,
    }  # fmt: skip
    (warning,) = check_study(load_study(study))
    small = release | {"delta": 1e-5}
    assert check_study(load_study(study | {"releases": {"first": small}})) == [warning]
    other = {"releases": {"first": small | {"epsilon": 7.5}}}
    assert "epsilon 7.5" in " ".join(check_study(load_study(study | other)))
    for key, values, limits in (
        ("releases.first: delta 0.1 is above 1/n", release, {}),
        ("max_epsilon of digits .*delta 0.1", small, {"max_epsilon": 3.0}),
        ("max_risk of digits .*delta 0.1", small, {"max_risk": {"advantage": 0.5}}),
    ):
        with pytest.raises(ConfigError, match=key):
            check_study(load_study(study | {"releases": {"first": values}, "privacy": limits}))


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("privacy", {"max_risk": {}}, "write advantage"),
        ("privacy", {"max_risk": {"at": 0.01}}, "true_positives"),
        ("privacy", {"max_risk": {"true_positives": 0.01, "at": 0.1}}, "true_positives"),
        ("privacy", {"max_risk": {"advantage": 2}}, "advantage"),
        ("privacy", {"max_risk": {"advantages": 0.1}}, "advantages"),
        ("epsilons", [{"advantage": 0.1}, 1, {"advantage": 0.10}], "advantage 0.1 .*twice"),
        ("epsilons", [{"advantage": 1}], "advantage 1.0"),
        ("epsilons", [{"true_positives": 0.01, "at": 0.1}], "true_positives"),
        ("epsilons", [{"advantages": 0.1}], "advantages"),
        ("epsilons", [{"advantage": 0.001}], "advantage 0.001: at delta"),
    ],
)
def test_risks_that_mean_nothing_are_refused(path: str, value: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{path}.*{key}"):
        load_study(changed(path, value))


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
    with pytest.raises(ConfigError, match=f"^config: releases.first: evaluate: .*{metric}"):
        check_study(load_study(study))
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
        "from dpprobe.backbones import loading;"
        "from dpprobe.backbones.registry import FAMILIES;"
        "from dpprobe.data import addresses, dataset_preparation;"
        "from dpprobe.data.registry import SOURCES;"
        "from dpprobe.options import options_class;"
        "[options_class(every, name) for every in (SOURCES, FAMILIES) for name in every];"
        "heavy = {'torch','numpy','pandas','pyarrow','sklearn','timm','mlflow','PIL','h5py'};"
        "print(sorted(heavy & set(sys.modules)))"
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
    rows = study.datasets["digits"].count_rows()
    assert rows is not None
    said = re.findall(r"expect\.(\w+): \d, but there are (\d+) ", str(caught.value))
    assert said == [("train", str(rows[0])), ("test", str(rows[1])), ("classes", "10")]
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
    with pytest.raises(ConfigError, match=rf"datasets\.scans: expect\.test: 90.* 80 .*{path}"):
        check_study(load(expect=sizes))
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
    with pytest.raises(ConfigError, match=rf"{key}\.mine: .*overwrite"):
        check_study(study)
    assert (folder / "train.parquet").exists()


@pytest.mark.parametrize(
    ("folders", "key"),
    [
        ({"results_dir": "same", "data_dir": "same"}, "results_dir: .*/same: .*data_dir"),
        ({"results_dir": "images/out"}, "results_dir: .*images"),
        ({"data_dir": "images"}, "data_dir: .*/images: .*images"),
        ({"data_dir": "images/a"}, "data_dir: .*scans .*images"),
        ({"data_dir": "out", "results_dir": "out/scans"}, "results_dir: .*tables of scans"),
        ({"data_dir": "out", "results_dir": "out/downloads"}, "results_dir: .*downloads"),
        ({"results_dir": "results/cells"}, "results_dir: .*: cells"),
        ({"results_dir": "results/mine/releases"}, "results_dir: .*results/releases_study"),
        ({"data_dir": "out", "results_dir": "out/results"}, None),
        ({"results_dir": "results/mine"}, None),
        ({"results_dir": "elsewhere/cells"}, None),
        ({"data_dir": "out/data", "results_dir": "out"}, None),
    ],
)
def test_folders_that_would_be_written_into_each_other_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, str], key: str | None
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
    if key is None:
        assert not faults
        return
    assert re.search(key, faults[0])
    with pytest.raises(ConfigError, match="config: (results|data)_dir: "):
        check_study(study)


def test_tables_may_lie_beside_the_images_they_are_made_from(tmp_path: Path) -> None:
    scans = {"source": "imagefolder", "path": str(tmp_path / "data/images")}
    study = STUDY | {"datasets": {"scans": scans}, "data_dir": str(tmp_path / "data")}
    assert not folder_faults(load_study(study))
    named = study | {"datasets": {"images": scans}}
    assert "data_dir: " in folder_faults(load_study(named))[0], "data/images is in the way"
