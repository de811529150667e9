"""Draws Poisson batches one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpprobe.privacy.sampling import PoissonSampler, RowIndices


def poisson_batches(
    rows: int, rate: float, steps: int, generator: np.random.Generator, *, block: int = 64
) -> Iterator[RowIndices]:
    """Yields the sorted rows of each step; at rate 1 all rows.

    Args:
      rows: the number of rows in the dataset.
      rate: the probability that a row joins a batch.
      generator: must be used by this sampler only.
      block: number of steps drawn at a time, which affects only speed.
    """
    sampler = PoissonSampler(rows, rate, generator)
    for start in range(0, steps, block):
        hits, sizes = sampler.draw_block(min(block, steps - start))
        yield from np.split(hits, np.cumsum(sizes)[:-1])
