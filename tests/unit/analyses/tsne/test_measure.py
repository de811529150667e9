"""t-SNE of stored features, and the measurements of its own quality."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from dpprobe.analyses.tsne import measure
from dpprobe.analyses.tsne.measure import find_nearest, measure_agreement
from tests.support.clouds import clouds
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
    """Writes a store of 400 real handwritten digits."""
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


# The file of an embedding

CLOUD: dict[str, Any] = {"class_names": tuple("abcd")}


def _embed(folder: Path, manifest: Path, *, points: int = 60, **options: Any) -> tuple[Any, Any]:
    output = folder / "tsne.parquet"
    given = {"points": points, "perplexity": 9.0, "components": 3} | options
    measure.embed_tsne(manifest, output, options=given, seed=3, threads=1)
    table, facts = measure.read_embedding(output)
    return table, facts


def test_a_table_has_every_row_its_label_and_what_was_kept(tmp_path: Path) -> None:
    features, labels = clouds(40, 12, 4)
    manifest = write_store(tmp_path / "s", features, labels, **CLOUD)
    table, facts = _embed(tmp_path, manifest)
    assert [*map(str, table.schema.types)] == ["string", "int64", "float", "float"]
    assert table["id"].to_pylist() == [f"row-{row}" for row in range(40)]
    assert table["label"].to_pylist() == labels.tolist()
    assert (facts["rows"], facts["points"], facts["note"], facts["legend"]) == (
        40,
        40,
        None,
        "class",
    )
    assert facts["class_names"] == list("abcd")
    assert (facts["perplexity"], facts["neighbours"], facts["method"]) == (9.0, 15, "t-SNE")
    assert (facts["seed"], facts["threads"], facts["private"]) == (3, 1, False)
    rows = features.astype(np.float32)
    truth = NearestNeighbors(n_neighbors=16).fit(rows).kneighbors(rows)[1][:, 1:]
    plane = np.column_stack([table["x"], table["y"]])
    assert facts["tsne_agreement"] == pytest.approx(_kept(truth, plane), abs=0.01)
    reduced = PCA(facts["components"], random_state=3).fit_transform(rows)
    assert facts["pca_agreement"] == pytest.approx(_kept(truth, reduced), abs=0.01)
    # of 12 normal features, 3 or 6 components keep less than 90% of neighbours, but 12 keep all
    assert facts["components"] == 12


def _kept(truth: np.ndarray, rows: np.ndarray) -> float:
    found = NearestNeighbors(n_neighbors=16).fit(rows).kneighbors(rows)[1][:, 1:]
    return float(np.mean([np.isin(one, two).mean() for one, two in zip(truth, found, strict=True)]))


def test_few_or_equal_rows_leave_a_table_without_points_and_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features, labels = clouds(30, 12, 4)
    few = write_store(tmp_path / "few", features[:9], labels[:9], **CLOUD)
    equal = write_store(tmp_path / "equal", 0 * features, labels, **CLOUD)
    for manifest, rows, note in (
        (few, 9, "no points: 9 rows, t-SNE needs at least 10"),
        (equal, 30, "no points: the features of all 30 rows are equal"),
    ):
        table, facts = _embed(tmp_path, manifest)
        assert (table.num_rows, facts["points"], facts["rows"]) == (0, 0, rows)
        assert facts["note"] == note
        assert f"t-SNE: {note}" in caplog.messages
        assert facts["method"] is facts["pca_agreement"] is facts["perplexity"] is None
        assert [*map(str, table.schema.types)] == ["string", "int64", "float", "float"]
    ten = write_store(tmp_path / "ten", features[:10], labels[:10], **CLOUD)
    table, facts = _embed(tmp_path, ten)
    assert (table.num_rows, facts["note"], facts["neighbours"]) == (10, None, 9)


def test_rows_of_several_labels_are_coloured_by_their_number(tmp_path: Path) -> None:
    features, labels = clouds(50, 12, 4, several=True)
    table, facts = _embed(tmp_path, write_store(tmp_path / "s", features, labels, **CLOUD))
    assert table["label"].to_pylist() == labels.sum(axis=1).tolist()
    assert facts["legend"] == "positive labels"
    most = int(labels.sum(axis=1).max())
    assert (
        facts["class_names"]
        == ["0 labels", "1 label", "2 labels", "3 labels", "4 labels"][: most + 1]
    )


def test_neighbours_in_common_are_counted_by_row() -> None:
    first, second = np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), np.array([[4, 3, 9, 0], [5, 6, 7, 8]])
    assert measure_agreement(first, second) == pytest.approx((0.5 + 1.0) / 2)
    assert measure_agreement(first, first[:, ::-1]) == 1.0
    assert measure_agreement(first, first[::-1]) == 0.0
