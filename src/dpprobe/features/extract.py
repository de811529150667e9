"""Extraction: rows of a split table -> a backbone -> one shard of features."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dpprobe import backbones
from dpprobe.backbones import Backbone
from dpprobe.config import BackboneOptions
from dpprobe.data.table import DatasetInfo, EncodedImage, SplitTable, decode, read_info
from dpprobe.errors import DataError
from dpprobe.features import store
from dpprobe.progress import Progress

logger = logging.getLogger("dpprobe")

LIBRARIES = ("dpprobe", "h5py", "numpy", "pillow", "timm", "torch", "torchvision", "kymatio")


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
    device: str = "auto",
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
      batch_size: images a forward pass.
      dtype: "float16" or "float32", on disk.
      workers: processes that decode images. They are spawned, so a script that asks for some
        must do its work under `if __name__ == "__main__"`.
      device: "auto", "cpu" or "cuda".

    Raises:
      DataError: naming the row, when an image cannot be decoded or preprocessed, has another size
        than the others where the backbone does not resize, or gives features that are not finite
        or do not fit the dtype; when table and info do not belong together.
      ConfigError: when the backbone cannot be loaded or there are more shards than rows.
    """
    described = read_info(info)
    source = _open_table(table, described, split)
    start, stop = store.row_range(source.rows, shard, shards)
    loaded = backbones.load(backbone, device=device)
    header = store.ShardHeader(
        split=split,
        rows=source.rows,
        shard=shard,
        shards=shards,
        class_names=described.class_names,
        multi_label=described.multi_label,
        dtype=dtype,
        dataset_fingerprint=described.fingerprint,
        backbone=backbone_name,
        backbone_options=backbone.extraction_params(),
        backbone_fingerprint=loaded.fingerprint,
        weights_sha256=loaded.weights_sha256,
        architecture=loaded.architecture,
        pretrained_tag=loaded.pretrained_tag,
        trained=loaded.trained,
        preprocessing=loaded.preprocessing,
        versions={name: version(name) for name in LIBRARIES},
    )
    label = f"features {backbone_name} {split} {shard + 1}/{shards}"
    clock = _Clock()
    with (
        store.open_shard(
            output,
            header,
            labels=source.labels()[start:stop],
            ids=source.ids()[start:stop],
            groups={name: values[start:stop] for name, values in source.groups().items()},
        ) as writer,
        Progress(stop - start, label=label) as progress,
    ):
        batches = _load_batches(source, loaded, start, stop, batch_size, workers)
        for batch, features in _forward(batches, loaded, clock):
            _check_values(features, batch, split, dtype)
            writer.append(features)
            clock.lap("write")
            progress.advance(len(features))
    clock.lap("write")
    logger.info("%s: %s", label, clock)


def _open_table(table: Path, info: DatasetInfo, split: str) -> SplitTable:
    source = SplitTable(table)
    if source.fingerprint != info.splits[split].fingerprint:
        raise DataError(
            f"{table}: not the {split} table that its dataset.json describes; "
            "delete both and prepare the dataset again"
        )
    return source


@dataclass
class _Clock:
    """Seconds spent in each part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        return ", ".join(f"{part} {seconds:.1f} s" for part, seconds in self.seconds.items())


@dataclass(frozen=True)
class _Batch:
    """Decoded images of consecutive rows, or what was wrong with one of them."""

    rows: tuple[tuple[int, str], ...]
    images: torch.Tensor | None
    error: str | None = None


class _Decoder(Dataset[Any]):
    """Turns encoded images into a batch.

    The loader's sampler hands over the encoded images themselves, so that one process reads the
    table once, in order, and the others only decode. Errors travel as values: an exception from
    a worker would arrive with its traceback as its message.
    """

    def __init__(self, transform: Callable[[Image.Image], torch.Tensor], split: str) -> None:
        self._transform = transform
        self._split = split

    def __getitem__(self, image: EncodedImage) -> torch.Tensor:
        picture = decode(image, split=self._split)
        where = f"{self._split} row {image.row} (id {image.id})"
        try:
            return self._transform(picture)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        except Exception as error:  # a transform raises whatever its libraries run into
            line = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{where}: an image of mode {picture.mode}, {picture.width} x {picture.height}, "
                f"does not pass the backbone's preprocessing ({line}); replace it or remove the row"
            ) from error

    def __getitems__(self, images: list[EncodedImage]) -> _Batch:
        rows = tuple((image.row, image.id) for image in images)
        try:
            tensors = [self[image] for image in images]
        except DataError as error:
            return _Batch(rows, None, str(error))
        for (row, row_id), tensor in zip(rows, tensors, strict=True):
            if tensor.shape != tensors[0].shape:
                return _Batch(rows, None, _size_error(self._split, row, row_id, tensor, tensors[0]))
        return _Batch(rows, torch.stack(tensors))


def _size_error(split: str, row: int, row_id: str, found: torch.Tensor, first: torch.Tensor) -> str:
    return (
        f"{split} row {row} (id {row_id}): an image of {list(found.shape)} after others of "
        f"{list(first.shape)}; give the backbone a size"
    )


def _load_batches(
    table: SplitTable, backbone: Backbone, start: int, stop: int, batch_size: int, workers: int
) -> Iterator[_Batch]:
    loader = DataLoader(
        _Decoder(backbone.transform, table.split),
        batch_sampler=_Chunks(table, start, stop, batch_size),
        collate_fn=_identity,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )
    first: torch.Tensor | None = None
    for batch in loader:
        if batch.images is None:
            raise DataError(batch.error)
        if first is None:
            first = batch.images[0]
        elif batch.images.shape[1:] != first.shape:
            row, row_id = batch.rows[0]
            raise DataError(_size_error(table.split, row, row_id, batch.images[0], first))
        yield batch


class _Chunks:
    """Lists of `size` encoded images, in order."""

    def __init__(self, table: SplitTable, start: int, stop: int, size: int) -> None:
        self._table, self._start, self._stop, self._size = table, start, stop, size

    def __iter__(self) -> Iterator[list[EncodedImage]]:
        chunk: list[EncodedImage] = []
        for image in self._table.images(self._start, self._stop):
            chunk.append(image)
            if len(chunk) == self._size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def __len__(self) -> int:
        return -(-(self._stop - self._start) // self._size)


def _identity(batch: Any) -> Any:
    return batch


def _forward(
    batches: Iterator[_Batch], backbone: Backbone, clock: _Clock
) -> Iterator[tuple[_Batch, npt.NDArray[np.float32]]]:
    """Features [m, d] of each batch."""
    for batch in batches:
        assert batch.images is not None
        clock.lap("read")
        features = backbone.forward(batch.images).cpu().numpy()
        clock.lap("forward")
        yield batch, features
    clock.lap("read")


def _check_values(features: npt.NDArray[np.float32], batch: _Batch, split: str, dtype: str) -> None:
    limit = np.finfo(dtype).max
    good = (np.abs(features) <= limit).all(axis=1)  # false for NaN too
    if good.all():
        return
    position = int(np.argmin(good))
    row, row_id = batch.rows[position]
    where = f"{split} row {row} (id {row_id})"
    if not np.isfinite(features[position]).all():
        raise DataError(
            f"{where}: the backbone gives features that are not finite; look at the image, "
            "and at the backbone's weights and preprocessing"
        )
    raise DataError(
        f"{where}: a feature of {np.abs(features[position]).max():g} does not fit {dtype}; "
        "write features.dtype: float32"
    )
