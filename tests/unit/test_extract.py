"""Extraction: the features of a plain loop, in the table's order, or an error that names a row."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from dpprobe import backbones, config, data
from dpprobe.backbones import Backbone
from dpprobe.data import table
from dpprobe.data.table import SplitTable, decode, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.features import store
from dpprobe.features.extract import extract_shard

PIXELS = {"family": "pixels"}


def png(value: int, size: int = 4) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (size, size), value).save(stream, format="PNG")
    return stream.getvalue()


def write_dataset(directory: Path, images: Sequence[bytes]) -> Path:
    """A dataset whose train split has these images, and one for testing."""
    train = table.make_batch(
        ids=[f"id{row}" for row in range(len(images))],
        labels=[row % 2 for row in range(len(images))],
        images=images,
        paths=[None] * len(images),
        groups={"group_sex": ["fm"[row % 2] for row in range(len(images))]},
    )
    test = table.make_batch(
        ids=["t"], labels=[0], images=[png(0)], paths=[None], groups={"group_sex": [""]}
    )
    table.write_dataset(
        directory,
        iter([("train", train), ("test", test)]),
        options=config.dataset_options({"source": "sklearn", "name": "digits"}),
        class_names=["even", "odd"],
        groups=["group_sex"],
        rows=len(images) + 1,
    )
    return directory


def extract(
    dataset: Path,
    output: Path,
    *,
    shards: int = 1,
    backbone: dict[str, Any] = PIXELS,
    **changed: Any,
) -> store.FeatureStore:
    arguments: dict[str, Any] = {
        "split": "train",
        "batch_size": 4,
        "dtype": "float32",
        "workers": 0,
        "device": "cpu",
    } | changed
    info = read_info(dataset / "dataset.json")
    paths = []
    for shard in range(shards):
        paths.append(output / f"shard-{shard:05d}-of-{shards:05d}.h5")
        extract_shard(
            table=dataset / f"{arguments['split']}.parquet",
            info=dataset / "dataset.json",
            backbone=config.backbone_options(backbone),
            backbone_name="mine",
            shard=shard,
            shards=shards,
            output=paths[-1],
            **arguments,
        )
    rows = info.splits[arguments["split"]].rows
    manifest = output / "manifest.json"
    store.write_manifest(paths, manifest, rows=rows, dataset_fingerprint=info.fingerprint)
    return store.FeatureStore(manifest)


@pytest.mark.parametrize(("shards", "batch_size"), [(1, 100), (1, 4), (3, 2), (11, 4)])
def test_features_are_those_of_each_row(tmp_path: Path, shards: int, batch_size: int) -> None:
    values = [5 * row for row in range(11)]
    dataset = write_dataset(tmp_path / "data", [png(value) for value in values])
    features = extract(dataset, tmp_path / "out", shards=shards, batch_size=batch_size)
    expected = np.repeat(np.array(values, np.float32)[:, None] / np.float32(255), 16, axis=1)
    np.testing.assert_array_equal(features.read(), expected)
    assert features.labels.tolist() == [row % 2 for row in range(11)]
    assert features.ids == [f"id{row}" for row in range(11)]
    assert features.groups == {"group_sex": ["fm"[row % 2] for row in range(11)]}
    assert features.class_names == ("even", "odd")
    assert features.backbone == "mine"
    assert features.preprocessing["color"] == "gray"
    assert features.dataset_fingerprint == read_info(dataset / "dataset.json").fingerprint


def test_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [png(row) for row in range(6)])
    one = extract(dataset, tmp_path / "a", backbone={"family": "scattering", "size": 8})
    two = extract(dataset, tmp_path / "b", backbone={"family": "scattering", "size": 8})
    assert one.fingerprint == two.fingerprint
    assert [shard.sha256 for shard in one.shards] == [shard.sha256 for shard in two.shards]


def test_digits_through_scattering(tmp_path: Path) -> None:
    dataset = tmp_path / "data"
    data.prepare(config.dataset_options({"source": "sklearn", "name": "digits"}), dataset)
    backbone = {"family": "scattering", "size": 8}
    features = extract(
        dataset, tmp_path / "out", backbone=backbone, split="test", dtype="float16", batch_size=128
    )
    assert (features.rows, features.dimension) == (359, 324)
    loaded = backbones.load(config.backbone_options(backbone), device="cpu")
    images = list(SplitTable(dataset / "test.parquet").images(350, 359))
    batch = torch.stack([loaded.transform(decode(image, split="test")) for image in images])
    expected = loaded.forward(batch).numpy()
    np.testing.assert_allclose(features.read()[350:], expected, rtol=1e-3, atol=1e-4)


def test_worker_processes_give_the_same_features(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [png(20 * row) for row in range(10)])
    alone = extract(dataset, tmp_path / "a")
    helped = extract(dataset, tmp_path / "b", workers=1)
    assert helped.fingerprint == alone.fingerprint


@pytest.mark.parametrize("workers", [0, 1])
def test_undecodable_image_is_named_and_leaves_nothing(tmp_path: Path, workers: int) -> None:
    images = [png(row) for row in range(9)]
    images[6] = images[6][:50]
    dataset = write_dataset(tmp_path / "data", images)
    with pytest.raises(DataError, match=r"^train row 6 \(id id6\): cannot be decoded") as error:
        extract(dataset, tmp_path / "out", workers=workers)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_row_of_a_later_shard_is_named_by_its_place_in_the_split(tmp_path: Path) -> None:
    images = [png(row) for row in range(9)]
    images[8] = b"no image"
    dataset = write_dataset(tmp_path / "data", images)
    with pytest.raises(DataError, match=r"^train row 8 \(id id8\)"):
        extract(dataset, tmp_path / "out", shards=3)


def test_image_changed_since_it_was_prepared_is_refused(tmp_path: Path) -> None:
    for name, value in {"a/1": 1, "a/2": 2, "b/1": 3, "b/2": 4}.items():
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(value))
    options = {"source": "imagefolder", "path": str(tmp_path / "images"), "test_fraction": 0.5}
    data.prepare(config.dataset_options(options), tmp_path / "data")
    changed = SplitTable(tmp_path / "data" / "train.parquet").ids()[1]
    (tmp_path / "images" / changed).write_bytes(png(99))
    with pytest.raises(DataError, match=rf"train row 1 \(id {changed}\).*changed since"):
        extract(tmp_path / "data", tmp_path / "out")


@pytest.mark.parametrize("odd", [[2], [6], [4, 5, 6, 7]], ids=["first", "later", "whole batch"])
def test_image_of_another_size_is_named(tmp_path: Path, odd: list[int]) -> None:
    images = [png(row, size=5 if row in odd else 4) for row in range(8)]
    dataset = write_dataset(tmp_path / "data", images)
    where = rf"train row {odd[0]} \(id id{odd[0]}\)"
    with pytest.raises(DataError, match=rf"{where}: an image of \[1, 5, 5\] after"):
        extract(dataset, tmp_path / "out")
    sized = extract(dataset, tmp_path / "sized", backbone={"family": "pixels", "size": 4})
    assert sized.dimension == 16


def test_pixels_without_a_range_are_named(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(stream, format="TIFF")
    dataset = write_dataset(tmp_path / "data", [png(0), stream.getvalue(), png(1)])
    with pytest.raises(DataError, match=r"^train row 1 \(id id1\): pixels of mode F"):
        extract(dataset, tmp_path / "out")


def test_any_failure_of_a_transform_names_the_row(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("LAB", (4, 4)).save(stream, format="TIFF")
    dataset = write_dataset(tmp_path / "data", [png(0), stream.getvalue(), png(1)])
    with pytest.raises(DataError, match=r"^train row 1 \(id id1\): pixels of mode LAB"):
        extract(dataset, tmp_path / "out")


def test_an_exception_of_a_transform_names_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backbones.load

    def load(*args: Any, **kwargs: Any) -> Backbone:
        loaded = real(*args, **kwargs)

        def transform(image: Image.Image) -> torch.Tensor:
            if image.getpixel((0, 0)) == 3:
                raise ZeroDivisionError("of\nnothing")
            return loaded.transform(image)

        return Backbone(**(vars(loaded) | {"transform": transform}))

    monkeypatch.setattr(backbones, "load", load)
    dataset = write_dataset(tmp_path / "data", [png(row) for row in range(5)])
    with pytest.raises(DataError, match=r"^train row 3 \(id id3\): .*\(of nothing\)") as error:
        extract(dataset, tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_a_file_of_several_images_is_named(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("L", (4, 4), value) for value in (0, 90)]
    images = []
    for several in (frames[1:], []):
        stream = io.BytesIO()
        frames[0].save(stream, format=kind, save_all=True, append_images=several)
        images.append(stream.getvalue())
    dataset = write_dataset(tmp_path / "data", [images[1], images[0]])
    with pytest.raises(DataError, match=r"^train row 1 \(id id1\): 2 images in one file"):
        extract(dataset, tmp_path / "out")
    assert extract(dataset, tmp_path / "one", split="test").rows == 1


def test_the_previews_in_a_photograph_are_not_images_of_their_own(tmp_path: Path) -> None:
    stream = io.BytesIO()
    photograph = Image.new("L", (8, 8), 200)
    photograph.save(stream, format="MPO", save_all=True, append_images=[Image.new("L", (8, 8))])
    assert Image.open(stream).format == "MPO"
    features = extract(write_dataset(tmp_path / "data", [stream.getvalue()] * 2), tmp_path / "out")
    np.testing.assert_allclose(features.read(), 200 / 255, atol=0.01)


def test_a_shard_says_which_model_made_it_but_not_where_its_weights_lay(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [png(0), png(1)])
    model: dict[str, Any] = {"family": "timm", "model": "test_vit"}
    checkpoint = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_vit").state_dict(), checkpoint)
    features = extract(dataset, tmp_path / "a", backbone=model | {"checkpoint": str(checkpoint)})
    assert (features.architecture, features.pretrained_tag) == ("test_vit", None)
    assert str(tmp_path) not in (tmp_path / "a" / "manifest.json").read_text()


@pytest.fixture
def force_features(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes one feature of the row whose pixels are all 30 whatever the test wants."""

    def force(value: float) -> None:
        real = backbones.load

        def load(*args: Any, **kwargs: Any) -> Backbone:
            loaded = real(*args, **kwargs)

            def forward(batch: torch.Tensor) -> torch.Tensor:
                features = loaded.forward(batch).clone()
                features[(batch * 255).round()[:, 0, 0, 0] == 30, 3] = value
                return features

            return Backbone(**(vars(loaded) | {"forward": forward}))

        monkeypatch.setattr(backbones, "load", load)

    return force


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_that_are_not_finite_are_named(
    tmp_path: Path, force_features: Callable[[float], None], value: float, dtype: str
) -> None:
    force_features(value)
    dataset = write_dataset(tmp_path / "data", [png(10 * row) for row in range(8)])
    with pytest.raises(DataError, match=r"^train row 3 \(id id3\).*not finite"):
        extract(dataset, tmp_path / "out", dtype=dtype)


def test_features_beyond_float16_are_named(
    tmp_path: Path, force_features: Callable[[float], None]
) -> None:
    force_features(-70_000.0)
    dataset = write_dataset(tmp_path / "data", [png(10 * row) for row in range(8)])
    with pytest.raises(DataError, match=r"row 3 .*70000 does not fit float16; .*float32"):
        extract(dataset, tmp_path / "half", dtype="float16")
    assert extract(dataset, tmp_path / "full", dtype="float32").read()[3, 3] == -70_000


def test_table_of_another_dataset_is_refused(tmp_path: Path) -> None:
    one = write_dataset(tmp_path / "one", [png(0), png(1)])
    two = write_dataset(tmp_path / "two", [png(0), png(2)])
    (one / "train.parquet").write_bytes((two / "train.parquet").read_bytes())
    with pytest.raises(DataError, match="not the train table that its dataset.json describes"):
        extract(one, tmp_path / "out")


def test_more_shards_than_rows_are_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [png(0), png(1)])
    with pytest.raises(ConfigError, match=r"features.shards: 3 shards for a split of 2 rows"):
        extract(dataset, tmp_path / "out", shards=3)


def test_log_tells_rate_and_where_the_time_went(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = write_dataset(tmp_path / "data", [png(0), png(1)])
    with caplog.at_level(logging.INFO, logger="dpprobe"):
        extract(dataset, tmp_path / "out")
    text = "\n".join(caplog.messages)
    assert "features mine train 1/1: 2 rows in" in text
    assert "rows/s" in text
    for part in ("read", "forward", "write"):
        assert f"{part} 0." in text


def test_real_weights_give_the_features_of_a_plain_loop(tmp_path: Path, shared_data: Path) -> None:
    checkpoint = shared_data / "weights" / "mobilenetv2_100_imagenet.safetensors"
    source = {"source": "parquet", "train": str(shared_data / "cifar10" / "train.parquet"),
              "test": str(shared_data / "cifar10" / "test.parquet"),
              "limit": {"train": 64, "test": 1}}  # fmt: skip
    data.prepare(config.dataset_options(source), tmp_path / "data")
    features = extract(
        tmp_path / "data",
        tmp_path / "out",
        shards=2,
        batch_size=24,
        backbone={
            "family": "timm",
            "model": "mobilenetv2_100",
            "checkpoint": str(checkpoint),
            "model_args": {"pad_type": "same"},
            "preprocessing": {"size": 128, "mean": 0.5, "std": 0.5, "crop_pct": 1.0},
        },
    ).read()

    model: Any = timm.create_model(
        "mobilenetv2_100", checkpoint_path=str(checkpoint), pad_type="same"
    ).eval()
    expected = []
    for image in SplitTable(tmp_path / "data" / "train.parquet").images(0, 64):
        picture = Image.open(io.BytesIO(image.data or b"")).convert("RGB")
        picture = picture.resize((128, 128), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(picture).transpose(2, 0, 1) / np.float32(255))
        with torch.inference_mode():
            maps = model.forward_features((pixels[None] - 0.5) / 0.5)
            expected.append(model.forward_head(maps, pre_logits=True)[0])
    assert features.shape == (64, 1280)
    np.testing.assert_allclose(features, torch.stack(expected), rtol=1e-3, atol=1e-4)
