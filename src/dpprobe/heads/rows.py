"""Feature rows after normalisation; heads read the data only in this form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch

from dpprobe import devices
from dpprobe.errors import DataError
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.normalisation import CENTRE
from dpprobe.heads.row_norms import row_lengths, unit_scale
from dpprobe.heads.training_set import Cached, TrainingSet
from dpprobe.heads.transform import LONGEST_SHIFT, Transform


def crop_at(step: int, sample_rate: float, crops: int) -> tuple[int, int]:
    """Returns the index of the crop used at `step`, and for how many steps from there on.

    Each pass over the data uses one crop, in turn. A pass has 1 / `sample_rate` steps, rounded, and
    at least one. The choice is public: it does not depend on the sample.
    """
    steps = max(1, round(1 / sample_rate))
    return step // steps % crops, steps - step % steps


class Block(NamedTuple):
    """Consecutive normalised rows: float32 [m, d], a view if nothing had to be computed."""

    start: int
    stop: int
    features: torch.Tensor


class Affine(NamedTuple):
    """Centred rows as a formula, without a copy: scale[i] * features[i] - shift[i] * centre.

    In float32, row i has an error of at most 2^-21 shift[i] (1 + |centre|). For a row near the
    centre, this can exceed 2^-21 times the row's norm.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    centre: torch.Tensor


class Rows(Cached):
    """The normalised rows of a training set, as heads read them.

    Attributes:
      units, weights: see `TrainingSet`; a row's clipped contribution is multiplied by its weight.
      labels: int64 [rows], or uint8 [rows, num_classes].
      scoring: the normalisation of rows for `scored_weights`; differs from the training rows'
        normalisation only after whitening.
      lengths: float64 [rows], the L2 norm of each row; infinite for excluded rows, with NaN,
        infinity, or huge or tiny values.
      norms: float64 [rows], the L2 norm of each row with a 1 appended.
      affine: scales, shifts and centre of centred rows; None for other rows.
    """

    def __init__(
        self,
        data: TrainingSet,
        transform: Transform,
        *,
        scoring: Transform | None = None,
        whitener: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.scoring = transform if scoring is None else scoring
        self._whitener = whitener
        self.n, self.dimension = data.n, data.dimension
        self.units, self.weights = data.units, data.weights
        self.num_classes, self.device = data.num_classes, data.device
        self.multi_label, self.streamed = data.multi_label, data.is_streamed
        self.labels = data.labels
        self.transform = transform
        self.data = data
        # A zero row must stay zero, although a released mean is subtracted from rows.
        left_out = data.lengths.isinf()
        self._left_out = left_out if transform.spec.priced and bool(left_out.any()) else None
        self._scale = self._row_scale()
        self.affine: Affine | None = None
        self.lengths = torch.where(left_out, math.inf, self._compute_lengths())
        self.norms = self.lengths.square().add_(1).sqrt_()

    def __len__(self) -> int:
        return self.data.rows

    @property
    def direct(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Rows in memory, as features [rows, d] and float32 scales [rows]; None for other rows."""
        if self.data.features is None or self._scale is None:
            return None
        return self.data.features, self._scale

    @property
    def crops(self) -> tuple[Rows, ...]:
        """The sets of rows that gradient steps use in turn (see `crop_at`); usually one set.

        With stored random crops, each set has one crop of every image, normalised in the same way.
        Released statistics are of the central crops, the rows of this object.
        """

        def make_crops() -> tuple[Rows, ...]:
            whitener = self._whitener
            crops = tuple(
                Rows(data, self.transform, scoring=self.scoring, whitener=whitener)
                for data in self.data.crops
            )
            for crop in crops:
                crop.weights = self.weights  # including class weights
            return crops

        return self.make_once("crops", make_crops) or (self,)

    def scored_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Converts heads [..., K, d + 1] on these rows to heads on rows normalised by `scoring`."""
        if self._whitener is None:
            return weights
        out = weights.clone()
        out[..., :-1] = (weights[..., :-1].double() @ self._whitener).to(weights.dtype)
        return out

    def fitted_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Converts heads on rows normalised by `scoring` to heads on these rows, float64."""
        out = weights.double().clone()
        if self._whitener is not None:  # symmetric
            out[..., :-1] = torch.linalg.solve(self._whitener.double(), out[..., :-1].mT).mT
        return out

    def read_blocks(self, bytes_per_row: int = 0, *, raw: bool = False) -> Iterator[Block]:
        """Yields the rows in order, in blocks of about `training_set.block_bytes` bytes.

        Args:
          bytes_per_row: the caller's memory per row in addition to the features; makes blocks
            shorter.
          raw: True for the features before normalisation.
        """
        for start, block in self.data.read_blocks(bytes_per_row):
            stop = start + len(block)
            if not raw and self._normalised is not None:
                block = self._normalised[start:stop]
            elif not raw:
                block = self._normalise_rows(block, slice(start, stop))
            yield Block(start, stop, block)

    def copy_rows(self, index: torch.Tensor) -> torch.Tensor:
        """Returns copies of rows [m, d]; raises DataError if the features are streamed."""
        if self.data.features is None:
            raise DataError(
                f"training features: {len(self)} rows of {self.dimension} do not fit into "
                "memory_mb, but this method samples rows and needs them in memory; write "
                'batch_size: "full", or raise memory_mb'
            )
        if self._normalised is not None:
            return self._normalised[index]
        return self._normalise_rows(self.data.features[index], index)

    @cached_property
    def _normalised(self) -> torch.Tensor | None:
        """All rows, float32 [rows, d], if they fit into memory; else None.

        The cached rows are bit-identical to rows normalised block by block.
        """
        size = 4 * len(self) * self.dimension
        plain = isinstance(self.transform.spec, kinds.NoNormalisation)
        if plain or self.streamed or size > devices.spare_bytes(self.device):
            return None
        out = torch.empty((len(self), self.dimension), device=self.device)
        for start, block in self.data.read_blocks():
            window = slice(start, start + len(block))
            out[window] = self._normalise_rows(block, window)
        return out

    @property
    def are_views(self) -> bool:
        """True if blocks are views of memory, without computation."""
        plain = isinstance(self.transform.spec, kinds.NoNormalisation)
        return not self.streamed and (plain or self._normalised is not None)

    def _normalise_rows(self, rows: torch.Tensor, index: torch.Tensor | slice) -> torch.Tensor:
        rows = self.transform(rows)
        if self._left_out is not None:
            rows.masked_fill_(self._left_out[index].unsqueeze(1), 0.0)
        return rows

    def make_targets(self, start: int, stop: int) -> torch.Tensor:
        """Returns float32 [m, num_classes] with a 1 at each label."""
        labels = self.labels[start:stop]
        if self.multi_label:
            return labels.to(torch.float32)
        targets = torch.zeros((len(labels), self.num_classes), device=self.device)
        return targets.scatter_(1, labels.unsqueeze(1), 1.0)

    def _row_scale(self) -> torch.Tensor | None:
        if isinstance(self.transform.spec, kinds.NoNormalisation):
            return torch.ones(len(self), device=self.device)
        if isinstance(self.transform.spec, kinds.L2):
            return unit_scale(self.data.lengths.nan_to_num(posinf=0.0))
        return None

    def _compute_lengths(self) -> torch.Tensor:
        if self._scale is not None:
            return self.data.lengths * self._scale
        if isinstance(self.transform.spec, kinds.AroundCentre):
            return self._centred_lengths()
        lengths = torch.empty_like(self.data.lengths)
        for block in self.read_blocks():
            lengths[block.start : block.stop] = row_lengths(block.features)
        return lengths

    def _centred_lengths(self) -> torch.Tensor:
        """Returns the lengths, float64 [rows], of centred rows; also sets `affine`."""
        lengths, centre = self.data.lengths, self.transform.arrays[CENTRE].to(self.device)
        usable = lengths.isfinite()
        unit = unit_scale(lengths)
        distances = torch.empty_like(lengths)
        for start, block in self.data.read_blocks():
            window = slice(start, start + len(block))
            distances[window] = row_lengths((block * unit[window, None]).sub_(centre))
        shift = torch.where(usable, unit_scale(distances), 0.0).clamp_(max=LONGEST_SHIFT)
        self.affine = Affine(unit * shift, shift, centre)
        return distances * shift
