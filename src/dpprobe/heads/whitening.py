"""Whitens features with a released second moment, so that their variance is nearly isotropic.

Clipping and noise treat all directions equally, but classes often differ in directions in which
rows vary little. So heads are trained on z = A x / |A x|, for centred unit rows x, with

    A = (G* + lambda I)^-w,

G* is the estimate of the released second moment (`second_order.estimate_spectrum`) and w the
exponent; an exponent of 1/2 whitens rows fully. The released sum of x x^T has sensitivity 1: a row
adds x x^T, with Frobenius norm |x|^2 <= 1, and a null row adds nothing. The matrix A is a function
of the release and of public numbers. A whitened row z depends only on one row x and has norm 1, so
later releases have the same sensitivities on z as on x. In directions in which rows vary little,
noise is smaller relative to whitened rows.

A head W_z on z is a head on x except for the length |A x|, which hardly depends on the class. A is
scaled so that the mean square of |A x| is estimated as 1. So fits return W_z A, for centred rows x.

Under noise A is rounded to a grid (`second_order.Design.make_factors`), and its products with rows
are exact: z depends only on its row, not on the row's position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads import normalisation as kinds
from dpprobe.heads.public_rows import PublicRows, effective_dimension
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import Design, Spectrum, UnitRows, estimate_spectrum, second_moment
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases

# Lambda divided by sigma sqrt(d): released eigenvalues below lambda are mostly noise.
_NOISE_RIDGE = 1.0
# Lambda with little noise or none; see `second_order.floor_ridge`.
_LEAST_RIDGE = 0.03
# For the second moment of public rows: the exponent, and lambda divided by the mean eigenvalue. The
# map is milder, because the directions fit private rows less well.
PUBLIC_EXPONENT, PUBLIC_RIDGE = 0.25, 3.0
# The largest effective dimension of public rows, as a share of d, for using their second moment.
# Measured: 0.016 with a vision transformer, where whitening helps; 0.027 for chest X-rays and 0.085
# for photographs with a convolutional network, where it harms (bench/results/few_patients.md).
MOST_DIRECTIONS = 0.02


def whitened_rows(
    data: TrainingSet, spec: kinds.Whitened, centre: torch.Tensor, releases: Releases
) -> Rows:
    """Releases the second moment of rows around the released centre [d]; returns whitened rows.

    Whitened rows take as much memory as the features, but streamed features are whitened in each
    pass.
    """
    transform = Transform(spec, {kinds.CENTRE: centre})
    with torch.inference_mode():
        design = Design(UnitRows(), Rows(data, transform), private=releases.plan.private)
        summed = second_moment(design)
        # the last row and column belong to the constant, which is 0 here
        moment = GridSum(summed.units[:-1, :-1].contiguous(), summed.step)
        released = releases.release_symmetric(kinds.SECOND_MOMENT, moment.one_seed)[0]
        deviation = releases.noise_deviation(kinds.SECOND_MOMENT)
        ridge = max(_NOISE_RIDGE * deviation, _LEAST_RIDGE) * math.sqrt(data.dimension)
        spectrum = estimate_spectrum(released, deviation)
        matrix = compute_whitener(spectrum, spec.exponent, ridge=ridge, n=data.n)
        releases.show_values("whitener", matrix[None])
        return _whiten_rows(design, matrix)


def publicly_whitened_rows(
    data: TrainingSet,
    spec: kinds.Whitened,
    centre: torch.Tensor,
    public: PublicRows,
    releases: Releases,
) -> Rows:
    """Centres rows at a released centre [d], and whitens them by public rows' second moment.

    Releases nothing. Rows are not whitened if public rows vary in many directions.
    """
    transform = Transform(spec, {kinds.CENTRE: centre})
    with torch.inference_mode():
        make = partial(_public_whitener, public)
        matrix = data.make_once(("public whitener", spec.public), make)
        rows = Rows(data, transform)
        if matrix is None:
            return rows
        releases.show_values("whitener", matrix[None])
        return _whiten_rows(Design(UnitRows(), rows, private=releases.plan.private), matrix)


def _public_whitener(public: PublicRows) -> torch.Tensor | None:
    """Returns A from public rows, float64 [d, d]; None if the rows vary in many directions."""
    spectrum = public.estimate_spectrum()
    if effective_dimension(spectrum) >= MOST_DIRECTIONS * len(spectrum.values):
        return None
    ridge = PUBLIC_RIDGE * float(spectrum.values.mean())
    return compute_whitener(spectrum, PUBLIC_EXPONENT, ridge=ridge, n=public.data.rows)


def _whiten_rows(design: Design, matrix: torch.Tensor) -> Rows:
    """Returns the rows A x / |A x| of a design's rows x."""
    data, transform = design.rows.data, design.rows.transform

    def map_crops() -> list[TrainingSet]:
        return [
            _map_rows(Design(UnitRows(), Rows(crop, transform), private=design.private), matrix)
            for crop in data.crops
        ]

    mapped = _map_rows(design, matrix, map_crops)
    return Rows(mapped, Transform(kinds.L2()), scoring=transform, whitener=matrix)


@torch.inference_mode()
def _map_rows(
    design: Design, matrix: torch.Tensor, crops: Callable[[], Sequence[TrainingSet]] | None = None
) -> TrainingSet:
    """Returns the rows A x of a design's rows x, in memory if the rows x are in memory."""
    source, data = _MappedRows(design, matrix), design.rows.data
    mapped = TrainingSet(
        source if data.is_streamed else source.in_memory(),
        data.labels,
        data.num_classes,
        units=data.units,
        device=data.device,
        crops=crops,
        public_n=data.n,
        warn=data._warn,
    )
    mapped.exact_device = data.exact_device
    _ = mapped.lengths  # now, in inference mode, because computing lengths modifies these features
    return mapped


def compute_whitener(moment: Spectrum, exponent: float, *, ridge: float, n: int) -> torch.Tensor:
    """Returns A, float64 [d, d], symmetric, from the estimated second moment of n units' rows."""
    factors = (moment.values + ridge) ** -exponent
    length = float((moment.values * factors.square()).sum())
    # without signal, scale all directions equally
    factors *= math.sqrt(n / length) if length > 0 else 1 / float(factors.mean())
    vectors = moment.vectors.to(torch.float64)
    return (vectors * factors) @ vectors.T


class _MappedRows:
    """A source of features with rows A x; excluded rows contain NaN."""

    def __init__(self, design: Design, matrix: torch.Tensor) -> None:
        self._design = design
        weights = torch.cat([matrix, matrix.new_zeros(len(matrix), 1)], 1)
        self._factors = design.make_factors(weights)
        self._left_out = design.rows.lengths.isinf()

    @property
    def rows(self) -> int:
        return len(self._design.rows)

    @property
    def dimension(self) -> int:
        return self._design.rows.dimension

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields consecutive blocks of at most `rows` rows: (first row, [m, dimension])."""
        for start, block in self._multiply_blocks():
            for first in range(0, len(block), rows):
                yield start + first, block[first : first + rows].cpu().numpy()

    def in_memory(self) -> torch.Tensor:
        device = self._design.rows.device
        out = torch.empty((self.rows, self.dimension), dtype=torch.float32, device=device)
        for start, block in self._multiply_blocks():
            out[start : start + len(block)] = block
        return out

    def _multiply_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        for piece, block in self._design.read_blocks(16 * self.dimension):
            products = self._design.compute_logits(block, self._factors).to(torch.float32)
            products[self._left_out[piece.start : piece.stop]] = torch.nan
            yield piece.start, products
