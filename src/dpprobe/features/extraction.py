"""Extracts the features of a split table's rows with a backbone, and writes one shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dpprobe import devices
from dpprobe.backbones import external, loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import probe_image, take_probe
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.row_mixing import find_mixed_row, make_public_rows
from dpprobe.code_version import code_version
from dpprobe.data.sources.embeddings import vector_names
from dpprobe.data.table import DatasetInfo, EncodedImage, SplitTable, open_table, read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.features.decoding_workers import Workers, make_task
from dpprobe.features.extraction_pipeline import (
    Array,
    Decoder,
    Features,
    compute_rows,
    find_misfits,
    rows_per_pass,
)
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_header import ShardHeader, row_range
from dpprobe.features.shard_writer import open_shard
from dpprobe.features.stored_crops import with_crops
from dpprobe.progress import Progress

LIBRARIES = (
    "h5py",
    "kymatio",
    "numpy",
    "open_clip_torch",
    "pillow",
    "timm",
    "torch",
    "torchvision",
)


def extract_shard(
    *,
    table: Path,
    info: Path,
    backbone: BackboneOptions,
    backbone_name: str,
    split: str,
    shard: int,
    shards: int,
    output: Path,
    batch_size: int,
    dtype: str,
    threads: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    changed: Callable[[Backbone, Runtime], Backbone] | None = None,
) -> None:
    """Extracts and writes one shard; equal inputs on one machine give equal features.

    The features of null examples are NaN.

    Raises DataError if `table` and `info` belong to different datasets. Also raises DataError, with
    the row, if an image cannot be used, or its features are not finite or do not fit the dtype.
    Raises ConfigError if the backbone cannot be loaded or mixes the images of a batch, or there are
    more shards than rows.

    Args:
      info: the dataset's `dataset.json`.
      shard: the number of the shard, from 0 to `shards` - 1.
      output: the shard's path; the file is complete or absent.
      batch_size: images per forward pass on a GPU; a CPU takes fewer.
      dtype: number format on disk, "float16" or "float32".
      threads: number of threads that decode and compute, or, for a GPU, of processes that decode;
        default: torch's number of threads. Features do not depend on the number of threads.
      changed: a function that changes the loaded backbone before use, for example cuts its network.
    """
    described = read_info(info)
    source = open_table(table, described)
    start, stop = row_range(source.rows, shard, shards)
    place = device if backbone.network else "cpu"  # only networks get a GPU in the workflow
    runtime = loading.resolve_runtime(Runtime(device=place, precision=precision))
    accelerator = devices.find_accelerator(runtime.device)
    threads = threads or torch.get_num_threads()
    vectors = None
    if isinstance(backbone, external.Options):
        vectors = backbone.choose_vectors(backbone_name, vector_names(described.source))

    def read(ranges: Sequence[range]) -> Iterator[EncodedImage]:
        return source.read_ranges([range(start + r.start, start + r.stop) for r in ranges])

    with ExitStack() as stack:
        workers = None
        if accelerator is not None:  # processes are forked before the network starts CUDA
            for name in backbone.imports:
                import_module(name)
            workers = stack.enter_context(Workers(read, threads))
        loaded = loading.load_backbone(backbone, runtime=runtime)
        loaded = with_crops(loaded, backbone.stored_crops)
        is_network = loaded.graph is not None
        if changed is not None:
            loaded = changed(loaded, runtime)
        stand_in = source.read_first() if source.nulls else None
        decoder = Decoder(loaded, split, vectors=vectors, stand_in=stand_in)
        if workers is not None:
            workers.send_task(make_task(decoder, stop - start, batch_size, threads))
        if is_network:
            rows = rows_per_pass(batch_size, accelerator)
            check_images_apart(loaded, rows, name=backbone_name, precision=runtime.precision)
        header = ShardHeader(
            split=split,
            rows=source.rows,
            dtype=dtype,
            backbone=backbone_name,
            backbone_options=backbone.extraction_params(),
            shard=shard,
            shards=shards,
            precision=runtime.precision,
            **_describe_origin(described, loaded),
        )
        probe = _take_finite_probe(loaded, backbone_name)
        parts = compute_rows(
            read,
            stop - start,
            decoder,
            loaded,
            batch_size=batch_size,
            threads=threads,
            accelerator=accelerator,
            workers=workers,
        )
        _write_parts(parts, output, header, source, probe=probe)


def _describe_origin(dataset: DatasetInfo, backbone: Backbone) -> dict[str, Any]:
    """Returns the shard header's fields on the dataset, the backbone and installed libraries."""
    return {
        "class_names": dataset.class_names,
        "multi_label": dataset.multi_label,
        "dataset_fingerprint": dataset.fingerprint,
        "backbone_fingerprint": backbone.fingerprint,
        "weights_sha256": backbone.weights_sha256,
        "architecture": backbone.architecture,
        "pretrained_tag": backbone.pretrained_tag,
        "trained": backbone.trained,
        "preprocessing": backbone.preprocessing,
        "versions": {name: version(name) for name in LIBRARIES} | {"dpprobe": code_version()},
    }


def _take_finite_probe(backbone: Backbone, name: str) -> dict[str, Any]:
    probe = take_probe(backbone)
    if not math.isfinite(probe["norm"]):
        raise DataError(
            f"backbone {name}: its features of dpprobe's own probe image are not finite; check "
            "its weights and preprocessing, or write features.precision: float32"
        )
    return probe


def check_images_apart(backbone: Backbone, rows: int, *, name: str, precision: str) -> None:
    """Raises ConfigError if an image's features depend on other images in a batch of `rows` images.

    The check uses public images. All forward passes of an extraction have `rows` images.
    """

    def run(images: torch.Tensor) -> torch.Tensor:
        features, layers = backbone.compute_features(images)
        return torch.cat([features, *layers.values()], dim=1)

    example = backbone.transform(probe_image())
    images = make_public_rows(example.shape, example.dtype)
    if find_mixed_row(run, images, rows, precision=precision):
        raise ConfigError(
            f"backbone {name}: the network mixes the images of a batch: in a batch of {rows}, the "
            "features of an image change with the other images. Epsilon would not hold, because "
            "clipping bounds only an image's own features; choose another backbone, or write "
            "features.batch_size: 1"
        )


def _write_parts(
    parts: Generator[Features],
    output: Path,
    header: ShardHeader,
    source: SplitTable,
    *,
    probe: Mapping[str, Any],
) -> None:
    rows = RowColumns.read_table(source, header.first_row, header.end_row)
    writing = open_shard(output, header, rows, probe=probe)
    label = f"features {header.backbone} {header.split} {header.shard + 1}/{header.shards}"
    progress = Progress(header.end_row - header.first_row, label=label)
    with writing as writer, progress, closing(parts):
        for part in parts:
            nulls = np.isin([row for row, _ in part.rows], source.nulls)
            for values in (part.values, *part.layers.values()):
                _check_values(values, part, header.split, header.dtype)
                values[nulls] = np.nan
            writer.append_block(part.values, layers=part.layers)
            progress.advance_by(len(part.rows))


def _check_values(values: Array, part: Features, split: str, dtype: str) -> None:
    for position, reason in find_misfits(values, dtype).items():
        row, row_id = part.rows[position]
        remedy = "write features.dtype: float32"
        if not np.isfinite(values[position]).all():
            remedy = (
                "check the image and the backbone's weights and preprocessing, or write "
                "features.precision: float32"
            )
        raise DataError(f"{split} row {row} (id {row_id}): {reason}; {remedy}")
