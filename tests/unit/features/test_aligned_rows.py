"""Memory for features: where it begins."""

from __future__ import annotations

import numpy as np
import pytest

from dpprobe.features.aligned_rows import LINE, empty_rows


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (3000, 768)])
def test_rows_begin_at_a_cache_line(shape: tuple[int, int], dtype: str) -> None:
    several = [empty_rows(shape, dtype) for _ in range(8)]
    for number, rows in enumerate(several):
        assert (rows.shape, rows.dtype) == (shape, np.dtype(dtype))
        assert rows.flags.c_contiguous
        assert rows.ctypes.data % LINE == 0 or not rows.size
        rows[:] = number
    for number, rows in enumerate(several):
        assert (rows == number).all()
