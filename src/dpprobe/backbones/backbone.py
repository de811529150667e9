"""A loaded backbone, its runtime, and the fingerprint of everything that determines its
features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from dpprobe import artifacts
from dpprobe.backbones.options import BACKBONE_NOTES, BackboneOptions
from dpprobe.versions import VERSIONS

if TYPE_CHECKING:
    import torch
    from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A loaded feature extractor, in evaluation mode.

    Attributes:
      dimension: features per image; None if the images' size decides it.
      preprocessing: resolved, JSON-compatible.
      weights_sha256: of the checkpoint file, or of the state dict; None without weights.
      architecture: the model's name as its library resolves it, if any.
      pretrained_tag: of the library's own weights; None for a checkpoint or random weights.
      trained: True if its weights come from training on data, public by assumption.
      fingerprint: of all that decides the features: options, preprocessing, weights, versions.
      transform: image -> uint8 or float32 [channels, height, width], picklable. `forward` does the
        rest on the device, such as the normalisation of uint8.
      train_transform: for training images, if theirs differs (a random crop); only the SHA-256 of
        the encoded image, its second argument, seeds it.
      forward: transformed images [batch, channels, height, width], on any device -> float32
        [batch, dimension] on the backbone's device, in inference mode, without waiting for the
        device; safe to call from several threads.
      layers: name -> width of the features of each requested block.
      forward_layers: as `forward`, with a float32 [batch, width] for each of `layers`.
      graph: a network's `forward` in float32, from bytes, to be traced.
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
    takes_vectors: bool = False


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The way a backbone runs; only `precision` changes more than the features' last digits.

    Attributes:
      device: "cpu" or "cuda"; "auto" is a GPU if there is one.
      precision: of a network's forward pass; auto is float32 on a CPU, float16 on a GPU. Families
        never see auto.
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
      libraries: distributions whose versions decide the features.
      exclude: options that do not, such as the checkpoint's path.
      precision: of the forward pass, for networks.
    """
    return artifacts.hash_value(
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
