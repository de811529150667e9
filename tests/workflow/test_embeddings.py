"""Studies on precomputed vectors, of text and from a table, run until a release."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import h5py
import mlflow
import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from dpprobe.features.feature_store import FeatureStore
from dpprobe.release.predict import Predictor

from .conftest import Workspace

pytestmark = pytest.mark.slow

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
    """Writes vectors of code from the standard library; labels are packages, units are modules."""
    pieces, rows = [], []
    for package in PACKAGES:
        folder_of = Path(str(importlib.import_module(package).__file__)).parent
        # Omits `__main__`, which spells the unit of `main` in another way.
        for module in sorted(folder_of.rglob("[!_]*.py")):
            lines = module.read_text(encoding="utf-8").splitlines()
            for start in range(0, len(lines), LINES):
                text = "\n".join(lines[start : start + LINES])
                if len(text) > 100:
                    pieces.append(text)
                    rows.append((package, str(module.relative_to(folder_of.parent))))
    # Hashing learns nothing: each vector depends only on its own text.
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
    options = statement["public_data"]["backbone_options"]
    assert (options["model"], options["version"]) == ("HashingVectorizer", "1")
    assert "dependent_vectors" in statement["not_covered"]
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


SLIDES: dict[str, Any] = {
    "source": "embeddings",
    "label_column": "kind",
    "class_names": ["a", "b"],
    "unit_column": "who",
    "split_by": "id",
    "id_column": "slide",
    "group_columns": ["sex"],
}
ITEMS: dict[str, Any] = {
    "study": "slides",
    "datasets": {
        "folder": SLIDES
        | {
            "train": "in",
            "table": "slides.csv",
            "pool": "mean",
            "unreadable": "drop",
            "vectors": {"uni": "features"},
        },
        "file": SLIDES | {"train": "slides.h5", "vectors": {"uni": "uni/features"}},
    },
    "backbones": {
        "uni": {"family": "external", "model": "UNI", "vectors": "uni", "each_by_itself": True}
    },
    "methods": METHODS,
    "epsilons": [4],
    "seeds": 1,
    "features": {"shards": 1, "dtype": "float32"},
    "tsne": {"points": 50},
    "fairness": {"resamples": 200},
}
LOST = {f"s{number}" for number in range(5, 120, 11)}


def write_slides(folder: Path) -> None:
    """Writes slides of 1 to 9 patches, two per patient, in a folder and averaged in one file."""
    generator, rows, means = np.random.default_rng(0), [], []
    (folder / "in").mkdir()
    for number in range(120):
        kind = number // 2 % 2
        patches = generator.normal(kind, 1, (1 + number % 9, 16)).astype(np.float32)
        rows.append(
            {
                "slide": f"s{number}",
                "kind": "ab"[kind],
                "who": f"p{number // 2}",
                "sex": "fm"[number % 3 % 2],
            }
        )
        means.append(patches.astype(np.float64).mean(axis=0))
        with h5py.File(folder / f"in/s{number}.h5", "w") as file:
            file["features"], file["coords"] = patches, np.zeros((len(patches), 2), int)
    for name in LOST:
        path = folder / f"in/{name}.h5"
        path.write_bytes(path.read_bytes()[:100])
    with (folder / "slides.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with h5py.File(folder / "slides.h5", "w") as file:
        file["uni/features"] = np.array(means, np.float32)
        for name in rows[0]:
            file[name] = [row[name] for row in rows]


def test_items_from_files_to_a_report(workspace: Workspace) -> None:
    """Per-item files give the same features, cells and groups as one file, except lost items."""
    write_slides(workspace.directory)
    workspace.run(ITEMS, "results/report.html")
    results = workspace.directory / "results"
    stores = {
        (name, split): FeatureStore(results / f"features/{name}/uni/{split}/manifest.json")
        for name in ("folder", "file")
        for split in ("train", "test")
    }
    for split in ("train", "test"):
        folder, whole = stores["folder", split], stores["file", split]
        wanted = whole.read()
        lost = [row for row, name in enumerate(whole.ids) if name in LOST]
        wanted[lost] = np.nan
        assert list(folder.nulls) == lost
        np.testing.assert_array_equal(folder.read(), wanted)
        assert (folder.ids, folder.units) == (whole.ids, whole.units)
    tested = stores["folder", "test"]
    for name in ("folder", "file"):
        cell = results / f"cells/{name}/uni/squares/eps-4"
        statement = json.loads((cell / "privacy.json").read_text())
        assert statement["n"] == len({*(stores[name, "train"].units or ())})
        record = json.loads((cell / "metrics.json").read_text())
        gone = len(tested.nulls) if name == "folder" else 0
        assert record["rows"]["test"] == tested.rows - gone
        ceiling = json.loads(
            (results / f"cells/{name}/uni/ceiling/eps-inf/metrics.json").read_text()
        )
        assert ceiling["summary"]["accuracy"]["mean"] > 0.8, "guessing: 0.5"
    assert 0 < len(tested.nulls) < len(LOST), "in both splits"
    listed = (workspace.directory / "data/folder/problems.csv").read_text()
    assert listed.count("unreadable, so a null example") == len(LOST)
    for page in ("report.html", "tables/accuracy.csv"):
        assert "null example" not in (results / page).read_text()
