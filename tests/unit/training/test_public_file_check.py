"""Before a job trains, it compares files that are declared public with the private data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save

from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.files import plain_files
from dpprobe.files.json_files import write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.registry import method_options
from dpprobe.json_values import hash_value
from dpprobe.privacy.private_mark import mark_metadata
from dpprobe.results.cell_record import read_cell
from dpprobe.training.public_file_check import PrivateData
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
    """A study of two private datasets; this job trains heads of the first one."""

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
        """Trains `method` and another method; the other is trained only if the error comes late."""
        error: type[Exception] = PrivacyError if early else DpprobeError
        with pytest.raises(error, match="some: ") as caught:
            self.train(other=SGD | {"steps": 2}, some=method)
        for word in words:
            assert word in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "; name " in str(caught.value)
        assert not self.cell("some").exists()
        assert not self.cell("other").exists()
        assert any(self.folder.glob(".cells/*/metrics.json")) != early


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
        str(path): plain_files.sha256_file(path) for path in (manifest, tmp_path / "start")
    }
    without = json.loads((study.cell("other") / "privacy.json").read_text())
    assert without["public_files"] == {}
    assert "declared_public" not in without


def released_head(study: Study, target: Path) -> Path:
    """Returns a file for `init_file` with the head of one seed, and with the mark of its cell."""
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


def test_a_released_head_is_refused_as_init_file(study: Study, tmp_path: Path) -> None:
    path = released_head(study, tmp_path / "released").rename(tmp_path / "zero_shot.safetensors")
    reason = "heads that sgd trained on private rows of first at epsilon 4"
    study.refuses(started(path), f"init_file {path}: {reason}")
    tuned = {"head": "tuned", "base": started(path), "search": {"learning_rate": [0.1, 1]}}
    study.refuses(tuned, f"base.init_file {path}: {reason}")
    study.refuses(started(study.cell("sgd") / "heads.safetensors"), reason)


# Public files are compared with the cells, features and tables of several private datasets.
#
# A disguised head is recognised if it is scaled, has a term added to all classes, lacks its biases,
# is rounded, or keeps only one class's weights. A file that merely resembles a head is accepted.


GENERATOR = np.random.default_rng(0)
KINDS, COLUMNS = 3, 7  # six features and a bias
HEAD = GENERATOR.normal(size=(KINDS, COLUMNS)).astype(np.float32)
OTHER = GENERATOR.normal(size=(KINDS, COLUMNS)).astype(np.float32)
FITTED = GENERATOR.normal(size=(2, KINDS, COLUMNS)).astype(np.float32)
VECTORS = {name: GENERATOR.normal(size=(30, 6)) for name in ("own", "second")}


def save(path: Path, weights: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weights": np.ascontiguousarray(weights, np.float32)}, path)
    return path


def write_features(folder: Path, rows: np.ndarray, fingerprint: str) -> Path:
    labels = np.arange(len(rows)) % KINDS
    return write_split(folder, rows, labels, split="train", dataset_fingerprint=fingerprint)


def cell_of(root: Path, dataset: str) -> Path:
    return root / f"cells/{dataset}/b/m/eps-4/heads.safetensors"


@pytest.fixture
def private(tmp_path: Path) -> PrivateData:
    """Returns four private datasets: `own` of the fit, `second` with the head, `tabled`, `damaged`.

    `tabled` only has a table. The unreadable files of `damaged` must not hide the others.
    """
    for name, rows in VECTORS.items():
        for backbone in ("b", "other"):
            shifted = rows + (backbone == "other")
            write_features(tmp_path / f"features/{name}/{backbone}/train", shifted, name + backbone)
    damaged = tmp_path / "features/damaged/b/train/manifest.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    cell_of(tmp_path, "damaged").parent.mkdir(parents=True)
    cell_of(tmp_path, "damaged").write_text("damaged")
    save(cell_of(tmp_path, "own"), np.zeros((2, KINDS, COLUMNS)))
    save(cell_of(tmp_path, "second"), np.stack([OTHER, HEAD]))
    table = {
        "format": "dpprobe-dataset",
        "format_version": 1,
        "class_names": ["a"],
        "splits": {},
        "multi_label": False,
        "groups": [],
        "fingerprint": "of a table",
        "source": {},
    }
    write_json(tmp_path / "data/tabled/dataset.json", table)
    return PrivateData(
        dataset="own",
        backbone="b",
        class_names=("a", "b", "c"),
        datasets=("damaged", "own", "second", "tabled"),
        results=tmp_path,
        manifests=[tmp_path / "features/own/b/train/manifest.json"],
        tables=tmp_path / "data",
        heads=list(FITTED),
    )


def start_from(private: PrivateData, path: Path) -> int:
    """Checks a file as initial weights; returns how many files were compared."""
    values = {"head": "sgd", "batch_size": "full", "steps": 1, "init": "file"}
    return len(private.check_public(method_options({**values, "init_file": str(path)})).hashes)


def borrow(private: PrivateData, folder: Path) -> int:
    """Checks a manifest as public features; returns how many files were compared."""
    values = {"head": "feature_covariance", "normalize": "l2"}
    manifest = str(folder / "manifest.json")
    return len(
        private.check_public(method_options({**values, "public_covariance": manifest})).hashes
    )


def change_class(index: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns weights in which only one class has the head's direction, after `change`."""
    weights = OTHER.copy()
    weights[index] = change(HEAD[index])
    return weights


DISGUISES: dict[str, np.ndarray] = {
    "a copy": HEAD,
    "times a factor": 2.5 * HEAD,
    "times a negative factor": -0.1 * HEAD,
    "plus a number": HEAD + 3,
    "plus a vector common to all classes": HEAD + GENERATOR.normal(size=COLUMNS),
    "minus its first class": HEAD - HEAD[:1],
    "times a factor, minus a class": -0.1 * (HEAD - HEAD[1:2]),
    "in half precision": HEAD.astype(np.float16),
    "without biases": HEAD[:, :-1],
    "with other biases": np.column_stack([HEAD[:, :-1], OTHER[:, -1]]),
    "one class of it": change_class(0, lambda row: -2 * row),
    "the last class of it": change_class(2, lambda row: 3 * row),
    "all but its first class": HEAD * np.array([[0], [1], [1]]),
    "of one seed": HEAD[None],
}


@pytest.mark.parametrize("name", DISGUISES)
def test_a_transformed_copy_of_a_trained_head_is_refused_as_init_file(
    private: PrivateData, tmp_path: Path, name: str
) -> None:
    path = save(tmp_path / "start", DISGUISES[name])
    with pytest.raises(PrivacyError) as caught:
        start_from(private, path)
    assert str(caught.value) == (
        f"init_file {path}: the weights of a head in {cell_of(tmp_path, 'second')}; name a file "
        "that derives only from public data"
    )


LOOKALIKES: dict[str, Any] = {
    "another head": GENERATOR.normal(size=(KINDS, COLUMNS)),
    "the head with noise of a hundredth": HEAD + 0.01 * GENERATOR.normal(size=HEAD.shape),
    "zeros": np.zeros((KINDS, COLUMNS)),
    "fewer classes": HEAD[:2],
    "fewer features": HEAD[:, :5],
    "its squares": np.square(HEAD),
    "equal classes": np.ones((KINDS, 1)) * np.arange(1, 8),
    "one vector": HEAD[0],
    "a number": 1.0,
    "several heads": np.stack([HEAD, HEAD]),
    "not finite": HEAD * np.nan,
    "rows in another order": np.random.default_rng(1).permuted(HEAD, axis=1),
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_resembles_a_head_is_public(
    private: PrivateData, tmp_path: Path, name: str
) -> None:
    assert start_from(private, save(tmp_path / "start", LOOKALIKES[name])) == 1


@pytest.mark.parametrize("weights", [2 * FITTED[0], FITTED[1] + 1])
def test_a_head_that_this_process_fitted_is_known(
    private: PrivateData, tmp_path: Path, weights: np.ndarray
) -> None:
    path = save(tmp_path / "start", weights)
    with pytest.raises(PrivacyError, match="a head that this process fitted on private rows"):
        start_from(private, path)
    assert start_from(replace(private, heads=()), path) == 1


@pytest.mark.parametrize(("features", "known"), [(4, True), (3, False)])
def test_one_class_is_known_by_four_weights_or_more(
    private: PrivateData, tmp_path: Path, features: int, known: bool
) -> None:
    """With three weights, classes of two different heads may have the same direction by chance."""
    save(cell_of(tmp_path, "second"), np.stack([OTHER, HEAD])[:, :, : features + 1])
    path = save(tmp_path / "start", change_class(1, lambda row: 2 * row)[:, : features + 1] + 0)
    weights = np.array(GENERATOR.normal(size=(KINDS, features + 1)), np.float32)
    weights[1] = 2 * HEAD[1, : features + 1]
    save(path, weights)
    if known:
        with pytest.raises(PrivacyError, match="the weights of a head in "):
            start_from(private, path)
    else:
        assert start_from(private, path) == 1
    save(path, 2 * HEAD[:, : features + 1])
    with pytest.raises(PrivacyError, match="the weights of a head in "):
        start_from(private, path)


def test_a_bfloat16_copy_of_a_head_is_refused_if_the_study_has_results(
    private: PrivateData, tmp_path: Path
) -> None:
    path, exact = tmp_path / "start", torch.from_numpy(HEAD).bfloat16()
    save(cell_of(tmp_path, "second"), exact.float().numpy()[None])
    torch_save({"weights": exact}, path)
    with pytest.raises(PrivacyError, match="the weights of a head in "):
        start_from(private, path)
    assert start_from(replace(private, results=None), path) == 1


def test_a_head_that_started_from_the_file_may_equal_it(
    private: PrivateData, tmp_path: Path
) -> None:
    """The head's statement must list the file's hash; a statement without the hash is no excuse."""
    path = save(tmp_path / "start", HEAD)
    digest, foreign = sha256_file(path), hash_value("other")
    statement = cell_of(tmp_path, "second").with_name("privacy.json")
    for said in ({"x": digest}, {"x": foreign, "y": digest}):
        write_json(statement, {"public_files": said})
        assert start_from(private, path) == 1
    no_excuse: list[Any] = [{"public_files": {"x": foreign}}, {"public_files": [digest]}, {}]
    for content in (*no_excuse, [digest]):
        write_json(statement, content)
        with pytest.raises(PrivacyError, match="the weights of a head in "):
            start_from(private, path)


@pytest.mark.parametrize("backbone", ["b", "other"])
@pytest.mark.parametrize("dataset", ["own", "second"])
def test_private_features_are_known_by_their_content(
    private: PrivateData, tmp_path: Path, dataset: str, backbone: str
) -> None:
    folder = tmp_path / f"features/{dataset}/{backbone}/train"
    with pytest.raises(PrivacyError, match=f"features of the private dataset {dataset}; name a"):
        borrow(private, folder)


def test_features_of_a_private_table_are_known(private: PrivateData, tmp_path: Path) -> None:
    rows = np.random.default_rng(9).normal(size=(40, 6))
    for fingerprint in ("of a table", "public"):
        write_features(tmp_path / fingerprint, rows + len(fingerprint), fingerprint)
    with pytest.raises(PrivacyError, match="features of the private dataset tabled"):
        borrow(private, tmp_path / "of a table")
    assert borrow(private, tmp_path / "public") == 1
    assert borrow(replace(private, tables=None), tmp_path / "of a table") == 1
    assert borrow(private, tmp_path / "absent") == 0


@pytest.mark.parametrize(
    ("shared", "percent"), [(0, None), (1, None), (3, 10), (10, 33), (30, 100)]
)
@pytest.mark.parametrize("dataset", ["own", "second"])
def test_shared_rows_are_counted_against_the_smaller_store(
    private: PrivateData, tmp_path: Path, dataset: str, shared: int, percent: int | None
) -> None:
    """The study has 30 private rows; a single shared row may occur by chance."""
    fresh = np.random.default_rng(5).normal(size=(50, 6))
    write_features(tmp_path / "mixed", np.concatenate([fresh, VECTORS[dataset][:shared]]), "mixed")
    if percent is None:
        assert borrow(private, tmp_path / "mixed") == 1
        return
    with pytest.raises(PrivacyError) as caught:
        borrow(private, tmp_path / "mixed")
    said = str(caught.value)
    assert f"rows of the private dataset {dataset}: this file ({50 + shared} rows)" in said
    assert f"(30 rows) share about {percent}% of the different rows" in said
