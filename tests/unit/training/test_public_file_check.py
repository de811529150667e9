"""A job holds what is declared public against the private data, before it trains."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dpprobe import artifacts
from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.heads.registry import method_options
from dpprobe.privacy.private_mark import mark_metadata
from dpprobe.results.cell_record import read_cell
from tests.support.feature_stores import separable, write_split
from tests.support.training_jobs import make_job, plan_job, run_job

ROWS = {"train": 200, "test": 60}
CLASSES, DIMENSION = 3, 24
SGD = {"head": "sgd", "batch_size": "full", "steps": 3}


def images(seed: int, rows: int) -> np.ndarray:
    return separable(np.arange(rows) % CLASSES, DIMENSION, seed=seed).astype(np.float32)


def store_split(
    folder: Path, features: np.ndarray, *, dataset: str, dtype: str = "float32", split: str
) -> Path:
    """Stores one split's features; returns the manifest."""
    labels = np.arange(len(features)) % CLASSES
    return write_split(
        folder,
        features.astype(dtype),
        labels,
        split=split,
        dtype=dtype,
        dataset_fingerprint=dataset,
    )


@dataclass(frozen=True)
class Study:
    """A study of two private datasets; the first one's heads are trained here."""

    folder: Path
    calibration: Path
    name: str = "lesions"

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def features(self, dataset: str, split: str = "train") -> Path:
        return self.results / f"features/{dataset}/none/{split}"

    def cell(self, method: str) -> Path:
        return self.results / f"cells/first/none/{method}/eps-4"

    def train(self, **methods: dict[str, Any]) -> None:
        job = make_job(
            study=self.name,
            dataset="first",
            methods={name: method_options(values) for name, values in methods.items()},
        )
        plans = plan_job(job, ROWS["train"], self.folder / "plans.json", self.calibration)
        run_job(
            self.results,
            job,
            plans,
            train=self.features("first") / "manifest.json",
            test=self.features("first", "test") / "manifest.json",
            data=self.folder / "data",
            private=("first", "second"),
        )

    def refuses(self, method: dict[str, Any], *words: str, early: bool = True) -> None:
        """Trains `method` beside another, which is trained only where the rows must be read."""
        error: type[Exception] = PrivacyError if early else DpprobeError
        with pytest.raises(error, match="some: ") as caught:
            self.train(other=SGD | {"steps": 2}, some=method)
        for word in words:
            assert word in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "; name " in str(caught.value)
        assert not self.cell("some").exists()
        assert self.cell("other").with_name(".eps-4.staged").exists() != early


def lent(path: Path) -> dict[str, Any]:
    return {"head": "feature_covariance", "normalize": "l2", "public_covariance": str(path)}


def started(path: Path) -> dict[str, Any]:
    return SGD | {"init": "file", "init_file": str(path)}


@pytest.fixture
def study(tmp_path: Path, calibration: Path) -> Study:
    study = Study(tmp_path / "study", calibration)
    for number, (split, rows) in enumerate(ROWS.items()):
        folder = study.features("first", split)
        store_split(folder, images(number, rows), dataset="d1", split=split)
    store_split(study.features("second"), images(5, 150), dataset="d2", split="train")
    return study


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_copy_of_the_private_features_is_known(study: Study, tmp_path: Path, split: str) -> None:
    shutil.copytree(study.features("first", split), tmp_path / "public")
    (tmp_path / "public/manifest.json").rename(tmp_path / "public/imagenet")
    study.refuses(
        lent(tmp_path / "public/imagenet"), "public_covariance", "imagenet", "dataset first"
    )


def test_the_statement_says_who_declared_what_public(study: Study, tmp_path: Path) -> None:
    manifest = store_split(tmp_path / "public", images(6, 300), dataset="imagenet", split="train")
    weights = np.random.default_rng(3).normal(size=(CLASSES, DIMENSION)).astype(np.float32)
    save_file({"weights": weights}, tmp_path / "start")
    both = lent(manifest) | {"init": "file", "init_file": str(tmp_path / "start")}
    study.train(some=both, other=SGD)
    statement = json.loads((study.cell("some") / "privacy.json").read_text())
    assert statement["declared_public"] == {
        "by": "lesions",
        "options": {
            "init_file": str(tmp_path / "start"),
            "public_covariance": str(manifest),
        },
    }
    assert statement["public_files"] == {
        str(path): artifacts.sha256_file(path) for path in (manifest, tmp_path / "start")
    }
    without = json.loads((study.cell("other") / "privacy.json").read_text())
    assert without["public_files"] == {}
    assert "declared_public" not in without


def released_head(study: Study, target: Path) -> Path:
    """The head of one seed, as `init_file` takes it, with the mark of its cell."""
    study.train(sgd=SGD)
    record = read_cell(study.cell("sgd") / "metrics.json")
    tensors = load_file(study.cell("sgd") / "heads.safetensors")
    target.mkdir()
    save_file(
        {name: np.ascontiguousarray(values[0]) for name, values in tensors.items()},
        target / "head.safetensors",
        metadata=mark_metadata(record.cell.model_dump(), record.options),
    )
    return target / "head.safetensors"


def test_a_released_head_is_no_public_start(study: Study, tmp_path: Path) -> None:
    path = released_head(study, tmp_path / "released").rename(tmp_path / "zero_shot.safetensors")
    reason = "heads that sgd trained on private rows of first at epsilon 4"
    study.refuses(started(path), f"init_file {path}: {reason}")
    tuned = {"head": "tuned", "base": started(path), "search": {"learning_rate": [0.1, 1]}}
    study.refuses(tuned, f"base.init_file {path}: {reason}")
    study.refuses(started(study.cell("sgd") / "heads.safetensors"), reason)
