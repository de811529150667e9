"""Frozen feature extractors: a name in the study -> a model with its own preprocessing.

A family is one module with an `Options` class and a `load` function, named in
`dpprobe.backbones.registry.FAMILIES`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from dpprobe import artifacts
from dpprobe.errors import ConfigError
from dpprobe.versions import VERSIONS

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from dpprobe.backbones.options import BackboneOptions


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
      transform: image -> uint8 or float32 [channels, height, width]; can be sent to another
        process. What is left for the device, such as the normalisation of uint8, `forward` does.
      train_transform: the same for rows of a train split where theirs differs (a random crop);
        its second argument is the SHA-256 of the encoded image, which alone seeds it.
      forward: what the transform gives, stacked [batch, channels, height, width], on any device
        -> float32 [batch, dimension] on the backbone's device, in inference mode. It does not
        wait for the device, and several threads may call it at once.
      layers: name -> width of the features of each block that was asked for; empty by default.
      forward_layers: as `forward`, with a float32 [batch, width] for each of `layers`.
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


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a backbone runs; none of it but `precision` decides more than features' last digits.

    Attributes:
      device: "cpu" or "cuda"; "auto" is a GPU if there is one.
      precision: of a network's forward pass; auto is float32 on a CPU, float16 on a GPU. Families
        are given neither of the two words auto.
      compiled: whether a network passes through torch.compile.
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    compiled: bool = False


def load(options: BackboneOptions, *, runtime: Runtime) -> Backbone:
    """Loads a backbone onto a device.

    Raises:
      ConfigError: when the options name something that is not there or does not fit together, or
        the features have another dimension than the options say.
    """
    from dpprobe.backbones.registry import FAMILIES
    from dpprobe.devices import resolve_device

    options.check()
    device = resolve_device(runtime.device)
    precision = runtime.precision
    if precision == "auto":
        precision = "float16" if device == "cuda" else "float32"
    resolved = replace(runtime, device=device, precision=precision)
    backbone: Backbone = importlib.import_module(FAMILIES[options.family]).load(options, resolved)
    if options.dimension not in (None, backbone.dimension):
        raise ConfigError(
            f"dimension: {options.dimension} features an image were expected and "
            f"{backbone.dimension} come out; correct it, or the model's options"
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
    precision: str | None = None,
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
      precision: of the forward pass, for networks.
    """
    from importlib.metadata import version

    from dpprobe.backbones.options import BACKBONE_NOTES

    return artifacts.fingerprint(
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


PROBE_VALUES = 64
# How far probes of one backbone in one precision may lie apart, relative to their length.
PROBE_TOLERANCE = 0.05


def probe(backbone: Backbone) -> dict[str, Any]:
    """The digest of a forward pass: features of one public image, a gradient of colours.

    It tells what a fingerprint cannot: that this machine computes what another one did. Two
    machines agree in `norm` and `sample` to their precision; `sha256` is equal on equal ones only.

    Returns:
      sha256 of the float32 features, their L2 norm, and at most 64 of them, evenly spread.
    """
    import hashlib

    import numpy as np
    import torch
    from PIL import Image

    ramp = np.arange(256, dtype=np.uint8)
    across, down = np.broadcast_arrays(ramp[None, :], ramp[:, None])
    image = Image.fromarray(np.stack([across, down, across ^ down], axis=-1))
    row = backbone.forward(backbone.transform(image)[None])[0].to("cpu", torch.float32).numpy()
    return {
        "sha256": hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest(),
        "norm": float(np.linalg.norm(row.astype(np.float64))),
        "sample": [float(value) for value in row[:: -(-len(row) // PROBE_VALUES)]],
    }


def probes_agree(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two probes are of one backbone, up to the precision of what computed them."""
    if first["sha256"] == second["sha256"]:
        return True
    norms, samples = ([probe[key] for probe in (first, second)] for key in ("norm", "sample"))
    apart = math.dist(*samples) if len(samples[0]) == len(samples[1]) else math.inf
    return bool(
        abs(norms[0] - norms[1]) <= PROBE_TOLERANCE * max(norms)
        and apart <= PROBE_TOLERANCE * max(math.hypot(*sample) for sample in samples)
    )
