"""Rows of public images that a fit uses besides its private rows: mean and second moment.

Both depend only on a file that the study declares public, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from dpprobe.errors import DataError
from dpprobe.heads.normalisation import CENTRE, AroundCentre, Centred
from dpprobe.heads.row_norms import unit_scale
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import Design, Spectrum, UnitRows, estimate_spectrum, second_moment
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform

# Unit rows are rounded to multiples of this number, so that their sum is bit-identical everywhere.
_STEP = 2.0**-24


@dataclass(frozen=True)
class PublicRows:
    """Public rows, and the mean of the rows scaled to norm 1: float64 [d]."""

    data: TrainingSet
    mean: torch.Tensor

    def estimate_spectrum(self) -> Spectrum:
        """Returns the spectrum of the sum of x x^T over unit rows x around the mean."""
        transform = Transform(Centred(), {CENTRE: self.mean.to(torch.float32)})
        design = Design(UnitRows(), Rows(self.data, transform), private=False)
        return estimate_spectrum(second_moment(design).values[:-1, :-1], 0.0)


def open_public_set(option: str, path: str, private: TrainingSet) -> TrainingSet:
    """Opens the public rows in `option`'s file, for the device of the private rows.

    Raises DataError for features of another dimension, StoreError for a damaged file.
    """
    store = private.public.open_features(option, path, dimension=private.dimension)
    labels = torch.zeros(store.rows, dtype=torch.int64)
    return TrainingSet(store, labels, 1, device=private.device, warn=lambda _: None)


def read_public_rows(option: str, path: str, private: TrainingSet) -> PublicRows:
    """Reads public rows and their mean; raises DataError if no row can be scaled to norm 1."""
    data = open_public_set(option, path, private)
    usable = data.lengths.isfinite() & (data.lengths > 0)
    if not usable.any():
        raise DataError(
            f"{option} {path}: no row has a direction: all are zeros, NaN or infinite; use a file "
            "of features"
        )
    total = torch.zeros(data.dimension, dtype=torch.float64, device=data.device)
    for start, block in data.read_blocks():
        scale = unit_scale(data.lengths[start : start + len(block)]).double()
        total += (block.double() * (scale / _STEP)[:, None]).round_().sum(0)
    return PublicRows(data, total * (_STEP / int(usable.sum())))


def share_public_rows(spec: AroundCentre, private: TrainingSet) -> PublicRows | None:
    """Returns a normalisation's public rows (cached per training set); None without public rows."""
    path = spec.public
    if path is None:
        return None
    read = partial(read_public_rows, "normalize.public", path, private)
    return private.make_once(("public", path), read)


def effective_dimension(spectrum: Spectrum) -> float:
    """Returns trace^2 / trace of the square: d if all directions vary equally, 1 for one direction.

    An isotropic matrix of this dimension has the same trace and the same sum of squares.
    """
    values = spectrum.values
    return float(values.sum().square() / values.square().sum())
