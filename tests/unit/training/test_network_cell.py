"""A cell of networks has the right files, identity and resources."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dpprobe.heads.registry import method_options
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.training.network_cell import NetworkFiles, network_task, open_network_job
from dpprobe.training.network_job import Limits
from dpprobe.training.public_file_check import PrivateData
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import make_job, plan_job
from tests.unit.training.test_network_job import write_choice

FULL = {"head": "sgd", "batch_size": "full", "steps": 3}


def study_of(**changes: Any) -> Study:
    digits = {"source": "sklearn", "name": "digits"}
    values = {
        "datasets": {"a": digits, "b": digits},
        "backbones": {"vit": {"family": "timm", "model": "test_vit", "pretrained": False}},
        "methods": {"sgd": FULL},
        "epsilons": [1],
        "delta": 1e-4,
        "results_dir": "made",
        "data_dir": "tables",
    }
    return load_study(values | changes)


def test_a_rule_s_input_names_the_files() -> None:
    study = study_of()
    least = SimpleNamespace(train="a", test="b", plans="c", cuts=())
    files = NetworkFiles(
        backbone=study.backbones["vit"],
        train=Path("a"),
        test=Path("b"),
        plans=Path("c"),
        results=Path("made"),
        data=Path("tables"),
        private=("a", "b"),
    )
    assert NetworkFiles.of_rule(study, "vit", least) == files
    more = {"cuts": ["d", "e"], "tables": ["f", "g"], "choice": "h", "overlap": "i"}
    assert NetworkFiles.of_rule(study, "vit", SimpleNamespace(**vars(least) | more)) == replace(
        files,
        cuts=(Path("d"), Path("e")),
        tables=(Path("f"), Path("g")),
        choice=Path("h"),
        overlap=Path("i"),
    )


def test_a_study_gives_a_job_its_resources() -> None:
    tuning: dict[str, Any] = {"processes": 2, "physical_batch": 5, "checkpoint_minutes": 0.5}
    study = study_of(device="cpu", fine_tuning=tuning, features={"memory_mb": 9})
    given = Limits(device="cpu", threads=3, memory_mb=9, **tuning)
    assert Limits.of_study(study, threads=3) == given
    assert Limits.of_study(study_of(), threads=1) == Limits(), "the default study has defaults"


def test_a_study_s_private_data_is_all_its_datasets_on_this_disk() -> None:
    fit: dict[str, Any] = {"dataset": "a", "backbone": "vit", "class_names": ["x", "y"]}
    manifests = [Path("m")]
    assert PrivateData.of_study(study_of(), **fit, manifests=manifests) == PrivateData(
        **fit,
        manifests=manifests,
        datasets=("a", "b"),
        results=Path("made"),
        tables=Path("tables"),
    )


def test_the_cell_of_networks_depends_on_cuts_and_choices(
    tmp_path: Path, calibration: Path
) -> None:
    for number, (split, rows) in enumerate({"train": 60, "test": 9}.items()):
        labels = np.arange(rows) % 3
        write_split(tmp_path / split, separable(labels, 4, seed=number), labels)
    job = make_job(delta=1e-3, methods={"net": method_options(FULL)})
    plans = plan_job(job, 60, tmp_path / "plans.json", calibration)
    given: dict[str, Any] = {
        "train": tmp_path / "train/manifest.json",
        "test": tmp_path / "test/manifest.json",
        "plans": plans,
    }
    backbone: Any = SimpleNamespace(input_files=list)
    files = NetworkFiles(backbone=backbone, results=tmp_path, private=("toy",), **given)
    opened = open_network_job(job, files)
    cuts = (files.train, files.test), (files.test, files.train)
    paths = [tmp_path / f"choice-{k}.json" for k in range(2)]
    for k, path in enumerate(paths):
        write_choice(path, k + 0.5)
    made = [
        network_task(opened, replace(files, cuts=cut, choice=choice), device="cpu")
        for cut, choice in itertools.product((None, *cuts), (None, *paths))
    ]
    assert len({task.fingerprint for task in made}) == 9
    assert {tuple(sorted(task.identity["network"])) for task in made} == {("cut", "version")}
