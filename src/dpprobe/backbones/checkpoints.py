"""Reads local files of weights, and fills networks with their tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.backbones.network_options import NetworkOptions
from dpprobe.errors import ConfigError
from dpprobe.files import array_files, plain_files
from dpprobe.options import resolve_path

if TYPE_CHECKING:
    import torch

# The ending of NumPy archives of JAX weights, which each timm model reads in its own way.
NUMPY_SUFFIXES = frozenset({".npz", ".npy"})
# Keys under which training scripts save weights together with other state, and prefixes that
# wrappers add to every name.
_PLACES = (
    "model_state_dict", "state_dict", "model_state", "model", "net", "network", "weights", "params",
    "backbone", "encoder",
)  # fmt: skip
_WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "encoder.")
_REMEDY = "name a .safetensors file, or a .pth file with a state_dict"


def check_kind(path: Path) -> None:
    """Raises ConfigError if the first bytes show that a file contains no weights."""
    with path.open("rb") as stream:
        start = stream.read(32)
    if path.suffix.lower() == ".onnx":
        raise ConfigError(
            f"checkpoint: {path}: this is an ONNX network, not a file of weights; compute vectors "
            f"with it for `source: embeddings`, or {_REMEDY}"
        )
    # weights are binary files, zip archives or pickles
    kind = plain_files.name_kind(start)
    if kind:
        raise ConfigError(f"checkpoint: {path}: this is {kind}, not a file of weights; {_REMEDY}")


def read_state(path: Path, *, shapes: bool = False) -> dict[str, torch.Tensor]:
    """Reads a file's tensors, or only their shapes; raises ConfigError if there are no tensors."""
    from timm.models import clean_state_dict, load_state_dict

    from dpprobe.backbones.network_forward import one_line  # slow import: torch

    check_kind(path)
    try:
        if path.suffix == ".safetensors":
            array_files.require_short_header(path)
        if shapes and path.suffix == ".safetensors":
            state = clean_state_dict(_read_header(path))
        else:
            state = load_state_dict(str(path), device="meta" if shapes else "cpu")
    except Exception as error:  # unpickling raises errors of any kind
        raise ConfigError(
            f"checkpoint: {path}: no weights can be read from it ({one_line(error)}); {_REMEDY}"
        ) from error
    tensors = _find_tensors(state)
    if not tensors:
        held = ", ".join(map(str, list(state)[:5])) or "nothing"
        raise ConfigError(
            f"checkpoint: {path}: it should contain named tensors, but contains {held}; {_REMEDY}"
        )
    return tensors


def _find_tensors(values: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    """Returns the tensors under one of the usual keys, or at the checkpoint's top level."""
    import torch

    for place in _PLACES:
        if isinstance(inner := values.get(place), Mapping) and (tensors := _find_tensors(inner)):
            return tensors
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def unwrap_names(
    given: dict[str, torch.Tensor], wanted: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Removes prefixes that all names share because of wrappers, until names match the model's."""
    for _ in _WRAPPERS:
        prefix = next((each for each in _WRAPPERS if all(n.startswith(each) for n in given)), None)
        if prefix is None or not wanted.keys().isdisjoint(given):
            break
        given = {name.removeprefix(prefix): value for name, value in given.items()}
    return given


def _read_header(path: Path) -> dict[str, torch.Tensor]:
    import torch
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {
            name: torch.empty(file.get_slice(name).get_shape(), device="meta")
            for name in file.keys()  # noqa: SIM118, `file` is no mapping
        }


def load_weights(model: Any, state: Mapping[str, torch.Tensor], *, path: Path, name: str) -> None:
    """Removes a timm model's classifier, and fills all other tensors with a file's weights.

    The file's classifier is ignored, because features are taken before the classifier. Raises
    ConfigError if other tensors are missing, unknown, or of another shape.
    """
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    classifiers = {named} if isinstance(named, str) else set(named)
    before = set(model.state_dict())
    model.reset_classifier(0)
    wanted = model.state_dict()
    classifiers |= {each.rpartition(".")[0] for each in before - wanted.keys()}
    state = unwrap_names(dict(state), model.state_dict())
    given = {
        each: value
        for each, value in state.items()
        if each in wanted or each.rpartition(".")[0] not in classifiers
    }
    remedy = (
        "name the trained model under `model`, or set model_args or preprocessing.size as in "
        "training"
    )
    fill_model(model, given, path=path, name=name, remedy=remedy)


def fill_model(
    model: Any, state: dict[str, torch.Tensor], *, path: Path, name: str, remedy: str
) -> None:
    """Fills a network with weights; raises ConfigError if names or shapes of tensors differ."""
    wanted = model.state_dict()
    given = unwrap_names(state, wanted)
    if fault := _compare_tensors(given, wanted):
        raise ConfigError(f"checkpoint: {path}: these are not weights of {name}: {fault}; {remedy}")
    if not any(value.is_meta for value in given.values()):  # tensors on "meta" have only shapes
        model.load_state_dict(given)


def hash_weights(options: NetworkOptions, model: torch.nn.Module) -> str:
    """Returns the hash of the checkpoint's file, which users can compute, or of all weights.

    Raises ConfigError if the file is not the one that `checkpoint_sha256` states.
    """
    from dpprobe.backbones.network_forward import state_sha256  # slow import: torch

    if options.checkpoint is None:
        return state_sha256(model)
    sha256 = plain_files.sha256_file(resolve_path(options.checkpoint))
    if options.checkpoint_sha256 not in (None, sha256):
        raise ConfigError(
            f"checkpoint: {options.checkpoint}: SHA-256 {sha256} instead of "
            f"{options.checkpoint_sha256}; replace the file, or correct checkpoint_sha256"
        )
    return sha256


def _compare_tensors(
    given: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]
) -> str | None:
    """Explains how a file's tensors differ from a model's tensors; None if they agree."""
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    other = [
        name
        for name, value in given.items()
        if name in wanted and not _shapes_fit(value.shape, wanted[name].shape)
    ]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of its {len(wanted)} tensors are missing, {missing[0]} first")
    if unknown:
        parts.append(f"the model has no tensor {unknown[0]}" + _count_more(unknown))
    if other:
        first = other[0]
        parts.append(
            f"{first} has shape {list(given[first].shape)} instead of {list(wanted[first].shape)}"
            + _count_more(other)
        )
    return ", ".join(parts) or None


def _shapes_fit(shape: torch.Size, wanted: torch.Size) -> bool:
    """Returns True if PyTorch loads one shape into the other: scalars may have shape [1]."""
    return shape == wanted or (not wanted and math.prod(shape) == 1 and len(shape) == 1)


def _count_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
