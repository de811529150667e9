"""The rows on which a network is trained: stored activations, or (augmented) images.

A row's inputs do not depend on other rows, so dividing a step into physical batches changes
nothing. Random views depend only on public numbers: seed, step and row.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import ConfigError, DataError
from dpprobe.features.extraction_pipeline import Decoder
from dpprobe.heads.patient_groups import Units
from dpprobe.privacy.randomness import derived_seed
from dpprobe.progress import Progress

if TYPE_CHECKING:
    from dpprobe.backbones.backbone import Backbone
    from dpprobe.data.table import EncodedImage, SplitTable
    from dpprobe.features.feature_store import FeatureStore
    from dpprobe.finetune.options import Augment

Index = npt.NDArray[np.int64]
DECODED_AT_ONCE = 256  # the number of images read before decoding them
_READ_ROWS = 1024


class _Source(Protocol):
    def read_rows(self, index: Index) -> torch.Tensor: ...


class Inputs:
    """Rows of one split, such as activations, with labels and units of privacy.

    Attributes:
      n: number of units of privacy, which is public.
      shape: the shape of one row, without views.
      labels: int64 [rows], or uint8 [rows, num_classes] of 0 and 1.
      units: the unit of privacy of each row; None if each row is a unit.
      views: number of views per row and step; None without augmentation.
      kept: bool [rows], False for null rows, which training and tests ignore, although their units
        are sampled and counted in n; None if all rows are used.
      slow: True if reading is so slow that another thread should read ahead.
    """

    views: int | None = None
    slow: bool = False
    kept: npt.NDArray[np.bool_] | None = None

    def __init__(
        self,
        source: torch.Tensor | _Source,
        labels: torch.Tensor,
        num_classes: int,
        *,
        shape: Sequence[int],
        units: Units | None,
    ) -> None:
        self._source = source
        self.labels, self.num_classes = labels, num_classes
        self.rows = len(labels)
        self.shape = tuple(shape)
        self.units = units
        self.n = self.rows if units is None else units.count
        if units is not None and len(units.members) != self.rows:
            raise DataError(
                f"units: given for {len(units.members)} rows, but the inputs have {self.rows} rows"
            )

    def read_batch(self, index: Index, *, step: int | None) -> torch.Tensor:  # noqa: ARG002
        """Returns rows [m, ...] in the order of `index`; augmented views if `step` is given."""
        if isinstance(self._source, torch.Tensor):
            places = torch.from_numpy(index).to(self._source.device, non_blocking=True)
            rows = self._source[places]
        else:
            rows = self._source.read_rows(index)
        return rows.reshape(len(index), *self.shape)

    def keep_rows(self, kept: npt.NDArray[np.bool_]) -> Self:
        """Returns inputs that share all arrays, but also ignore rows outside `kept`."""
        other = copy.copy(self)
        other.kept = kept if self.kept is None else self.kept & kept
        return other

    def list_kept(self) -> Index:
        return np.arange(self.rows) if self.kept is None else np.flatnonzero(self.kept)


class ImageInputs(Inputs):
    """Images, optionally augmented: uint8 [rows, C, H, W], as the backbone's inputs."""

    def __init__(
        self,
        source: torch.Tensor | _Source,
        labels: torch.Tensor,
        num_classes: int,
        *,
        shape: Sequence[int],
        units: Units | None,
        augment: Augment | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(source, labels, num_classes, shape=shape, units=units)
        self._augment = augment
        self._key = derived_seed(seed, "views")
        self.views = None if augment is None else augment.views
        self.slow = augment is not None or not isinstance(source, torch.Tensor)
        if augment is not None and augment.pad >= min(self.shape[1:]):
            raise ConfigError(
                f"augment.pad {augment.pad}: too large for images of {self.shape[1]} x "
                f"{self.shape[2]}; set a smaller pad"
            )

    def read_batch(self, index: Index, *, step: int | None) -> torch.Tensor:
        """Returns images [m, C, H, W], or views [m, views, C, H, W] if augmented in a step."""
        images = super().read_batch(index, step=step)
        if self._augment is None or step is None:
            return images
        return views_of(images, self._augment, key=self._key, step=step, rows=index)


def views_of(
    images: torch.Tensor, augment: Augment, *, key: int, step: int, rows: Index
) -> torch.Tensor:
    """Returns randomly mirrored and shifted views [m, views, C, H, W] of images [m, C, H, W].

    Random numbers depend only on `key`, the step and the row.
    """
    height, width = images.shape[-2:]
    views, pad = augment.views, augment.pad
    down, along = np.arange(height), np.arange(width)
    columns = np.empty((len(rows), views, width), dtype=np.int64)
    lines = np.empty((len(rows), views, height), dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        # the counter's lowest word counts random numbers; other words differ per row and step
        bits = np.random.Philox(key=key, counter=[0, row, step, 0])
        generator = np.random.Generator(bits)
        mirrored = generator.integers(0, 2, size=views) * augment.flip
        shifts = generator.integers(-pad, pad + 1, size=(views, 2))
        lines[place] = _reflect_places(down + shifts[:, :1], height)
        across = _reflect_places(along + shifts[:, 1:], width)
        columns[place] = np.where(mirrored[:, None], across[:, ::-1], across)
    device = images.device
    taken = torch.arange(len(rows), device=device).view(-1, 1, 1, 1)
    at_lines = torch.from_numpy(lines).to(device)[:, :, :, None]
    at_columns = torch.from_numpy(columns).to(device)[:, :, None, :]
    # channels move last, so that the three indexed dimensions are adjacent
    return images.movedim(1, -1)[taken, at_lines, at_columns].movedim(-1, 2).contiguous()


def _reflect_places(places: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Mirrors positions below 0 or above size - 1 back inside, without repeating the edge pixel."""
    inside = np.abs(places)
    return (size - 1) - np.abs(size - 1 - inside)


def cut_inputs(
    store: FeatureStore,
    *,
    shape: Sequence[int],
    memory_mb: int,
    units: Units | None = None,
    device: str = "cpu",
) -> Inputs:
    """Returns stored activations or features as inputs, float32 [rows, ...].

    If they need more than `memory_mb` as float32, each batch is read from disk. Raises DataError if
    `shape` does not match the stored rows, StoreError if a shard is damaged.
    """
    if math.prod(shape) != store.dimension:
        raise DataError(
            f"{store.path}: each row has {store.dimension} numbers, but the network takes "
            f"{list(shape)}; delete this folder and run the command again"
        )
    source: torch.Tensor | _Source = _StoredRows(store)
    if 4 * store.rows * store.dimension <= memory_mb * 10**6:
        source = torch.from_numpy(store.read()).to(device)
    labels = torch.from_numpy(
        np.asarray(store.labels).astype(np.uint8 if store.multi_label else np.int64)
    )
    inputs = Inputs(source, labels, store.num_classes, shape=shape, units=units)
    inputs.slow = isinstance(source, _StoredRows)
    return inputs


class _StoredRows:
    """Rows of a feature store; each batch is read from shards."""

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        for _ in store.read_blocks(_READ_ROWS):  # compares the shards with the manifest
            pass

    def read_rows(self, index: Index) -> torch.Tensor:
        return torch.from_numpy(self._store.rows_at(index))


def image_inputs(
    table: SplitTable,
    backbone: Backbone,
    *,
    split: str,
    augment: Augment | None,
    seed: int,
    memory_mb: int,
    units: Units | None = None,
    threads: int = 1,
) -> ImageInputs:
    """Returns a split's images, train or test, after the backbone's preprocessing, as inputs.

    Images are decoded once and kept in memory. If they need more than `memory_mb`, they are decoded
    for each batch, and encoded images from the table are kept in memory. Raises DataError, naming
    the row, for an image that cannot be decoded or differs in size from the first image. Raises
    ConfigError if the backbone does not take images as bytes, or `augment.pad` is too large. Null
    examples get the first image's pixels, so the caller must exclude their rows.
    """
    decoder = _Decoding(Decoder(backbone, split, stand_in=table.read_first()), table, threads)
    shape = decoder.shape
    labels = torch.from_numpy(
        table.read_labels().astype(np.uint8 if table.multi_label else np.int64)
    )
    source: torch.Tensor | _Source = decoder
    if table.rows * math.prod(shape) <= memory_mb * 10**6:
        source = decoder.all_rows()
    else:
        decoder.keep_encoded()
    return ImageInputs(
        source,
        labels,
        len(table.class_names),
        shape=shape,
        units=units,
        augment=augment,
        seed=seed,
    )


class _Decoding:
    def __init__(self, decoder: Decoder, table: SplitTable, threads: int) -> None:
        self._decoder, self._table = decoder, table
        self._pool = ThreadPoolExecutor(max(1, threads), "decode")
        self._encoded: list[EncodedImage] = []
        first = decoder.decode_one(table.read_first())
        if first.dtype != torch.uint8:
            raise ConfigError(
                f"fine_tune: the backbone's preprocessing gives {first.dtype} instead of bytes; "
                "choose a network of timm or open_clip as the backbone"
            )
        self.shape = tuple(first.shape)

    def all_rows(self) -> torch.Tensor:
        out = torch.empty(self._table.rows, *self.shape, dtype=torch.uint8)
        progress = Progress(self._table.rows, label=f"decode {self._decoder.split}")
        with progress:
            table = self._table.read_images(0, self._table.rows)
            while images := list(islice(table, DECODED_AT_ONCE)):
                start = images[0].row
                self._decode_images(images, out[start : start + len(images)])
                progress.advance_by(len(images))
        return out

    def keep_encoded(self) -> None:
        self._encoded = list(self._table.read_images(0, self._table.rows))

    def read_rows(self, index: Index) -> torch.Tensor:
        out = torch.empty(len(index), *self.shape, dtype=torch.uint8)
        self._decode_images([self._encoded[row] for row in index.tolist()], out)
        return out

    def _decode_images(self, images: Sequence[EncodedImage], out: torch.Tensor) -> None:
        decoded: Iterator[torch.Tensor] = self._pool.map(self._decoder.decode_one, images)
        for image, place, tensor in zip(images, out, decoded, strict=True):
            if tuple(tensor.shape) != self.shape:
                raise DataError(
                    f"{self._decoder.split} row {image.row} (id {image.id}): the image has shape "
                    f"{list(tensor.shape)}, but the first image has {list(self.shape)}; set the "
                    "backbone's size"
                )
            place.copy_(tensor)
