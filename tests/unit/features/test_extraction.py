"""Extraction gives a plain loop's features in the table's order, or an error that names a row."""

from __future__ import annotations

import hashlib
import io
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import take_probe
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import dataset_preparation, table, table_writer
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_rows import pack_vectors
from dpprobe.data.subsampled_tables import write_subsampled
from dpprobe.data.table import EncodedImage, SplitTable, read_info
from dpprobe.errors import ConfigError, DataError, StoreError
from dpprobe.features import extraction, extraction_pipeline
from dpprobe.features.decoding_workers import Fault, Piece
from dpprobe.features.extraction import extract_shard
from dpprobe.features.extraction_pipeline import AHEAD, PIECE_ROWS, Decoder
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import read_header
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.subsample_features import select_shard
from tests.support.gpu import needs_gpu
from tests.support.split_tables import encode
from tests.support.stand_in_device import StandIn
from tests.unit.features.test_feature_store import probe_of

PIXELS = {"family": "pixels"}


def png(value: int, size: int = 4) -> bytes:
    return encode(Image.new("L", (size, size), value))


def write_dataset(
    directory: Path, images: Sequence[bytes], *, accepted: Any = None, ids: Any = None, odd: int = 0
) -> Path:
    """Writes a dataset with these training images and one test image."""
    rows = range(len(images)) if ids is None else ids
    sexes = ["fm"[row % 2] for row in range(len(images))]
    parts: list[tuple[str, list[str], list[int], Any, list[str], Any]] = [
        (
            "train",
            [f"id{row}" for row in rows],
            [(row + odd) % 2 for row in rows],
            images,
            sexes,
            accepted,
        ),
        ("test", ["t"], [0], [png(0)], [""], None if accepted is None else [[]]),
    ]
    batches = [
        (
            split,
            table_writer.make_batch(
                ids=names,
                labels=labels,
                images=data,
                paths=[None] * len(names),
                groups={"group_sex": groups},
                accepted=right,
            ),
        )
        for split, names, labels, data, groups, right in parts
    ]
    values = {"source": "sklearn", "name": "digits", "verify": "hash", "duplicates": "warn"}
    table_writer.write_dataset(
        directory,
        iter(batches),
        options=dataset_options(values),
        class_names=["even", "odd"],
        groups=["group_sex"],
        accepted=accepted is not None,
        rows=len(images) + 1,
    )
    return directory


def one_shard(
    dataset: Path, output: Path, *, shard: int, shards: int, backbone: Any = PIXELS, **changed: Any
) -> Path:
    arguments: dict[str, Any] = {
        "split": "train",
        "batch_size": 4,
        "dtype": "float32",
        "device": "cpu",
        "backbone_name": "mine",
    } | changed
    path = output / f"shard-{shard:05d}-of-{shards:05d}.h5"
    extract_shard(
        table=dataset / f"{arguments['split']}.parquet",
        info=dataset / "dataset.json",
        backbone=backbone_options(backbone),
        shard=shard,
        shards=shards,
        output=path,
        **arguments,
    )
    return path


def extract(dataset: Path, output: Path, *, shards: int = 1, **changed: Any) -> FeatureStore:
    info, manifest = read_info(dataset / "dataset.json"), output / "manifest.json"
    paths = [
        one_shard(dataset, output, shard=shard, shards=shards, **changed) for shard in range(shards)
    ]
    rows = info.splits[changed.get("split", "train")].rows
    write_manifest(paths, manifest, rows=rows, dataset_fingerprint=info.fingerprint)
    return FeatureStore(manifest)


@pytest.mark.parametrize(
    ("shards", "batch_size", "threads"), [(1, 100, 1), (1, 4, 5), (3, 2, 2), (11, 4, 1)]
)
def test_features_equal_those_of_each_row(
    tmp_path: Path, shards: int, batch_size: int, threads: int
) -> None:
    values = [5 * row for row in range(11)]
    dataset = write_dataset(tmp_path / "data", [png(value) for value in values])
    features = extract(
        dataset, tmp_path / "out", shards=shards, batch_size=batch_size, threads=threads
    )
    expected = np.repeat(np.array(values, np.float32)[:, None] / np.float32(255), 16, axis=1)
    np.testing.assert_array_equal(features.read(), expected)
    assert features.labels.tolist() == [row % 2 for row in range(11)]
    assert features.ids == [f"id{row}" for row in range(11)]
    assert features.groups == {"group_sex": ["fm"[row % 2] for row in range(11)]}
    assert features.class_names == ("even", "odd")
    assert features.backbone == "mine"
    assert features.preprocessing["color"] == "gray"
    assert features.dataset_fingerprint == read_info(dataset / "dataset.json").fingerprint


def test_only_networks_get_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    dataset = write_dataset(tmp_path / "data", [png(value) for value in range(3)])
    assert extract(dataset, tmp_path / "out", device="cuda").rows == 3
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        extract(dataset, tmp_path / "vit", backbone=vit(), device="cuda")


@pytest.mark.parametrize("shards", [1, 3])
def test_an_undecodable_image_is_named_and_its_shard_is_not_written(
    tmp_path: Path, shards: int
) -> None:
    images = [png(row) for row in range(9)]
    images[8] = images[8][:50]
    dataset = write_dataset(tmp_path / "data", images)
    with pytest.raises(DataError, match=r"^train row 8 \(id id8\): cannot be decoded") as error:
        extract(dataset, tmp_path / "out", shards=shards)
    assert "\n" not in str(error.value)
    assert len(list((tmp_path / "out").iterdir())) == shards - 1


@pytest.mark.parametrize("odd", [[2], [6], [4, 5, 6, 7]], ids=["first", "later", "whole batch"])
def test_image_of_another_size_is_named(tmp_path: Path, odd: list[int]) -> None:
    images = [png(row, size=5 if row in odd else 4) for row in range(8)]
    dataset = write_dataset(tmp_path / "data", images)
    where = rf"train row {odd[0]} \(id id{odd[0]}\)"
    with pytest.raises(DataError, match=rf"{where}: the image has shape \[1, 5, 5\], but"):
        extract(dataset, tmp_path / "out")
    sized = extract(dataset, tmp_path / "sized", backbone={"family": "pixels", "size": 4})
    assert sized.dimension == 16


def test_an_exception_of_a_transform_names_the_row(
    tmp_path: Path, change_backbone: Callable[[Change], None]
) -> None:
    def failing(loaded: Backbone) -> dict[str, Any]:
        def transform(image: Image.Image) -> torch.Tensor:
            if image.getpixel((0, 0)) == 3:
                raise ZeroDivisionError(*said)
            return loaded.transform(image)

        return {"transform": transform}

    change_backbone(failing)
    dataset = write_dataset(tmp_path / "data", [png(row) for row in range(5)])
    said = []
    for shown in ("ZeroDivisionError", "of nothing"):
        with pytest.raises(DataError, match=rf"^train row 3 \(id id3\): .*\({shown}\)"):
            extract(dataset, tmp_path / "out")
        said.append("of\nnothing")


Change = Callable[[Backbone], dict[str, Any]]


@pytest.fixture
def change_backbone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Replaces parts of every backbone that is loaded."""

    def install(change: Change) -> None:
        real = loading.load_backbone

        def load(*args: Any, **kwargs: Any) -> Backbone:
            loaded = real(*args, **kwargs)
            return Backbone(**(vars(loaded) | change(loaded)))

        monkeypatch.setattr(loading, "load_backbone", load)

    return install


def pool_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("extract")]


def noise(seed: int, size: int = 40) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return encode(Image.fromarray(values))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[], [0, 1, 2]])
def test_a_network_gives_the_same_bits_on_any_number_of_threads(
    tmp_path: Path, layers: list[int]
) -> None:
    dataset = write_dataset(tmp_path / "data", [noise(row) for row in range(80)])
    model = {"family": "timm", "model": "test_vit", "pretrained": False}
    model |= {"layers": layers} if layers else {}
    stores = [
        extract(dataset, tmp_path / str(threads), backbone=model, threads=threads, batch_size=64)
        for threads in (1, 4)
    ]
    assert list(stores[0].layers) == [str(layer) for layer in layers]
    assert stores[0].fingerprint == stores[1].fingerprint
    assert len(np.unique(stores[0].read(), axis=0)) == 80
    halves = extract(dataset, tmp_path / "b", backbone=model, batch_size=7)
    np.testing.assert_allclose(halves.read(), stores[0].read(), rtol=1e-3, atol=1e-4)
    for precision in ("float32", "bfloat16", "auto"):
        asked = extract(dataset, tmp_path / precision, backbone=model, precision=precision)
        (shard,) = (tmp_path / precision).glob("*.h5")
        assert read_header(shard).precision == precision.replace("auto", "float32")
        rough = np.abs(asked.read() - halves.read()).max() > 1e-3
        assert rough == (precision == "bfloat16")


def test_a_network_gives_the_same_bits_however_rows_are_cut(tmp_path: Path) -> None:
    """A row's features must not depend on other rows in its batch or on added rows."""
    model = {"family": "timm", "model": "mobilenetv2_100", "pretrained": False}
    model |= {"preprocessing": {"size": 64}}
    pictures = [noise(row) for row in range(20)]
    whole = write_dataset(tmp_path / "data", pictures)
    one = extract(whole, tmp_path / "one", backbone=model, dtype="float32")
    three = extract(whole, tmp_path / "three", backbone=model, dtype="float32", shards=3)
    assert one.fingerprint == three.fingerprint
    fewer = write_dataset(tmp_path / "fewer", [*pictures[:5], *pictures[8:]])
    left = extract(fewer, tmp_path / "left", backbone=model, dtype="float32").read()
    np.testing.assert_array_equal(left, np.delete(one.read(), [5, 6, 7], axis=0))


def test_a_slow_model_keeps_the_reader_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change_backbone: Callable[[Change], None]
) -> None:
    rows, threads = 40 * PIECE_ROWS, 2
    read, computed, lead = 0, 0, []
    real = SplitTable.read_ranges

    def images(self: SplitTable, ranges: Sequence[range]) -> Iterator[Any]:
        nonlocal read
        for image in real(self, ranges):
            read += 1
            lead.append(read - computed)
            yield image

    def slow(loaded: Backbone) -> dict[str, Any]:
        def forward(batch: torch.Tensor) -> torch.Tensor:
            nonlocal computed
            time.sleep(0.01)
            computed += len(batch)
            return loaded.forward(batch)

        return {"forward": forward}

    change_backbone(slow)
    monkeypatch.setattr(SplitTable, "read_ranges", images)
    dataset = write_dataset(tmp_path / "data", [png(row % 256) for row in range(rows)])
    extract(dataset, tmp_path / "out", batch_size=64, threads=threads)
    assert read == rows
    assert max(lead) <= (AHEAD * threads + 1) * PIECE_ROWS


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("row", r"^train row 300 \(id id300\): cannot be decoded"),
        ("forward pass", "^out of memory"),
    ],
)
def test_a_fault_in_the_middle_ends_the_threads(
    tmp_path: Path, change_backbone: Callable[[Change], None], broken: str, said: str
) -> None:
    computed = 0

    def counting(loaded: Backbone) -> dict[str, Any]:
        def forward(batch: torch.Tensor) -> torch.Tensor:
            nonlocal computed
            computed += len(batch)
            if broken == "forward pass" and computed > 300:
                raise RuntimeError("out of memory")
            return loaded.forward(batch)

        return {"forward": forward}

    change_backbone(counting)
    images = [png(row % 256) for row in range(60 * PIECE_ROWS)]
    if broken == "row":
        images[300], images[310], images[700] = b"none", b"none", b"none"
    dataset = write_dataset(tmp_path / "data", images)
    with pytest.raises((DataError, RuntimeError), match=said):
        extract(dataset, tmp_path / "out", batch_size=64, threads=3)
    assert pool_threads() == []
    assert computed <= 300 + (AHEAD * 3 + 1) * PIECE_ROWS
    assert list((tmp_path / "out").iterdir()) == []


MIXES = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        rows = x.mean((2, 3))
        return rows - 0.01 * rows.mean(0) if len(x) > 9 else rows
"""


def test_a_network_that_mixes_the_images_of_a_pass_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mixing_net.py").write_text(MIXES)
    monkeypatch.chdir(tmp_path)
    dataset = write_dataset(tmp_path / "data", [png(row) for row in range(20)])
    network = {"family": "imported", "module": "mixing_net:Net", "preprocessing": {"size": 4}}
    extract(dataset, tmp_path / "small", backbone=network, batch_size=9)
    with pytest.raises(ConfigError, match="backbone mine: .* in a batch of 16, the features"):
        extract(dataset, tmp_path / "out", backbone=network, batch_size=100)
    sys.modules.pop("mixing_net")


def noise_png(seed: int, size: int = 48) -> bytes:
    small = np.random.default_rng(seed).integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
    return encode(Image.fromarray(small).resize((size, size)))


def vit(**preprocessing: Any) -> dict[str, Any]:
    size = {"size": 32, **preprocessing}
    return {"family": "timm", "model": "test_vit", "pretrained": False, "preprocessing": size}


ALWAYS: list[Callable[[torch.Tensor], Any]] = [lambda v: v[:1], lambda v: v.T, lambda _: None]
LATER: list[Callable[[torch.Tensor], Any]] = [
    lambda v: v[:, :5],
    lambda v: v[:, :1],
    lambda v: torch.cat([v, v], 1),
    lambda v: v[1:],
    lambda v: torch.cat([v, v]),
]


@pytest.mark.parametrize("as_layer", [False, True])
@pytest.mark.parametrize(
    ("start", "change"), [*((0, each) for each in ALWAYS), *((2, each) for each in LATER)]
)
def test_a_backbone_gives_one_row_of_one_width_per_image(
    tmp_path: Path, change: Callable[[Any], Any], start: int, as_layer: bool
) -> None:
    """With other shapes, a row could get another row's features, or one number in all positions."""
    dataset = write_dataset(tmp_path / "data", [png(3 * row) for row in range(20)])

    passes = itertools.count()

    def changed(backbone: Backbone, _: Runtime) -> Backbone:
        def both(images: torch.Tensor) -> Any:
            features = backbone.forward(images)
            other = change(features) if next(passes) >= start else features
            return (features, {"a": other}) if as_layer else (other, {})

        return replace(backbone, forward_layers=both)

    with pytest.raises((DataError, StoreError), match="backbone") as caught:
        one_shard(dataset, tmp_path / "out", shard=0, shards=1, changed=changed, threads=1)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "out").glob("*.h5"))


@pytest.mark.parametrize("kept", [slice(0), slice(17), slice(3, None)])
def test_a_table_that_ends_early_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    dataset = write_dataset(tmp_path / "data", [png(3 * row) for row in range(20)])
    original = table.SplitTable.read_ranges
    monkeypatch.setattr(
        table.SplitTable, "read_ranges", lambda *args: iter(list(original(*args))[kept])
    )
    with pytest.raises(DataError, match="the split table ends early"):
        one_shard(dataset, tmp_path / "out", shard=0, shards=1)


def test_crops_are_stored_next_to_the_features_of_the_central_part(tmp_path: Path) -> None:
    images = [noise_png(seed) for seed in range(20)]
    dataset = write_dataset(tmp_path / "data", images)
    crops = vit(crop="inception", crops=3)
    stored = extract(dataset, tmp_path / "out", shards=2, backbone=crops)
    central = extract(dataset, tmp_path / "central", backbone=vit())
    single = extract(dataset, tmp_path / "single", backbone=vit(crop="inception"))
    np.testing.assert_array_equal(stored.read(), central.read())
    assert stored.crops == ("crop_00", "crop_01", "crop_02")
    np.testing.assert_array_equal(stored.read(layer="crop_00"), single.read())
    rows = [stored.read(layer=name) for name in stored.crops]
    assert all(np.abs(rows[0] - other).max() > 0.1 for other in (*rows[1:], stored.read()))
    test = extract(dataset, tmp_path / "test", split="test", backbone=crops)
    plain = extract(dataset, tmp_path / "plain", split="test", backbone=vit())
    assert test.crops == ()
    np.testing.assert_array_equal(test.read(), plain.read())


def test_a_row_s_crops_depend_only_on_its_image(tmp_path: Path) -> None:
    """Crops do not depend on a row's position, its label, other rows, or the number of crops."""
    images, crops = [noise_png(seed) for seed in range(6)], vit(crop="inception", crops=2)
    stored = extract(write_dataset(tmp_path / "a", images), tmp_path / "out", backbone=crops)
    others = [noise_png(9), noise_png(8), *images[5:2:-1]]  # in other positions, with other labels
    more = extract(
        write_dataset(tmp_path / "b", others),
        tmp_path / "more",
        backbone=vit(crop="inception", crops=4),
    )
    assert (stored.labels[5:2:-1] != more.labels[2:]).all()
    for name in stored.crops:
        np.testing.assert_array_equal(more.read(layer=name)[2:], stored.read(layer=name)[5:2:-1])
    other = extract(
        write_dataset(tmp_path / "c", images),
        tmp_path / "seeded",
        backbone=vit(crop="inception", crops=2, crop_seed=1),
    )
    assert np.abs(other.read(layer="crop_01") - stored.read(layer="crop_01")).max() > 0.1


def test_a_shard_holds_the_probe_of_its_machine(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [png(0), png(1)])
    for backbone in (PIXELS, vit()):
        features = extract(dataset, tmp_path / backbone["family"], shards=2, backbone=backbone)
        loaded = loading.load_backbone(backbone_options(backbone), runtime=Runtime(device="cpu"))
        assert [record.probe for record in features.shards] == [take_probe(loaded)] * 2
        for name in ("weights_sha256", "architecture", "pretrained_tag", "trained"):
            assert getattr(features, name) == getattr(loaded, name)
        assert features.backbone_fingerprint == loaded.fingerprint


def test_a_backbone_of_broken_weights_is_refused_at_once(
    tmp_path: Path, change_backbone: Callable[[Change], None]
) -> None:
    change_backbone(lambda loaded: {"forward": lambda batch: loaded.forward(batch) * math.nan})
    dataset = write_dataset(tmp_path / "data", [png(0), png(1)])
    with pytest.raises(DataError, match="backbone mine: its features of dpprobe.s own probe image"):
        extract(dataset, tmp_path / "out")


@needs_gpu
@pytest.mark.parametrize("layers", [[], [0, 1]])
def test_a_gpu_gives_the_features_of_a_cpu(tmp_path: Path, layers: list[int]) -> None:
    dataset = write_dataset(tmp_path / "data", [noise(row) for row in range(80)])
    model = {"family": "timm", "model": "test_vit", "pretrained": False}
    model |= {"layers": layers} if layers else {}
    given: dict[str, Any] = {"backbone": model, "batch_size": 40, "threads": 3}
    cpu = extract(dataset, tmp_path / "cpu", **given)
    gpu = extract(dataset, tmp_path / "gpu", device="cuda", precision="float32", **given)
    assert gpu.ids == cpu.ids
    np.testing.assert_allclose(gpu.read(), cpu.read(), rtol=0.01, atol=0.01)
    for layer in cpu.layers:
        np.testing.assert_allclose(
            gpu.read(layer=layer), cpu.read(layer=layer), rtol=0.01, atol=0.01
        )


def force_feature(value: float) -> Change:
    """Sets one feature to `value` in all rows with pixels of at least 30."""

    def change(loaded: Backbone) -> dict[str, Any]:
        def forward(batch: torch.Tensor) -> torch.Tensor:
            features = loaded.forward(batch).clone()
            features[(batch * 255).round()[:, 0, 0, 0] >= 30, 3] = value
            return features

        return {"forward": forward}

    return change


# The largest float16 number is 65504; 65520 and more are rounded to infinity.
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 65504.0, 65520.0, -70_000.0])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_that_a_shard_cannot_hold_are_named(
    tmp_path: Path, change_backbone: Callable[[Change], None], value: float, dtype: str
) -> None:
    change_backbone(force_feature(value))
    dataset = write_dataset(tmp_path / "data", [png(10 * row) for row in range(8)])
    if math.isfinite(value) and (dtype == "float32" or abs(value) <= 65504):
        assert extract(dataset, tmp_path / "full", dtype=dtype).read()[3, 3] == value
        return
    key = f"{abs(value):.0f} .*float16" if math.isfinite(value) else "not finite"
    with pytest.raises(DataError, match=rf"^train row 3 \(id id3\).*{key}"):
        extract(dataset, tmp_path / "out", dtype=dtype)


def test_table_of_another_dataset_is_refused(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one", [png(0), png(1)])
    two = write_dataset(tmp_path / "two", [png(0), png(2)])
    (one / "train.parquet").write_bytes((two / "train.parquet").read_bytes())
    with pytest.raises(DataError, match="not the train table of its dataset.json"):
        extract(one, tmp_path / "out")


def test_real_weights_give_the_features_of_a_plain_loop(tmp_path: Path, test_data: Path) -> None:
    checkpoint = test_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    source = {
        "source": "parquet",
        "train": str(test_data / "cifar10" / "train.parquet"),
        "test": str(test_data / "cifar10" / "test.parquet"),
        "limit": {"train": 40, "test": 1},
        "missing_classes": "warn",
    }
    dataset_preparation.prepare_dataset(dataset_options(source), tmp_path / "data")
    network = {
        "family": "timm",
        "model": "mobilenetv2_100",
        "checkpoint": str(checkpoint),
        "model_args": {"pad_type": "same"},
        "preprocessing": {"size": 128, "mean": 0.5, "std": 0.5, "crop_pct": 1.0},
    }
    given: dict[str, Any] = {"shards": 2, "batch_size": 9, "backbone": network}
    features = extract(tmp_path / "data", tmp_path / "out", **given).read()

    model: Any = timm.create_model(
        "mobilenetv2_100", checkpoint_path=str(checkpoint), pad_type="same"
    ).eval()
    expected = []
    for image in SplitTable(tmp_path / "data" / "train.parquet").read_images(0, 40):
        picture = Image.open(io.BytesIO(image.data or b"")).convert("RGB")
        picture = picture.resize((128, 128), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(picture).transpose(2, 0, 1) / np.float32(255))
        with torch.inference_mode():
            maps = model.forward_features((pixels[None] - 0.5) / 0.5)
            expected.append(model.forward_head(maps, pre_logits=True)[0])
    assert features.shape == (40, 1280)
    np.testing.assert_allclose(features, torch.stack(expected), rtol=1e-3, atol=1e-4)


PART = {"source": "sklearn", "name": "digits", "duplicates": "warn"}
NETWORK = {
    "family": "timm",
    "model": "test_vit",
    "pretrained": False,
    "layers": [0, 2],
}
CROPS = {
    "family": "timm",
    "model": "test_vit",
    "pretrained": False,
    "preprocessing": {"size": 32, "crop": "inception", "crops": 2},
}


def part_of(whole: Path, directory: Path, **subsample: Any) -> Path:
    write_subsampled(whole, directory, dataset_options({**PART, "subsample": subsample}))
    return directory


def select(
    whole: Path, features: FeatureStore, part: Path, output: Path, shards: int
) -> FeatureStore:
    info = read_info(part / "dataset.json")
    paths = [output / f"shard-{shard:05d}-of-{shards:05d}.h5" for shard in range(shards)]
    for shard, path in enumerate(paths):
        select_shard(
            manifest=features.path,
            whole=whole / "train.parquet",
            table=part / "train.parquet",
            split="train",
            shard=shard,
            shards=shards,
            output=path,
        )
    manifest = output / "manifest.json"
    write_manifest(paths, manifest, rows=info.train_rows, dataset_fingerprint=info.fingerprint)
    return FeatureStore(manifest)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("backbone", [{"family": "pixels"}, NETWORK, CROPS])
def test_selected_features_are_the_extracted_ones(
    tmp_path: Path, backbone: dict[str, Any], dtype: str
) -> None:
    accepted = [[0, 1][: row % 3] for row in range(41)]
    images = [png(5 * row, 32) for row in range(41)]
    whole = write_dataset(tmp_path / "whole", images, accepted=accepted)
    part = part_of(whole, tmp_path / "part", per_class=4)
    changes: dict[str, Any] = {"backbone": backbone, "dtype": dtype}
    stored = extract(whole, tmp_path / "a", shards=3, **changes)
    selected = select(whole, stored, part, tmp_path / "b", shards=2)
    extracted = extract(part, tmp_path / "c", **changes)
    assert selected.rows == 4 + 4
    assert selected.fingerprint == extracted.fingerprint
    assert selected.groups == extracted.groups
    assert selected.accepted == [accepted[int(name[2:])] for name in selected.ids]
    assert list(selected.layers) == list(extracted.layers)
    for layer in (None, *extracted.layers):
        np.testing.assert_array_equal(selected.read(layer=layer), extracted.read(layer=layer))


def test_rows_of_a_part_that_differ_from_the_whole_dataset_are_refused(tmp_path: Path) -> None:
    whole = write_dataset(tmp_path / "whole", [png(5 * row) for row in range(20)])
    stored = extract(whole, tmp_path / "a")
    others = write_dataset(tmp_path / "others", [png(5 * row + 1) for row in range(20)])
    part = part_of(others, tmp_path / "part", per_class=4)
    with pytest.raises(DataError, match=r"row id\d+ differs from the same row of"):
        select(whole, stored, part, tmp_path / "b", shards=1)
    more = write_dataset(tmp_path / "more", [png(5 * row) for row in range(24)])
    longer = part_of(more, tmp_path / "longer", per_class=12)
    with pytest.raises(DataError, match="row id20 differs from the same row of"):
        select(whole, stored, longer, tmp_path / "d", shards=1)
    with pytest.raises(DataError, match="features do not belong to the rows"):
        select(more, stored, longer, tmp_path / "e", shards=1)


def test_rows_in_another_order_are_refused_and_shards_have_the_probe_of_their_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [png(5 * row) for row in range(20)]
    whole = write_dataset(tmp_path / "whole", images)
    numbers = itertools.count()
    monkeypatch.setattr(extraction, "take_probe", lambda _: probe_of(1, digest=str(next(numbers))))
    stored = extract(whole, tmp_path / "a", shards=5)
    cases: list[tuple[Any, int, str]] = [
        ((2, 1, 0), 0, "not in the order"),
        ((2, 3), 1, "row id2 differs"),
        ((3, 10), 0, "0"),
        ((4, 9), 0, "1"),
        ((18, 19), 0, "4"),
    ]
    for place, (ids, odd, wanted) in enumerate(cases):
        folder = tmp_path / str(place)
        part = write_dataset(folder / "data", [images[row] for row in ids], ids=ids, odd=odd)
        if len(wanted) > 1:
            with pytest.raises(DataError, match=wanted):
                select(whole, stored, part, folder / "out", shards=1)
        else:
            (shard,) = select(whole, stored, part, folder / "out", shards=1).shards
            assert shard.probe is not None
            assert shard.probe["sha256"] == wanted * 64


# Batches consist of whole pieces, and vectors have one length.


BATCH = 8


def make_pieces(counts: list[tuple[int, int]]) -> list[Piece]:
    """Makes pieces of decoded rows and of omitted rows; an image repeats its row's number."""
    pieces, first = [], 0
    for count, left_out in counts:
        rows = [(row, f"id{row}") for row in range(first, first + count + left_out)]
        images = torch.arange(first, first + count)[:, None].expand(-1, 3) if count else None
        faults = tuple(Fault(row, "x") for row in rows[count:])
        pieces.append(Piece(tuple(rows[:count]), images, faults))
        first += count + left_out
    return pieces


def batches_of(pieces: list[Piece]) -> list[Piece]:
    sizes = extraction_pipeline.SizeCheck("train")
    return list(extraction_pipeline.make_batches(pieces, StandIn(), BATCH, sizes))


@given(
    st.lists(st.tuples(st.integers(0, BATCH), st.integers(0, 2)), max_size=9).map(
        lambda counts: [each for each in counts if sum(each)]
    )
)
def test_batches_have_all_pieces_whole_and_in_order(counts: list[tuple[int, int]]) -> None:
    pieces = make_pieces(counts)
    batches = batches_of(pieces)
    assert [row for one in batches for row in one.rows] == [r for one in pieces for r in one.rows]
    assert [f for one in batches for f in one.faults] == [f for one in pieces for f in one.faults]
    for batch in batches:
        assert len(batch.rows) <= BATCH
        assert (batch.images is None) == (not batch.rows)
        if batch.images is not None:
            assert batch.images.tolist() == [[row] * 3 for row, _ in batch.rows]
    ends = np.cumsum([len(one.rows) for one in pieces])
    assert all(end in ends for end in np.cumsum([len(one.rows) for one in batches])), "whole pieces"
    for batch, after in pairwise(batches):
        sizes = [len(one.rows) for one in pieces if set(one.rows) & set(after.rows)]
        following = sizes[0] if sizes else 0  # the batch may have faults only
        assert len(batch.rows) == BATCH or len(batch.rows) + following > BATCH, "no room was left"


VECTORS = {"a": np.ones(2, np.float32), "b": np.arange(3, dtype=np.float32)}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dimension", [None, 2, 3])
def test_a_named_vector_is_read_and_must_have_the_stated_length(
    name: str, dimension: int | None
) -> None:
    content = pack_vectors(VECTORS)
    row = EncodedImage(7, content, None, "seven", hashlib.sha256(content).digest())
    plain: Any = SimpleNamespace(
        scaled=None, transform=None, train_transform=None, dimension=dimension
    )
    decoder = Decoder(plain, "test", vectors=name)
    assert decoder.row_bytes() == (None if dimension is None else 4 * dimension)
    length = len(VECTORS[name])
    if dimension in (None, length):
        found = decoder.decode_one(row)
        assert (found.tolist(), found.dtype) == (VECTORS[name].tolist(), torch.float32)
    else:
        said = rf"test row 7 \(id seven\): vector '{name}' has {length} numbers, .* is {dimension};"
        with pytest.raises(DataError, match=said):
            decoder.decode_one(row)
