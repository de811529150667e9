"""The families of backbones, and the module that loads each family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.backbones.options import BackboneOptions
from dpprobe.wrong_keys_and_values import read_options

FAMILIES: dict[str, str] = {
    "convolutional": "dpprobe.backbones.convolutional",
    "external": "dpprobe.backbones.external",
    "imported": "dpprobe.backbones.imported_network",
    "joined": "dpprobe.backbones.joined",
    "open_clip": "dpprobe.backbones.open_clip_models",
    "pixels": "dpprobe.backbones.pixels",
    "scattering": "dpprobe.backbones.scattering",
    "timm": "dpprobe.backbones.timm_models",
}


def backbone_options(values: Mapping[str, Any]) -> BackboneOptions:
    """Reads a backbone's options; raises ConfigError with one line per fault."""
    return read_options(FAMILIES, "family", values, BackboneOptions)  # type: ignore[type-abstract]
