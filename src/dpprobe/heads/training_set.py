"""The private examples that heads train on, in memory or as a stream of blocks."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch

from dpprobe import devices
from dpprobe.errors import DataError
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs
from dpprobe.heads.row_norms import LONGEST_ROW, SHORTEST_ROW, row_lengths
from dpprobe.heads.row_source import RowSource

if TYPE_CHECKING:
    from dpprobe.heads.patient_groups import Units

logger = logging.getLogger("dpprobe")

# A block of rows fits into a CPU's cache. On a GPU, blocks are so large that computing takes longer
# than launching kernels. Sizes depend only on the kind of device, as they may affect sums.
CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 4 * 2**20, 2**28

T = TypeVar("T")


class Cached:
    """Caches results that all methods and seeds of a job share."""

    def __init__(self) -> None:
        self._cache: dict[Hashable, object] = {}

    def make_once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Calls `make` once and returns its cached result."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[return-value]

    def drop_cache(self) -> None:
        """Clears the cache, for a copy with other weights."""
        self._cache = {}


class TrainingSet(Cached):
    """Features and labels on the device that trains.

    n is the public number of units of privacy; there may be more rows than units.

    Args:
      features: float32 [rows, d], which the training set may modify, or a source that is read in
        each pass. Rows with NaN, infinity, norms above 1e18, or nonzero norms below 1e-20 become
        zero.
      labels: int64 [rows], from 0 to num_classes - 1; or uint8 [rows, num_classes] of 0 and 1.
      num_classes: public.
      units: units of privacy with several rows; None if each row is a unit.
      device: the device of a source's blocks; features in memory stay where they are.
      crops: reads other crops of the same images, with equal labels and units; see `Rows.crops`.
      public_n: the public number of units, if only a part of them has rows here.
      public: the public files that were compared with these rows.
      warn: called with a message if rows were replaced by zeros.

    Attributes:
      exact_device: the device of the integer sums of `engine: exact`; the rows stay on `device`.

    Raises DataError for wrong shapes, types or labels.
    """

    def __init__(
        self,
        features: torch.Tensor | RowSource,
        labels: torch.Tensor,
        num_classes: int,
        *,
        units: Units | None = None,
        device: str | torch.device = "cpu",
        crops: Callable[[], Sequence[TrainingSet]] | None = None,
        public_n: int | None = None,
        public: PublicInputs = NOTHING_CHECKED,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        super().__init__()
        self.features: torch.Tensor | None = None
        if isinstance(features, torch.Tensor):
            _check_features(features)
            self.features = features
            self.rows, self.dimension = features.shape
            self.device = features.device
        else:
            self._source = features
            self.rows, self.dimension = features.rows, features.dimension
            self.device = torch.device(device)
        _check_labels(labels, self.rows, num_classes)
        self.labels = labels.to(self.device)
        if units is not None and len(units.members) != self.rows:
            raise DataError(
                f"units: given for {len(units.members)} rows, but there are {self.rows} rows"
            )
        self.units = units
        local = self.rows if units is None else units.count
        if public_n is not None and public_n < local:
            raise DataError(f"training rows: {local} units of privacy, more than n = {public_n}")
        self.n = local if public_n is None else public_n
        self.multi_label = labels.ndim == 2
        self.num_classes = num_classes
        self.public = public
        self.exact_device = "cpu"
        self._warn = warn
        self._read_crops = crops

    @property
    def crops(self) -> tuple[TrainingSet, ...]:
        """Other crops of the images, which gradient steps use in turn; usually none. Read once."""
        return self.make_once(
            "crops", lambda: tuple(self._read_crops() if self._read_crops else ())
        )

    def replace_labels(self, labels: torch.Tensor, units: Units) -> TrainingSet:
        """Returns a copy with other labels for these rows; raises DataError for wrong labels."""
        _check_labels(labels, self.rows, self.num_classes)
        _ = self.lengths  # before copying, because computing lengths clears unusable rows
        other = copy.copy(self)
        other.__dict__.pop("weights", None)
        other.labels, other.units, other.n = labels.to(self.device), units, units.count
        other.drop_cache()
        other._read_crops = lambda: [crop.replace_labels(labels, units) for crop in self.crops]
        return other

    @property
    def is_streamed(self) -> bool:
        return self.features is None

    @cached_property
    def weights(self) -> torch.Tensor | None:
        """Each row's weight in its unit of privacy, float32 [rows]; None if all are 1."""
        if self.units is None:
            return None
        return torch.from_numpy(self.units.weights).to(self.device)

    @cached_property
    def lengths(self) -> torch.Tensor:
        """The L2 norm of each row, float64 [rows]; infinite for excluded rows."""
        lengths = torch.empty(self.rows, dtype=torch.float64, device=self.device)
        for start, block in self._raw_blocks(block_bytes(self.device)):
            lengths[start : start + len(block)] = row_lengths(block)
        unusable = ~(lengths <= LONGEST_ROW) | ((lengths > 0) & (lengths < SHORTEST_ROW))
        if unusable.any():
            # The warning omits the number of unusable rows, because it is private.
            self._warn(
                "training rows with NaN, infinity, huge or tiny values count as rows of zeros"
            )
            lengths[unusable] = math.inf
            if self.features is not None:
                self.features[unusable] = 0.0
        return lengths

    def read_blocks(self, bytes_per_row: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the rows in order as (first row, float32 [m, d]); unusable rows are zeros.

        Blocks are views if the rows are in memory, and copies if they come from a source.

        Args:
          bytes_per_row: working memory per row, if above a row's size; makes blocks shorter.
        """
        row_bytes = 4 * self.dimension
        bytes_at_once = block_bytes(self.device) * row_bytes // max(row_bytes, bytes_per_row)
        unusable = self.lengths.isinf()
        any_unusable = self.is_streamed and bool(unusable.any())
        for start, block in self._raw_blocks(bytes_at_once):
            if any_unusable:
                block[unusable[start : start + len(block)]] = 0.0
            yield start, block

    def _raw_blocks(self, bytes_at_once: int) -> Iterator[tuple[int, torch.Tensor]]:
        size = max(1, bytes_at_once // (4 * self.dimension))
        if self.features is not None:
            for start in range(0, self.rows, size):
                yield start, self.features[start : start + size]
        else:
            for start, block in self._source.read_blocks(size):
                yield start, torch.from_numpy(block).to(self.device)


def block_bytes(device: torch.device) -> int:
    """Returns the working memory for one block of rows."""
    return CPU_BLOCK_BYTES if devices.has_kernels(device) else GPU_BLOCK_BYTES


def _check_features(features: torch.Tensor) -> None:
    if features.ndim != 2 or features.dtype != torch.float32 or 0 in features.shape:
        raise DataError(
            f"training features: {features.dtype} {tuple(features.shape)}; float32 [rows, "
            "dimension] is needed, with at least one row and one dimension"
        )


def _check_labels(labels: torch.Tensor, rows: int, num_classes: int) -> None:
    wanted = {1: (torch.int64, (rows,)), 2: (torch.uint8, (rows, num_classes))}
    if (labels.dtype, tuple(labels.shape)) != wanted.get(labels.ndim):
        raise DataError(
            f"training labels: {labels.dtype} {tuple(labels.shape)}; int64 [{rows}] or, for "
            f"several labels per row, uint8 [{rows}, {num_classes}] is needed"
        )
    highest = 1 if labels.ndim == 2 else num_classes - 1
    if int(labels.min()) < 0 or int(labels.max()) > highest:
        # The error omits the label, because it is private.
        raise DataError(
            f"training labels: one is not a number from 0 to {highest}; prepare the dataset again"
        )
