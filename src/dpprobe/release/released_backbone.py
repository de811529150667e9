"""Loads the backbone that a bundle names, and refuses one that computes other features here.

A bundle is untrusted: a repository or a function that it names is used only if the user permits, a
path in the file system never. Weights are found by their SHA-256. The loaded backbone must have the
release's preprocessing, and compute the release's features of a public test image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpprobe.backbones import loading, local_folders
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import probes_agree, take_probe
from dpprobe.backbones.hub_files import HUB_PREFIXES
from dpprobe.backbones.joined_network import join_backbones
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, DataError
from dpprobe.files.plain_files import sha256_file
from dpprobe.release.bundle import BackboneFacts, Bundle

if TYPE_CHECKING:
    import torch
    from PIL import Image

Precision = Literal["float32", "bfloat16", "float16"]
# The file of the backbone's weights; several files if members of a joined backbone need them.
Checkpoint = str | Path | Sequence[str | Path] | None


def load_released_backbone(
    read: Bundle,
    checkpoint: Checkpoint = None,
    *,
    device: str,
    precision: Precision | None = None,
    allow_hub: bool = False,
    allow_module: bool = False,
) -> Backbone:
    """Loads the backbone of a bundle; see `predict.Predictor.load_bundle` for arguments and errors.

    A backbone that keeps image sizes refuses images of another size than the head takes.
    """
    for one in read.facts.backbone.parts:
        _check_source(read.folder, one, hub=allow_hub, module=allow_module)
    files = _list_checkpoints(checkpoint)
    loaded = _load_members(read, files, device=device, precision=precision)
    if loaded.dimension is None:
        sized = partial(_transform_sized, loaded.transform, read.facts.dimension)
        loaded = replace(loaded, transform=sized)
    return loaded


def _transform_sized(
    transform: Callable[[Image.Image], torch.Tensor], dimension: int, image: Image.Image
) -> torch.Tensor:
    """Transforms an image for a backbone that keeps image sizes; DataError unless the head fits."""
    values = transform(image)
    if values.numel() != dimension:
        raise DataError(
            f"an image of {image.width} x {image.height} gives {values.numel()} values, but the "
            f"head takes {dimension}; resize the image"
        )
    return values.flatten()


def _load_members(
    read: Bundle, checkpoints: Sequence[Path], *, device: str, precision: Precision | None
) -> Backbone:
    """Loads and checks the backbone of a bundle, or all members of a joined backbone."""
    facts, folder = read.facts.backbone, read.folder
    files = _assign_checkpoints(folder, facts, checkpoints)
    options = {one.name: _backbone_options(folder, one, files.get(one.name)) for one in facts.parts}
    loaded = {}
    for one in facts.parts:
        runtime = Runtime(device=device, precision=precision or one.precision)
        loaded[one.name] = loading.load_backbone(options[one.name], runtime=runtime)
        dimension = None if facts.members else read.facts.dimension
        check_backbone(folder, one, loaded[one.name], dimension)
    if not facts.members:
        return loaded[facts.name]
    backbone = join_backbones(loaded, [one.dtype for one in facts.members])
    _check_dimension(folder, facts, backbone, read.facts.dimension)
    return backbone


def _check_source(folder: Path, facts: BackboneFacts, *, hub: bool, module: bool) -> None:
    """Checks the source of weights and code that an untrusted bundle names.

    Raises DataError for a file or folder, ConfigError for a repository or code without permission.
    """
    options = facts.options
    if options.get("family") == "imported" and not module:
        raise ConfigError(
            f"{folder}: the backbone is built by {options.get('module')}, a function that "
            "the bundle names; pass --allow-module if you trust this function"
        )
    model, tag = str(options.get("model", "")), options.get("pretrained")
    arguments = options.get("model_args") or {}
    places = [key for key in arguments if key.startswith("pretrained") or key == "cache_dir"]
    places += ["pretrained"] if isinstance(tag, str) and not re.fullmatch(r"[\w-]*", tag) else []
    # The user names such a folder, not the bundle.
    local = facts.checkpoint is not None and local_folders.is_hidden(model)
    places += [model] if ":" in model and not (local or model.startswith(HUB_PREFIXES)) else []
    if places:
        raise DataError(
            f"{folder}: {places[0]}: the bundle names a location to load weights from, "
            "which is not allowed; ask for a bundle with a checkpoint"
        )
    if ":" in model and not (local or hub):
        raise ConfigError(
            f"{folder}: the bundle takes the backbone's weights from the Hub repository "
            f"{model}; pass --allow-hub if you trust its owner"
        )


def _list_checkpoints(given: Checkpoint) -> tuple[Path, ...]:
    if given is None:
        return ()
    return tuple(map(Path, [given] if isinstance(given, str | Path) else given))


def _assign_checkpoints(
    folder: Path, facts: BackboneFacts, checkpoints: Sequence[Path]
) -> dict[str, Path]:
    """Finds the weights of each backbone: a file by its SHA-256, a folder by its name."""
    wanting = [one for one in facts.parts if one.checkpoint is not None]
    if len(checkpoints) <= 1 and (len(wanting) == 1 or not facts.members):
        # the only file; later checks explain why it may be wrong
        return {one.name: path for one in (wanting or facts.parts) for path in checkpoints}
    found: dict[str, Path] = {}
    for path in checkpoints:
        sha256 = sha256_file(path) if path.is_file() else None
        names = [
            one.name
            for one in wanting
            if (sha256 is not None and sha256 == one.weights_sha256)
            or (path.is_dir() and _is_folder(one) and path.name == one.checkpoint)
        ]
        if not names:
            needed = "; ".join(
                f"{one.name}: {one.checkpoint}, SHA-256 {one.weights_sha256}" for one in wanting
            )
            raise ConfigError(
                f"--checkpoint {path}: not the weights of a backbone of {folder}; the bundle needs "
                f"{needed or 'no file of weights, so remove --checkpoint'}"
            )
        found |= dict.fromkeys(names, path)
    return found


def _is_folder(facts: BackboneFacts) -> bool:
    return local_folders.is_hidden(str(facts.options.get("model")))


def _backbone_options(
    bundle: Path, facts: BackboneFacts, checkpoint: Path | None
) -> BackboneOptions:
    """Returns the backbone's options in the study, with the path of weights on this machine."""
    if facts.checkpoint is None and checkpoint is not None:
        raise ConfigError(
            f"checkpoint {checkpoint}: backbone {facts.name} of {bundle} needs no file of "
            "weights; remove --checkpoint"
        )
    # A released head takes only the features of the backbone's last block.
    inner = {"layers": (), "token": None} if "layers" in facts.options else {}
    options = {**facts.options, **inner}
    if facts.checkpoint is None:
        return backbone_options(options)
    folder = _is_folder(facts)
    if checkpoint is None or not (checkpoint.is_dir() if folder else checkpoint.is_file()):
        kind = "folder" if folder else "file"
        absent = "" if checkpoint is None else f"{checkpoint} is not a {kind}; "
        sha256 = "" if folder else f" (SHA-256 {facts.weights_sha256})"
        raise ConfigError(
            f"--checkpoint: {absent}the bundle has no weights of its backbone {facts.name}; pass "
            f"--checkpoint {kind.upper()}, where {kind.upper()} is {facts.checkpoint}{sha256} from "
            "whoever published the bundle"
        )
    if folder:  # loading compares the weights
        return backbone_options({**options, "model": f"{local_folders.PREFIX}{checkpoint}"})
    _check_weights(bundle, facts, sha256_file(checkpoint), str(checkpoint))
    return backbone_options({**options, "checkpoint": str(checkpoint)})


def _check_weights(bundle: Path, facts: BackboneFacts, sha256: str | None, named: str) -> None:
    wanted = facts.weights_sha256
    if sha256 != wanted:
        raise DataError(
            f"{named}: its weights have SHA-256 {sha256}, but {bundle} needs {wanted}; use "
            "those weights"
        )


def check_backbone(
    bundle: Path, facts: BackboneFacts, loaded: Backbone, dimension: int | None
) -> None:
    """Compares a loaded backbone with the release; `dimension` is None for a member."""
    _check_weights(bundle, facts, loaded.weights_sha256, f"backbone {facts.name}")
    if dimension is not None:
        _check_dimension(bundle, facts, loaded, dimension)
    here = json.loads(json.dumps(dict(loaded.preprocessing)))  # with lists instead of tuples
    there = facts.loaded_preprocessing
    if here != there:
        key = next(key for key in {**there, **here} if there.get(key) != here.get(key))
        fault = f"preprocessing has {key} {here.get(key)} here, but {there.get(key)} in the release"
        raise _unlike_release(bundle, facts, fault)
    if not probes_agree(probe := take_probe(loaded), facts.probe):
        fault = (
            f"its features of a test image have norm {probe['norm']:g} here instead of "
            f"{facts.probe['norm']:g}, or different values"
        )
        raise _unlike_release(bundle, facts, fault)


def _check_dimension(bundle: Path, facts: BackboneFacts, loaded: Backbone, dimension: int) -> None:
    if loaded.dimension not in (None, dimension):
        fault = f"gives {loaded.dimension} features here, but the head takes {dimension}"
        raise _unlike_release(bundle, facts, fault)


def _unlike_release(bundle: Path, facts: BackboneFacts, fault: str) -> DataError:
    named = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    remedy = f"the libraries of the release ({named})" if named else "the release's libraries"
    return DataError(f"{bundle}: backbone {facts.name}: {fault}; use {remedy}")
