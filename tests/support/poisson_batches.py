"""Poisson batches one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpprobe.privacy.sampling import PoissonSampler, RowIndices


def poisson_batches(
    rows: int, rate: float, steps: int, generator: np.random.Generator, *, block: int = 64
) -> Iterator[RowIndices]:
    """Yields each step's rows, ascending; at rate 1 all of them.

    Args:
      rows: their number in the dataset.
      rate: the probability that a row joins a batch.
      generator: only this sampler may draw from it.
      block: steps drawn at a time; it changes nothing but speed.
    """
    sampler = PoissonSampler(rows, rate, generator)
    for start in range(0, steps, block):
        hits, sizes = sampler.draw_block(min(block, steps - start))
        yield from np.split(hits, np.cumsum(sizes)[:-1])
