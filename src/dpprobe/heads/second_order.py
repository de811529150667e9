"""Second moments of clipped rows, their estimates under noise, and steps that use them.

Rows are those of `clipped_row_options.RowOptions`: x of norm at most S, a constant entry last.

A weighted second moment sum_i w_i x_i x_i^T with weights in [0, 1] changes by w x x^T when a null
row takes the place of a row, of Frobenius norm w |x|^2 <= S^2. It gets isometric symmetric noise
(`Releases.release_symmetric`), off the diagonal of standard deviation s = sigma S^2 / sqrt(2).

A unit of privacy of several rows (`units`) adds the mean of what each of them would add alone:
their weights u sum to at most 1. A gradient or a cross moment has u on the side of the factor,
u r x^T, of norm u C at most; a second moment sqrt(u w) on the row, and rounding towards zero after
it, so the rows x' of a unit have sum |x'|^2 <= sum u |x|^2 <= S^2. A unit so changes each sum by no
more than one row may, and every proof of a head that speaks of a row holds for a unit.

Under noise all sums are integers on a public grid (`privacy.grid`) for n units: rows, those times
their weights' roots, targets and residuals are rounded towards zero, which lengthens none. Over a
unit the products of entries sum, without their signs, to at most S^2, so over n units to at most
2^52 steps, and float64 adds them exactly. Logits are such products too, so what a row adds depends
on that row and its weight alone: the sums are the same bits in any order of the rows, for any
blocks and threads. (But for PyTorch's sigmoid in Newton's curvatures, which may differ in its last
bit by a row's place among its block; a null row keeps its place.) Without noise they are plain
float64 sums.

Everything else here is post-processing of releases, or uses n, d, K and noise multipliers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from scipy.linalg.blas import dgemm, dsyrk

from dpprobe import devices
from dpprobe.errors import ConfigError
from dpprobe.heads.kernels import grid_rows
from dpprobe.heads.rows import Affine, Rows
from dpprobe.heads.training_set import BLOCK_BYTES
from dpprobe.privacy.grid import (
    GridSum,
    entry_bits,
    factor_bits,
    grid_step,
    mirror_upper,
    product_bits,
    towards_zero,
)
from dpprobe.privacy.releases import Releases

# Rounding in float32: what is summed is shorter than its bound by this much.
MARGIN = 4 * 2.0**-24
# bench/results/defaults.md has the search for these numbers.
_MATRIX_RIDGE, _TARGET_RIDGE = 0.07, 0.02
# See `floor_ridge`.
_LEAST_RIDGE = 0.03
_LARGEST_LOGIT_NOISE = 0.6
# Relative to the largest eigenvalue, the least added ridge, about the rounding of the
# decomposition: float32 under noise, float64 without.
_ROUNDING = {True: 1e-7, False: 1e-12}
# A block in float64 takes as much memory as `BLOCK_BYTES`.
_BLOCK_BYTES_PER_ENTRY = 8
_EIGENVALUES_AT_ONCE = 128


class Piece(NamedTuple):
    """Rows start to stop: x = scale * features - shift * centre, and the constant.

    features [m, d], scale [m], constant [m]; shift [m] and centre [d], or None for 0.
    """

    start: int
    stop: int
    features: torch.Tensor
    scale: torch.Tensor
    constant: torch.Tensor
    shift: torch.Tensor | None
    centre: torch.Tensor | None


class RowBounds(Protocol):
    """The bounds of rows; see `clipped_row_options.RowOptions`."""

    @property
    def max_row_norm(self) -> float: ...

    @property
    def intercept(self) -> float: ...

    @property
    def longest(self) -> float: ...


class Design:
    """The rows of one fit, clipped and with their constant.

    Attributes:
      rows: before clipping.
      columns: d + 1.
      scale, constant: float32 [rows]; both 0 for rows that must not contribute.
      norms: float64 [rows], of the clipped rows with their constants.
      unit_weights: float64 [rows], of each row in its unit of privacy; None for ones.
      private: True if rows are clipped, and on the grid.
      longest: the public bound on these norms; infinite where rows are not clipped.
      step: the grid's, of the rows' entries; 1 where there is none.
    """

    def __init__(self, options: RowBounds, rows: Rows, *, private: bool) -> None:
        self.rows, self.columns, self.private = rows, rows.dimension + 1, private
        self.clip = options.max_row_norm if private else math.inf
        self.longest = options.longest if private else math.inf
        self.step = grid_step(options.longest, entry_bits(rows.n)) if private else 1.0
        self.offset = options.intercept * options.max_row_norm * (1 - MARGIN)
        if private:
            self.offset = math.trunc(self.offset / self.step) * self.step
        usable = rows.lengths.isfinite()
        lengths = rows.lengths
        if rows.affine is not None and private:
            lengths = lengths + rounding_of(rows.affine)
        factors = (self.clip * (1 - MARGIN) / lengths).clamp_(max=1)
        clipped = torch.where(usable, lengths * factors, 0.0)
        self.scale = torch.where(usable, factors, 0.0).to(torch.float32)
        self._shift = None
        if rows.affine is not None:
            self._shift = self.scale * rows.affine.shift
            self.scale = self.scale * rows.affine.scale
        self.constant = torch.where(usable, self.offset, 0.0).to(torch.float32)
        self.norms = torch.hypot(clipped, self.constant.double())
        self.unit_weights = None if rows.weights is None else rows.weights.double()

    def read_pieces(self, bytes_per_row: int = 0) -> Iterator[Piece]:
        """Yields the rows in order; see `Rows.read_blocks`."""
        affine = self.rows.affine
        if affine is None or self._shift is None:
            for start, stop, features in self.rows.read_blocks(bytes_per_row):
                scale, constant = self.scale[start:stop], self.constant[start:stop]
                yield Piece(start, stop, features, scale, constant, None, None)
            return
        feature_bytes = 4 * self.rows.dimension
        size = BLOCK_BYTES * feature_bytes // max(feature_bytes, bytes_per_row)
        for start, features in self.rows.data.read_blocks(size):
            window = slice(start, start + len(features))
            yield Piece(
                start, window.stop, features, self.scale[window], self.constant[window],
                self._shift[window], affine.centre,
            )  # fmt: skip

    def unit_rows(self, piece: Piece) -> Piece:
        """Returns a piece with its rows divided by their norms, none longer than 1, under noise."""
        if not self.private:
            return piece
        norms = self.norms[piece.start : piece.stop]
        factors = torch.where(norms > 0, (1 - MARGIN) / norms, 0.0)
        shift = None if piece.shift is None else (piece.shift * factors).float()
        return piece._replace(
            scale=(piece.scale * factors).float(),
            constant=(piece.constant * factors).float(),
            shift=shift,
        )

    def fill_block(
        self, piece: Piece, out: torch.Tensor, step: float | None = None
    ) -> torch.Tensor:
        """Fills float64 [m, d + 1] with a piece's rows and their constants.

        The products of float32 numbers are exact in float64, so an entry is rounded in the same way
        wherever it stands.

        Args:
          step: the unit of its entries; `self.step` if absent.
        """
        scale, shift, centre, constant = self._in_steps(piece, step or self.step)
        if devices.has_kernels(out.device):
            inputs = (piece.features, scale, shift, centre, constant)
            grid_rows.fill_rows(*(tensor.numpy() for tensor in inputs), self.private, out.numpy())
            return out
        out[:, -1] = constant
        features = torch.mul(piece.features.double(), scale[:, None], out=out[:, :-1])
        if piece.centre is not None:
            features.addcmul_(shift[:, None], centre, value=-1)
        return out.trunc_() if self.private else out

    def _in_steps(
        self, piece: Piece, step: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns a piece's scale, shift, centre and constant in units of `step`, float64."""
        scale = piece.scale.double().div_(step)
        shift = scale if piece.shift is None else piece.shift.double().div_(step)
        centre = scale[:0] if piece.centre is None else piece.centre.double()
        constant = piece.constant.double().div_(step)
        return scale, shift, centre, constant.trunc_() if self.private else constant

    def read_blocks(self, bytes_per_row: int = 0) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Yields pieces with their `fill_block`, which the next one overwrites.

        Args:
          bytes_per_row: of working memory that the caller needs.
        """
        buffer = torch.empty((0, self.columns), dtype=torch.float64, device=self.rows.device)
        for piece in self.read_pieces(max(_BLOCK_BYTES_PER_ENTRY * self.columns, bytes_per_row)):
            size = piece.stop - piece.start
            if len(buffer) < size:
                buffer = buffer.new_empty((size, self.columns))
            yield piece, self.fill_block(piece, buffer[:size])

    def cache_key(self, name: str) -> tuple[object, ...]:
        """Returns the key under which `Rows.make_once` keeps what all fits with these rows
        share.
        """
        return (name, self.clip, self.offset, self.private)

    def compute_logits(
        self, block: torch.Tensor, factors: Factors, units: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns logits, float64 [m, K], of a block's rows with a 1 appended.

        Args:
          factors: `factors` of weights.
          units: of each row's entries, [m]; `step` if absent.
        """
        if factors.zero:
            return factors.biases.repeat(len(block), 1)
        if devices.has_kernels(block.device):
            # the library of the other products here: a second one takes some 10 MB of buffers
            products = torch.from_numpy(
                dgemm(1.0, block.numpy().T, factors.padded.numpy().T, trans_a=1, trans_b=1)
            )
        else:
            products = block @ factors.padded
        products *= factors.step * (self.step if units is None else units[:, None])
        return products.add_(factors.biases)

    def make_factors(self, weights: torch.Tensor) -> Factors:
        """Returns what rows are multiplied with for their logits.

        Under noise weights are rounded to a grid as well, 2^-26 of their norm or finer, so that a
        row's logits do not depend on its place in the product.

        Args:
          weights: [K, d + 1] on rows with a 1 appended.
        """
        factors, step = weights[:, :-1].double(), 1.0
        longest = float(torch.linalg.vector_norm(factors, dim=1).max())
        if self.private and 0 < longest < math.inf:
            step = grid_step(longest, product_bits(1) - entry_bits(self.rows.n) - 1)
            factors = factors.div(step).round_()
        padded = factors.new_zeros((self.columns, len(weights)))
        padded[:-1] = factors.T
        return Factors(padded, step, weights[:, -1].double().contiguous(), zero=longest == 0)

    def add_gradients(
        self, piece: Piece, loss: Loss, factors: Factors, steps: Steps, total: torch.Tensor
    ) -> None:
        """Adds a piece's clipped gradients to total [K, d + 1], by `grid_rows.add_gradients`."""
        scale, shift, centre, constant = self._in_steps(self.unit_rows(piece), steps.entry)
        norms = self.norms[piece.start : piece.stop]
        grid_rows.add_gradients(
            piece.features.numpy(), scale.numpy(), shift.numpy(), centre.numpy(), constant.numpy(),
            self.private, self.rows.make_targets(piece.start, piece.stop).numpy(), norms.numpy(),
            self.row_lengths(piece).numpy(), self.unit_shares(piece).numpy(),
            factors.padded.numpy(),
            not factors.zero, factors.biases.numpy(), steps.unit * factors.step,
            loss.clip * (1 - MARGIN), loss.sigmoid, steps.factor if self.private else 0.0,
            total.numpy(),
        )  # fmt: skip

    def row_lengths(self, piece: Piece) -> torch.Tensor:
        """Returns the norms that `unit_rows` divides by, float64 [m]; ones without noise."""
        norms = self.norms[piece.start : piece.stop]
        return norms if self.private else torch.ones_like(norms)

    def unit_shares(self, piece: Piece) -> torch.Tensor:
        """Returns the weights of a piece's rows in their units of privacy, float64 [m]."""
        if self.unit_weights is None:
            size = piece.stop - piece.start
            return torch.ones(size, dtype=torch.float64, device=self.rows.device)
        return self.unit_weights[piece.start : piece.stop]

    def make_weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Returns float32 weights [..., K, d + 1] on normalised rows.

        Args:
          parameters: [..., K, d + 1] on rows with their constant.
        """
        out = parameters.to(torch.float32)
        out[..., -1] = parameters[..., -1] * self.offset
        return out


class Factors(NamedTuple):
    """Weights as rows are multiplied with them.

    Attributes:
      padded: float64 [d + 1, K], of features, in units of `step`; 0 in the last row.
      biases: float64 [K].
      zero: True if all of `padded` is 0: there is nothing to multiply.
    """

    padded: torch.Tensor
    step: float
    biases: torch.Tensor
    zero: bool


class Steps(NamedTuple):
    """The grid of gradients: the steps of unit rows and of their factors, 1 without noise.

    Attributes:
      unit: of a product of unit rows, before it is multiplied with the row's norm.
    """

    entry: float
    factor: float
    unit: float

    @classmethod
    def make_steps(cls, design: Design, loss: Loss, classes: int) -> Steps:
        """Returns the grid for a public bound on the factors, r times the norm of its row."""
        if not design.private:
            return cls(1.0, 1.0, 1.0)
        n, longest = design.rows.n, min(loss.clip, loss.longest_residual(classes) * design.longest)
        entry = grid_step(1.0, entry_bits(n))
        return cls(entry, grid_step(longest, factor_bits(n)), entry / (1 - MARGIN))


def rounding_of(affine: Affine) -> torch.Tensor:
    """Returns the most by which rounding lengthens each row: float64 [rows].

    It matters for rows next to the centre, whose difference to it is rounding for the most part.
    """
    return 2.0**-21 * (1 + float(affine.centre.double().norm())) * affine.shift.double()


def second_moment(
    design: Design, row_weights: Callable[[Piece, torch.Tensor], torch.Tensor] | None = None
) -> GridSum:
    """Sums u w x x^T over the rows, u their weights in their units: symmetric [d + 1, d + 1].

    On the CPU only one triangle is multiplied: half the products.

    Args:
      row_weights: from a piece and its block to [m] weights in [0, 1]; 1 if absent.
    """
    columns = design.columns
    total = torch.zeros((columns, columns), dtype=torch.float64, device=design.rows.device)
    for piece, block in design.read_blocks():
        if row_weights is not None or design.unit_weights is not None:
            factors = design.unit_shares(piece)
            if row_weights is not None:
                factors = factors * row_weights(piece, block).double()
            _weigh_rows(block, factors.sqrt(), whole=design.private)
        total = _add_squares(total, block)
    return GridSum(mirror_upper(total), design.step**2)


def _weigh_rows(block: torch.Tensor, factors: torch.Tensor, *, whole: bool) -> None:
    """Multiplies rows with factors, in place, each entry then rounded towards zero if `whole`."""
    if devices.has_kernels(block.device):
        grid_rows.weigh_rows(factors.numpy(), whole, block.numpy())
        return
    block.mul_(factors[:, None])
    if whole:
        block.trunc_()


def _add_squares(total: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Returns `total` with the rows' outer products added, in place; right above the diagonal."""
    if not devices.has_kernels(total.device):
        return total.addmm_(block.T, block)
    # Fortran's arrays are transposed: what is its lower triangle is the upper one here
    summed = dsyrk(1.0, block.numpy().T, 1.0, total.numpy().T, lower=1, overwrite_c=1)
    return torch.from_numpy(summed.T)


def cross_moment(
    design: Design, targets: Callable[[Piece], torch.Tensor], classes: int, longest: float
) -> GridSum:
    """Sums u t x^T over the rows, u their weights in their units: [classes, d + 1].

    Args:
      targets: [m, classes] of a piece's rows, of norm at most `longest`.
      longest: public; unused without noise.
    """
    columns, step = design.columns, 1.0
    if design.private:
        step = grid_step(longest, factor_bits(design.rows.n))
    total = torch.zeros((classes, columns), dtype=torch.float64, device=design.rows.device)
    for piece, block in design.read_blocks(24 * classes):
        left = targets(piece)
        if design.unit_weights is not None:
            left = left.double() * design.unit_shares(piece)[:, None]
        left = towards_zero(left, step) if design.private else left.double()
        total.addmm_(left.T, block)
    return GridSum(total, design.step * step)


def clipped_labels(rows: Rows, piece: Piece, longest: float) -> torch.Tensor:
    """Returns a piece's labels as zeros and ones, clipped to norm `longest`: float64 [m, K]."""
    labels = rows.make_targets(piece.start, piece.stop).double()
    norms = torch.linalg.vector_norm(labels, dim=1, keepdim=True)
    return labels * (longest * (1 - MARGIN) / norms).clamp(max=1)


@dataclass(frozen=True)
class Spectrum:
    """A positive semi-definite matrix by its eigenvalues [d], float64, and eigenvectors [d, d]."""

    values: torch.Tensor
    vectors: torch.Tensor

    def solve_ridge(self, right: torch.Tensor, ridge: float) -> torch.Tensor:
        """Returns right (A + ridge I)^-1, for right [..., d], float64."""
        rotated = (right.to(self.vectors.dtype) @ self.vectors) / (self.values + ridge)
        return (rotated.to(self.vectors.dtype) @ self.vectors.T).to(torch.float64)

    def noise_gain(self, ridge: float) -> float:
        """Returns tr (A (A + ridge I)^-2): the gain of isotropic noise in x^T P g."""
        return float((self.values / (self.values + ridge).square()).sum())


def estimate_spectrum(matrix: torch.Tensor, deviation: float) -> Spectrum:
    """Estimates a matrix A from one with isometric symmetric noise.

    Returns the noisy one's eigenvectors, and for each of them the expectation of v^T A v: the
    eigenvalue minus 2 s^2 d h, with h the Hilbert transform of the eigenvalues' density at it, a
    mean of 1 / (difference); clamped at 0. Among all estimates with these eigenvectors it is the
    nearest to A when d is large (Bun, Allez, Bouchaud and Potters 2016, section on additive noise).
    Plain clamping keeps the upper half of the noise's own spectrum, which reaches to
    s sqrt(2) sqrt(2 d).

    Args:
      matrix: symmetric [d, d].
      deviation: the standard deviation of the noise on the diagonal; 0 for none.
    """
    # Under noise float32 is exact enough: its rounding is a small part of the noise.
    dtype = torch.float32 if deviation > 0 else torch.float64
    values, vectors = torch.linalg.eigh(matrix.to(dtype))
    values = values.to(torch.float64)
    if deviation > 0:
        values = values - deviation**2 * len(values) * _hilbert_transform(values, deviation)
    return Spectrum(values.clamp_(min=0), vectors)


def _hilbert_transform(values: torch.Tensor, deviation: float) -> torch.Tensor:
    """Returns the mean over j of (v_i - v_j) / ((v_i - v_j)^2 + w^2).

    w is some spacings of the eigenvalues of noise alone.
    """
    width = deviation * math.sqrt(2)
    out = torch.empty_like(values)
    for low in range(0, len(values), _EIGENVALUES_AT_ONCE):
        gaps = values[low : low + _EIGENVALUES_AT_ONCE, None] - values
        out[low : low + _EIGENVALUES_AT_ONCE] = (gaps / (gaps.square() + width**2)).mean(1)
    return out


def rule_ridge(
    columns: int,
    classes: int,
    *,
    clip: float,
    longest: float,
    matrix_noise: float,
    target_noise: float,
) -> float:
    """Returns lambda = sqrt(d) (0.07 S^2 sigma_G + 0.02 K C^2 sigma_B), of public quantities.

    sigma_G is the noise multiplier of the second moment, sigma_B that of the cross moment, or of
    the mean of all gradients: the noise on the two sides of what is solved. A good classifier of
    unit rows has weights with a norm of some tens over d directions, before the scale of 1 / K that
    a class's frequency gives them: lambda balances noise and these weights.
    bench/results/defaults.md has the search for these numbers.

    Args:
      columns, classes: d + 1, K.
      clip, longest: C, S.
      matrix_noise, target_noise: sigma_G, sigma_B.
    """
    noise = _MATRIX_RIDGE * longest**2 * matrix_noise
    noise += _TARGET_RIDGE * classes * clip**2 * target_noise
    return math.sqrt(columns) * noise


def floor_ridge(columns: int, row_square: float) -> float:
    """Returns lambda where there is little noise or none: 0.03 sqrt(d) S^2.

    Without a ridge accuracy falls where d is near n, since the sum's least eigenvalues are then
    those of chance. The ridge needs no factor of n: for n far above d it loses its weight by
    itself. `rule_ridge` is larger unless noise multipliers are below about 0.1, which is far beyond
    epsilon 8.

    Found without noise, in least_squares and feature_covariance over lambda from 0 to 30, on public
    features: digits through a scattering transform (d = 1,297, n = 100 to 1,438) and as pixels
    (d = 65), digits and crops of photographs through a MobileNetV2 (d = 1,281, n = 200 to 7,500),
    Gaussians (d = 513, n = 200 to 10,000). The best lambda lies between 0.001 and 10, mostly near 1
    whatever n is. Each set's mean over n is 0.3 to 1.9 points below the best lambda's; with
    lambda = 0 it is 2.6 to 23, and at n = d 48 to 61 on the larger ones.

    Args:
      columns: d + 1.
      row_square: S^2; without noise, where rows are not clipped, their mean square.
    """
    return _LEAST_RIDGE * math.sqrt(columns) * row_square


def ridge_of(
    design: Design,
    asked: float | None,
    longest: float,
    matrix_noise: float,
    target_noise: float,
    matrix: Spectrum,
) -> float:
    """Returns lambda: as asked for, or the larger of `rule_ridge` and `floor_ridge`.

    It is at least the sums' rounding, which is relative to the largest eigenvalue.
    """
    least = _ROUNDING[design.private] * float(matrix.values[-1]) + 1e-30
    if asked is not None:
        return max(asked, least)
    if not design.private:
        mean_square = float(matrix.values.sum()) / design.rows.n
        return max(floor_ridge(design.columns, mean_square), least)
    rule = rule_ridge(
        design.columns,
        design.rows.num_classes,
        clip=design.clip,
        longest=longest,
        matrix_noise=matrix_noise,
        target_noise=target_noise,
    )
    return max(rule, floor_ridge(design.columns, longest**2), least)


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of a softmax or of one sigmoid a class, its gradients clipped.

    Attributes:
      clip: the largest norm of an example's gradient; infinite for none.
    """

    sigmoid: bool
    clip: float

    def clip_residuals(
        self, logits: torch.Tensor, labels: torch.Tensor, norms: torch.Tensor
    ) -> torch.Tensor:
        """Returns r, scaled so that |r| |x| is at most `clip`: float64 [m, K].

        Args:
          logits: [m, K].
          labels: the labels as zeros and ones [m, K].
          norms: |x|, float64 [m].
        """
        residuals = self.compute_probabilities(logits) - labels
        if self.clip < math.inf:
            products = torch.linalg.vector_norm(residuals, dim=1) * norms
            residuals *= (self.clip * (1 - MARGIN) / products).clamp_(max=1)[:, None]
        return residuals

    def longest_residual(self, classes: int) -> float:
        """Returns the largest |r|."""
        return math.sqrt(classes if self.sigmoid else 2)

    def compute_probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns [m, K], of logits [m, K]; 0 for NaN."""
        out = torch.sigmoid(logits) if self.sigmoid else torch.softmax(logits, 1)
        return out.nan_to_num_(0.0, 0.0, 0.0)


def sum_gradients(design: Design, loss: Loss, weights: torch.Tensor) -> GridSum:
    """Sums the examples' clipped gradients with respect to parameters on x, weighted: [K, d + 1].

    An example's gradient is r x^T of norm |r| |x|: r is scaled by min(1, clip / (|r| |x|)). It is
    at most `clip` long for any weights, then multiplied with its row's weight in its unit. A row
    that must not contribute is all 0, its constant too.

    On the grid it is v u^T with u = x / |x| and v = |x| r: of two factors that public numbers
    bound, 1 and `clip`. A grid for r alone would be one for sqrt(K), of which little is left of
    residuals that a small `clip` and many classes make short.

    Args:
      weights: float32 [K, d + 1] on rows with a 1 appended.
    """
    rows = design.rows
    classes, columns = weights.shape
    steps, factors = Steps.make_steps(design, loss, classes), design.make_factors(weights)
    total = torch.zeros((classes, columns), dtype=torch.float64, device=rows.device)
    kernels = devices.has_kernels(rows.device)
    for piece in design.read_pieces(0 if kernels else 32 * classes + 16 * columns):
        if kernels:
            design.add_gradients(piece, loss, factors, steps, total)
        else:
            add_by_products(design, piece, loss, factors, steps, total)
    return GridSum(total, steps.entry * steps.factor)


def add_by_products(
    design: Design, piece: Piece, loss: Loss, factors: Factors, steps: Steps, total: torch.Tensor
) -> None:
    """Adds a piece's clipped gradients to total [K, d + 1], by PyTorch's products."""
    size, lengths = piece.stop - piece.start, design.row_lengths(piece)
    out = torch.empty((size, design.columns), dtype=torch.float64, device=total.device)
    block = design.fill_block(design.unit_rows(piece), out, steps.entry)
    labels = design.rows.make_targets(piece.start, piece.stop)
    logits = design.compute_logits(block, factors, steps.unit * lengths)
    residuals = loss.clip_residuals(logits, labels, design.norms[piece.start : piece.stop])
    residuals *= (design.unit_shares(piece) * lengths)[:, None]
    if design.private:
        residuals.div_(steps.factor).trunc_()
    total.addmm_(residuals.T, block)


def step_rate(longest: float, deviation: float, gain: float, rows: int) -> float:
    """Returns `longest`, or less where noise would drive the next probabilities to 0 and 1.

    A step's noise in the logits is held at 0.6: its size is known from what was released. Steps so
    short together amount to one solve with the mean of all gradients.

    Args:
      longest: the learning rate where there is little noise.
      deviation: the standard deviation of the noise on a released gradient's numbers.
      gain: `Spectrum.noise_gain` of what multiplies it.
      rows: n.
    """
    noise = deviation * math.sqrt(gain / rows)
    return min(longest, _LARGEST_LOGIT_NOISE / noise) if noise > 0 else longest


def average_descent(
    start: torch.Tensor,
    steps: int,
    direction: Callable[[int, torch.Tensor], tuple[torch.Tensor, float]],
    average: str,
    snapshots: list[torch.Tensor] | None,
) -> torch.Tensor:
    """Steps against directions; returns the average of the parameters on the way.

    Args:
      start: float64 [K, d + 1].
      direction: from step t and the parameters to the direction and the learning rate.
      snapshots: takes the average after each step.
    """
    current, mean, total = start.clone(), torch.zeros_like(start), 0.0
    for step in range(steps):
        towards, rate = direction(step, current)
        current = current - rate * towards
        weight = {"last": float(step + 1 == steps), "mean": 1.0, "linear": step + 1.0}[average]
        total += weight
        mean += weight * current
        if snapshots is not None:
            snapshots.append(mean / total if total else current.clone())
    return mean / total


def each_seed(
    releases: Releases, names: Sequence[str], fit: Callable[[Releases], torch.Tensor], *, head: str
) -> torch.Tensor:
    """Fits one seed after the other, since each needs other matrices; returns [seeds, ...].

    Args:
      names: the mechanisms that `fit` takes part in.

    Raises:
      ConfigError: when a result is not finite.
      PrivacyError: when a seed's releases are not those priced.
    """
    results = []
    chosen = tuple(item for item in releases.plan.mechanisms if item.name in names)
    for seed in releases.seeds:
        seed_releases = releases
        if len(releases.seeds) > 1:
            plan = replace(releases.plan, mechanisms=chosen, selection=None)
            seed_releases = releases.make_part(plan, (seed,))
        results.append(fit(seed_releases))
        if not bool(results[-1].isfinite().all()):
            raise ConfigError(f"head {head}: training diverged; write a smaller learning_rate")
        if seed_releases is not releases:
            seed_releases.check_counts()
    if len(releases.seeds) > 1:
        for mechanism in chosen:
            releases.count_releases(mechanism.name, mechanism.count)
    return torch.stack(results)
