"""The job that writes a manifest."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_header import ShardHeader
from dpprobe.features.shard_writer import write_shard
from tests.conftest import REPOSITORY
from tests.unit.data.test_image_files import encoded, noise

SCRIPT = REPOSITORY / "scripts/write_manifest.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Split tables of six pictures a class and split, one of which appears twice."""
    for split in ("train", "test"):
        for number in range(12):
            seed = number - (number == 5) + 100 * (split == "test")
            path = tmp_path / "images" / split / "ab"[number % 2]
            path.mkdir(parents=True, exist_ok=True)
            content = encoded(noise(size=(4, 4), seed=seed), "PNG")
            (path / f"{number}.png").write_bytes(content)
    folder = tmp_path / "data/toy"
    options = dataset_options({"source": "imagefolder", "path": str(tmp_path / "images")})
    dataset_preparation.prepare_dataset(options, folder)
    return folder


def shard_of(data: Path, folder: Path, split: str) -> Path:
    info, table = read_info(data / "dataset.json"), SplitTable(data / f"{split}.parquet")
    header = ShardHeader(
        split=split, rows=table.rows, shard=0, shards=1, class_names=info.class_names,
        multi_label=False, dtype="float32", dataset_fingerprint=info.fingerprint,
        backbone="pixels", backbone_options={"family": "pixels"}, backbone_fingerprint="b",
        weights_sha256=None, preprocessing={}, precision="float32",
    )  # fmt: skip
    path = folder / split / "shard-00000-of-00001.h5"
    features = np.random.default_rng(0).normal(size=(table.rows, 3))
    write_shard(path, header, RowColumns(table.read_labels(), table.read_ids()), features)
    return path


def store_of(data: Path, folder: Path, split: str) -> FeatureStore:
    """Runs the job as Snakemake does."""
    shard = folder / split / "shard-00000-of-00001.h5"
    manifest = folder / split / "manifest.json"
    job = SimpleNamespace(
        input=SimpleNamespace(
            shards=[str(shard)], info=str(data / "dataset.json"),
        ),
        output=[str(manifest)], log=[str(folder / "job.log")],
        wildcards=SimpleNamespace(split=split),
    )  # fmt: skip
    runpy.run_path(str(SCRIPT), init_globals={"snakemake": job}, run_name="__main__")
    return FeatureStore(manifest)


def test_copies_reach_the_features_of_training_rows(data: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shard_of(data, tmp_path / "features", split)
    copies = {"image": {"rows": 1, "most": 2, "by": "bytes and pixels"}}
    assert store_of(data, tmp_path / "features", "train").copies == copies
    assert store_of(data, tmp_path / "features", "test").copies is None
