"""Frozen feature extractors: a name in the study -> a model with its own preprocessing.

A family is one module with an `Options` class and a `load` function, named in
`dpprobe.config.FAMILIES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpprobe import artifacts
from dpprobe.versions import VERSIONS

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from dpprobe.config import BackboneOptions


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A loaded feature extractor, in evaluation mode.

    Attributes:
      dimension: the length of a feature row; None where the images' size decides it.
      preprocessing: how an image becomes a tensor, resolved, JSON-compatible.
      weights_sha256: of the checkpoint file, or of the state dict; None without weights.
      architecture: the model's name as its library resolves it; None for families without.
      pretrained_tag: of the library's own weights; None for a checkpoint or random weights.
      trained: whether its weights come from training on data, public by assumption.
      fingerprint: of all that decides the features: options, preprocessing, weights, versions.
      transform: image -> float32 [channels, height, width]; can be sent to another process.
      forward: float32 [batch, channels, height, width] -> float32 [batch, dimension] on the
        device, in inference mode, with autocast on CUDA.
    """

    dimension: int | None
    preprocessing: Mapping[str, Any]
    weights_sha256: str | None
    fingerprint: str
    transform: Callable[[Image.Image], torch.Tensor]
    forward: Callable[[torch.Tensor], torch.Tensor]
    architecture: str | None = None
    pretrained_tag: str | None = None
    trained: bool = False


def load(options: BackboneOptions, *, device: str) -> Backbone:
    """Loads a backbone onto a device: "cpu", "cuda", or "auto" for a GPU if there is one.

    Raises:
      ConfigError: when the options name something that is not there or does not fit together.
    """
    from dpprobe.config import FAMILIES
    from dpprobe.devices import resolve_device

    options.check()
    backbone: Backbone = importlib.import_module(FAMILIES[options.family]).load(
        options, device=resolve_device(device)
    )
    return backbone


def identity(
    options: BackboneOptions,
    *,
    preprocessing: Mapping[str, Any],
    weights_sha256: str | None,
    libraries: Sequence[str],
    architecture: str | None = None,
    pretrained_tag: str | None = None,
    exclude: frozenset[str] = frozenset(),
) -> str:
    """The fingerprint of a backbone.

    Args:
      options: as the study gives them.
      preprocessing: as resolved.
      weights_sha256: of the weights, if any.
      libraries: distributions whose version decides the features.
      architecture: as the library resolves it.
      pretrained_tag: of the library's own weights.
      exclude: options that do not, such as where a checkpoint lies.
    """
    from importlib.metadata import version

    return artifacts.fingerprint(
        {
            "version": VERSIONS["features"],
            "options": options.model_dump(mode="json", exclude=set(exclude)),
            "preprocessing": dict(preprocessing),
            "weights_sha256": weights_sha256,
            "architecture": architecture,
            "pretrained_tag": pretrained_tag,
            "libraries": {name: version(name) for name in libraries},
        }
    )
