"""Features of the pairs' images: extracted once, kept as safetensors."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from dpprobe import artifacts
from dpprobe.backbones import loading, timm_models
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.features.feature_store import FeatureStore
from pairs_images import Labelled, cifar10

CACHE = Path("data/bench_pairs")
CIFAR10 = Path("../shared/data/cifar10")
CHECKPOINT = "../shared/data/weights/mobilenetv2_100_imagenet.safetensors"
SPLITS = ("train", "test")

Rows = dict[str, torch.Tensor]


class Features(NamedTuple):
    """float32 [n, d], int64 [n] of training and test examples."""

    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor

    @property
    def classes(self) -> int:
        return int(self.train_labels.max()) + 1


@dataclass(frozen=True, kw_only=True)
class Files:
    """Places of inputs and outputs.

    Attributes:
      cache: made here: a file per pair, and extracted rows under `rows`.
      checkpoint: of MobileNetV2.
      cifar10: folder of train.parquet and test.parquet.
      features: folder of train/ and test/ that a run of config/cifar10_methods.yaml has left;
        without one CIFAR-10 goes through MobileNetV2 here, a quarter of an hour.
    """

    cache: Path = CACHE
    checkpoint: str = CHECKPOINT
    cifar10: Path = CIFAR10
    features: Path | None = None


def store(path: Path, tensors: Rows) -> None:
    """Writes tensors and the hash of them all."""
    tensors = {name: tensor.contiguous() for name, tensor in sorted(tensors.items())}
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    with artifacts.atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"sha256": digest.hexdigest()})


def mobilenet(files: Files, size: int, layers: tuple[int, ...] = ()) -> BackboneOptions:
    """MobileNetV2 as config/cifar10_methods.yaml has it, at any size."""
    return timm_models.Options(
        model="mobilenetv2_100",
        checkpoint=files.checkpoint,
        model_args={"pad_type": "same"},
        layers=layers,
        preprocessing=timm_models.Preprocessing(
            size=size, crop_pct=1.0, mean=0.5, std=0.5, interpolation="bicubic"
        ),
    )


def rows(files: Files, name: str, images: Callable[[], Labelled], options: BackboneOptions) -> Rows:
    """Returns rows of images through a backbone, extracted once and kept under a name."""
    path = files.cache / "rows" / f"{name}.safetensors"
    if not path.exists():
        started = time.perf_counter()
        store(path, through(images(), options))
        print(f"{name}: extracted in {time.perf_counter() - started:.0f} s", flush=True)
    return load_file(path)


def through(images: Labelled, options: BackboneOptions) -> Rows:
    """Returns `labels`, `features` and each layer by its number, of images through a backbone."""
    backbone = loading.load_backbone(options, runtime=Runtime(device="cpu", precision="float32"))
    parts: dict[str, list[torch.Tensor]] = {}
    for batch in _batches(images):
        pixels = torch.stack([backbone.transform(image) for image, _ in batch])
        out = {"labels": torch.tensor([int(label) for _, label in batch])}
        if backbone.forward_layers is None:
            out["features"] = backbone.forward(pixels)
        else:
            out["features"], layers = backbone.forward_layers(pixels)
            out |= layers
        for name, value in out.items():
            parts.setdefault(name, []).append(value.clone())
    return {name: torch.cat(values) for name, values in parts.items()}


def _batches(images: Labelled) -> Iterator[list[tuple[Image.Image, int]]]:
    while batch := list(islice(images, 64)):
        yield batch


def split(made: Rows, train: int, layer: str = "features") -> Features:
    """Takes the first rows for training, the others for the test."""
    features, labels = made[layer], made["labels"]
    return Features(features[:train], labels[:train], features[train:], labels[train:])


def cifar10_rows(
    files: Files,
    name: str,
    options: BackboneOptions,
    *,
    layer: str = "features",
    counts: tuple[int, int] | None = None,
) -> Features:
    """CIFAR-10 through a backbone: all rows, or the first of training and test."""
    parts = []
    for part, count in zip(SPLITS, counts or (None, None), strict=True):
        images = partial(_first, files.cifar10, part, count)
        made = rows(files, f"cifar10_{name}_{part}", images, options)
        parts += [made[layer], made["labels"]]
    return Features(*parts)


def _first(folder: Path, part: str, count: int | None) -> Labelled:
    return islice(cifar10(folder, part), count)


def cifar10_mobilenet(files: Files) -> Features:
    """CIFAR-10 through MobileNetV2 at 128 px, of a study's features where there are any."""
    if files.features is None:
        return cifar10_rows(files, "128", mobilenet(files, 128))
    parts = []
    for part in SPLITS:
        store = FeatureStore(files.features / part / "manifest.json")
        features = torch.from_numpy(store.read()).float()
        parts += [features, torch.as_tensor(store.labels).long()]
    return Features(*parts)
