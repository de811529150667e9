"""Text embeddings of a dataset's classes: public, and the weights of a zero-shot classifier.

As in Radford et al. 2021, section 3.1.4, the embedding of each prompt of a class is scaled to unit
length, and the mean of these embeddings is scaled again. Text embeddings need no image.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from dpprobe import artifacts
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.data import prompts
from dpprobe.data.table import read_info
from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError, DataError

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-text"
FORMAT_VERSION = 1
# Sentences per forward pass.
BATCH = 256


@dataclass(frozen=True, kw_only=True)
class TextEmbeddings:
    """A zero-shot classifier: the text embeddings of the classes.

    Attributes:
      weights: float32 [classes, dimension], unit rows.
      logit_scale: the factor of the cosines in logits.
      logit_bias: the number added to the scaled cosines; None if the model adds nothing.
      fingerprint: identifies everything that determines a sentence's embedding.
    """

    weights: npt.NDArray[np.float32]
    logit_scale: float
    logit_bias: float | None
    fingerprint: str
    weights_sha256: str


def embed_text(
    options: BackboneOptions, *, sentences: Sequence[Sequence[str]], runtime: Runtime
) -> TextEmbeddings:
    """Embeds each class's sentences with a backbone's text tower, in float32.

    Raises:
      ConfigError: if the backbone has no text tower, or the text tower cannot be loaded. Also if a
        sentence is too long, or two classes with different sentences have equal tokens.
    """
    module = importlib.import_module(FAMILIES[options.family])
    if not hasattr(module, "load_text"):
        raise ConfigError(
            f"family: a backbone of {options.family} cannot read text; write a backbone of family "
            "open_clip"
        )
    options.check_files()
    tokenize = module.make_tokenizer(options)
    flat = [sentence for of_class in sentences for sentence in of_class]
    tokens = torch.cat([tokenize(flat[at : at + BATCH]) for at in range(0, len(flat), BATCH)])
    sizes = [len(of_class) for of_class in sentences]
    _refuse_equal_tokens(sentences, tokens.split(sizes))
    encoder = module.load_text(options, Runtime(device=resolve_device(runtime.device)))
    rows = torch.cat([encoder.encode(part) for part in tokens.split(BATCH)])
    parts = rows.split(sizes)
    means = torch.stack([part.mean(0) for part in parts])
    weights = means / means.norm(dim=1, keepdim=True)
    return TextEmbeddings(
        weights=weights.cpu().numpy().astype(np.float32),
        logit_scale=encoder.logit_scale,
        logit_bias=encoder.logit_bias,
        fingerprint=encoder.fingerprint,
        weights_sha256=encoder.weights_sha256,
    )


def _refuse_equal_tokens(
    sentences: Sequence[Sequence[str]], tokens: Sequence[torch.Tensor]
) -> None:
    """Refuses classes with equal tokens, such as names that differ by case or unknown words."""
    seen: dict[bytes, Sequence[str]] = {}
    for of_class, rows in zip(sentences, tokens, strict=True):
        first = seen.setdefault(rows.cpu().numpy().tobytes(), of_class)
        if list(first) != list(of_class):
            raise ConfigError(
                f"prompts: {first[0]!r} and {of_class[0]!r} are the same tokens for this model, so "
                "text cannot distinguish these classes; write other words in prompt_names"
            )


def write_text_embeddings(
    path: Path,
    *,
    options: BackboneOptions,
    info: Path,
    chosen: str | Sequence[str],
    prompt_names: Mapping[str, str] | str,
    runtime: Runtime,
) -> None:
    """Writes the text embeddings of one dataset's classes by one backbone.

    The file is a safetensors file. Its tensor "weights" is the `init_file` of a head. The key
    "dpprobe" of its metadata has prompts and fingerprints as JSON (`read_text_embeddings`).

    Args:
      path: the file to write; it is complete or absent.
      chosen: the name of a set of prompts, or a list of templates.
      prompt_names: words for {c}, as in `prompts.name_classes`.

    Raises:
      ConfigError: if prompts are faulty; also the errors of `embed_text`.
    """
    described = read_info(info)
    templates = prompts.read_templates(chosen)
    words = prompts.name_classes(described.class_names, prompt_names)
    sentences = prompts.make_sentences(templates, words)
    for word, count in Counter(words).items():
        fault = f"prompts: {word!r} stands for {count} classes, so text cannot distinguish them"
        if count > 1 and prompt_names != "imagenet":  # ImageNet's authors repeat two names
            raise ConfigError(f"{fault}; write other words in prompt_names")
        if count > 1:
            logger.warning("%s", fault)
    logger.info("prompts: %d per class, such as %r", len(templates), sentences[0][0])
    embeddings = embed_text(options, sentences=sentences, runtime=runtime)
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "class_names": list(described.class_names),
        "set": chosen if isinstance(chosen, str) else prompts.OWN,
        "templates": list(templates),
        "words": list(words),
        "logit_scale": embeddings.logit_scale,
        "logit_bias": embeddings.logit_bias,
        "fingerprint": artifacts.hash_value({"text": embeddings.fingerprint, "prompts": sentences}),
        "backbone_fingerprint": embeddings.fingerprint,
        "weights_sha256": embeddings.weights_sha256,
    }
    with artifacts.atomic_path(path) as temporary:
        # Metadata has one key, because safetensors writes several keys in varying order.
        temporary.write_bytes(artifacts.pack_arrays({"weights": embeddings.weights}, metadata))


def check_classes(path: Path, class_names: Sequence[str]) -> None:
    """Compares a file that may have text embeddings with a dataset's classes.

    A file without text embeddings passes, because the head that reads the weights reports it.

    Raises:
      DataError: if the text embeddings have other classes, or another order.
    """
    try:
        metadata = _read_metadata(path)
    except DataError:
        return
    if list(metadata["class_names"]) != list(class_names):
        raise DataError(
            f"{path}: its classes differ, or have another order; name the text.safetensors of "
            "the same dataset"
        )


def read_text_embeddings(path: Path) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Reads weights [classes, dimension] and metadata; raises DataError for a faulty file."""
    metadata = _read_metadata(path)
    try:
        with safe_open(path, framework="numpy") as stream:
            weights = stream.get_tensor("weights")
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: no text embeddings ({error}); delete it and run again") from error
    if weights.shape[0] != len(metadata["class_names"]):
        raise DataError(f"{path}: no text embeddings; delete it and run again")
    return weights, metadata


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        with safe_open(path, framework="numpy") as stream:
            metadata = json.loads((stream.metadata() or {})["dpprobe"])
        if metadata["format"] != FORMAT:
            raise ValueError(f"format {metadata['format']}")
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no text embeddings ({error}); delete it and run again") from error
    return dict(metadata)
