"""Interface of stored features that are read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt


class RowSource(Protocol):
    """Stored features to be read in blocks, such as a `FeatureStore`."""

    @property
    def rows(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def read_blocks(self, rows: int) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields consecutive blocks of about `rows` rows: (first row, [m, dimension])."""
        ...
