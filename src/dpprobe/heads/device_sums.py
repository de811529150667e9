"""Computes the sums of `engine: exact` on a GPU, bit-identical to the CPU's sums.

**Products.** A unit row has norm at most 2^e, for entries of e bits. A class's integer weights have
norm at most 2^(51 - e) + sqrt(d) / 2. By Cauchy-Schwarz every partial sum of a unit row's product
with a class's weights is below 2^52. Partial sums of factors times rows are at most 2^52
(`privacy.grid`). So float64 represents all partial sums, and products are bit-identical to
`exact_step.add_sums`.

**Rows.** The CPU rounds rows to the grid (`exact_step.fill_units`). Logits are exact products,
times one number per row, so they are bit-identical too. Only exponentials, and sums over classes,
depend on the device. They enter a factor x = trunc(r F), with the residual r = p - y of probability
p and 0/1 label y, and F = w |row| min(1, clip / length) / step.

**Certificate.** `slack` bounds |r F - r' F'|, where r' and F' are the CPU's numbers. If trunc is
constant within `slack` of r F, the device's factor equals the CPU's. Other rows are computed on the
CPU by `exact_step.to_factors`. So a row's contribution depends only on the row, not on its
position, and the sensitivity is that on the CPU. Let eta = (K + 32) 2^-50, at least four times the
rounding errors:

- Exponentials have a relative error of at most 2^-51 (libraries document 2^-52), or are below
  2^-1000. A softmax adds K positive exponentials, in any order, and divides. So |p - p'| <= eta p /
  2, and |r - r'| <= eta p <= eta (|r| + y).
- |r - r'|, of vectors, is at most eta |p| + eta |r|, and |p| <= 1, or sqrt(K) for sigmoids. So the
  lengths of r and r' have a relative difference of at most rho = eta |p| / |r| + eta. If the length
  of r plus this difference is at most `clip`, both clip factors are 1. Otherwise the clip factors
  differ relatively by at most 2 rho, if rho < 1/8; the CPU computes rows of larger rho.
- Hence slack = |r F| (2 rho + 4 eta) + 2 eta F y, with rho = 0 where both clip factors are 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dpprobe import devices
from dpprobe.errors import DeviceError
from dpprobe.heads.exact_sums import SLICE_ROWS, Data, ExactSums, Index
from dpprobe.heads.kernels import exact_step
from dpprobe.privacy.grid import GridSum

# Working memory of a block of rows.
WORK_BYTES = 2 * 2**30
# Device columns are padded to a multiple of _COLUMNS; the tested product is [_TESTED, _TESTED].
_COLUMNS, _TESTED = 16, 128


class _Block(NamedTuple):
    """The rows of a step, on the device.

    Attributes:
      rows: slice or indices [m] of the rows.
      units: float32 [m, columns], unit rows with their constants, in steps of the grid.
      norms: float64 [m], the rows' norms.
    """

    rows: slice | torch.Tensor
    units: torch.Tensor
    norms: torch.Tensor


class DeviceSums(ExactSums):
    """The sums of `ExactSums`, computed by matrix products on a device.

    The device keeps the rows for all steps if its memory suffices; otherwise each step copies them
    in blocks. Raises DeviceError if the device's products of whole numbers are not exact.
    """

    def __init__(self, *args: Any, device: torch.device, **options: Any) -> None:
        super().__init__(*args, **options)
        require_exact_products(device)
        self._device, (classes, columns) = device, self._shape
        self._columns, rows = -(-columns // _COLUMNS) * _COLUMNS, self._rows
        self._size = max(1, min(len(rows), WORK_BYTES // (8 * self._columns + 48 * classes)))
        self._labels, self._shares = rows.labels.to(device), self._weights.double().to(device)
        self._kept: _Block | None = None
        if devices.spare_bytes(device) > 4 * self._columns * len(rows) + WORK_BYTES:
            units = torch.empty((len(rows), self._columns), device=device)
            norms = torch.empty(len(rows), dtype=torch.float64, device=device)
            for block in self._copy_blocks(None):
                units[block.rows], norms[block.rows] = block.units, block.norms
            self._kept = _Block(slice(None), units, norms)

    def sum_all(self, weights: torch.Tensor) -> GridSum:
        heads, totals = self._move_heads(weights)
        self._add_rows_of(None, heads, totals)
        return self._make_sum(totals.cpu().numpy())

    def sum_batches(self, weights: torch.Tensor, batches: Sequence[Index]) -> GridSum:
        heads, totals = self._move_heads(weights)
        for batch, head, total in zip(batches, heads, totals, strict=True):
            self._add_rows_of(batch, [head], total[None])
        return self._make_sum(totals.cpu().numpy())

    def _add_rows_of(
        self, index: Index | None, heads: Sequence[tuple[torch.Tensor, float]], totals: torch.Tensor
    ) -> None:
        """Adds each head's sum over all rows, or over indexed rows, to the head's total."""
        for block in self._read_blocks_on_device(index):
            rows = block.units.double()
            for (head, unit), total in zip(heads, totals, strict=True):
                logits = (rows @ head.T).mul_((block.norms * unit)[:, None])
                total.addmm_(self._make_factors(logits, block).T, rows)

    def _move_heads(
        self, weights: torch.Tensor
    ) -> tuple[list[tuple[torch.Tensor, float]], torch.Tensor]:
        """Converts heads to integers for `exact_step`; also returns units, and zeros for sums."""
        heads, moved = self._prepare(weights)[0], []
        for head in heads:
            whole, out = np.empty_like(head), np.zeros((len(head), self._columns))
            unit = exact_step.to_integers(head, self._given.bits, whole)
            unit *= self._given.entry / (1 - exact_step.MARGIN)
            out[:, : head.shape[1]] = whole
            moved.append((torch.from_numpy(out).to(self._device), unit))
        shape = len(heads), self._shape[0], self._columns
        return moved, torch.zeros(shape, dtype=torch.float64, device=self._device)

    def _make_factors(self, logits: torch.Tensor, block: _Block) -> torch.Tensor:
        """Returns the factors [m, K] of `exact_step.to_factors`: see the module's proof."""
        labels, shares = self._labels[block.rows], self._shares[block.rows]
        classes = logits.shape[1]
        usable = (block.norms > 0) & logits.isfinite().all(1)
        eta = (classes + 32) * 2.0**-50

        def add_at_labels(numbers: torch.Tensor, added: torch.Tensor) -> None:
            if self._rows.multi_label:
                numbers.addcmul_(labels.double(), added[:, None])
            else:
                numbers.scatter_add_(1, labels[:, None], added[:, None])

        if self._given.sigmoid:
            power = logits.abs().neg_().exp_()
            factors = torch.where(logits > 0, 1.0, power).div_(power.add_(1))
        else:
            # PyTorch documents no error bound for its softmax
            factors = (logits - logits.amax(1, keepdim=True)).exp_()
            factors.div_(factors.sum(1, keepdim=True))
        add_at_labels(factors, -torch.ones_like(shares))
        length = torch.linalg.vector_norm(factors, dim=1)
        change = eta * (classes**0.5 if self._given.sigmoid else 1.0)
        part = change / length + eta
        short = (length * (1 + eta) + change) * block.norms <= self._given.clip
        scale = (self._given.clip / (length * block.norms)).clamp_(max=1)
        scale *= shares * block.norms / self._given.step
        factors *= scale[:, None]
        size = factors.abs()
        slack = size * (torch.where(short, 0.0, 2 * part) + 4 * eta)[:, None]
        add_at_labels(slack, 2 * eta * scale)
        highest = (size + slack).trunc_()
        doubtful = (highest != size.sub_(slack).trunc_()).any(1) | ~(short | (part < 1 / 8))
        factors.trunc_().masked_fill_(~usable[:, None], 0.0)
        chosen = (doubtful & usable).nonzero()[:, 0]
        if len(chosen):
            factors[chosen] = self._compute_on_cpu(logits, block, chosen).to(self._device)
        return factors

    def _compute_on_cpu(
        self, logits: torch.Tensor, block: _Block, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Returns the factors of a block's chosen rows, [rows, K]."""
        labels, shares = self._labels[block.rows][chosen], self._shares[block.rows][chosen]
        z = logits[chosen].T.contiguous().cpu().numpy()
        several = self._rows.multi_label
        exact_step.to_factors(
            z,
            *(values.cpu().numpy() for values in (block.norms[chosen], shares)),
            np.zeros(0, np.int64) if several else labels.cpu().numpy(),
            labels.cpu().numpy() if several else np.zeros((0, 0), np.uint8),
            np.arange(len(chosen)),
            self._given.clip,
            self._given.step,
            self._given.sigmoid,
        )
        return torch.from_numpy(z).T

    def _read_blocks_on_device(self, index: Index | None) -> Iterator[_Block]:
        """Yields all rows, or the indexed rows, in blocks."""
        if self._kept is None:
            yield from self._copy_blocks(index)
            return
        count = len(self._rows) if index is None else len(index)
        for start in range(0, count, self._size):
            rows = self._place_rows(index, start, start + self._size)
            yield _Block(rows, self._kept.units[rows], self._kept.norms[rows])

    def _place_rows(self, index: Index | None, start: int, stop: int) -> slice | torch.Tensor:
        if index is None:
            return slice(start, stop)
        return torch.from_numpy(index[start:stop]).to(self._device)

    def _copy_blocks(self, index: Index | None) -> Iterator[_Block]:
        """Rounds rows to the grid, and yields copies on the device."""
        pinned = self._device.type == "cuda"
        units = torch.zeros((self._size, self._columns), pin_memory=pinned)
        norms = torch.empty(self._size, dtype=torch.float64, pin_memory=pinned)
        start = filled = 0

        def copy_block() -> _Block:
            rows = self._place_rows(index, start, start + filled)
            return _Block(rows, *(each[:filled].to(self._device) for each in (units, norms)))

        parts = ((each, np.arange(len(each.features))) for each in self._read_blocks())
        for data, rest in parts if index is None else self._gather_rows(index):
            chosen = rest
            while len(chosen):
                now, chosen = np.split(chosen, [self._size - filled])
                window = slice(filled, filled + len(now))
                self._fill_units(data, now, units[window].numpy())
                norms[window] = torch.from_numpy(data.norms[now])
                filled += len(now)
                if filled == self._size:
                    yield copy_block()
                    start, filled = start + filled, 0
        if filled:
            yield copy_block()

    def _fill_units(self, data: Data, index: Index, units: Any) -> None:
        def fill_slice(window: slice) -> None:
            exact_step.fill_units(tuple(data), index[window], self._given.entry, units[window])

        windows = [slice(at, at + SLICE_ROWS) for at in range(0, len(index), SLICE_ROWS)]
        list((map if self._pool is None else self._pool.map)(fill_slice, windows))


def require_exact_products(device: torch.device | str) -> None:
    """Raises DeviceError if products of whole numbers, from 2^50 to 2^52, are not exact."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randint(2**bits, 2 * 2**bits, (_TESTED, _TESTED), generator=generator)
        for bits in (16, 27)
    )
    product = left.double().to(device) @ right.double().to(device)
    if not torch.equal(product.cpu().long(), left @ right):
        raise DeviceError(
            f"{device}: float64 products of whole numbers are not exact on this device; write "
            "`device: cpu`"
        )
