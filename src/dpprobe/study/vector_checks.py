"""Explains why datasets of images or vectors do not fit a study's backbones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpprobe.backbones import external
from dpprobe.backbones.options import BackboneOptions
from dpprobe.data.options import DatasetOptions
from dpprobe.errors import ConfigError


def vector_faults(
    datasets: Mapping[str, DatasetOptions],
    backbones: Mapping[str, BackboneOptions],
    *,
    probes_all: bool,
) -> Iterator[str]:
    """Yields reasons why a backbone cannot use a dataset.

    Args:
      datasets: the datasets by their keys in the study, such as `datasets.lesions`.
      probes_all: True if few-shot probes are trained on every backbone.
    """
    for where, options in datasets.items():
        taken: dict[str, str] = {}
        for name, backbone in backbones.items():
            if not options.holds_vectors:
                if backbone.takes_vectors:
                    yield (
                        f"backbones.{name}: family external takes vectors, and {where} has images; "
                        "write `source: embeddings` there, or move one of the two to another study"
                    )
                continue
            if not isinstance(backbone, external.Options):
                yield (
                    f"backbones.{name}: family {backbone.family} takes images, and {where} has "
                    "vectors; write `family: external`, or move one of the two to another study"
                )
                continue
            try:
                vectors = backbone.choose_vectors(name, options.vector_names())
            except ConfigError as error:
                yield f"backbones.{name}.{error} ({where})"
                continue
            if (first := taken.setdefault(vectors, name)) != name:
                yield (
                    f"backbones.{name}: takes the vectors {vectors!r} of {where}, as {first} "
                    "does; remove one of the two backbones, or name several vectors under the "
                    "dataset's `vectors`"
                )
    if probes_all:
        for name, backbone in backbones.items():
            if backbone.takes_vectors:
                yield (
                    f"few_shot.backbones: {name} has no text encoder, so no probe would be "
                    f"trained; write backbones: [{name}] in few_shot"
                )
