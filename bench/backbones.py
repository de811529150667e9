"""The three backbones of the foundation-features paper's table 1, beside their libraries' own.

At full size, with random weights from a fixed seed: what is compared is the network, its
dimension and its preprocessing, for which no trained weights are needed. Prints Markdown:

    python bench/backbones.py > bench/results/backbones.md
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from PIL import Image

from dpprobe.backbones import loading, timm_models
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.study import catalog

NAMES = {"resnet50": 2048, "vit_b16": 768, "clip_vit_b32": 512}  # as published
SIZES = ((640, 480), (333, 500), (32, 32), (224, 224))


@dataclass(frozen=True)
class Library:
    """A library's own network and evaluation transform."""

    name: str
    encode: Callable[[torch.Tensor], torch.Tensor]
    transform: Any
    described: dict[str, Any]


def main() -> None:
    versions = ", ".join(f"{name} {version(name)}" for name in ("timm", "open_clip_torch", "torch"))
    print("# Backbones beside their libraries' own\n")
    print(
        f"Full size, random weights from seed 0, float32 on a CPU; {versions}. The same "
        f"{len(SIZES)} images of {', '.join(f'{w} x {h}' for w, h in SIZES)} pixels pass through "
        "ours (bytes to the device, normalised there) and through the library's own transform and "
        "network.\n"
    )
    lines = [
        "| backbone | library's name | published | ours | largest difference of a feature, of the "
        "largest feature | of a normalised pixel |",
        "|---|---|---|---|---|---|",
    ]
    details = []
    for name, published in NAMES.items():
        started = time.monotonic()
        line, detail = compare(name, published)
        lines.append(line)
        details.extend(detail)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True, file=sys.stderr)
    print("\n".join([*lines, "", "## Preprocessing", "", *details]))


def compare(name: str, published: int) -> tuple[str, list[str]]:
    """A row of the table, and both preprocessings."""
    values = catalog.complete_backbone({"catalog": name, "pretrained": False})
    options = backbone_options(values)
    ours = loading.load(options, runtime=Runtime(device="cpu"))
    library = its_own(options)
    pictures = [noise(size, seed) for seed, size in enumerate(SIZES)]
    batch = torch.stack([ours.transform(picture) for picture in pictures])
    pixels = torch.stack([library.transform(picture) for picture in pictures])
    with torch.inference_mode():
        expected = library.encode(pixels)
    difference = (ours.forward(batch) - expected).abs().max() / expected.abs().max()
    moved = (normalised(ours, batch) - pixels).abs().max()
    row = (
        f"| {name} | {library.name} | {published} | {ours.dimension} | {float(difference):.1e} | "
        f"{float(moved):.1e} |"
    )
    return row, [
        f"{name}, ours:",
        "",
        f"    {json.dumps(dict(ours.preprocessing))}",
        "",
        f"{name}, the library's own configuration, and its transform:",
        "",
        f"    {json.dumps(library.described)}",
        *[f"    {step}" for step in steps(library.transform)],
        "",
    ]


def its_own(options: Any) -> Library:
    """Made by the library alone, with the weights that the seed gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if isinstance(options, timm_models.Options):
            import timm
            from timm.data.config import resolve_model_data_config
            from timm.data.transforms_factory import create_transform

            model: Any = timm.create_model(options.model, pretrained=False).eval()
            data = resolve_model_data_config(model)
            model.reset_classifier(0)
            return Library(options.model, model, create_transform(**data), plain(data))
        import open_clip

        model, _, transform = open_clip.create_model_and_transforms(options.architecture)
        model.eval()
        described = plain(model.visual.preprocess_cfg)
        return Library(options.architecture, model.encode_image, transform, described)


def normalised(backbone: Backbone, batch: torch.Tensor) -> torch.Tensor:
    """Returns the input of our network: bytes, scaled and normalised as `networks` does it."""
    described = backbone.preprocessing
    mean, std = (torch.tensor(described[key]).view(-1, 1, 1) for key in ("mean", "std"))
    return batch.float().div_(255).sub_(mean).div_(std)


def plain(values: Any) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in dict(values).items()}


def steps(transform: Any) -> list[str]:
    return [" ".join(str(step).split()) for step in transform.transforms]


def noise(size: tuple[int, int], seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


if __name__ == "__main__":
    main()
