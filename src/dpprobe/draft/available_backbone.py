"""Chooses a backbone that needs no download: a local checkpoint, cached weights, or wavelets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpprobe.backbones.feature_dimensions import read_dimensions
from dpprobe.backbones.hub_files import OPEN_CLIP_WEIGHTS, TIMM_WEIGHTS, is_cached
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.projection import USUAL_WIDTH
from dpprobe.backbones.registry import FAMILIES
from dpprobe.backbones.sister_models import describe_photographs, list_sisters
from dpprobe.backbones.timm_models import known_architectures, read_stated_config
from dpprobe.draft.seen_dataset import ItemVectors, name_of
from dpprobe.errors import ConfigError
from dpprobe.options import options_class, resolve_path
from dpprobe.study import catalog

HUB = "https://huggingface.co/"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A backbone for a study.

    Attributes:
      dimension: features per image; None if unknown.
      seen: each fitting architecture's classes of two photographs, one line per architecture.
      asked: options that only a person can confirm; the study has these options as comments.
    """

    name: str
    keys: Mapping[str, Any]
    comment: str
    dimension: int | None
    pretrained: bool
    seen: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)


def choose_backbone(checkpoint: str | None, model: str | None, size: int | None = None) -> Chosen:
    """Chooses a backbone whose weights are on this machine, or a backbone without weights.

    Args:
      checkpoint: a file of weights of a timm model.
      model: timm's name of the model; if None, derived from the file's name.
      size: pixels per side of the images that enter the model; None for the model's own size.

    Raises ConfigError if the file is missing, has no weights, or has weights of another model.
    """
    if checkpoint is not None:
        return _of_checkpoint(checkpoint, model, size)
    for option, value in (("--model", model), ("--size", size)):
        if value is not None:
            raise ConfigError(
                f"{option} {value}: {option} is for the network of --checkpoint; add --checkpoint "
                "with its weights"
            )
    fetched = _find_fetched()
    if fetched is None:
        return _choose_scattering()
    keys = {"catalog": fetched}
    entry = catalog.backbone_entries()[fetched]
    return Chosen(
        name=fetched,
        keys=keys,
        comment=f"{entry['title']}, trained on {entry['trained_on']}. Its weights are in this "
        "machine's Hugging Face cache. The network must not be trained on your private images.",
        dimension=entry["dimension"],
        pretrained=True,
    )


def ask_for_vectors(vectors: ItemVectors) -> Chosen:
    """Drafts a backbone for external vectors, with a declaration that a person must complete."""
    return Chosen(
        name=vectors.name,
        keys={"family": "external"},
        asked={"model": vectors.name, "each_by_itself": True},
        comment="Which model computed the vectors, and did it compute each vector from its own "
        "item alone? The privacy guarantee fails if the vectors were whitened, centred, z-scored, "
        "batch-corrected or reduced by PCA with statistics of these items, or if the model was "
        "fine-tuned on them (docs/embeddings.md). Write the model's name, which is published with "
        "every head. If you can declare the last line, remove the number sign before both lines.",
        dimension=vectors.dimension,
        pretrained=True,
    )


def _choose_scattering() -> Chosen:
    keys = {"family": "scattering", "size": 32, "color": "rgb", "project": USUAL_WIDTH}
    return Chosen(
        name="scattering",
        keys=keys,
        comment="Wavelet features, which need no weights, reduced by a public random projection. "
        "A pretrained network is far better.",
        dimension=_make_options(keys).computed_dimension,
        pretrained=False,
    )


def _of_checkpoint(checkpoint: str, model: str | None, size: int | None) -> Chosen:
    path = resolve_path(checkpoint)
    if not path.is_file():
        raise ConfigError(f"--checkpoint {checkpoint}: no such file; correct the path")
    model = model or _find_model(path)
    keys: dict[str, Any] = {"family": "timm", "model": model, "checkpoint": checkpoint}
    stated = read_stated_config(path, model)
    if stated is not None:
        keys |= {name: stated[name] for name in ("model_args", "preprocessing") if stated[name]}
    if size is not None:
        if size < 1:
            raise ConfigError(f"--size {size}: use 1 pixel or more, such as 224")
        keys["preprocessing"] = {**keys.get("preprocessing", {}), "size": size}
    options = _make_options(keys)
    options.check_files()
    with tempfile.TemporaryDirectory() as folder:
        known = read_dimensions({"network": options}, Path(folder))
    if fault := known.faults.get("network"):
        raise ConfigError(f"--{fault}" if fault.startswith(("checkpoint:", "model:")) else fault)
    return Chosen(
        name=name_of([model.rpartition("/")[2].partition(".")[0]]),
        keys=keys,
        comment="Features are the input of the network's classifier, so its training classes do "
        "not matter. The network must not be trained on your private images. "
        + (
            _describe_assumed(model, size)
            if stated is None
            else f"Preprocessing: see {stated['file']}."
        ),
        dimension=known.known["network"],
        pretrained=True,
        seen=tuple(_compare_sisters(path, model, keys.get("model_args", {}))),
    )


def _compare_sisters(path: Path, model: str, arguments: dict[str, Any]) -> Iterator[str]:
    """Yields each architecture's classes of two photographs, or the reason why there are none."""
    names = [model.partition(".")[0], *list_sisters(model)]
    if len(names) == 1:
        return
    from dpprobe.backbones.checkpoints import NUMPY_SUFFIXES, read_state  # slow import: torch

    state = {} if path.suffix in NUMPY_SUFFIXES else read_state(path)
    lines = list(describe_photographs(names, state, arguments))
    yield from lines or [
        "Photographs cannot tell which architecture is right: the file has no classifier of "
        "ImageNet's 1,000 classes for the model's own image size"
    ]


def _describe_assumed(model: str, size: int | None) -> str:
    from timm.data.config import resolve_data_config  # slow import: torch
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(model)
    known = resolve_data_config(pretrained_cfg=config.to_dict()) if config else {}
    values = [f"{name} {known[name]}" for name in ("mean", "std", "interpolation") if known]
    values += [f"size {known['input_size'][-1]}"] if known and size is None else []
    return (
        f"Assumed, because the file states no preprocessing: timm's for {model}"
        + (f" ({', '.join(values)})" if values else "")
        + ". Wrong values cost accuracy. Compare mean, std, size, interpolation and model_args, "
        "such as pad_type, with the network's training (docs/features.md)."
    )


def _make_options(keys: Mapping[str, Any]) -> BackboneOptions:
    options = options_class(FAMILIES, keys["family"]).model_validate(keys)
    assert isinstance(options, BackboneOptions)
    return options


def _find_model(path: Path) -> str:
    """Returns the longest name of a timm model that is a prefix of the file's name."""
    known = known_architectures()
    if known is None:
        import timm  # slow import: torch

    is_model = timm.is_model if known is None else known.__contains__
    stem = path.name.lower().partition(".")[0]  # in timm, a tag of weights follows the dot
    starts = (stem[:end] for end in range(len(stem), 0, -1))
    model = next(filter(is_model, starts), None)
    if model is None:
        raise ConfigError(
            f"--checkpoint {path}: its name does not begin with the name of a timm model; "
            "name the network with --model, such as --model resnet50"
        )
    return model


def _find_fetched() -> str | None:
    """Returns the first backbone in the catalog whose weights are cached."""
    for name, entry in catalog.backbone_entries().items():
        repo = str(entry["source"]).removeprefix(HUB)
        if repo == entry["source"] or repo.count("/") != 1:
            continue
        if is_cached(repo, (*TIMM_WEIGHTS, *OPEN_CLIP_WEIGHTS)):
            return name
    return None
