"""The reasons why a study's datasets of images or vectors do not fit its backbones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.backbones import external
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    from dpprobe.study.study import Study


def vector_faults(study: Study) -> Iterator[str]:
    """Yields what keeps a backbone from taking a dataset, a line each."""
    for dataset, options in study.all_datasets().items():
        kind = "datasets" if dataset in study.datasets else "public_datasets"
        taken: dict[str, str] = {}
        for name, backbone in study.backbones.items():
            where = f"{kind}.{dataset}"
            if not options.holds_vectors:
                if backbone.takes_vectors:
                    yield (
                        f"backbones.{name}: family external takes vectors, and {where} has images; "
                        "write source: embeddings there, or move one of the two to another study"
                    )
                continue
            if not isinstance(backbone, external.Options):
                yield (
                    f"backbones.{name}: family {backbone.family} takes images, and {where} has "
                    "vectors; write family: external, or move one of the two to another study"
                )
                continue
            try:
                vectors = backbone.choose_vectors(name, options.vector_names())
            except ConfigError as error:
                yield f"backbones.{name}.{error} ({where})"
                continue
            if (first := taken.setdefault(vectors, name)) != name:
                yield (
                    f"backbones.{name}: takes the vectors {vectors!r} of {where}, as {first} does; "
                    "remove one, or name several under the dataset's `vectors`"
                )
    if study.few_shot is not None and study.few_shot.backbones is None:
        for name, backbone in study.backbones.items():
            if backbone.takes_vectors:
                yield (
                    f"few_shot.backbones: {name} has no text encoder, so no probe would be "
                    f"trained; write backbones: [{name}] in few_shot"
                )
