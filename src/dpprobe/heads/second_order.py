"""Second moments of clipped rows, their estimation under noise, and steps that use them.

Rows x have norm at most S, including a constant as last entry (`clipped_row_options.RowOptions`).
If a null row replaces row x, a second moment sum_i w_i x_i x_i^T with weights w_i in [0, 1] changes
by w x x^T, with Frobenius norm w |x|^2 <= S^2. Noise on a second moment is symmetric and isometric
(`Releases.release_symmetric`): standard deviation s = sigma S^2 / sqrt(2) off the diagonal.

A unit of privacy with several rows (`units`) adds the mean of its rows' contributions: the weights
u of its rows sum to at most 1. In gradients and cross moments, r is multiplied by u, so u r x^T has
norm at most u C. In a second moment, rows are multiplied by sqrt(u w) and then rounded towards
zero, so a unit's rounded rows x' have sum |x'|^2 <= sum u |x|^2 <= S^2. So every sensitivity proved
for a row also holds for a unit.

Under noise all sums are integers on a public grid (`privacy.grid`) for n units. Rows, weighted
rows, targets and residuals are rounded towards zero, so no vector becomes longer. The absolute
products of entries sum to at most S^2 per unit, so to at most 2^52 steps over all n units, which
`grid.check_exact` checks. Float64 represents whole numbers up to 2^53, so no partial sum is
rounded. Blocks of any size may be multiplied by any library: `dsyrk`, `dgemm` or PyTorch. Logits
are exact products too (`Design.make_factors`), and on the CPU `kernels.residuals` clips each row by
itself. So a row's contribution depends only on the row and its weight, and sums are bit-identical
for any order, blocks and threads. (Exception: in Newton's curvatures, the last bit of PyTorch's
sigmoid may depend on a row's position in its block, which does not change if other rows become null
rows.) Without noise, sums are plain float64 sums.

Everything else here is post-processing, or uses only n, d, K and noise multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from scipy.linalg.blas import dgemm, dsyrk

from dpprobe import devices
from dpprobe.errors import ConfigError
from dpprobe.heads.kernels import residuals
from dpprobe.heads.rows import Affine, Rows
from dpprobe.privacy.grid import (
    GridSum,
    check_exact,
    entry_bits,
    factor_bits,
    grid_step,
    mirror_upper,
    product_bits,
    towards_zero,
    truncate,
)
from dpprobe.privacy.releases import Releases

if TYPE_CHECKING:
    from dpprobe.heads.clipped_row_options import RowOptions

# Summands are shortened by the fraction MARGIN, which covers float32 rounding.
MARGIN = 4 * 2.0**-24
# The ridges, and the limit on noise in logits, were chosen in bench/results/defaults.md.
_MATRIX_RIDGE, _TARGET_RIDGE = 0.07, 0.02
_LEAST_RIDGE = 0.03
_LARGEST_LOGIT_NOISE = 0.6
# The smallest ridge relative to the largest eigenvalue, about the round-off of the decomposition:
# in float32 under noise, in float64 without.
_ROUNDING = {True: 1e-7, False: 1e-12}
# Float64 blocks have about `training_set.block_bytes` bytes.
_BLOCK_BYTES_PER_ENTRY = 8
# On a GPU, a block's row length is a multiple of `_LINE`.
_LINE = 16
_EIGENVALUES_AT_ONCE = 128


class Piece(NamedTuple):
    """Rows from `start` to `stop`: x = scale * features - shift * centre, with a constant.

    features [m, d], scale [m], constant [m]; shift [m] and centre [d], or None for 0.
    """

    start: int
    stop: int
    features: torch.Tensor
    scale: torch.Tensor
    constant: torch.Tensor
    shift: torch.Tensor | None
    centre: torch.Tensor | None


@dataclass(frozen=True)
class UnitRows:
    """The bounds for rows of norm 1 without a constant, in place of `RowOptions`."""

    max_row_norm: float = 1.0
    intercept: float = 0.0
    longest: float = 1.0


class Design:
    """The rows of one fit, clipped, and with the constant appended.

    Attributes:
      rows: the rows before clipping.
      columns: d + 1.
      private: True if rows are clipped and rounded to the grid.
      step: the grid step of the rows' entries; 1 without a grid.
      scale, constant: float32 [rows]; both 0 for excluded rows.
      norms: float64 [rows], norms of the clipped rows with their constants.
      longest: a public bound on the norms; infinite if rows are not clipped.
      unit_weights: float64 [rows], each row's weight in its unit of privacy; None if all are 1.
    """

    def __init__(self, options: RowOptions | UnitRows, rows: Rows, *, private: bool) -> None:
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
        """Yields all rows in order, in pieces; see `Rows.read_blocks`."""
        affine = self.rows.affine
        for start, stop, features in self.rows.read_blocks(bytes_per_row, raw=affine is not None):
            yield Piece(
                start,
                stop,
                features,
                self.scale[start:stop],
                self.constant[start:stop],
                None if self._shift is None else self._shift[start:stop],
                None if affine is None else affine.centre,
            )

    def unit_rows(self, piece: Piece) -> Piece:
        """Divides a piece's rows by their norms (only under noise), so that norms are at most 1."""
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

    def fill_block(self, piece: Piece, out: torch.Tensor, step: float) -> torch.Tensor:
        """Fills float64 [m, d + 1] with a piece's rows and constants, in units of `step`.

        Products of float32 numbers are exact in float64, so a row's position has no effect.
        """
        out[:, -1] = piece.constant.double().div_(step)
        scale = piece.scale.double().div_(step)
        features = out[:, :-1].copy_(piece.features).mul_(scale[:, None])
        if piece.shift is not None and piece.centre is not None:
            shift = piece.shift.double().div_(step)
            features.addcmul_(shift[:, None], piece.centre.double(), value=-1)
        return truncate(out) if self.private else out

    def read_blocks(
        self, bytes_per_row: int = 0, *, unit_step: float | None = None
    ) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Yields pieces of rows with their blocks (`fill_block`); each overwrites the block before.

        With `unit_step`, blocks contain `unit_rows` in units of `unit_step`.
        """
        buffer = self.make_block(0)
        for piece in self.read_pieces(max(_BLOCK_BYTES_PER_ENTRY * self.columns, bytes_per_row)):
            size = piece.stop - piece.start
            if len(buffer) < size:
                buffer = self.make_block(size)
            rows = piece if unit_step is None else self.unit_rows(piece)
            yield piece, self.fill_block(rows, buffer[:size], unit_step or self.step)

    def make_block(self, size: int) -> torch.Tensor:
        """Returns uninitialised float64 [size, d + 1], in a layout that a GPU multiplies fast."""
        kernels = devices.has_kernels(self.rows.device)
        width = self.columns if kernels else -(-self.columns // _LINE) * _LINE
        block = torch.empty((size, width), dtype=torch.float64, device=self.rows.device)
        return block[:, : self.columns]

    def cache_key(self, name: str) -> tuple[object, ...]:
        """Returns a key for `Rows.make_once`, for values common to all fits on these rows."""
        return (name, self.clip, self.offset, self.private)

    def compute_logits(
        self, block: torch.Tensor, factors: Factors, units: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns logits, float64 [m, K], of a block's rows.

        `units` [m] are the grid units of each row's entries; by default `step`.
        """
        if factors.zero:
            return factors.biases.repeat(len(block), 1)
        if devices.has_kernels(block.device):
            # faster than PyTorch's product for few classes
            transposed = dgemm(1.0, factors.padded.numpy().T, block.numpy().T)
            products = torch.from_numpy(transposed.T)
        else:
            products = block @ factors.padded
        products *= factors.step * (self.step if units is None else units[:, None])
        return products.add_(factors.biases)

    def make_factors(self, weights: torch.Tensor) -> Factors:
        """Prepares weights [K, d + 1] (for rows with a 1 appended) for products with rows.

        Under noise, weights too are rounded to a grid, of step at most 2^-26 of their norm, so that
        a row's logits do not depend on its position.
        """
        factors, step = weights[:, :-1].double(), 1.0
        longest = float(torch.linalg.vector_norm(factors, dim=1).max())
        if self.private and 0 < longest < math.inf:
            step = grid_step(longest, product_bits(1) - entry_bits(self.rows.n) - 1)
            rounded = longest / step + math.sqrt(self.columns)  # an upper bound on the rounded norm
            check_exact(1, 2.0 ** entry_bits(self.rows.n) * rounded)
            factors = factors.div(step).round_()
        padded = factors.new_zeros((self.columns, len(weights)))
        padded[:-1] = factors.T
        biases = weights[:, -1].double().contiguous()
        return Factors(padded, step, biases, zero=longest == 0)

    def row_lengths(self, piece: Piece) -> torch.Tensor:
        """Returns the norms by which `unit_rows` divides, float64 [m]; all 1 without noise."""
        norms = self.norms[piece.start : piece.stop]
        return norms if self.private else torch.ones_like(norms)

    def unit_shares(self, piece: Piece) -> torch.Tensor:
        """Returns each row's weight in its unit of privacy, for a piece: float64 [m]."""
        if self.unit_weights is None:
            size = piece.stop - piece.start
            return torch.ones(size, dtype=torch.float64, device=self.rows.device)
        return self.unit_weights[piece.start : piece.stop]

    def make_weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Converts weights [..., K, d + 1] for rows with an appended constant to float32 with
        biases."""
        out = parameters.to(torch.float32)
        out[..., -1] = parameters[..., -1] * self.offset
        return out


class Factors(NamedTuple):
    """Weights prepared for products with rows.

    Attributes:
      padded: float64 [d + 1, K], the features' weights in units of `step`; the last row is 0.
      biases: float64 [K].
      zero: True if all of `padded` is 0.
    """

    padded: torch.Tensor
    step: float
    biases: torch.Tensor
    zero: bool


class Steps(NamedTuple):
    """The grid steps of gradients, all 1 without noise.

    Attributes:
      entry, factor: the grid steps of unit rows' entries, and of their factors.
      unit: the unit of a product with a unit row, before multiplication by the row's norm.
    """

    entry: float
    factor: float
    unit: float

    @classmethod
    def make_steps(cls, design: Design, loss: Loss, classes: int) -> Steps:
        """Chooses grid steps by a public bound on the factors, r times the row's norm."""
        if not design.private:
            return cls(1.0, 1.0, 1.0)
        n, longest = design.rows.n, min(loss.clip, loss.longest_residual(classes) * design.longest)
        entry, factor = grid_step(1.0, entry_bits(n)), grid_step(longest, factor_bits(n))
        check_exact(n, longest / factor / entry)
        return cls(entry, factor, entry / (1 - MARGIN))


def rounding_of(affine: Affine) -> torch.Tensor:
    """Bounds how much rounding may lengthen each centred row: float64 [rows]."""
    return 2.0**-21 * (1 + float(affine.centre.double().norm())) * affine.shift.double()


def second_moment(
    design: Design, row_weights: Callable[[Piece, torch.Tensor], torch.Tensor] | None = None
) -> GridSum:
    """Sums u w x x^T over rows x with weights u in their units: symmetric [d + 1, d + 1].

    `row_weights` computes w, [m] in [0, 1], from a piece and its block; by default w is 1.
    """
    columns = design.columns
    total = torch.zeros((columns, columns), dtype=torch.float64, device=design.rows.device)
    if design.private:
        check_exact(design.rows.n, (design.longest / design.step) ** 2)
    for piece, block in design.read_blocks():
        if row_weights is not None or design.unit_weights is not None:
            factors = design.unit_shares(piece)
            if row_weights is not None:
                factors = factors * row_weights(piece, block).double()
            block.mul_(factors.sqrt()[:, None])
            if design.private:
                truncate(block)
        total = _add_squares(total, block)
    return GridSum(mirror_upper(total), design.step**2)


def _add_squares(total: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Adds rows' outer products in place, only to the upper triangle, which saves time on a CPU."""
    if not devices.has_kernels(total.device):
        return total.addmm_(block.T, block)
    # the transposed array's lower triangle is the upper triangle
    summed = dsyrk(1.0, block.numpy().T, 1.0, total.numpy().T, lower=1, overwrite_c=1)
    return torch.from_numpy(summed.T)


def cross_moment(
    design: Design, targets: Callable[[Piece], torch.Tensor], classes: int, longest: float
) -> GridSum:
    """Sums u t x^T over rows x with weights u in their units: [classes, d + 1].

    `targets` computes t, [m, classes], for a piece; the public `longest` bounds the norm of t.
    """
    columns, step = design.columns, 1.0
    if design.private:
        step = grid_step(longest, factor_bits(design.rows.n))
        check_exact(design.rows.n, longest / step * (design.longest / design.step))
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
    """Estimates A [d, d] from `matrix`, which is A plus isometric symmetric noise.

    Returns the noisy matrix's eigenvectors v, and estimates of v^T A v: the eigenvalue minus 2 s^2
    d h, clamped at 0, where s is the standard deviation off the diagonal. h is the Hilbert
    transform of the eigenvalues' density at v's eigenvalue: the mean of 1 / (difference to an
    eigenvalue). For large d this is the best estimate with these eigenvectors (Bun, Allez, Bouchaud
    and Potters 2016, section on additive noise). Clamping alone would keep the upper half of the
    noise's spectrum, up to s sqrt(2) sqrt(2 d).

    Args:
      deviation: standard deviation of the noise on the diagonal; 0 for none.
    """
    # Under noise float32 suffices: its rounding is small compared with the noise.
    dtype = torch.float32 if deviation > 0 else torch.float64
    values, vectors = torch.linalg.eigh(matrix.to(dtype))
    values = values.to(torch.float64)
    if deviation > 0:
        values = values - deviation**2 * len(values) * _hilbert_transform(values, deviation)
    return Spectrum(values.clamp_(min=0), vectors)


def _hilbert_transform(values: torch.Tensor, deviation: float) -> torch.Tensor:
    """Returns the mean over j of (v_i - v_j) / ((v_i - v_j)^2 + w^2), for a width w of noise."""
    width = deviation * math.sqrt(2)
    out = torch.empty_like(values)
    for low in range(0, len(values), _EIGENVALUES_AT_ONCE):
        gaps = values[low : low + _EIGENVALUES_AT_ONCE, None] - values
        out[low : low + _EIGENVALUES_AT_ONCE] = (gaps / (gaps.square() + width**2)).mean(1)
    return out


def floor_ridge(columns: int, row_square: float) -> float:
    """Returns lambda for little or no noise, 0.03 sqrt(d) S^2.

    Without a ridge, accuracy is low if d is near n, because the smallest eigenvalues are then
    random. The ridge needs no factor n, because its influence vanishes for n far above d. The rule
    in `ridge_of` gives a larger lambda, except for noise multipliers below 0.1 (epsilons far above
    8).

    The factor 0.03 was chosen on public features without noise, with lambda from 0 to 30, d = 65 to
    1,297 and n = 100 to 10,000. The best lambda is between 0.001 and 10, mostly near 1 for any n.
    With the factor 0.03, mean accuracy is 0.3 to 1.9 points below that with the best lambda. With
    lambda = 0 it is 2.6 to 23 points below, and 48 to 61 points at n = d on the larger sets.

    Args:
      columns: d + 1.
      row_square: S^2; without noise, when rows are not clipped, the mean of their squared norms.
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
    """Returns lambda: `asked` if given, or the larger of `floor_ridge` and a rule for noise.

    The rule, sqrt(d) (0.07 S^2 sigma_G + 0.02 K C^2 sigma_B), uses only public quantities: d + 1
    columns, K classes, S (`longest`) and the rows' clipping norm C. sigma_G (`matrix_noise`) is the
    noise multiplier of the second moment. sigma_B (`target_noise`) is the noise multiplier of the
    cross moment, or of the mean of all gradients.

    A good classifier of unit rows has weights with norms of some tens over d directions, before the
    factor 1 / K for a class's frequency. Lambda balances noise against the size of weights;
    bench/results/defaults.md has the search. Lambda is at least the largest eigenvalue times the
    relative round-off of the sums.
    """
    least = _ROUNDING[design.private] * float(matrix.values[-1]) + 1e-30
    if asked is not None:
        return max(asked, least)
    if not design.private:
        mean_square = float(matrix.values.sum()) / design.rows.n
        return max(floor_ridge(design.columns, mean_square), least)
    noise = _MATRIX_RIDGE * longest**2 * matrix_noise
    noise += _TARGET_RIDGE * design.rows.num_classes * design.clip**2 * target_noise
    rule = math.sqrt(design.columns) * noise
    return max(rule, floor_ridge(design.columns, longest**2), least)


def damp_ridge(ridge: float, step: float, deviation: float, columns: int) -> float:
    """Returns rho >= lambda, so that steps by (A* + rho I)^-1 do not overshoot under noise.

    A step multiplies the error of the weights along a direction by 1 - step (a + lambda) / (a* +
    rho), for the eigenvalue a of A and its estimate a*. The error grows if the fraction times step
    exceeds 2. Noise with standard deviation s off the diagonal hides a direction with a <= r = s
    sqrt(d): no released eigenvector is aligned with it (Baik, Ben Arous and Peche 2005), and a* is
    about 0. With rho = lambda, steps of 0.6 diverge, because lambda is about r / 10. With rho =
    step (lambda + r) the fraction times step is at most 1 for a = r, and at most 1.1 for any a. In
    directions with a far above r, steps are hardly shorter.

    Args:
      deviation: standard deviation of the noise on the diagonal of A; 0 for none.
    """
    reach = deviation * math.sqrt(columns / 2)
    return max(ridge, step * (ridge + reach))


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of a softmax, or of one sigmoid per class, with gradients clipped to `clip`."""

    sigmoid: bool
    clip: float

    def clip_residuals(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        norms: torch.Tensor,
        lengths: torch.Tensor,
        shares: torch.Tensor,
        step: float = 0.0,
    ) -> torch.Tensor:
        """Returns clipped residuals r [m, K], times `lengths` and `shares`; may overwrite logits.

        |r| times `norms` is at most `clip`. With `step`, results are in units of `step`, rounded
        towards zero. `labels` are zeros and ones; the other tensors are float64.
        """
        clip = self.clip * (1 - MARGIN)
        if devices.has_kernels(logits.device):
            given = (tensor.numpy() for tensor in (logits, labels, norms, lengths, shares))
            residuals.clip_rows(*given, clip, self.sigmoid, step)
            return logits
        out = self.compute_probabilities(logits) - labels
        if self.clip < math.inf:
            products = torch.linalg.vector_norm(out, dim=1) * norms
            out *= (clip / products).clamp_(max=1)[:, None]
        out *= (shares * lengths)[:, None]
        return truncate(out.div_(step)) if step else out

    def longest_residual(self, classes: int) -> float:
        return math.sqrt(classes if self.sigmoid else 2)

    def compute_probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns probabilities of logits [m, K]; 0 for NaN."""
        out = torch.sigmoid(logits) if self.sigmoid else torch.softmax(logits, 1)
        return out.nan_to_num_(0.0, 0.0, 0.0)


def sum_gradients(design: Design, loss: Loss, weights: torch.Tensor) -> GridSum:
    """Sums the weighted clipped gradients with respect to parameters on rows x: [K, d + 1].

    An example's gradient r x^T has norm |r| |x|. First r is scaled by min(1, clip / (|r| |x|)), so
    the norm is at most `clip` for any weights; then r is multiplied by the row's weight in its
    unit. An excluded row is all 0, including its constant.

    On the grid a gradient is v u^T with u = x / |x| and v = |x| r, whose norms are at most 1 and
    `clip`. A grid for r would have to reach sqrt(K), too coarse for small `clip` and many classes.

    Args:
      weights: float32 [K, d + 1] on rows with a 1 appended.
    """
    rows = design.rows
    classes, columns = weights.shape
    steps, factors = Steps.make_steps(design, loss, classes), design.make_factors(weights)
    total = torch.zeros((classes, columns), dtype=torch.float64, device=rows.device)
    for piece, block in design.read_blocks(32 * classes + 16 * columns, unit_step=steps.entry):
        window, lengths = slice(piece.start, piece.stop), design.row_lengths(piece)
        factors_of_rows = loss.clip_residuals(
            design.compute_logits(block, factors, steps.unit * lengths),
            rows.make_targets(piece.start, piece.stop),
            design.norms[window],
            lengths,
            design.unit_shares(piece),
            steps.factor if design.private else 0.0,
        )
        total.addmm_(factors_of_rows.T, block)
    return GridSum(total, steps.entry * steps.factor)


def step_rate(longest: float, deviation: float, gain: float, rows: int) -> float:
    """Returns the rate `longest`, or less if noise would move probabilities to 0 and 1.

    A step's noise in the logits is limited to 0.6. The noise in the logits follows from
    `deviation`, the noise on each entry of a released gradient, and `gain`, the
    `Spectrum.noise_gain` of the step's matrix. Many short steps together give one solution with the
    mean of all gradients.
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
    """Takes steps from `start`, float64 [K, d + 1]; returns the `average` of the iterates.

    `direction` maps (t, parameters) to direction and rate; `snapshots` receives each average.
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
    """Trains seeds one by one, because each needs its own matrices; returns [seeds, ...].

    `names` are the mechanisms that `fit` releases. Raises ConfigError if a result is not finite,
    and PrivacyError for releases that the plan does not cover.
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
            raise ConfigError(
                f"head {head}: training diverged; set a smaller learning_rate in the method"
            )
        if seed_releases is not releases:
            seed_releases.check_counts()
    if len(releases.seeds) > 1:
        for mechanism in chosen:
            releases.count_releases(mechanism.name, mechanism.count)
    return torch.stack(results)
