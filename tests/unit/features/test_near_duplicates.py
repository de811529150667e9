"""Near-duplicates: found by bytes and by cosine, in blocks, and told in the statement."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpprobe.data import table
from dpprobe.data.registry import dataset_options
from dpprobe.errors import DataError
from dpprobe.features import near_duplicates
from dpprobe.features.header import ShardHeader
from dpprobe.features.manifest import write_manifest
from dpprobe.features.near_duplicates import (
    DatasetSplit,
    find_near_duplicates,
    read_near_duplicates,
    write_near_duplicates,
)
from dpprobe.features.shard_writer import write_shard
from dpprobe.features.store import FeatureStore

SIDE = 4
GENERATOR = np.random.default_rng(5)
PIXELS = GENERATOR.integers(0, 256, (60, SIDE, SIDE), dtype=np.uint8)


def png(pixels: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", **options)
    return stream.getvalue()


def make_rows(
    folder: Path,
    name: str,
    images: list[bytes],
    *,
    split: str = "train",
    fingerprint: str = "b" * 64,
) -> DatasetSplit:
    """A split whose features are its images' pixels, in two shards."""
    options = dataset_options({"source": "sklearn", "duplicates": "warn"})
    ids = [f"{name}-{row}" for row in range(len(images))]
    batch = table.make_batch(
        ids=ids,
        labels=[row % 2 for row in range(len(images))],
        images=images,
        paths=[None] * len(images),
    )
    other = table.make_batch(
        ids=["a", "b"], labels=[0, 1], images=[png(PIXELS[0]), png(PIXELS[1])], paths=[None] * 2
    )
    parts = {split: batch, ({"train", "test"} - {split}).pop(): other}
    table.write_dataset(
        folder / name,
        [(part, parts[part]) for part in ("train", "test")],
        options=options,
        class_names=["no", "yes"],
        rows=len(images) + 2,
    )
    values = [np.asarray(Image.open(io.BytesIO(image)), dtype=np.float32) for image in images]
    features = np.stack(values).reshape(len(images), -1)
    info = table.read_info(folder / name / "dataset.json")
    paths = []
    for shard in range(2):
        header = ShardHeader(
            split=split, rows=len(images), shard=shard, shards=2, class_names=("no", "yes"),
            multi_label=False, dtype="float32", dataset_fingerprint=info.fingerprint,
            backbone="pixels", backbone_options={}, backbone_fingerprint=fingerprint,
            weights_sha256=None, preprocessing={},
        )  # fmt: skip
        part = slice(header.start, header.stop)
        paths.append(folder / name / f"shard-{shard:05d}-of-00002.h5")
        write_shard(
            paths[-1], header, features=features[part],
            labels=np.arange(len(images))[part] % 2, ids=ids[part],
        )  # fmt: skip
    manifest = folder / name / "manifest.json"
    write_manifest(paths, manifest, rows=len(images), dataset_fingerprint=info.fingerprint)
    return DatasetSplit(
        dataset=name,
        features=FeatureStore(manifest),
        table=table.SplitTable(folder / name / f"{split}.parquet"),
    )


def brute_force(private: DatasetSplit, public: list[DatasetSplit]) -> np.ndarray:
    """The largest cosine of each private row, in float64."""
    unit_rows = private.features.read().astype(np.float64)
    unit_rows /= np.linalg.norm(unit_rows, axis=1, keepdims=True)
    other = np.concatenate([rows.features.read() for rows in public]).astype(np.float64)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    cosines: np.ndarray = (unit_rows @ other.T).max(axis=1)
    return cosines


@pytest.fixture
def pair(tmp_path: Path) -> tuple[DatasetSplit, list[DatasetSplit]]:
    """Private rows of which the first is public byte for byte, the second in another encoding."""
    private = make_rows(tmp_path, "private", [png(pixels) for pixels in PIXELS[:30]])
    again = [png(PIXELS[0]), png(PIXELS[1], compress_level=0), *map(png, PIXELS[30:45])]
    assert again[1] != png(PIXELS[1])
    public = [
        make_rows(tmp_path, "seen", again),
        make_rows(tmp_path, "more", [png(pixels) for pixels in PIXELS[45:]], split="test"),
    ]
    return private, public


@pytest.mark.parametrize("rows", [3, 4096])
def test_it_finds_what_brute_force_finds(
    pair: tuple[DatasetSplit, list[DatasetSplit]], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(near_duplicates, "PRIVATE_ROWS", rows)
    monkeypatch.setattr(near_duplicates, "PUBLIC_ROWS", rows + 1)
    summary, matches = find_near_duplicates(*pair, threshold=0.999, device="cpu")
    cosines = brute_force(*pair)
    assert (summary["exact"], summary["near"]) == (1, 2)
    assert summary["near"] == np.sum(cosines > 0.999)
    assert summary["largest_cosine"] == pytest.approx(1, abs=1e-5)
    assert summary["cosine_quantiles"]["0.9"] == pytest.approx(np.quantile(cosines, 0.9), abs=1e-5)
    listed = matches.to_pylist()
    assert [row["id"] for row in listed if row["near"]] == ["private-0", "private-1"]
    assert [row["public_id"] for row in listed[:2]] == ["seen-0", "seen-1"]
    assert [row["exact"] for row in listed[:2]] == [True, False]
    assert len(listed) == near_duplicates.LISTED
    for row in listed:
        assert row["cosine"] == pytest.approx(cosines[row["row"]], abs=1e-5)
    assert {row["public_dataset"] for row in listed} == {"seen", "more"}


def test_a_lower_threshold_finds_what_lies_above_it(
    pair: tuple[DatasetSplit, list[DatasetSplit]],
) -> None:
    cosines = brute_force(*pair)
    middle = float(np.median(cosines))
    summary, matches = find_near_duplicates(*pair, threshold=middle, device="cpu")
    assert summary["near"] == np.sum(cosines > middle) > near_duplicates.LISTED
    assert matches.num_rows == summary["near"]


def test_features_of_another_backbone_are_refused(
    tmp_path: Path, pair: tuple[DatasetSplit, list[DatasetSplit]]
) -> None:
    stranger = make_rows(tmp_path, "stranger", [png(PIXELS[0])] * 2, fingerprint="c" * 64)
    with pytest.raises(DataError, match="another backbone"):
        find_near_duplicates(pair[0], [stranger], threshold=0.9, device="cpu")


def test_features_of_another_table_are_refused(
    pair: tuple[DatasetSplit, list[DatasetSplit]],
) -> None:
    private, public = pair
    with pytest.raises(DataError, match="not the features of"):
        DatasetSplit(dataset="private", features=private.features, table=public[0].table)


def test_the_report_belongs_to_the_features_it_was_found_on(
    tmp_path: Path, pair: tuple[DatasetSplit, list[DatasetSplit]]
) -> None:
    private, public = pair
    counts, matches = tmp_path / "counts.json", tmp_path / "matches.parquet"
    write_near_duplicates(
        private, public, threshold=0.999, device="cpu", counts=counts, matches=matches
    )
    summary = read_near_duplicates(counts, private.features)
    assert summary["near"] == 2
    assert "not differentially private" in summary["note"]
    with pytest.raises(DataError, match="other features"):
        read_near_duplicates(counts, public[0].features)
    counts.write_text("{}")
    with pytest.raises(DataError, match=r"counts\.json: unreadable"):
        read_near_duplicates(counts, private.features)
