"""Studies on vectors that were computed elsewhere: of text and of a table, up to a release."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from dpprobe.release.predict import Predictor

from .conftest import Workspace

PACKAGES = ("asyncio", "email", "unittest", "xml")
LINES, DIMENSION = 12, 64
METHODS = {
    "squares": {"head": "least_squares", "normalize": "l2"},
    "ceiling": {"head": "nonprivate"},
}
STUDY: dict[str, Any] = {
    "study": "text",
    "datasets": {
        "code": {
            "source": "embeddings",
            "train": "code.npy",
            "table": "code.csv",
            "label_column": "package",
            "class_names": PACKAGES,
            "unit_column": "module",
            "split_by": "id",
            "duplicates": "warn",
            "missing_classes": "warn",
            "delta": 1e-3,
        },
    },
    "backbones": {
        "hashing": {
            "family": "external",
            "model": "HashingVectorizer",
            "version": "1",
            "pretrained": False,
            "each_by_itself": True,
        },
    },
    "methods": METHODS,
    "epsilons": [8],
    "seeds": 2,
    "features": {"shards": 2},
    "tsne": {"points": 100},
    "audit": {"runs": 40, "membership": {"shadows": 8, "rows": 60}},
    "public_datasets": {
        "seen": {
            "source": "embeddings",
            "train": "seen.npy",
            "table": "seen.csv",
            "label_column": "package",
            "class_names": PACKAGES,
            "duplicates": "warn",
        },
    },
    "overlap": {"public": ["seen"], "threshold": 0.99},
    "releases": {
        "first": {
            "dataset": "code",
            "backbone": "hashing",
            "method": "squares",
            "epsilon": 8,
            "allow_useless": True,  # 100 modules of four packages are few
            "evaluate": {"epsilon": 8, "metric": "macro_accuracy"},
        },
    },
}
TARGETS = ("results/report.html", "releases", "audits", "overlaps", "tracking")


def write_code(folder: Path) -> np.ndarray:
    """Pieces of the standard library's modules: the label is the package, the unit the module."""
    pieces, rows = [], []
    for package in PACKAGES:
        folder_of = Path(str(importlib.import_module(package).__file__)).parent
        # Without `__main__`, which spells the unit of `main` in another way.
        for module in sorted(folder_of.rglob("[!_]*.py")):
            lines = module.read_text(encoding="utf-8").splitlines()
            for start in range(0, len(lines), LINES):
                text = "\n".join(lines[start : start + LINES])
                if len(text) > 100:
                    pieces.append(text)
                    rows.append((package, str(module.relative_to(folder_of.parent))))
    # Hashing learns nothing: each vector depends on its own text alone.
    vectors = HashingVectorizer(n_features=DIMENSION).transform(pieces).toarray().astype("float32")
    # A release measures nothing on a vector that is also in the training split.
    kept = np.sort(np.unique(vectors, axis=0, return_index=True)[1])
    vectors, rows = vectors[kept], [rows[place] for place in kept]
    for name, step in (("code", 1), ("seen", 6)):
        np.save(folder / f"{name}.npy", vectors[::step])
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([("package", "module"), *rows[::step]])
    return vectors


def test_text_from_files_to_a_release(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = write_code(workspace.directory)
    workspace.run(STUDY, *TARGETS, "results/overlap/code/hashing.json")
    results = workspace.directory / "results"
    with (results / "tables/accuracy.csv").open(encoding="utf-8", newline="") as stream:
        ceilings = [float(line["hashing + ceiling"] or 0) for line in csv.DictReader(stream)]
    assert max(ceilings) > 45, "guessing: 25"
    statement = json.loads((results / "cells/code/hashing/squares/eps-8/privacy.json").read_text())
    assert "by HashingVectorizer 1. It is declared" in statement["public_data"]["assumption"]
    assert "whitened" in statement["not_covered"][0]
    check = json.loads((results / "overlap/code/hashing.json").read_text())
    assert check["train"]["near"] > 0, "copies of public rows are found"
    assert list((results / "embeddings").rglob("*.parquet")), "t-SNE"
    assert list((results / "audit").rglob("*.json"))

    bundle = results / "releases/first"
    card = (bundle / "README.md").read_text()
    assert "dpprobe predict first vectors.npy --output" in card
    assert "the model `HashingVectorizer`, version `1`, computed" in card
    for page in (card, (bundle / "release.html").read_text()):
        assert " image" not in page.lower().replace("pipeline_tag: image", "")
    verified = workspace.dpprobe("verify", "results/releases/first")
    assert verified.stdout.startswith("verified: "), verified
    predicted = workspace.dpprobe("predict", "results/releases/first", "code.npy")
    assert predicted.returncode == 0, predicted
    assert len(predicted.stdout.splitlines()) == len(vectors) + 1
    exported = workspace.dpprobe("export", "results/releases/first", "--onnx", "head.onnx")
    assert exported.returncode == 0, exported
    session = onnxruntime.InferenceSession(workspace.directory / "head.onnx")
    wanted = Predictor.load_bundle(bundle, device="cpu").predict_vectors(vectors[:100])
    (given,) = session.run(None, {"vectors": vectors[:100]})
    assert np.allclose(given, wanted, atol=1e-4)
    assert " 0 damaged" in workspace.dpprobe("doctor").stdout

    receipt = json.loads((results / "tracking/releases/first.json").read_text())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{results / 'mlflow.db'}")
    ((name, version),) = receipt["models"].items()
    served = mlflow.pyfunc.load_model(f"models:/{name}/{version}")
    table = served.predict(pd.DataFrame({"vector": vectors[:3].astype(float).tolist()}))
    assert np.allclose(table.iloc[:, 1:].to_numpy(), wanted[:3], atol=1e-4)
    assert "Nothing to be done" in workspace.run(STUDY, *TARGETS).stdout
