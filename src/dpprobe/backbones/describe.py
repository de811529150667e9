"""Describes backbones without their weights: `python -m dpprobe.backbones.describe`.

Reads {name: options} as JSON. The last line of output is {name: {"dimension": d, "blocks": b}},
with "hub_files" if loading fetches files. An error gives {name: {"fault": text, "certain": bool}};
"certain" is false if loading may work on another machine. Because this is a separate process,
planning a study does not import torch and timm.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES, backbone_options
from dpprobe.errors import ConfigError
from dpprobe.extras import naming_extras


def main() -> None:
    logging.disable(logging.WARNING)
    asked = json.load(sys.stdin)
    answers = {name: describe_backbone(backbone_options(values)) for name, values in asked.items()}
    print(f"\n{json.dumps(answers)}", flush=True)


def describe_backbone(options: BackboneOptions) -> Mapping[str, Any]:
    """Returns the numbers of features and blocks, or the error that loading would raise.

    Also lists the files that loading fetches from the Hub. The model is built on the meta device,
    without weights. If an operation fails on meta, the CPU builds the model with random weights.
    """
    import torch

    family = importlib.import_module(FAMILIES[options.family])
    if not hasattr(family, "describe"):
        return {}
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading weights into meta tensors causes warnings
            told = dict(family.describe(options, "meta"))
    except Exception:  # errors on the CPU have better messages than errors on meta
        try:
            with naming_extras():
                told = dict(family.describe(options, "cpu"))
        except ConfigError as error:
            # Another machine may reach a name on the Hub, or have the missing package or file.
            certain = not isinstance(error.__cause__, ImportError | OSError)
            certain = certain and ":" not in str(getattr(options, "model", ""))
            return {"fault": str(error), "certain": certain}
    fetched = family.list_hub_files(options) if hasattr(family, "list_hub_files") else []
    return told | {"hub_files": fetched} if fetched else told


if __name__ == "__main__":
    main()
