"""Loads backbones for tests (any options, tiny random ones, the real MobileNetV2)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dpprobe.backbones import describe, loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.feature_digest import probe_image
from dpprobe.backbones.registry import backbone_options

CPU = Runtime(device="cpu", precision="float32")

# Random timm networks with few parameters, one for each kind that fine-tuning supports.
TINY: dict[str, dict[str, Any]] = {
    "vit": {
        "model": "vit_tiny_patch16_224",
        "preprocessing": {"size": 32},
        "model_args": {"depth": 4, "embed_dim": 48},
    },
    "resnet": {"model": "test_resnet", "preprocessing": {"size": 64}},
    "resnet_fused_norm": {
        "model": "resnetv2_50",
        "preprocessing": {"size": 32},
        "model_args": {"layers": [1, 2, 1, 2], "channels": [16, 32, 64, 128]},
    },
    "group_norm": {"model": "test_efficientnet_gn", "preprocessing": {"size": 64}},
    "mobilenet": {
        "model": "mobilenetv2_035",
        "model_args": {"pad_type": "same"},
        "preprocessing": {"size": 32},
    },
    "convnext": {"model": "test_convnext", "preprocessing": {"size": 64}},
    "nfnet": {"model": "test_nfnet", "preprocessing": {"size": 64}},
}
# Number of blocks of each network.
DEPTHS = {
    "vit": 4,
    "resnet": 4,
    "resnet_fused_norm": 6,
    "group_norm": 5,
    "mobilenet": 17,
    "convnext": 9,
    "nfnet": 4,
}


def describe_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Describes networks in this process, as another takes seconds; returns requested names."""
    asked: list[str] = []
    run = subprocess.run

    def answer(command: list[str], **given: Any) -> Any:
        if command[-1] != describe.__name__:
            return run(command, **given)
        networks = json.loads(given["input"])
        asked.extend(networks)
        told = {name: describe_backbone(backbone_options(one)) for name, one in networks.items()}
        return SimpleNamespace(stdout=json.dumps(told))

    monkeypatch.setattr(subprocess, "run", answer)
    return asked


def load(runtime: Runtime = CPU, /, **options: Any) -> Backbone:
    return loading.load_backbone(backbone_options(options), runtime=runtime)


def run(backbone: Backbone, *pictures: Image.Image) -> torch.Tensor:
    return backbone.forward(torch.stack([backbone.transform(picture) for picture in pictures]))


def noise(size: tuple[int, int] = (8, 8), mode: str = "RGB", seed: int = 0) -> Image.Image:
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def smooth_noise(size: tuple[int, int] = (200, 170), seed: int = 0) -> Image.Image:
    """Returns noise with details of five pixels, which survive JPEG and filters of networks."""
    small = noise((size[0] // 5 + 1, size[1] // 5 + 1), seed=seed)
    return small.resize(size, Image.Resampling.BICUBIC)


def timm_backbone(kind: str, **changed: Any) -> Backbone:
    """Loads a random timm network of `TINY` with irregular batch statistics."""
    backbone = load(**{"family": "timm", "pretrained": False, **TINY[kind], **changed})
    stir(backbone.graph)
    return backbone


def open_clip_backbone(model: str, **changed: Any) -> Backbone:
    """Loads a random open_clip tower; `tiny_clip.register` must have been called."""
    return load(**{"family": "open_clip", "model": model, "pretrained": False, **changed})


def real_mobilenet(test_data: Path) -> Backbone:
    """Loads the real MobileNetV2 at 128 pixels, as its studies do."""
    return load(
        family="timm",
        model="mobilenetv2_100",
        checkpoint=str(test_data / "weights" / "mobilenetv2_100_imagenet.safetensors"),
        model_args={"pad_type": "same"},
        preprocessing={"size": 128},
    )


def stir(model: torch.nn.Module | None) -> None:
    """Sets random seeded statistics and factors in batch norms: new batch norms have no effect."""
    assert model is not None
    generator = torch.Generator().manual_seed(7)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            for values in (module.running_mean, module.weight.data, module.bias.data):
                values.add_(torch.empty_like(values).uniform_(-0.3, 0.3, generator=generator))
            variance = module.running_var
            variance.mul_(torch.empty_like(variance).uniform_(0.5, 2, generator=generator))


def images(backbone: Backbone, rows: int = 5, seed: int = 1) -> torch.Tensor:
    """Returns random uint8 images [rows, C, H, W] of the backbone's size."""
    shape = (rows, *backbone.transform(probe_image()).shape)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def renew_list(file: Path, wanted: str) -> None:
    """Compares a stored list of a library's models; RENEW=1 rewrites it."""
    if os.environ.get("RENEW"):
        file.write_text(wanted, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == wanted, f"run this test with RENEW=1 for {file.name}"
