"""Locates and reads the files of `resources/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

RESOURCES = Path(__file__).resolve().parents[2] / "resources"


def read_yaml(*parts: str) -> Any:
    """Reads one of the project's YAML files.

    Raises:
      ConfigError: when it is missing, as in an installation without the checkout.
    """
    import yaml

    path = RESOURCES.joinpath(*parts)
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); install dpprobe from its checkout, "
            "with pip install --editable"
        ) from error
