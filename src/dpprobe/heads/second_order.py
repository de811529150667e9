"""Second moments of clipped rows, their estimates under noise, and steps that use them.

Rows are those of `second_order_options.RowOptions`: x of norm at most S, a constant entry last.

A weighted second moment sum_i w_i x_i x_i^T with weights in [0, 1] changes by w x x^T when a null
row takes the place of a row, of Frobenius norm w |x|^2 <= S^2. It gets isometric symmetric noise
(`Releases.symmetric`), off the diagonal of standard deviation s = sigma S^2 / sqrt(2).

Everything else here is post-processing of releases, or uses n, d, K and noise multipliers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from dpprobe.errors import ConfigError
from dpprobe.heads.clipping import add_in_slices, clipped_residuals
from dpprobe.heads.kernels import fused_step
from dpprobe.heads.rows import Affine, Rows
from dpprobe.heads.second_order_options import RowOptions
from dpprobe.heads.training_set import BLOCK_BYTES
from dpprobe.privacy.releases import Releases

# Rounding in float32: what is summed is shorter than its bound by this much.
MARGIN = 4 * 2.0**-24
# bench/defaults.py says how these were found.
_MATRIX_RIDGE, _TARGET_RIDGE = 0.07, 0.02
_LARGEST_LOGIT_NOISE = 0.6
# Of the largest eigenvalue: added at least, about the rounding of the sums.
_ROUNDING = {torch.float32: 1e-7, torch.float64: 1e-12}
# Columns multiplied at a time, about, and bytes of rows: what a core multiplies fastest.
_PANEL, _MOMENT_BYTES = 160, 4 * 2**20
_EIGENVALUES_AT_ONCE = 128
# Some minutes of a processor to decompose, half a gigabyte.
MOST_FEATURES = 8192


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

    def logits(self, weights: torch.Tensor) -> torch.Tensor:
        """Returns logits [K, m] of weights [K, d + 1] on rows with a 1 appended."""
        out = (weights[:, :-1] @ self.features.T).mul_(self.scale)
        if self.shift is not None and self.centre is not None:
            out.addmm_((weights[:, :-1] @ self.centre)[:, None], self.shift[None], alpha=-1)
        return out.add_(weights[:, -1:])

    def add_products(self, total: torch.Tensor, left: torch.Tensor) -> None:
        """Adds left @ x, for left [K, m], to total [K, d]."""
        total.addmm_(left * self.scale, self.features.to(total.dtype))
        if self.shift is not None and self.centre is not None:
            sums = left @ self.shift.to(left.dtype)
            total.addmm_(sums[:, None], self.centre[None].to(total.dtype), alpha=-1)


class Design:
    """The rows of one fit, clipped and with their constant.

    Attributes:
      rows: before clipping.
      columns: d + 1.
      scale, constant: float32 [n]; both 0 for rows that must not contribute.
      norms: float64 [n], of the clipped rows with their constants.
      exact: True if sums are taken in float64, as they are where there is no noise.
    """

    def __init__(self, options: RowOptions, rows: Rows, *, private: bool) -> None:
        self.rows, self.columns, self.exact = rows, rows.dimension + 1, not private
        self.clip = options.max_row_norm if private else math.inf
        self.offset = options.intercept * options.max_row_norm * (1 - MARGIN)
        usable = rows.lengths.isfinite()
        factors = (self.clip * (1 - MARGIN) / rows.lengths).clamp_(max=1)
        clipped = torch.where(usable, rows.lengths * factors, 0.0)
        self.scale = torch.where(usable, factors, 0.0).to(torch.float32)
        self._shift = None
        if rows.affine is not None:
            self._shift = self._take_affine(rows.affine)
        self.constant = torch.where(usable, self.offset, 0.0).to(torch.float32)
        self.norms = torch.hypot(clipped, self.constant.double())

    @property
    def dtype(self) -> torch.dtype:
        """The type that sums are taken in."""
        return torch.float64 if self.exact else torch.float32

    def _take_affine(self, affine: Affine) -> torch.Tensor:
        """Makes `scale` that of the features as they lie; returns the shift of each row.

        A row next to the centre is a difference that rounds: it is shortened by as much.
        """
        if self.clip < math.inf:
            room = 2**-21 * (1 + float(affine.centre.double().norm()))
            self.scale /= (1 + room * affine.shift.double()).to(torch.float32)
        shift = self.scale * affine.shift
        self.scale = self.scale * affine.scale
        return shift

    @property
    def native(self) -> bool:
        """True if `fused_step` can sum gradients: rows on a CPU, without a shift."""
        return self._shift is None and self.rows.device.type == "cpu"

    def pieces(self, bytes_per_row: int = 0) -> Iterator[Piece]:
        """Yields the rows in order; see `Rows.blocks`."""
        affine = self.rows.affine
        if affine is None or self._shift is None:
            for start, stop, features in self.rows.blocks(bytes_per_row):
                scale, constant = self.scale[start:stop], self.constant[start:stop]
                yield Piece(start, stop, features, scale, constant, None, None)
            return
        size = max(1, BLOCK_BYTES // max(4 * self.rows.dimension, bytes_per_row))
        for start in range(0, self.rows.n, size):
            window = slice(start, min(start + size, self.rows.n))
            yield Piece(
                start, window.stop, affine.features[window], self.scale[window],
                self.constant[window], self._shift[window], affine.centre,
            )  # fmt: skip

    def key(self, name: str) -> tuple[object, ...]:
        """Returns the key under which `Rows.cached` keeps what all fits with these rows share."""
        return (name, self.clip, self.offset, self.exact)

    def weights(self, parameters: torch.Tensor) -> torch.Tensor:
        """Returns float32 weights [..., K, d + 1] on normalised rows.

        Args:
          parameters: [..., K, d + 1] on rows with their constant.
        """
        out = parameters.to(torch.float32)
        out[..., -1] = parameters[..., -1] * self.offset
        return out


def check_dimension(rows: Rows, head: str) -> None:
    """Raises ConfigError where a matrix of the dimension's square is out of reach."""
    if rows.dimension > MOST_FEATURES:
        raise ConfigError(
            f"head {head}: {rows.dimension} features; their second moment would take "
            f"{8 * rows.dimension**2 / 1e9:.1f} GB and hours to decompose, and is allowed up to "
            f"{MOST_FEATURES}; write head: momentum or sgd, or take a backbone of fewer features"
        )


def second_moment(
    design: Design, row_weights: Callable[[Piece], torch.Tensor] | None = None
) -> torch.Tensor:
    """Sums w x x^T over the rows: symmetric [d + 1, d + 1].

    Only blocks on and above the diagonal are multiplied: little more than half the products.

    Args:
      row_weights: [m] weights in [0, 1] of a piece's rows; 1 where absent.
    """
    columns, dtype = design.columns, design.dtype
    device = design.rows.device
    total = torch.zeros((columns, columns), dtype=dtype, device=device)
    stride = -(-columns // 16) * 16  # whole cache lines a row
    buffer = torch.empty((0, stride), dtype=dtype, device=device)
    panel = panel_width(columns)
    for piece in design.pieces(4 * columns * BLOCK_BYTES // _MOMENT_BYTES):
        size = piece.stop - piece.start
        if len(buffer) < size:
            buffer = torch.empty((size, stride), dtype=dtype, device=device)
        block = buffer[:size, :columns]
        torch.mul(piece.features, piece.scale[:, None].to(dtype), out=block[:, :-1])
        if piece.shift is not None and piece.centre is not None:
            shift, centre = piece.shift.to(dtype), piece.centre.to(dtype)
            block[:, :-1].addmm_(shift[:, None], centre[None], alpha=-1)
        block[:, -1] = piece.constant
        if row_weights is not None:
            block.mul_(row_weights(piece).to(dtype).sqrt()[:, None])
        for low in range(0, columns, panel):
            high = min(low + panel, columns)
            total[:high, low:high].addmm_(block[:, :high].T, block[:, low:high])
    return mirrored(total)


def panel_width(columns: int) -> int:
    """Returns the width of panels that are about equally wide, a multiple of 16."""
    panels = -(-columns // _PANEL)
    return -(-columns // panels // 16) * 16


def mirrored(upper: torch.Tensor) -> torch.Tensor:
    """Makes an upper triangle a symmetric matrix, in place, panel by panel."""
    for low in range(0, len(upper), _PANEL):
        block = upper[low : low + _PANEL, low : low + _PANEL]
        block.copy_(block.triu() + block.triu(1).T)
        upper[low + _PANEL :, low : low + _PANEL] = upper[low : low + _PANEL, low + _PANEL :].T
    return upper


def cross_moment(
    design: Design, targets: Callable[[Piece], torch.Tensor], classes: int
) -> torch.Tensor:
    """Sums t x^T over the rows: [classes, d + 1].

    Args:
      targets: [m, classes] of a piece's rows.
    """
    total = torch.zeros((classes, design.columns), dtype=design.dtype, device=design.rows.device)
    for piece in design.pieces(16 * classes):
        left = targets(piece).to(design.dtype).T
        piece.add_products(total[:, :-1], left)
        total[:, -1].add_(left @ piece.constant.to(design.dtype))
    return total


def clipped_labels(rows: Rows, piece: Piece, longest: float) -> torch.Tensor:
    """Returns a piece's labels as zeros and ones, clipped to norm `longest`: float32 [m, K]."""
    labels = rows.targets(piece.start, piece.stop)
    norms = torch.linalg.vector_norm(labels, dim=1, keepdim=True, dtype=torch.float64)
    return labels * (longest / norms).clamp(max=1).to(torch.float32)


@dataclass(frozen=True)
class Spectrum:
    """A positive semi-definite matrix by its eigenvalues [d], float64, and eigenvectors [d, d]."""

    values: torch.Tensor
    vectors: torch.Tensor

    def solve(self, right: torch.Tensor, ridge: float) -> torch.Tensor:
        """Returns right (A + ridge I)^-1, for right [..., d], float64."""
        rotated = (right.to(self.vectors.dtype) @ self.vectors) / (self.values + ridge)
        return (rotated.to(self.vectors.dtype) @ self.vectors.T).to(torch.float64)

    def noise_gain(self, ridge: float) -> float:
        """Returns tr (A (A + ridge I)^-2): the gain of isotropic noise in x^T P g."""
        return float((self.values / (self.values + ridge).square()).sum())


def spectrum(matrix: torch.Tensor, deviation: float) -> Spectrum:
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
    values, vectors = torch.linalg.eigh(matrix if deviation > 0 else matrix.to(torch.float64))
    values = values.to(torch.float64)
    if deviation > 0:
        values = values - deviation**2 * len(values) * _hilbert(values, deviation)
    return Spectrum(values.clamp_(min=0), vectors)


def _hilbert(values: torch.Tensor, deviation: float) -> torch.Tensor:
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
    the mean of all gradients: the noise on the two sides of what is solved. Of a good classifier
    of unit rows the weights, before the scale of 1 / K that a class's frequency gives them, have a
    norm of some tens, over d directions: lambda is where noise and such weights balance. How the
    numbers were found: bench/defaults.py.

    Args:
      columns, classes: d + 1, K.
      clip, longest: C, S.
      matrix_noise, target_noise: sigma_G, sigma_B.
    """
    noise = _MATRIX_RIDGE * longest**2 * matrix_noise
    noise += _TARGET_RIDGE * classes * clip**2 * target_noise
    return math.sqrt(columns) * noise


def ridge_of(
    design: Design,
    asked: float | None,
    longest: float,
    matrix_noise: float,
    target_noise: float,
    matrix: Spectrum,
) -> float:
    """Returns lambda: as asked for, or by `rule_ridge`; at least the sums' rounding.

    The rounding is relative to the largest eigenvalue. Without noise lambda is that alone.
    """
    least = _ROUNDING[design.dtype] * float(matrix.values[-1]) + 1e-30
    if asked is not None:
        return max(asked, least)
    if design.exact:
        return least
    rule = rule_ridge(
        design.columns,
        design.rows.num_classes,
        clip=design.clip,
        longest=longest,
        matrix_noise=matrix_noise,
        target_noise=target_noise,
    )
    return max(rule, least)


@dataclass(frozen=True)
class Loss:
    """Cross-entropy of a softmax or of one sigmoid a class, its gradients clipped.

    Attributes:
      sigmoid: True for sigmoids.
      clip: the largest norm of a row's gradient; infinite for none.
    """

    sigmoid: bool
    clip: float

    def bounds(self, design: Design) -> torch.Tensor:
        """Returns the largest |r| of each row, float64 [n]; about 0 for unusable rows."""
        usable = design.scale > 0
        return torch.where(usable, self.clip * (1 - MARGIN) / design.norms, fused_step.NOT_USABLE)

    def probabilities(self, piece: Piece, weights: torch.Tensor) -> torch.Tensor:
        """Returns [m, K], of float32 weights [K, d + 1] on rows with a 1 appended; 0 for NaN."""
        logits = piece.logits(weights).T
        out = torch.sigmoid(logits) if self.sigmoid else torch.softmax(logits, 1)
        return out.nan_to_num_(0.0, 0.0, 0.0)


def gradient(design: Design, loss: Loss, weights: torch.Tensor) -> torch.Tensor:
    """Sums the rows' clipped gradients with respect to parameters on x: [K, d + 1].

    A row's gradient is r x^T of norm |r| |x|: r is scaled by min(1, clip / (|r| |x|)). It is at
    most `clip` long for any weights.

    Args:
      weights: float32 [K, d + 1] on rows with a 1 appended.
    """
    rows, bounds = design.rows, loss.bounds(design)
    classes, columns = weights.shape
    native = design.native
    if native:
        held, total = fused_step.padded(1, classes, columns), fused_step.padded(1, classes, columns)
        held[0, :classes, :columns] = weights
    else:
        total = torch.zeros((1, classes, columns), device=rows.device)
    for piece in design.pieces(0 if native else 32 * classes):
        piece_bounds = bounds[piece.start : piece.stop]
        labels = rows.labels_block(piece.start, piece.stop)
        if native:
            arrays = fused_step.Arrays.of(
                piece.features, piece.scale, labels, piece_bounds, sigmoid=loss.sigmoid
            )
            index = torch.arange(piece.stop - piece.start).numpy()
            add_in_slices(arrays, index, held, classes, total, None)
            continue
        logits = piece.logits(weights)
        residuals = clipped_residuals(
            logits[None],
            (labels.T if rows.multi_label else labels)[None],
            piece_bounds,
            sigmoid=loss.sigmoid,
        )[0]
        piece.add_products(total[0, :, :-1], residuals)
        total[0, :, -1].add_(residuals.sum(1))
    out = total[0, :classes, :columns].clone()
    out[:, -1] *= design.offset
    return out


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


def descend(
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
            seed_releases = Releases(plan, (seed,), releases.device)
        results.append(fit(seed_releases))
        if not bool(results[-1].isfinite().all()):
            raise ConfigError(f"head {head}: training diverged; write a smaller learning_rate")
        if seed_releases is not releases:
            seed_releases.check()
    if len(releases.seeds) > 1:
        for mechanism in chosen:
            releases.count(mechanism.name, mechanism.count)
    return torch.stack(results)
