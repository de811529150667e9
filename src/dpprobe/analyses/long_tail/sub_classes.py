"""Sub-classes of features, and how unequal they are; not private.

The features of each class are clustered. A cluster counts as a sub-class, and its share of the
class's rows as the sub-class's frequency. Three numbers describe the frequencies of sub-classes:

- the tail index a: the r-th most frequent sub-class of a class has a share proportional to r^-a
  (Zipf), so a = 0 for equal frequencies. One tail index describes all classes.
- the share of sub-classes with at most 1, 2 or 5 rows;
- the effective number M of sub-classes: the exponential of the entropy of all frequencies, which is
  the number of equally frequent sub-classes with this entropy.

K-means returns clusters, of unequal sizes, even for data without sub-classes. So each number is
compared with a *reference*: an equal number of rows per class, drawn from one normal distribution
with the class's principal variances, and clustered with equal settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpprobe.analyses.long_tail import long_tail_record
from dpprobe.privacy.randomness import open_stream, stream_seed

Numbers = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Sizes = Sequence[Index]  # the sizes of each class's sub-classes, largest first

COMPONENTS = 64  # number of a class's principal components that are clustered
ROWS_A_CLUSTER = 5  # fewest rows per cluster, as a mean over a class's clusters
FEW = (1, 2, 5)  # largest numbers of rows of sub-classes that count as rare
STARTS = 4  # number of starts of k-means
# The tail indices that are tried, and the number of simulations for each.
_INDICES = np.linspace(0.0, 5.0, 51)
_DRAWS = 200


@dataclass(frozen=True)
class Coordinates:
    """A class's rows in at most 64 principal components, and sums of squares.

    Attributes:
      kept, total: the sums of squares of the components, and of all centred features.
    """

    rows: Numbers
    kept: float
    total: float


def compute_coordinates(features: npt.NDArray[np.floating], *, seed: int) -> Coordinates:
    """Computes the principal components of one class's features [n, d].

    Only the 64 largest components are used, because distances in the others are mostly noise.
    """
    from sklearn.decomposition import PCA  # a slow import, which jobs of tables do not need

    rows = np.asarray(features, dtype=np.float64)
    rows = rows - rows.mean(axis=0)
    largest = np.abs(rows).max(initial=0.0)
    if largest > 0:
        rows /= largest
    total = float(np.square(rows).sum())
    if len(rows) < 2 or total == 0:
        return Coordinates(np.zeros((len(rows), 1)), 0.0, 0.0)
    most = min(COMPONENTS, *rows.shape)
    placed = np.asarray(PCA(most, random_state=_sklearn_seed(seed)).fit_transform(rows))
    scale = largest * largest
    return Coordinates(placed, float(np.square(placed).sum()) * scale, total * scale)


def draw_reference(rows: Numbers, *, seed: int) -> Numbers:
    """Samples n rows of independent normal numbers with the column variances of `rows` [n, q]."""
    return np.asarray(
        open_stream(seed, "reference rows").normal(size=rows.shape) * rows.std(axis=0)
    )


def cluster_sizes(rows: Numbers, clusters: int, *, seed: int) -> Index:
    """Clusters one class's rows [n, q] by k-means, and counts the rows of each cluster.

    Args:
      clusters: the largest number of clusters; small classes and equal rows have fewer clusters.

    Returns:
      The number of rows of each cluster, above 0, largest first.
    """
    from sklearn.cluster import KMeans  # a slow import, which jobs of tables do not need

    most = min(clusters, len(rows) // ROWS_A_CLUSTER)
    most = min(most, len(np.unique(rows.round(9), axis=0)))
    if most < 2:
        return np.array([len(rows)])
    fitted = KMeans(most, n_init=STARTS, random_state=_sklearn_seed(seed)).fit(rows)
    sizes = np.bincount(fitted.labels_, minlength=most)
    return np.asarray(np.sort(sizes[sizes > 0])[::-1])


def tail_index(sizes: Sizes, *, seed: int) -> long_tail_record.Index | None:
    """Estimates one tail index for all classes; None if no class has two sub-classes.

    The mean logarithm of the rank of a row's sub-class is a sufficient statistic for the index.
    Ranking by observed sizes makes equal frequencies look unequal. So the statistic is simulated
    for many indices, with ranks by simulated sizes. The estimate is the index for which the
    measured statistic is the simulated median. The interval contains the indices for which the
    measured statistic is between the simulated 2.5% and 97.5% quantiles.
    """
    sizes = [one for one in sizes if len(one) > 1]
    if not sizes:
        return None
    measured = _mean_log_rank([one[None, :] for one in sizes])[0]
    random = open_stream(seed, "tail index")
    quantiles = np.array(
        [
            np.quantile(
                _mean_log_rank([_draw_sizes(one, index, random) for one in sizes]),
                [0.025, 0.5, 0.975],
            )
            for index in _INDICES
        ]
    )
    # Clusters of k-means may have more equal sizes than random draws at equal frequencies.
    measured = min(measured, quantiles[0, 1])
    # The mean rank falls as the index rises, except for simulation noise, which is removed here.
    low, middle, high = (
        float(np.interp(-measured, -np.minimum.accumulate(column), _INDICES))
        for column in quantiles.T
    )
    return long_tail_record.Index(
        value=middle, low=low, high=None if high >= _INDICES[-1] else high
    )


def _draw_sizes(sizes: Index, index: float, random: np.random.Generator) -> Index:
    """Samples sorted sizes of sub-classes [samples, k] for a tail index and a total of rows."""
    shares = np.arange(1, len(sizes) + 1) ** -index
    drawn = random.multinomial(int(sizes.sum()), shares / shares.sum(), size=_DRAWS)
    return np.asarray(np.sort(drawn, axis=1)[:, ::-1])


def _mean_log_rank(sizes: Sequence[Index]) -> Numbers:
    """Returns the mean over all rows of the log rank of the row's sub-class: [samples]."""
    ranks = [np.log(np.arange(1, one.shape[1] + 1)) for one in sizes]
    total = sum(int(one[0].sum()) for one in sizes)
    return np.asarray(sum(one @ rank for one, rank in zip(sizes, ranks, strict=True)) / total)


def effective_number(sizes: Sizes) -> float:
    shares = np.concatenate(list(sizes)).astype(np.float64)
    shares /= shares.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def few_rows(sizes: Sizes) -> dict[int, float]:
    together = np.concatenate(list(sizes))
    return {few: float((together <= few).mean()) for few in FEW}


def shares_by_rank(sizes: Sizes) -> list[float]:
    """Returns for each rank a sub-class's share of its class's rows, as a mean over classes."""
    table = np.zeros((len(sizes), max(len(one) for one in sizes)))
    for line, one in zip(table, sizes, strict=True):
        line[: len(one)] = one / one.sum()
    return [float(value) for value in table.mean(axis=0)]


def _sklearn_seed(seed: int) -> int:
    """Returns a seed of 32 bits, because scikit-learn accepts no longer seeds."""
    return stream_seed(seed, "scikit-learn") >> 32
