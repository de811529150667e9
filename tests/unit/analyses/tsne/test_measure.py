"""t-SNE of stored features, and what it measures about itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from dpprobe.analyses.tsne import measure
from dpprobe.analyses.tsne.measure import find_nearest, measure_agreement
from tests.support.feature_stores import write_split


def write_store(
    folder: Path,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    shards: int = 2,
    class_names: Sequence[str] = tuple("0123456789"),
    **more: Any,
) -> Path:
    """Writes features as shards with a manifest; ids are row-0, row-1, ..."""
    return write_split(
        folder,
        features.astype(np.float32),
        labels,
        split="test",
        shards=shards,
        class_names=tuple(class_names),
        ids=[f"row-{row}" for row in range(len(features))],
        backbone="pixels",
        backbone_options={"family": "pixels"},
        **more,
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 400 real handwritten digits."""
    images = load_digits()
    return write_store(tmp_path_factory.mktemp("store"), images.data[:400], images.target[:400])


def _tsne(manifest: Path, output: Path, *, points: int = 250, components: int = 20) -> None:
    options = {"points": points, "perplexity": 20, "components": components}
    measure.embed_tsne(manifest, output, options=options, seed=1, threads=1)


def test_the_same_seed_and_threads_give_the_same_file(digits: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        _tsne(digits, tmp_path / name, points=80)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_nearest_agrees_with_scikit_learn() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 7)) + 1000.0
    anchors = np.arange(300)[::-1]
    found = find_nearest(rows, anchors, k=5)
    expected = NearestNeighbors(n_neighbors=6).fit(rows).kneighbors(rows[anchors])[1][:, 1:]
    assert measure_agreement(found, expected) > 0.999


def test_a_row_is_not_its_own_neighbour_even_among_copies() -> None:
    rows = np.repeat(np.eye(3), 4, axis=0)
    anchors = np.arange(12)
    found = find_nearest(rows, anchors, k=3)
    assert not np.any(found == anchors[:, None])
    assert np.array_equal(found // 4, np.repeat(np.arange(3), 4)[:, None].repeat(3, axis=1))


@pytest.mark.parametrize(
    "features",
    [
        np.linspace(0, 1, 40)[:, None],
        np.vstack([np.zeros((9, 4)), np.ones((1, 4))]),
        np.float32(1e37) * np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32),
    ],
    ids=["one dimension", "one row apart", "huge"],
)
def test_odd_features_are_embedded(features: np.ndarray) -> None:
    plane, facts = measure.compute_embedding(
        features, perplexity=30, components=50, seed=0, threads=1
    )
    assert plane.shape == (len(features), 2)
    assert np.isfinite(plane).all()
    assert facts["pca_agreement"] > 0.9
    anchors = np.arange(len(features))
    truth = find_nearest(features / np.abs(features).max(), anchors)
    kept = measure_agreement(truth, find_nearest(plane, anchors))
    assert facts["tsne_agreement"] == pytest.approx(kept, abs=0.05)
