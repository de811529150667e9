"""Architectures of timm that fit one checkpoint, but compute different features from its weights.

Examples are `tf_efficientnet_lite0` and `efficientnet_lite0`: all tensors have equal names and
shapes, but padding and the epsilon of batch norms differ. `timm_sisters.txt`, written by
`bench/timm_sisters.py`, lists these architectures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL import Image

TABLE = Path(__file__).with_name("timm_sisters.txt")
# Separates the names of architectures that compute equal features from equal weights.
EQUAL = "="
_SHOWN = 3  # classes of a photograph


@cache
def _read_table() -> tuple[tuple[frozenset[str], ...], ...]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return tuple(tuple(frozenset(part.split(EQUAL)) for part in line.split()) for line in lines)


def list_sisters(model: str) -> list[str]:
    """Lists other architectures that fit a model's checkpoint, but compute different features."""
    name = model.partition(".")[0]
    return sorted(
        other
        for parts in _read_table()
        if any(name in part for part in parts)
        for part in parts
        if name not in part
        for other in part
    )


def describe_photographs(
    names: Sequence[str], state: dict[str, torch.Tensor], arguments: dict[str, Any]
) -> Iterator[str]:
    """Yields, per architecture, how the checkpoint's own classifier classifies two photographs.

    Args:
      names: architectures that the checkpoint fits.
      state: the checkpoint's tensors.
      arguments: further arguments of `timm.create_model`.

    Yields nothing if the checkpoint has no classifier of ImageNet's 1,000 classes.
    """
    import timm
    import torch  # slow import: torch
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    from dpprobe.backbones.checkpoints import unwrap_names

    photographs = _load_photographs()
    for name in names:
        model = timm.create_model(name, **arguments).eval()
        try:
            model.load_state_dict(unwrap_names(state, model.state_dict()))
        except RuntimeError:  # another classifier, or none
            return
        transform = create_transform(**resolve_model_data_config(model))
        with torch.inference_mode():
            images = torch.stack([transform(image) for image in photographs.values()])
            rows = model(images).softmax(dim=1)
        seen = [
            f"{file}: {_name_classes(row)}" for file, row in zip(photographs, rows, strict=True)
        ]
        yield f"{name} sees in {'; in '.join(seen)}"


def _load_photographs() -> dict[str, Image.Image]:
    """Loads the two photographs that come with scikit-learn: a palace, and a flower."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    found = load_sample_images()
    return {
        Path(file).name: Image.fromarray(pixels)
        for file, pixels in zip(found.filenames, found.images, strict=True)
    }


def _name_classes(row: torch.Tensor) -> str:
    from timm.data.imagenet_info import ImageNetInfo

    info, top = ImageNetInfo(), row.topk(_SHOWN)
    return ", ".join(
        f"{info.index_to_description(place).partition(',')[0]} {value:.0%}"
        for value, place in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    )
