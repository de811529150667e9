"""A study with a joined backbone extracts nothing itself, and is stale when a member changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dpprobe.features.feature_store import FeatureStore
from dpprobe.release.predict import Predictor
from tests.support.refusals import change_values

from .conftest import Workspace

pytestmark = pytest.mark.slow

STUDY: dict[str, Any] = {
    "study": "joined",
    "datasets": {
        "digits": {
            "source": "sklearn",
            "name": "digits",
            "split_by": "id",
            "subsample": {"fraction": 0.3},
            "delta": 1e-4,
        }
    },
    "backbones": {
        "pixels": {"family": "pixels", "size": 8},
        "small": {"family": "pixels", "size": 4},
        "both": {"family": "joined", "of": ["pixels", "small"]},
    },
    "methods": {"squares": {"head": "least_squares", "normalize": "l2"}},
    "epsilons": [8],
    "seeds": 1,
    "features": {"shards": 2},
    "releases": {
        "first": {
            "dataset": "digits",
            "backbone": "both",
            "method": "squares",
            "epsilon": 8,
            "allow_useless": True,
        }
    },
}


def unit(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)


def test_a_joined_backbone_up_to_a_release(workspace: Workspace) -> None:
    workspace.run(STUDY, "heads", "releases")
    results = workspace.directory / "results"
    stores = {
        name: FeatureStore(results / f"features/digits/{name}/test/manifest.json")
        for name in STUDY["backbones"]
    }
    expected = np.hstack([unit(stores[name].read()) for name in ("pixels", "small")])
    np.testing.assert_allclose(stores["both"].read(), expected, atol=1e-6)
    assert not list((results / "features/digits/both").rglob("*.h5"))

    verified = workspace.dpprobe("verify", "results/releases/first")
    assert verified.stdout.startswith("verified: "), verified
    assert " 0 damaged" in workspace.dpprobe("doctor").stdout
    bundle = results / "releases/first"
    card = (bundle / "README.md").read_text()
    assert "`pixels` and `small`" in card
    pictures = workspace.directory / "pictures"
    pictures.mkdir()
    values = load_digits().images[:5] / 16 * 255
    for number, value in enumerate(values):
        Image.fromarray(value.astype(np.uint8)).save(pictures / f"{number}.png")
    predictions = workspace.directory / "predictions.csv"
    workspace.dpprobe("predict", "results/releases/first", "pictures", "--output", str(predictions))
    predictor = Predictor.load_bundle(bundle, device="cpu")
    full = values.astype(np.uint8) / 255
    quarter = [
        np.asarray(Image.open(path).resize((4, 4), Image.Resampling.BICUBIC)) / 255
        for path in sorted(pictures.iterdir())
    ]
    parts = [np.stack(each).reshape(5, -1).astype(np.float16) for each in (full, quarter)]
    wanted = predictor.score_features(np.hstack([unit(each) for each in parts]).astype(np.float32))
    scores = pd.read_csv(predictions, comment="#").filter(like="score_").to_numpy()
    np.testing.assert_allclose(scores, wanted, atol=1e-5)

    assert "Nothing to be done" in workspace.run(STUDY, "heads", "releases").stdout
    member = change_values(STUDY, {"backbones.small.size": 5})
    assert workspace.planned(member, "heads") == Counter(
        extract_features=4, write_manifest=2, join_features=2, train_heads=2, heads=1
    )
    order = change_values(STUDY, {"backbones.both.of": ["small", "pixels"]})
    assert workspace.planned(order, "heads") == Counter(join_features=2, train_heads=1, heads=1)
