"""Divides the units of a dataset among simulated sites, from a published seed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpprobe.errors import DataError
from dpprobe.privacy.randomness import open_stream

Index = npt.NDArray[np.int64]
_CONCENTRATION = 0.5  # concentration of a site's labels, usual in benchmarks of federated learning


def split_units(labels: Index, sites: int, split: str, seed: int) -> list[Index]:
    """Returns the units of each site. Each unit is at one site, and each site has a unit.

    Args:
      labels: int64 [units], the class of each unit.
      split: as in `SimulatedSitesOptions.splits`.

    Raises:
      DataError: if there are more sites than units.
    """
    spare = len(labels) - sites
    if spare < 0:
        raise DataError(
            f"sites.counts: {sites} sites, but there are only {len(labels)} training units; write "
            f"at most {len(labels)}"
        )
    stream = open_stream(seed, "sites")
    shares = 1 / np.arange(1, sites + 1) if split == "sizes" else np.ones(sites)
    edges = np.rint(spare * np.cumsum(shares) / shares.sum()).astype(np.int64)
    sizes = 1 + np.diff(edges, prepend=0)
    order = stream.permutation(len(labels))
    if split == "labels":
        order = _gather_labels(order, labels, sizes, stream)
    return np.split(order, np.cumsum(sizes)[:-1])


def _gather_labels(order: Index, labels: Index, sizes: Index, stream: np.random.Generator) -> Index:
    """Reorders units so that frequencies of labels differ between consecutive sites.

    Each site draws Dirichlet weights of classes, as ratios of Gamma numbers. A site gets units of
    each class in proportion to its weight times the number of units left.
    """
    left = [order[labels[order] == one] for one in np.unique(labels)]
    taken = []
    for size in sizes:
        weights = stream.gamma(_CONCENTRATION, size=len(left)) + 1e-12
        while size:
            chances = weights * [len(units) for units in left]
            drawn = stream.multinomial(size, chances / chances.sum())
            parts = [units[:count] for units, count in zip(left, drawn, strict=True)]
            left = [units[count:] for units, count in zip(left, drawn, strict=True)]
            size -= sum(map(len, parts))
            taken += parts
    return np.concatenate(taken)
