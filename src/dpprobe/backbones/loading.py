"""Loads a backbone with the module of its family.

A family is a module with `Options` and a `load` function, in `backbones.registry.FAMILIES`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import MOST_GREY_BITS, BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.devices import resolve_device
from dpprobe.extras import naming_extras
from dpprobe.privacy.private_mark import check_unmarked


def load_backbone(options: BackboneOptions, *, runtime: Runtime) -> Backbone:
    """Loads a backbone onto a device.

    Raises ConfigError if the options do not fit together, or the number of features is not
    `dimension`. Raises PrivacyError if a file has weights that were trained on private examples.
    """
    options.check_files()
    for path in options.input_files():
        check_unmarked(Path(path), option="checkpoint", written=path)
    resolved = resolve_runtime(runtime)
    with naming_extras():
        family = importlib.import_module(FAMILIES[options.family])
        backbone: Backbone = family.load(options, resolved)
    options.check_dimension(backbone.dimension)
    if options.jpeg_decoding == "scaled":
        from dpprobe.backbones.image_preprocessing import scale_decoding  # slow import: torch

        backbone = replace(
            backbone,
            preprocessing={**backbone.preprocessing, "jpeg_decoding": "scaled"},
            scaled=scale_decoding(backbone.transform),
        )
    if options.grey_bits == MOST_GREY_BITS:
        return backbone
    from dpprobe.backbones.image_preprocessing import AssumeGreyBits  # slow import: torch

    of_train = backbone.train_transform
    return replace(
        backbone,
        preprocessing={**backbone.preprocessing, "grey_bits": options.grey_bits},
        transform=AssumeGreyBits(backbone.transform, options.grey_bits),
        train_transform=of_train and AssumeGreyBits(of_train, options.grey_bits),
    )


def resolve_runtime(runtime: Runtime) -> Runtime:
    """Replaces "auto" by this machine's device and precision."""
    device = resolve_device(runtime.device)
    precision = runtime.precision
    if precision == "auto":
        from dpprobe.devices import default_precision  # slow import: torch

        precision = default_precision(device)
    return replace(runtime, device=device, precision=precision)
