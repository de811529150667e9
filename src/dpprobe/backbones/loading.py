"""Loads a backbone by the module of its family.

A family is one module with an `Options` class and a `load` function, named in
`dpprobe.backbones.registry.FAMILIES`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.devices import resolve_device
from dpprobe.privacy.private_mark import check_unmarked


def load_backbone(options: BackboneOptions, *, runtime: Runtime) -> Backbone:
    """Loads a backbone onto a device.

    Raises:
      ConfigError: when the options name something that is not there or does not fit together, or
        the features have another dimension than the options say.
      PrivacyError: when a file of the backbone holds weights that were trained on private examples.
    """
    options.check_files()
    for path in options.input_files():
        check_unmarked(Path(path), option="checkpoint", written=path)
    resolved = resolve_runtime(runtime)
    backbone: Backbone = importlib.import_module(FAMILIES[options.family]).load(options, resolved)
    options.check_dimension(backbone.dimension)
    return backbone


def resolve_runtime(runtime: Runtime) -> Runtime:
    """Returns the runtime with the device and the precision that "auto" stands for here."""
    device = resolve_device(runtime.device)
    precision = runtime.precision
    if precision == "auto":
        from dpprobe.devices import default_precision  # heavy: torch, which planning lacks

        precision = default_precision(device)
    return replace(runtime, device=device, precision=precision)
