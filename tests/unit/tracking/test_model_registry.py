"""Heads in the model registry: the right ones, loadable, with their guarantee."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mlflow import MlflowClient, pyfunc
from safetensors.numpy import load_file

from dpprobe.results.cell_record import CellRecord, read_cell
from dpprobe.study.study import Study as StudyOptions
from dpprobe.tracking.model_registry import LOADER, choose_cells
from dpprobe.tracking.served_model import load_head, write_head
from dpprobe.tracking.writer import Writer
from tests.support.cell_files import DIMENSION, write_cell
from tests.support.tracked_study import Study


def records(study: Study) -> list[tuple[Path, CellRecord]]:
    return [(path, read_cell(path)) for path in study.cells]


def test_true_chooses_the_best_private_cell_of_each_epsilon(study: Study) -> None:
    chosen = choose_cells(records(study), True)
    assert sorted(record.cell.epsilon for _, record in chosen) == ["0.5", "2"]
    for _, record in chosen:
        assert record.private
        means = [
            other.summary["accuracy"].mean
            for _, other in records(study)
            if other.cell.epsilon == record.cell.epsilon
        ]
        assert record.summary["accuracy"].mean == max(means)


def test_patterns_choose_by_name(study: Study) -> None:
    assert choose_cells(records(study), False) == []
    names = [r.cell.backbone for _, r in choose_cells(records(study), ["digits/*/sgd/eps-2"])]
    assert sorted(names) == ["pixels", "scattering"]


def test_a_registered_head_loads_and_scores_as_the_cell_does(study: Study) -> None:
    receipt = study.ingest(register=["digits/pixels/sgd/eps-2"])
    (name,) = receipt["models"]
    assert name == "study.digits.pixels.sgd.eps-2"
    client = MlflowClient(tracking_uri=study.uri)
    version = client.get_model_version_by_alias(name, "current")
    assert version.run_id == receipt["runs"]["study/digits/pixels/sgd/eps-2"]
    description = version.description or ""
    assert "Not for release" in description
    assert "(2, 1e-05)-differentially private" in description
    assert version.tags["release"] == "not for release"
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    folder = Path(run.info.artifact_uri.removeprefix("file://"), "model")
    model = pyfunc.load_model(str(folder))
    assert model.metadata.signature is not None
    features = np.random.default_rng(0).normal(size=(7, DIMENSION)).astype(np.float32)
    probabilities = model.predict(features)
    cell = study.root / "cells/digits/pixels/sgd/eps-2"
    weights = load_file(cell / "heads.safetensors")["weights"][0]
    logits = torch.from_numpy(features @ weights[:, :-1].T + weights[:, -1])
    np.testing.assert_allclose(probabilities, torch.softmax(logits, 1), rtol=1e-4, atol=1e-6)
    with pytest.raises(Exception, match="(?i)shape"):
        model.predict(features[:, :3])


def test_a_head_is_registered_once_and_anew_when_its_cell_changes(study: Study) -> None:
    chosen = ["digits/pixels/sgd/eps-2"]
    first = study.ingest(register=chosen)["models"]
    assert study.ingest(register=chosen)["models"] == first
    write_cell(study.root, epsilon="2", quality=9.0, note="retrained")
    second = study.ingest(register=chosen)["models"]
    (name,) = first
    assert (first[name], second[name]) == ("1", "2")
    run_id = study.runs()["study/digits/pixels/sgd/eps-2"].info.run_id
    client = MlflowClient(tracking_uri=study.uri)
    assert client.get_model_version_by_alias(name, "current").run_id == run_id


def test_a_crash_between_version_and_alias_is_mended(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["digits/pixels/sgd/eps-2"]
    (name,) = study.ingest(register=chosen)["models"]
    write_cell(study.root, epsilon="2", quality=9.0, note="retrained")
    with monkeypatch.context() as patch:
        patch.setattr(
            MlflowClient, "set_registered_model_alias", Mock(side_effect=KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            study.ingest(register=chosen)
    receipt = study.ingest(register=chosen)
    version = MlflowClient(tracking_uri=study.uri).get_model_version_by_alias(name, "current")
    assert str(version.version) == receipt["models"][name] == "2"
    assert version.run_id == receipt["runs"]["study/digits/pixels/sgd/eps-2"]


def test_lost_files_of_a_head_are_written_again(study: Study) -> None:
    chosen = ["digits/pixels/sgd/eps-2"]
    study.ingest(register=chosen)
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    shutil.rmtree(Path(run.info.artifact_uri.removeprefix("file://"), "model"))
    receipt = study.ingest(register=chosen)
    assert receipt["created"] == receipt["replaced"] == 0
    assert "model/MLmodel" in study.artifacts(run)


def test_a_head_that_an_older_dpprobe_registered_loads_again(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["digits/pixels/sgd/eps-2"]
    first = study.ingest(register=chosen)
    (name,) = first["models"]
    run = study.runs()["study/digits/pixels/sgd/eps-2"]
    description = Path(run.info.artifact_uri.removeprefix("file://"), "model/MLmodel")
    today = f"loader_module: {LOADER}\n"
    assert today in description.read_text()
    older = description.read_text().replace(today, "loader_module: dpprobe.serving\n")
    description.write_text(older)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", study.uri)
    with pytest.raises(ModuleNotFoundError, match="dpprobe.serving"):
        pyfunc.load_model(f"models:/{name}@current")
    second = study.ingest(register=chosen)
    assert (second["models"], second["kept"]) == (first["models"], 13)
    features = np.zeros((2, DIMENSION), np.float32)
    assert pyfunc.load_model(f"models:/{name}@current").predict(features).shape == (2, 4)
    written = description.stat().st_mtime_ns
    study.ingest(register=chosen)
    assert description.stat().st_mtime_ns == written, "a model of today's loader stays"


@pytest.mark.parametrize("register", [["digits/scattering/sgd/eps-2"], False])
def test_a_head_whose_run_is_gone_is_not_current(study: Study, register: Any) -> None:
    (name,) = study.ingest(register=["digits/pixels/sgd/eps-2"])["models"]
    client = MlflowClient(tracking_uri=study.uri)
    study.ingest(register=register)
    assert "current" in client.get_registered_model(name).aliases, "its run is still there"
    write_cell(study.root, epsilon="2", quality=9.0, note="retrained")
    study.ingest(register=register)
    assert client.get_registered_model(name).aliases == {}
    others = client.search_registered_models()
    assert len(others) == (2 if register else 1)
    assert all("current" in model.aliases for model in others if model.name != name)


def test_a_head_of_a_dataset_that_left_is_not_current(study: Study) -> None:
    (name,) = study.ingest(register=["digits/pixels/sgd/eps-2"])["models"]
    client = MlflowClient(tracking_uri=study.uri)
    writer = Writer(client, study="study")
    assert writer.retire_datasets(["digits"]) == set()
    assert "current" in client.get_registered_model(name).aliases
    assert writer.retire_datasets(["letters"]) == {"digits"}
    assert client.get_registered_model(name).aliases == {}
    assert {run.data.tags["current"] for run in study.all_runs()} == {"false"}
    assert writer.retire_datasets(["letters"]) == set()
    study.ingest(register=["digits/pixels/sgd/eps-2"])
    assert "current" in client.get_registered_model(name).aliases


def test_a_head_keeps_its_normalisation(tmp_path: Path) -> None:
    from dpprobe.heads.fitted import Heads
    from dpprobe.heads.normalisation import L2
    from dpprobe.heads.rows import Transform
    from dpprobe.heads.scoring import score_rows

    path = write_cell(tmp_path, epsilon="2")
    record = read_cell(path)
    record.options["normalize"] = "l2"
    write_head(tmp_path / "head", path.parent, record, seed_index=1)
    head = load_head(tmp_path / "head")
    features = np.random.default_rng(0).normal(size=(5, DIMENSION)).astype(np.float32)
    weights = load_file(path.parent / "heads.safetensors")["weights"][1:2]
    second_seed = Heads(weights=weights, seeds=(0,), transforms=(Transform(L2()),), steps=0)
    expected = torch.softmax(torch.from_numpy(score_rows(second_seed, features)[0]), 1)
    np.testing.assert_allclose(head.predict(features), expected, rtol=1e-5)


def test_a_pattern_that_names_no_cell_is_a_mistake() -> None:
    values = {
        "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
        "backbones": {"pixels": {"family": "pixels"}},
        "methods": {"sgd": {"head": "sgd"}},
        "epsilons": [1],
    }
    whole = StudyOptions.model_validate(
        {**values, "tracking": {"register_heads": ["digits/*/sgd/eps-1"]}}
    )
    assert whole.tracking.register_heads == ("digits/*/sgd/eps-1",)
    with pytest.raises(
        ValueError, match="'cifar/.*': matches no cell of the study.*digits/pixels/sgd"
    ):
        StudyOptions.model_validate({**values, "tracking": {"register_heads": ["cifar/*"]}})
