"""Locates the project's files outside the package: resources, studies, rules, scripts and profiles.

In a clone these files are in the root folder; in a wheel they have the same layout in one folder of
the package. All other modules locate resources, rules and scripts through this module.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

# The folder in a wheel's package with the project's other files, set in pyproject.toml.
SHIPPED = "shipped"
PACKAGE = Path(__file__).resolve().parent


@cache
def project_root() -> Path:
    """Returns the folder with Snakefile, config.yaml, resources/, scripts/ and profiles/."""
    return clone_root() or PACKAGE / SHIPPED


@cache
def clone_root() -> Path | None:
    """Returns the clone from which this package is imported; None if the package was installed."""
    root = PACKAGE.parents[1]
    return root if is_clone(root) and root / "src" / "dpprobe" == PACKAGE else None


def is_clone(folder: Path) -> bool:
    """Returns True for the root of a clone or of an unpacked source distribution."""
    return (folder / "Snakefile").is_file() and (folder / "src/dpprobe/__init__.py").is_file()


def resource_path(*parts: str) -> Path:
    return project_root().joinpath("resources", *parts)


def read_yaml(*parts: str) -> Any:
    """Reads a YAML file of `resources/`; raises ConfigError if it is missing."""
    import yaml

    path = resource_path(*parts)
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); install the wheel of dpprobe, or its "
            "clone with pip install --editable"
        ) from error
