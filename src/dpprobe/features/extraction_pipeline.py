"""Turns encoded images into features in the rows' order: reads, decodes and computes.

Rows are processed in pieces. On a CPU each of the job's threads decodes a piece and runs the model
on it with one torch thread. No thread waits for another, and several small passes are faster than
one pass divided among threads. For a GPU, processes decode the pieces (`decoding_workers`). A batch
is assembled in pinned memory and sent to the GPU by one copy. The batch's features are fetched
while the GPU computes the next batch.

All forward passes have an equal number of rows, because the number of rows may change the last bits
of matrix products. Padding of the last pass keeps an image's features independent of other images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.feature_digest import probe_image
from dpprobe.data.sources.embedding_rows import read_vector
from dpprobe.data.table import EncodedImage, decode_image
from dpprobe.devices import Accelerator, Mark
from dpprobe.errors import DataError
from dpprobe.features.decoding_workers import (
    Fault,
    Piece,
    Reader,
    Row,
    Workers,
    make_task,
    shape_memory,
    take_images,
    tile_rows,
)

if TYPE_CHECKING:
    from PIL import Image

# Rows that a CPU decodes and computes together; this number is fastest for small photographs.
PIECE_ROWS = 16
# Pieces in progress per thread, so that an idle thread finds the next piece ready.
AHEAD = 2

Array = npt.NDArray[np.float32]
Outputs = tuple[torch.Tensor, dict[str, torch.Tensor]]
# The result of a piece without rows.
NOTHING: Outputs = (torch.empty(0, 0), {})
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Features:
    """Features [m, d] of consecutive `rows` (number in the split, id), and [m, w] of each layer.

    `faults` has the errors of rows without features.
    """

    rows: tuple[Row, ...]
    values: Array
    layers: dict[str, Array]
    faults: tuple[Fault, ...] = ()


def compute_rows(
    read: Reader,
    count: int,
    decoder: Decoder,
    backbone: Backbone,
    *,
    batch_size: int,
    threads: int,
    accelerator: Accelerator | None,
    workers: Workers | None = None,
) -> Generator[Features]:
    """Yields features of `count` encoded images, in order; close the generator to end its work.

    Raises DataError, with the row, for an image that differs in size from earlier images, or that
    the decoder does not tolerate. Raises WorkerError if a decoding process is killed or hangs.

    Args:
      read: yields the encoded images of ranges of rows from 0 to `count`.
      decoder: decides what happens to an image that cannot be used.
      batch_size: images per forward pass on a GPU; a CPU takes at most `PIECE_ROWS`.
      threads: number of threads that decode and compute; for a GPU, of processes that decode.
      accelerator: the backbone's device; None for a CPU.
      workers: processes that already have their task; by default new processes are forked.
    """
    sizes = SizeCheck(decoder.split)
    if accelerator is None:
        images, rows = read([range(count)]), rows_per_pass(batch_size, None)
        tiles = tile_rows(count, batch_size, PIECE_ROWS)
        pieces = (take_images(images, len(tile)) for tile in tiles)
        yield from _on_cpu(pieces, decoder, backbone, rows, threads, sizes)
        return
    if workers is None:
        order = make_task(decoder, count, batch_size, threads)
        workers = Workers(read, max(1, min(threads, len(order.pieces))), order)
    with workers:
        decoded = workers.decode_pieces()
        yield from _on_accelerator(decoded, backbone, accelerator, batch_size, sizes)


def rows_per_pass(batch_size: int, accelerator: Accelerator | None) -> int:
    """Returns the number of rows of each forward pass on an accelerator, or on a CPU."""
    return batch_size if accelerator is not None else min(batch_size, PIECE_ROWS)


def find_misfits(values: Array, dtype: str) -> dict[int, str]:
    """Finds rows [m, d] that a dtype cannot represent; maps their positions to the reason."""
    good = (np.abs(values) <= np.finfo(dtype).max).all(axis=1)  # False for NaN too
    reasons = {}
    for position in np.flatnonzero(~good):
        largest = np.abs(values[position]).max()
        reasons[int(position)] = (
            f"a feature of {largest:g} does not fit {dtype}"
            if np.isfinite(largest)
            else "the backbone gives features that are not finite"
        )
    return reasons


class Decoder:
    """Decodes images, applies the backbone's preprocessing, and stacks the images of a piece."""

    def __init__(
        self,
        backbone: Backbone,
        split: str,
        *,
        vectors: str | None = None,
        stand_in: EncodedImage | None = None,
    ) -> None:
        """Stores only the picklable transforms of the backbone.

        Args:
          vectors: the name of each row's vectors, for a backbone that takes vectors, not images.
          stand_in: an image of the split that is decoded in place of null examples, so that all
            rows have equal shapes; the caller never uses the result.
        """
        self._vectors = vectors
        self._stand_in = stand_in
        self._dimension = backbone.dimension
        self._transform = backbone.transform
        self._scaled = backbone.scaled
        self._train_transform = backbone.train_transform if split == "train" else None
        self.split = split

    def row_bytes(self) -> int | None:
        if self._dimension is None:
            return None
        if self._vectors is not None:
            return 4 * self._dimension
        return self._pass_image(probe_image(), EncodedImage(0, None, None, "", b"")).nbytes

    def decode_one(self, image: EncodedImage) -> torch.Tensor:
        if image.sha256 is None and self._stand_in is not None:
            image = self._stand_in
        if self._vectors is not None:
            return self._read_vector(image, self._vectors)
        picture = decode_image(image, split=self.split, scaled=self._scaled)
        try:
            return self._pass_image(picture, image)
        except DataError as error:
            raise DataError(f"{self.split} row {image.row} (id {image.id}): {error}") from error

    def _read_vector(self, row: EncodedImage, name: str) -> torch.Tensor:
        vector = read_vector(row, name, split=self.split)
        if self._dimension not in (None, len(vector)):
            raise DataError(
                f"{self.split} row {row.row} (id {row.id}): vector {name!r} has {len(vector)} "
                f"numbers, but the backbone's `dimension` is {self._dimension}; correct "
                "`dimension`"
            )
        return torch.from_numpy(vector)

    def _pass_image(self, picture: Image.Image, image: EncodedImage) -> torch.Tensor:
        try:
            if self._train_transform is None:
                return self._transform(picture)
            return self._train_transform(picture, image.sha256 or b"")
        except DataError:
            raise
        except Exception as error:  # libraries of transforms raise errors of any kind
            line = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"an image of mode {picture.mode}, {picture.width} x {picture.height}, fails in "
                f"the backbone's preprocessing ({line}); replace the image or leave it out"
            ) from error

    def decode_piece(self, images: list[EncodedImage], memory: torch.Tensor | None = None) -> Piece:
        rows = tuple((image.row, image.id) for image in images)
        tensors = [self.decode_one(image) for image in images]
        sizes = SizeCheck(self.split)
        for row, tensor in zip(rows, tensors, strict=True):
            sizes.check_size(row, tensor.shape)
        return Piece(rows, _stack_rows(tensors, memory, self.split, rows))


def _stack_rows(
    tensors: list[torch.Tensor], memory: torch.Tensor | None, split: str, rows: Sequence[Row]
) -> torch.Tensor:
    shape = (len(tensors), *tensors[0].shape)
    out = None if memory is None else shape_memory(memory, shape, tensors[0].dtype)
    if memory is not None and out is None:
        raise DataError(
            f"{split} row {rows[0][0]} (id {rows[0][1]}): the image takes "
            f"{tensors[0].nbytes / 1e6:.0f} MB, but processes that decode have "
            f"{len(memory) / 1e6:.0f} MB for a piece; set the backbone's size"
        )
    return torch.stack(tensors, out=out)


class TolerantDecoder(Decoder):
    """Skips images that cannot be used, and records their faults."""

    def __init__(self, backbone: Backbone, opened: Callable[[EncodedImage], Image.Image]) -> None:
        super().__init__(backbone, "test")
        self._opened = opened

    def decode_one(self, image: EncodedImage) -> torch.Tensor:
        return self._pass_image(self._opened(image), image)

    def decode_piece(self, images: list[EncodedImage], memory: torch.Tensor | None = None) -> Piece:
        rows, tensors, faults = [], [], []
        for image in images:
            row = (image.row, image.id)
            try:
                tensors.append(self.decode_one(image))
                rows.append(row)
            except DataError as error:
                faults.append(Fault(row, str(error)))
        stacked = _stack_rows(tensors, memory, self.split, rows) if tensors else None
        return Piece(tuple(rows), stacked, tuple(faults))


class SizeCheck:
    """Raises an error for the first image whose size differs from earlier images."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._first: torch.Size | None = None

    def check_size(self, row: Row, shape: torch.Size) -> None:
        self._first = self._first or shape
        if shape != self._first:
            raise DataError(
                f"{self._split} row {row[0]} (id {row[1]}): the image has shape {list(shape)}, "
                f"but earlier images have {list(self._first)}; set a size in the backbone, such as "
                "`size: 32`"
            )


def in_order(
    work: Callable[[A], B], items: Iterable[A], *, threads: int, ahead: int
) -> Generator[B]:
    """Yields the result of `work` for each item, in the items' order, from a pool of threads.

    At most `ahead` items are in progress. An error of `work` is raised in the item's turn. After
    an error, or on closing, no further item is started, and items in progress are completed.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "extract", initializer=torch.set_num_threads, initargs=(1,))
    pending: deque[Future[B]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # the pool changed the number for all new threads


def _run_forward(backbone: Backbone, images: torch.Tensor | None, rows: int) -> Outputs:
    """Runs the model on exactly `rows` rows; drops the results of padding rows."""
    if images is None:
        return NOTHING
    given = len(images)
    if given < rows:
        images = torch.cat([images, images[-1:].expand(rows - given, *images.shape[1:])])
    features, layers = backbone.compute_features(images)
    return features[:given], {name: values[:given] for name, values in layers.items()}


def _on_cpu(
    items: Iterable[list[EncodedImage]],
    decoder: Decoder,
    backbone: Backbone,
    rows: int,
    threads: int,
    sizes: SizeCheck,
) -> Generator[Features]:
    def compute_piece(item: list[EncodedImage]) -> tuple[Piece, Outputs]:
        piece = decoder.decode_piece(item)
        return piece, _run_forward(backbone, piece.images, rows)

    done = in_order(compute_piece, items, threads=threads, ahead=AHEAD * threads)
    with closing(done):
        for piece, outputs in done:
            _check_piece(piece, sizes)
            yield _make_features(piece, outputs)


def _check_piece(piece: Piece, sizes: SizeCheck) -> None:
    if piece.images is not None:
        sizes.check_size(piece.rows[0], piece.images.shape[1:])


def _make_features(piece: Piece, outputs: Outputs) -> Features:
    features, layers = outputs
    blocks = {name: one.numpy() for name, one in layers.items()}
    return Features(piece.rows, features.numpy(), blocks, piece.faults)


# A batch in pinned host memory, its outputs, and an event after their copy from the accelerator.
_Launched = tuple[Piece, Outputs, Mark]


def _on_accelerator(
    pieces: Iterable[Piece],
    backbone: Backbone,
    accelerator: Accelerator,
    batch_size: int,
    sizes: SizeCheck,
) -> Generator[Features]:
    """Launches each batch before fetching the previous batch's results, to keep the device busy."""
    before: _Launched | None = None
    for batch in make_batches(pieces, accelerator, batch_size, sizes):
        launched = _launch(batch, backbone, accelerator, batch_size)
        if before is not None:
            yield _fetch(before, accelerator)
        before = launched
    if before is not None:
        yield _fetch(before, accelerator)


def make_batches(
    pieces: Iterable[Piece], accelerator: Accelerator, batch_size: int, sizes: SizeCheck
) -> Iterator[Piece]:
    """Copies whole pieces into one block of host memory per batch."""
    rows: tuple[Row, ...] = ()
    faults: tuple[Fault, ...] = ()
    memory: torch.Tensor | None = None

    def finish_batch() -> Piece:
        return Piece(rows, None if memory is None else memory[: len(rows)], faults)

    for piece in pieces:
        _check_piece(piece, sizes)
        if len(rows) + len(piece.rows) > batch_size:  # happens if earlier pieces left out rows
            yield finish_batch()
            rows, faults, memory = (), (), None
        if piece.images is not None:
            if memory is None:
                shape = (batch_size, *piece.images.shape[1:])
                memory = accelerator.host_memory(shape, piece.images.dtype)
            # NumPy copies in one thread; torch's threads would take cores from decoding processes.
            place = memory.numpy()[len(rows) : len(rows) + len(piece.rows)]
            np.copyto(place, piece.images.numpy())
        rows, faults = rows + piece.rows, faults + piece.faults
        if len(rows) == batch_size:
            yield finish_batch()
            rows, faults, memory = (), (), None
    if rows or faults:
        yield finish_batch()


def _launch(batch: Piece, backbone: Backbone, accelerator: Accelerator, rows: int) -> _Launched:
    images = None if batch.images is None else accelerator.copy_to_device(batch.images)
    features, layers = _run_forward(backbone, images, rows)
    fetched = accelerator.copy_to_host(features)
    fetched_layers = {name: accelerator.copy_to_host(one) for name, one in layers.items()}
    return batch, (fetched, fetched_layers), accelerator.set_mark()


def _fetch(launched: _Launched, accelerator: Accelerator) -> Features:
    batch, outputs, mark = launched
    accelerator.wait_for_mark(mark)
    return _make_features(batch, outputs)
