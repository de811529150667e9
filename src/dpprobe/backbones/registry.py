"""The families that a backbone may name, each with the module that loads it."""

from __future__ import annotations

FAMILIES: dict[str, str] = {
    "open_clip": "dpprobe.backbones.open_clip_models",
    "pixels": "dpprobe.backbones.pixels",
    "scattering": "dpprobe.backbones.scattering",
    "timm": "dpprobe.backbones.timm_models",
}
