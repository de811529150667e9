"""Processes that read and decode images for a GPU; threads would share Python's global lock.

Each of n processes decodes every n-th piece of rows and opens files itself, so no encoded image
passes through the job's process. PyTorch's `DataLoader` starts the processes, limits prefetching,
returns pieces in order, and notices a process that ends or hangs.

Decoded images are written to memory that all processes share and reuse, because new memory per
piece takes more time than copying. `/dev/shm`, which is small in containers, is not needed.

The processes are forked, if possible before CUDA starts, and never use the GPU. They may receive
their decoder after the fork, once the network is loaded.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import re
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dpprobe.errors import DataError, DpprobeError, WorkerError
from dpprobe.extras import OptionalModule

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    import pyarrow as pa

    from dpprobe.data.table import EncodedImage
else:
    pa = OptionalModule("pyarrow")

# The most rows per piece. Large pieces reduce reading, because a process reads every block of the
# split table that has a row of its pieces. With small pieces, processes end at similar times.
MOST_ROWS = 64
# Memory of a piece in bytes: `MOST_ROWS` images of 224 px, or one image of 2,300 px.
PIECE_BYTES = 16 << 20
# The least number of pieces per process, so that processes end at similar times.
_ROUNDS = 8
# Pieces that a process may prefetch; memory also has room for the piece in use, per process.
_AHEAD = 2
_PLACES = _AHEAD + 1
# Timeout in seconds. A piece takes seconds, or longer on slow network drives.
HANG_SECONDS = 600
_FAULT = re.compile(r"DataLoader (worker \(pid|timed out)")

Row = tuple[int, str]
# Yields the encoded images of ascending ranges of rows, in order.
Reader = Callable[[Sequence[range]], "Iterator[EncodedImage]"]


@dataclass(frozen=True)
class Fault:
    row: Row
    reason: str


@dataclass(frozen=True)
class Piece:
    """Decoded images of consecutive rows; `faults` has the errors of omitted rows."""

    rows: tuple[Row, ...]
    images: torch.Tensor | None
    faults: tuple[Fault, ...] = ()


class PieceDecoder(Protocol):
    """A decoder of pieces; must be picklable if processes get the decoder after the fork."""

    def row_bytes(self) -> int | None:
        """Returns the bytes of a decoded row; None if the number depends on the image."""

    def decode_piece(self, images: list[EncodedImage], memory: torch.Tensor | None = None) -> Piece:
        """Decodes images; stores results in the bytes of `memory`, if given."""


@dataclass(frozen=True)
class DecodingTask:
    """The task of a process: a decoder, and the pieces of rows to decode."""

    decoder: PieceDecoder
    pieces: tuple[range, ...]


def tile_rows(count: int, batch_size: int, rows: int) -> tuple[range, ...]:
    """Divides rows into pieces of at most `rows`; no piece spans two batches."""
    return tuple(
        range(start, min(start + rows, first + batch_size, count))
        for first in range(0, count, batch_size)
        for start in range(first, min(first + batch_size, count), rows)
    )


def make_task(decoder: PieceDecoder, count: int, batch_size: int, processes: int) -> DecodingTask:
    """Divides rows into pieces for all processes, such that each piece fits its memory."""
    fitting = PIECE_BYTES // max(1, decoder.row_bytes() or PIECE_BYTES)
    rows = max(1, min(MOST_ROWS, fitting, count // (_ROUNDS * processes)))
    return DecodingTask(decoder, tile_rows(count, batch_size, rows))


class Workers:
    """Processes that read and decode images; leaving the context ends the processes."""

    def __init__(self, read: Reader, count: int, task: DecodingTask | None = None) -> None:
        """Forks single-threaded processes, which open files when they call `read`.

        If `task` is None, call `send_task` later to send the decoder and the pieces.
        """
        self.count = count
        context = multiprocessing.get_context("fork")
        self._tasks = context.SimpleQueue()
        self._waits = task is None
        shared = mmap.mmap(-1, count * _PLACES * PIECE_BYTES)  # takes no memory until first use
        self._memory = torch.frombuffer(shared, dtype=torch.uint8).view(count, _PLACES, PIECE_BYTES)
        wait = partial(_wait_for_task, self._tasks, os.getpid())
        take_task = wait if task is None else lambda: task
        pieces = _Pieces(read, take_task, self._memory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DataLoader warns of too few cores
            loader = DataLoader(
                pieces,
                batch_size=None,
                num_workers=count,
                prefetch_factor=_AHEAD,
                timeout=HANG_SECONDS,
                worker_init_fn=partial(_prepare_process, os.getpid()),
                multiprocessing_context=context,
                generator=torch.Generator(),  # the process's random state must not change
            )
            self._iterator: Any = iter(loader)

    def send_task(self, task: DecodingTask | None) -> None:
        """Sends the decoder and pieces to waiting processes; None ends the processes."""
        if self._waits:
            self._waits = False
            for _ in range(self.count):
                self._tasks.put(task)

    def decode_pieces(self) -> Generator[Piece]:
        """Yields all pieces in order; an error in a piece is raised in place of the piece.

        A piece's images are valid until the caller requests the next piece.
        """
        for number, sent in enumerate(self._iterator):
            if isinstance(sent, DpprobeError):
                raise sent
            piece, shape, dtype = sent
            if shape is not None:
                place = self._memory[number % self.count, number // self.count % _PLACES]
                piece = replace(piece, images=shape_memory(place, shape, dtype))
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Ends the processes; raises WorkerError if a process was killed or hangs."""
        self.send_task(None)
        # Deleting the iterator is not enough, because an error's traceback may refer to it.
        self._iterator._shutdown_workers()
        if isinstance(error, RuntimeError) and _FAULT.match(str(error)):
            words = " ".join(str(error).split()).removeprefix("DataLoader ").rstrip(". ")
            raise WorkerError(
                f"decoding: a process died ({words}); run again with more memory or fewer "
                "threads, and check that the images can be read"
            ) from error


def take_images(images: Iterator[EncodedImage], count: int) -> list[EncodedImage]:
    """Returns the next `count` images; raises DataError if there are fewer."""
    taken = list(islice(images, count))
    if len(taken) < count:
        after = f" after row {taken[-1].row}" if taken else ""
        raise DataError(
            f"images: the split table ends early{after}; prepare the dataset again, and run again"
        )
    return taken


def shape_memory(
    memory: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor | None:
    """Returns the first bytes of memory as a tensor; None if the memory is too small."""
    size = math.prod(shape) * dtype.itemsize
    return None if size > len(memory) else memory[:size].view(dtype).view(*shape)


class _Pieces(IterableDataset[Any]):
    """Yields, for each piece of a process, (piece without images, shape, dtype), or an error.

    An error is repeated for every further piece, because the number of pieces is fixed.
    """

    def __init__(
        self, read: Reader, take_task: Callable[[], DecodingTask | None], memory: torch.Tensor
    ) -> None:
        self._read, self._take_task, self._memory = read, take_task, memory

    def __iter__(self) -> Iterator[Any]:
        worker: Any = get_worker_info()
        task = self._take_task()
        if task is None:
            return
        pieces = task.pieces[worker.id :: worker.num_workers]
        images = self._read(pieces)
        fault: DpprobeError | None = None
        for number, rows in enumerate(pieces):
            if fault is None:
                try:
                    encoded = take_images(images, len(rows))
                    place = self._memory[worker.id, number % _PLACES]
                    piece = task.decoder.decode_piece(encoded, place)
                except DpprobeError as error:
                    fault = error
            if fault is not None:
                yield fault  # not raised: DataLoader would add a traceback
            else:
                stacked = piece.images
                shape, dtype = (None, None) if stacked is None else (stacked.shape, stacked.dtype)
                yield replace(piece, images=None), shape, dtype


def _wait_for_task(tasks: SimpleQueue[DecodingTask | None], parent: int) -> DecodingTask | None:
    """Returns the parent's task; ends the process if the parent was killed, as `get` would hang."""
    while tasks.empty():
        _end_without(parent)
        time.sleep(0.05)
    return tasks.get()


def _prepare_process(parent: int, _number: int) -> None:
    pa.set_cpu_count(1)  # DataLoader sets the number of torch's threads
    pa.set_io_thread_count(1)
    _end_without(parent)  # after pyarrow's import, which takes time


def _end_without(parent: int) -> None:
    if os.getppid() != parent:  # the parent was killed; DataLoader may watch the new parent
        os._exit(1)
