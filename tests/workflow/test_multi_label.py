"""Rows with several labels, and two classes with AUC, run through the whole workflow."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from PIL import Image
from sklearn.datasets import load_digits

from dpprobe.files.json_files import read_json

from .conftest import Workspace

pytestmark = pytest.mark.slow

LABELS = ("even", "five_or_more", "has_a_hole")
HOLES = (0, 6, 8, 9)
TRAIN_ROWS = 1400


def write_digits(folder: Path) -> None:
    """Writes digits with the labels above, and with only the last label as a class, in two splits.

    Groups are the boldness of a digit, and its side with more ink (three test rows: unknown).
    """
    images, digits = load_digits(return_X_y=True)
    labels = np.stack([digits % 2 == 0, digits >= 5, np.isin(digits, HOLES)], axis=1)
    column = [{"bytes": _png(image.reshape(8, 8)), "path": None} for image in images]
    left, ink = images.reshape(-1, 8, 8)[:, :, :4].sum((1, 2)), images.sum(1)
    groups = {
        "ink": np.where(ink < 310, "thin", "bold").tolist(),
        "side": np.select(
            [left < 0.45 * ink, left < 0.55 * ink], ["right", "middle"], "left"
        ).tolist(),
    }
    groups["side"][-3:] = ["unknown"] * 3
    kinds = {
        "labels": pa.array(labels.astype(np.int8).tolist(), pa.list_(pa.int8())),
        "hole": pa.array(labels[:, 2].astype(np.int64)),
    }
    folder.mkdir()
    for name, values in kinds.items():
        table = pa.table({"image": column, "label": values, **groups})
        pq.write_table(table.slice(0, TRAIN_ROWS), folder / f"{name}_train.parquet")
        pq.write_table(table.slice(TRAIN_ROWS), folder / f"{name}_test.parquet")


def _png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray((image * 15).astype(np.uint8)).save(stream, format="PNG")
    return stream.getvalue()


def _dataset(name: str, classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "source": "parquet",
        "train": f"raw/{name}_train.parquet",
        "test": f"raw/{name}_test.parquet",
        "class_names": list(classes),
    }


STUDY: dict[str, Any] = {
    "study": "attributes",
    "datasets": {
        "attributes": _dataset("labels", LABELS),
        "hole": _dataset("hole", ("no", "yes")) | {"metric": "auc"},
    },
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"sgd": {"head": "sgd", "loss": "sigmoid", "batch_size": 64, "epochs": 5}},
    "epsilons": [8, "inf"],
    "seeds": 2,
    "tsne": {"points": 100},
}


@pytest.fixture(scope="module")
def workspace(module_workspace: Callable[[str], Workspace]) -> Workspace:
    space = module_workspace("multi_label")
    write_digits(space.directory / "raw")
    space.run(STUDY)
    return space


def _cell(workspace: Workspace, dataset: str, epsilon: str) -> Path:
    return workspace.directory / "results/cells" / dataset / "pixels/sgd" / f"eps-{epsilon}"


def _record(workspace: Workspace, dataset: str, epsilon: str) -> dict[str, Any]:
    return read_json(_cell(workspace, dataset, epsilon) / "metrics.json")


def _runs(workspace: Workspace, experiment: str) -> dict[str, Any]:
    client = MlflowClient(f"sqlite:///{workspace.directory}/results/mlflow.db")
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id])
    return {run.data.tags["result_key"]: run for run in runs}


def test_a_changed_metric_retrains_no_head(workspace: Workspace) -> None:
    assert "Nothing to be done" in workspace.run(STUDY).stdout
    cell = _cell(workspace, "hole", "8")
    weights, auc = (cell / "heads.safetensors").read_bytes(), _record(workspace, "hole", "8")
    datasets = {**STUDY["datasets"], "hole": STUDY["datasets"]["hole"] | {"metric": "accuracy"}}
    workspace.run(STUDY | {"datasets": datasets})
    changed = _record(workspace, "hole", "8")
    assert (cell / "heads.safetensors").read_bytes() == weights
    assert changed["headline"] == "accuracy"
    for before, after in zip(auc["seeds"], changed["seeds"], strict=True):
        assert after.pop("halves") != before.pop("halves"), "of the headline metric"
        assert after == before
    assert changed["seconds"] == auc["seconds"]
    run = _runs(workspace, "hole/summary")["attributes/hole/pixels/sgd"]
    assert "accuracy/eps_8" in run.data.metrics
    assert "auc/eps_8" not in run.data.metrics
