"""Folders with a model's configuration and weights, which a study names as `local-dir:FOLDER`."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.errors import ConfigError
from dpprobe.files import plain_files
from dpprobe.options import resolve_path

PREFIX = "local-dir:"
# The files of configuration, named as in a repository of the Hub.
TIMM_CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"
# Endings of weights files, from which each library chooses one.
_WEIGHTS = {
    TIMM_CONFIG: (".safetensors", ".bin", ".pth", ".pth.tar"),
    OPEN_CLIP_CONFIG: (".safetensors", ".bin", ".pth"),
}


def expand_name(model: str) -> str:
    """Returns a model's name, with `~` expanded if it names a folder."""
    if not model.startswith(PREFIX):
        return model
    return f"{PREFIX}{resolve_path(model.removeprefix(PREFIX))}"


def list_files(model: str, config: str) -> tuple[str, ...]:
    """Lists the configuration and weights files of a folder; empty if the name is not a folder."""
    if not model.startswith(PREFIX):
        return ()
    folder = _folder(model)
    names = sorted(path for path in folder.glob("*") if path.name.endswith(_WEIGHTS[config]))
    return tuple(map(str, [folder / config, *names]))


def check_folder(model: str, config: str, *, weights: bool) -> None:
    """Raises ConfigError if a folder lacks its configuration, or weights if `weights` is True."""
    if not model.startswith(PREFIX):
        return
    folder = _folder(model)
    if not folder.is_dir():
        raise ConfigError(f"model: no folder {folder}; correct the path after {PREFIX}")
    if not (folder / config).is_file():
        raise ConfigError(f"model: {folder} has no {config}; copy it from the model's repository")
    if weights and len(list_files(model, config)) == 1:
        raise ConfigError(
            f"model: {folder} has no weights ({', '.join(_WEIGHTS[config])}); copy them there, or "
            "write `pretrained: false` for random weights"
        )


def hide_folder(model: str, config: str) -> str:
    """Replaces a folder's path by the SHA-256 of its configuration, which decides the network.

    So features from a copy of the folder have an equal fingerprint.
    """
    if not model.startswith(PREFIX):
        return model
    return f"{PREFIX}{plain_files.sha256_file(_folder(model) / config)}"


def is_hidden(model: str) -> bool:
    """Returns True for a name that `hide_folder` returned for a folder."""
    return re.fullmatch(f"{PREFIX}[0-9a-f]{{64}}", model) is not None


def folder_name(model: str) -> str | None:
    """Returns a folder's name without its path; None if the model's name is not a folder."""
    return _folder(model).absolute().name if model.startswith(PREFIX) else None


def _folder(model: str) -> Path:
    return resolve_path(model.removeprefix(PREFIX))
