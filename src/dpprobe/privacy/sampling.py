"""Poisson sampling: every row joins every batch independently with one probability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpprobe.errors import PrivacyError

RowIndices = npt.NDArray[np.int64]

_DRAWS = 1 << 20


class Sampler(Protocol):
    """A Poisson sampler, of whatever random bits."""

    def block(self, steps: int) -> tuple[RowIndices, npt.NDArray[np.int64]]:
        """Draws the batches of the next `steps` steps.

        Returns:
          The rows of every batch, batch after batch, ascending within each; and each batch's size,
          which may be 0.
        """
        ...


class PoissonSampler:
    """Independent Bernoulli(rate) draws over (step, row), in time proportional to the hits.

    The steps' rows are laid end to end. The distances between hits of independent Bernoulli
    draws are independent geometric variables, so one stream of those gives exactly the hits,
    across steps. The rows of a step do not depend on how steps are grouped into blocks.
    """

    def __init__(self, rows: int, rate: float, generator: np.random.Generator) -> None:
        if rows < 1 or not 0 < rate <= 1:
            raise PrivacyError(f"sampler: {rows} rows at rate {rate!r}; both must be positive")
        self.rows = rows
        self.rate = rate
        self._generator = generator
        self._hits = np.zeros(0, dtype=np.int64)  # ahead, counted from the next step's first row
        self._last = -1

    def block(self, steps: int) -> tuple[RowIndices, npt.NDArray[np.int64]]:
        """Draws the batches of the next `steps` steps.

        Returns:
          The rows of every batch, batch after batch, ascending within each; and each batch's size,
          which may be 0.
        """
        length = steps * self.rows
        ahead = [self._hits]
        while self._last < length:
            expected = (length - self._last) * self.rate
            draws = min(_DRAWS, int(expected + 4 * expected**0.5) + 16)
            hits = self._last + np.cumsum(self._generator.geometric(self.rate, size=draws))
            ahead.append(hits)
            self._last = int(hits[-1])
        hits = np.concatenate(ahead)
        cut = int(np.searchsorted(hits, length))
        self._hits = hits[cut:] - length
        self._last -= length
        step, row = np.divmod(hits[:cut], self.rows)
        return row, np.bincount(step, minlength=steps)


def poisson_batches(
    rows: int, rate: float, steps: int, generator: np.random.Generator, *, block: int = 64
) -> Iterator[RowIndices]:
    """Yields each step's rows, ascending; at rate 1 all of them.

    Args:
      rows: their number in the dataset.
      rate: the probability that a row joins a batch.
      steps: batches to draw.
      generator: only this sampler may draw from it.
      block: steps drawn at a time; it changes nothing but speed.
    """
    sampler = PoissonSampler(rows, rate, generator)
    for start in range(0, steps, block):
        hits, sizes = sampler.block(min(block, steps - start))
        yield from np.split(hits, np.cumsum(sizes)[:-1])
