"""Text embeddings of a dataset's classes: public, and the weights of a zero-shot classifier.

As in Radford et al. 2021, section 3.1.4, the embedding of each prompt of a class is scaled to unit
length, and the mean of these embeddings is scaled again. Text embeddings need no image.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpprobe import json_values
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import FAMILIES
from dpprobe.data import prompts
from dpprobe.data.table import read_info
from dpprobe.devices import resolve_device
from dpprobe.errors import ConfigError
from dpprobe.features.text_file import FORMAT, FORMAT_VERSION
from dpprobe.files import array_files, atomic_writes

if TYPE_CHECKING:
    import torch

    from dpprobe.backbones.open_clip_models import TextEncoder

logger = logging.getLogger("dpprobe")

# Sentences per forward pass.
BATCH = 256


def embed_text(
    options: BackboneOptions, *, sentences: Sequence[Sequence[str]], runtime: Runtime
) -> tuple[npt.NDArray[np.float32], TextEncoder]:
    """Returns the embeddings of classes, unit rows [classes, dimension], and the text tower.

    Raises ConfigError if the text tower is missing or cannot be loaded, if a sentence is too long,
    or if two classes have different sentences but equal tokens.
    """
    import torch  # late and heavy: training jobs read embeddings before they know if they train

    module = importlib.import_module(FAMILIES[options.family])
    if not hasattr(module, "load_text"):
        raise ConfigError(
            f"family: a backbone of {options.family} cannot read text; use a backbone of family "
            "open_clip"
        )
    options.check_files()
    tokenize = module.make_tokenizer(options)
    flat = [sentence for of_class in sentences for sentence in of_class]
    tokens = torch.cat([tokenize(flat[at : at + BATCH]) for at in range(0, len(flat), BATCH)])
    sizes = [len(of_class) for of_class in sentences]
    _refuse_equal_tokens(sentences, tokens.split(sizes))
    encoder: TextEncoder = module.load_text(options, Runtime(device=resolve_device(runtime.device)))
    rows = torch.cat([encoder.encode(part) for part in tokens.split(BATCH)])
    parts = rows.split(sizes)
    means = torch.stack([part.mean(0) for part in parts])
    weights = means / means.norm(dim=1, keepdim=True)
    return weights.cpu().numpy().astype(np.float32), encoder


def _refuse_equal_tokens(
    sentences: Sequence[Sequence[str]], tokens: Sequence[torch.Tensor]
) -> None:
    """Raises ConfigError if classes have equal tokens, e.g. for names that differ only by case."""
    seen: dict[bytes, Sequence[str]] = {}
    for of_class, rows in zip(sentences, tokens, strict=True):
        first = seen.setdefault(rows.cpu().numpy().tobytes(), of_class)
        if list(first) != list(of_class):
            raise ConfigError(
                f"prompts: {first[0]!r} and {of_class[0]!r} are the same tokens for this model, "
                "so text cannot distinguish these classes; choose other words in prompt_names"
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

    The tensor "weights" of the safetensors file is the `init_file` of a head. The key "dpprobe" of
    the file's metadata has prompts and fingerprints as JSON (see `text_file`).

    Raises ConfigError if prompts are faulty, or for the reasons that `embed_text` lists.

    Args:
      path: the file to write; it is complete or absent.
      chosen: the name of a set of prompts, or a list of templates.
      prompt_names: the words that replace {c}, as in `prompts.name_classes`.
    """
    described = read_info(info)
    templates = prompts.read_templates(chosen)
    words = prompts.name_classes(described.class_names, prompt_names)
    sentences = prompts.make_sentences(templates, words)
    for word, count in Counter(words).items():
        fault = f"prompts: {word!r} stands for {count} classes, so text cannot distinguish them"
        if count > 1 and prompt_names != "imagenet":  # ImageNet's authors repeat two names
            raise ConfigError(f"{fault}; choose other words in prompt_names")
        if count > 1:
            logger.warning("%s", fault)
    logger.info("prompts: %d per class, such as %r", len(templates), sentences[0][0])
    weights, encoder = embed_text(options, sentences=sentences, runtime=runtime)
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "class_names": list(described.class_names),
        "set": chosen if isinstance(chosen, str) else prompts.OWN,
        "templates": list(templates),
        "words": list(words),
        "logit_scale": encoder.logit_scale,
        "logit_bias": encoder.logit_bias,
        "fingerprint": json_values.hash_value({"text": encoder.fingerprint, "prompts": sentences}),
        "backbone_fingerprint": encoder.fingerprint,
        "weights_sha256": encoder.weights_sha256,
    }
    with atomic_writes.atomic_path(path) as temporary:
        # Metadata has one key, because safetensors writes several keys in varying order.
        temporary.write_bytes(array_files.pack_arrays({"weights": weights}, metadata))
