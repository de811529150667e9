"""A loaded backbone, its runtime, and the fingerprint of its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from dpprobe import json_values
from dpprobe.backbones.options import BACKBONE_NOTES, BackboneOptions
from dpprobe.errors import DataError
from dpprobe.versions import VERSIONS

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from dpprobe.data.images.image_files import ScaledDecoding


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A loaded feature extractor, in evaluation mode.

    Attributes:
      dimension: features per image; None if the number depends on the images' size.
      preprocessing: the steps with the library's defaults filled in, JSON-compatible.
      weights_sha256: the hash of the checkpoint file, or of the state dict; None without weights.
      architecture: the model's name as its library resolves it; None without a library.
      pretrained_tag: the name of the library's own weights; None for other weights.
      trained: True if the weights are trained, on data that are assumed to be public.
      fingerprint: a hash of options, preprocessing, weights and versions, which decide the
        features.
      scaled: how to decode JPEGs for `transform`; None if they are decoded in full.
      transform: image -> uint8 or float32 [channels, height, width], picklable. `forward` runs the
        remaining steps on the device, such as the normalisation of uint8.
      train_transform: the transform of training images, if they get a random crop; seeded only by
        its second argument, the SHA-256 of the encoded image.
      forward: transformed images [batch, channels, height, width], on any device -> float32
        [batch, dimension] on the backbone's device, in inference mode, without waiting for the
        device; safe to call from several threads.
      layers: the number of features of each requested block, by the block's name.
      forward_layers: like `forward`, with a further float32 [batch, width] per layer.
      graph: a network's `forward` in float32 on uint8 images, which other tools can trace.
      takes_vectors: True if items arrive as vectors, which `transform` does not decode.
    """

    dimension: int | None
    preprocessing: Mapping[str, Any]
    weights_sha256: str | None
    fingerprint: str
    transform: Callable[[Image.Image], torch.Tensor]
    forward: Callable[[torch.Tensor], torch.Tensor]
    train_transform: Callable[[Image.Image, bytes], torch.Tensor] | None = None
    architecture: str | None = None
    pretrained_tag: str | None = None
    trained: bool = False
    layers: Mapping[str, int] = field(default_factory=dict)
    forward_layers: (
        Callable[[torch.Tensor], tuple[torch.Tensor, dict[str, torch.Tensor]]] | None
    ) = None
    graph: torch.nn.Module | None = None
    scaled: ScaledDecoding | None = None
    takes_vectors: bool = False

    def compute_features(
        self, images: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Runs `forward`, or `forward_layers` if there are layers; returns features, and layers.

        Raises DataError unless the features are floats [batch, width], with one row per image.
        """
        features, layers = (
            (self.forward(images), {})
            if self.forward_layers is None
            else self.forward_layers(images)
        )
        for name, values in {"features": features, **layers}.items():
            shape = tuple(getattr(values, "shape", ()))
            kind = str(getattr(values, "dtype", ""))
            is_float = kind in ("torch.float16", "torch.float32", "torch.float64")
            width = self.dimension if name == "features" else self.layers.get(name)
            wanted = (len(images), width or max((*shape[-1:], 1)))
            if not is_float or shape != wanted:
                given = f"{kind} {shape}" if kind else type(values).__name__
                raise DataError(
                    f"backbone: {name} of {len(images)} images are {given}, not floats "
                    f"[{len(images)}, {width or 'width'}]; correct its forward pass"
                )
        return features, layers


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The device and precision of a backbone; `device` affects only the features' last digits.

    Attributes:
      device: "cpu" or "cuda"; "auto" is a GPU if there is one.
      precision: number format of a network's forward pass; "auto" is float32 on a CPU, float16 on a
        GPU.
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


def backbone_fingerprint(
    options: BackboneOptions,
    *,
    preprocessing: Mapping[str, Any],
    weights_sha256: str | None,
    libraries: Sequence[str],
    architecture: str | None = None,
    pretrained_tag: str | None = None,
    exclude: frozenset[str] = frozenset(),
    precision: str | None = None,
) -> str:
    """Computes the fingerprint of a backbone.

    Args:
      libraries: Python distributions whose versions affect the features.
      exclude: options that do not affect the features, such as the checkpoint's path.
      precision: number format of the forward pass, for networks.
    """
    return json_values.hash_value(
        {
            "version": VERSIONS["features"],
            "options": options.model_dump(mode="json", exclude={*exclude, *BACKBONE_NOTES}),
            "preprocessing": dict(preprocessing),
            "weights_sha256": weights_sha256,
            "architecture": architecture,
            "pretrained_tag": pretrained_tag,
            "libraries": {name: version(name) for name in libraries},
            "precision": precision,
        }
    )
