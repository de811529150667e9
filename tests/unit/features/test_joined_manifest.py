"""Joined features: unit rows side by side, stale if a member or the order changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpprobe.backbones.joined import Options
from dpprobe.errors import ConfigError, StoreError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.joined_manifest import write_joined_manifest
from tests.support.feature_stores import write_split
from tests.support.refusals import refuses

ROWS = 1500  # more than one chunk of a wide shard
WIDTHS = {"a": 5, "b": 2100}
LABELS = np.arange(ROWS) % 3


def rows_of(name: str) -> npt.NDArray[np.float16]:
    generator = np.random.default_rng(WIDTHS[name])
    return generator.normal(scale=7, size=(ROWS, WIDTHS[name])).astype(np.float16)


def write_member(
    folder: Path, name: str, values: npt.NDArray[Any] | None = None, **changed: Any
) -> Path:
    features = rows_of(name) if values is None else values
    header = {"backbone": name, "dtype": "float16", "shards": 2, **changed}
    return write_split(folder / name / "train", features, LABELS, **header)


def join(folder: Path, *of: str, **options: Any) -> FeatureStore:
    output = folder / "-".join(of) / "train/manifest.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    write_joined_manifest(
        [folder / name / "train/manifest.json" for name in of],
        output,
        backbone="both",
        options=Options(of=of, **options),
    )
    return FeatureStore(output)


def side_by_side(*parts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    wide = [part.astype(np.float64) for part in parts]
    return np.hstack([part / np.linalg.norm(part, axis=1, keepdims=True) for part in wide])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    for name in WIDTHS:
        write_member(folder, name)
    return folder


def test_rows_are_unit_rows_side_by_side(folder: Path) -> None:
    """A shard's blocks may begin anywhere within the chunks of a member with wider rows."""
    store = join(folder, "a", "b")
    expected = side_by_side(rows_of("a"), rows_of("b"))
    assert (store.rows, store.dimension) == expected.shape
    np.testing.assert_allclose(store.read(), expected, atol=1e-7)
    for start, block in store.read_blocks(100):
        np.testing.assert_allclose(block, expected[start : start + len(block)], atol=1e-7)
    some = np.array([3, 700, 749, 750, 1499])
    np.testing.assert_allclose(store.read_rows(some), expected[some], atol=1e-7)
    np.testing.assert_allclose(store.rows_at(some[::-1]), expected[some[::-1]], atol=1e-7)


def test_columns_equal_those_of_the_members(folder: Path) -> None:
    store, member = join(folder, "a", "b"), FeatureStore(folder / "a/train/manifest.json")
    assert store.labels.tolist() == LABELS.tolist()
    assert store.ids == member.ids
    assert (store.dataset_fingerprint, store.promise) == (
        member.dataset_fingerprint,
        member.promise,
    )


def test_no_features_are_copied(folder: Path) -> None:
    assert [path.name for path in join(folder, "a", "b").path.parent.iterdir()] == ["manifest.json"]


def test_rows_of_zeros_stay_zeros_and_nan_spreads(tmp_path: Path) -> None:
    first, second = rows_of("a"), rows_of("b")[:, :4]
    first[0], second[1] = 0, 0
    first[2], second[2] = np.nan, np.nan
    write_member(tmp_path, "a", first)
    write_member(tmp_path, "b", second)
    store = join(tmp_path, "a", "b")
    values = store.read()
    assert not values[0, :5].any()
    assert not values[1, 5:].any()
    np.testing.assert_allclose(np.linalg.norm(values[:2], axis=1), 1, rtol=1e-6)
    assert np.isnan(values[2]).all()
    assert list(store.nulls) == [2]
    kept = store.leave_out_nulls()
    np.testing.assert_array_equal(kept.read(), np.delete(values, 2, axis=0))


def test_the_fingerprint_follows_members_and_order(folder: Path, tmp_path: Path) -> None:
    write_member(tmp_path, "a")
    write_member(tmp_path, "b", rows_of("b") + 1)
    found = [
        join(folder, "a", "b").fingerprint,
        join(folder, "b", "a").fingerprint,
        join(tmp_path, "a", "b").fingerprint,
    ]
    assert len({*found, FeatureStore(folder / "a/train/manifest.json").fingerprint}) == 4


def test_a_member_that_changed_later_is_refused(tmp_path: Path) -> None:
    for name in WIDTHS:
        write_member(tmp_path, name)
    store = join(tmp_path, "a", "b")
    shutil.rmtree(tmp_path / "b")
    write_member(tmp_path, "b", rows_of("b") + 1)
    with refuses(StoreError, store.path, tmp_path / "b/train/manifest.json", "delete"):
        FeatureStore(store.path)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"dataset_fingerprint": "other"}, "dataset_fingerprint"),
        ({"ids": [f"train-{ROWS - row}" for row in range(ROWS)]}, "rows_sha256"),
        ({"shards": 3}, "shards"),
    ],
)
def test_other_rows_are_refused(tmp_path: Path, changed: dict[str, Any], word: str) -> None:
    write_member(tmp_path, "a")
    write_member(tmp_path, "b", **changed)
    with refuses(StoreError, tmp_path / "b/train/manifest.json", word, "delete"):
        join(tmp_path, "a", "b")


def test_another_dimension_is_refused(folder: Path) -> None:
    with refuses(ConfigError, "backbones.both", "dimension", 7, 2105):
        join(folder, "a", "b", dimension=7)
