"""Extraction: rows of a split table -> a backbone -> one shard of features."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.probe import take_probe
from dpprobe.data.table import DatasetInfo, SplitTable, read_info
from dpprobe.devices import resolve_device
from dpprobe.errors import DataError
from dpprobe.features import store
from dpprobe.features.pipeline import Array, Clock, Features, extract_rows
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

LIBRARIES = (
    "dpprobe",
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
    workers: int = 0,
    threads: int | None = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    compiled: bool = False,
) -> None:
    """Extracts and writes one shard; the same inputs on the same machine give the same features.

    Args:
      table: the split's parquet file.
      info: the dataset's `dataset.json`.
      backbone: the extractor's options.
      backbone_name: its name in the study.
      split: "train" or "test".
      shard: which part of the split,
      shards: of how many.
      output: the shard's path; it is whole or absent.
      batch_size: images a forward pass on a GPU; a CPU takes fewer.
      dtype: "float16" or "float32", on disk.
      workers: processes that decode images in place of the threads. They are spawned, so a script
        that asks for some must do its work under `if __name__ == "__main__"`.
      threads: that decode and, on a CPU, compute; as many as torch has by default. Their number
        changes no feature.
      device: "auto", "cpu" or "cuda".
      precision: of a network's forward pass.
      compiled: whether a network passes through torch.compile.

    Raises:
      DataError: naming the row, when an image cannot be decoded or preprocessed, has another size
        than the others where the backbone does not resize, or gives features that are not finite
        or do not fit the dtype; when table and info do not belong together.
      ConfigError: when the backbone cannot be loaded or there are more shards than rows.
    """
    described = read_info(info)
    source = _open_table(table, described, split)
    start, stop = store.row_range(source.rows, shard, shards)
    where = resolve_device(device)
    runtime = Runtime(device=where, precision=precision, compiled=compiled)
    loaded = loading.load(backbone, runtime=runtime)
    header = _header(
        described,
        loaded,
        split=split,
        rows=source.rows,
        shard=shard,
        shards=shards,
        dtype=dtype,
        backbone=backbone_name,
        backbone_options=backbone.extraction_params(),
    )
    label = f"features {backbone_name} {split} {shard + 1}/{shards}"
    accepted = source.accepted()
    writing = store.open_shard(
        output,
        header,
        labels=source.labels()[start:stop],
        ids=source.ids()[start:stop],
        groups={name: values[start:stop] for name, values in source.groups().items()},
        accepted=None if accepted is None else accepted[start:stop],
        probe=_probe(loaded, backbone_name),
    )
    clock = Clock()
    parts = extract_rows(
        source,
        loaded,
        start=start,
        stop=stop,
        batch_size=batch_size,
        threads=threads or torch.get_num_threads(),
        workers=workers,
        on_gpu=where == "cuda",
        clock=clock,
    )
    with writing as writer, Progress(stop - start, label=label) as progress, closing(parts):
        for part in parts:
            with clock.time("write"):
                _write(part, writer, split, dtype)
            clock.lap()
            progress.advance(len(part.rows))
    logger.info("%s: %s", label, clock)


def _probe(loaded: Backbone, name: str) -> dict[str, Any]:
    probe = take_probe(loaded)
    if not math.isfinite(probe["norm"]):
        raise DataError(
            f"backbone {name}: its features of a plain image are not finite; look at its weights "
            "and preprocessing, or write features.precision: float32"
        )
    return probe


def _header(
    described: DatasetInfo,
    loaded: Backbone,
    *,
    split: str,
    rows: int,
    shard: int,
    shards: int,
    dtype: str,
    backbone: str,
    backbone_options: Mapping[str, Any],
) -> store.ShardHeader:
    return store.ShardHeader(
        split=split,
        rows=rows,
        shard=shard,
        shards=shards,
        class_names=described.class_names,
        multi_label=described.multi_label,
        dtype=dtype,
        dataset_fingerprint=described.fingerprint,
        backbone=backbone,
        backbone_options=backbone_options,
        backbone_fingerprint=loaded.fingerprint,
        weights_sha256=loaded.weights_sha256,
        architecture=loaded.architecture,
        pretrained_tag=loaded.pretrained_tag,
        trained=loaded.trained,
        preprocessing=loaded.preprocessing,
        versions={name: version(name) for name in LIBRARIES},
    )


def _open_table(table: Path, info: DatasetInfo, split: str) -> SplitTable:
    source = SplitTable(table)
    if source.fingerprint != info.splits[split].fingerprint:
        raise DataError(
            f"{table}: not the {split} table that its dataset.json describes; "
            "delete both and prepare the dataset again"
        )
    return source


def _write(part: Features, writer: store.ShardWriter, split: str, dtype: str) -> None:
    _check_values(part.values, part, split, dtype)
    for values in part.layers.values():
        _check_values(values, part, split, dtype)
    writer.append(part.values, layers=part.layers)


def _check_values(values: Array, part: Features, split: str, dtype: str) -> None:
    limit = np.finfo(dtype).max
    good = (np.abs(values) <= limit).all(axis=1)  # false for NaN too
    if good.all():
        return
    position = int(np.argmin(good))
    row, row_id = part.rows[position]
    where = f"{split} row {row} (id {row_id})"
    if not np.isfinite(values[position]).all():
        raise DataError(
            f"{where}: the backbone gives features that are not finite; look at the image, and at "
            "the backbone's weights and preprocessing, or write features.precision: float32"
        )
    raise DataError(
        f"{where}: a feature of {np.abs(values[position]).max():g} does not fit {dtype}; "
        "write features.dtype: float32"
    )
