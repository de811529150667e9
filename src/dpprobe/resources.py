"""Locates the files that are not Python's: resources, studies, rules, scripts, profiles.

They stand in the root of a clone, and in a wheel under one folder of the package, laid out alike.
Everything that looks for one asks here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

# The folder of the package in which a wheel has them; pyproject.toml puts them there.
SHIPPED = "shipped"
PACKAGE = Path(__file__).resolve().parent


@cache
def project_root() -> Path:
    """Returns the folder of Snakefile, config.yaml, resources/, scripts/ and profiles/."""
    return clone_root() or PACKAGE / SHIPPED


@cache
def clone_root() -> Path | None:
    """Returns the clone that this package is imported from; None if it was installed."""
    root = PACKAGE.parents[1]
    return root if is_clone(root) and root / "src" / "dpprobe" == PACKAGE else None


def is_clone(folder: Path) -> bool:
    """Returns True for the root of a clone or of an unpacked source distribution."""
    return (folder / "Snakefile").is_file() and (folder / "src/dpprobe/resources.py").is_file()


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
