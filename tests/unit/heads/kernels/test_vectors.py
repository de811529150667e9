"""Machine code for vectors: sums of products equal NumPy's, at the processor's own width."""

# mypy: allow-untyped-defs, disable-error-code="call-arg, untyped-decorator"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from dpprobe.heads.kernels.vectors import INT, INTERLEAVED, LANES, STEPS, Code


def make_products(count: int, together: int, wide: bool) -> Any:
    """Compiles products of a factor with `count` rows; columns past the last are masked."""

    @intrinsic
    def products(_context, rows, stride, factor, columns, out, spots):
        def generate(context, builder, _signature, arguments):
            rows, stride, factor, columns, out, spots = arguments
            code = Code(builder, wide=wide)
            lanes, vector = ir.Constant(INT, code.lanes), code.size * code.lanes
            _, totals = code.make_zeros(2, count)

            def advance(step: Any, mask: Any = None) -> None:
                left = code.read_vector(code.offset_address(factor, (step, vector)), mask)
                for i, total in enumerate(totals):
                    place = code.offset_address(rows, (stride, i), (step, vector))
                    code.add_product(total, left, code.read_vector(place, mask))

            whole = builder.sdiv(columns, lanes)
            ahead = (spots, ir.Constant(INT, 0), ir.Constant(INT, together))
            code.walk_steps(whole, advance, ahead if together else ())
            advance(whole, code.make_mask(builder.sub(columns, builder.mul(whole, lanes))))
            code.write_value(code.sum_vectors([builder.load(each) for each in totals]), out)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 6), generate

    @numba.njit
    def fill(rows, factor, columns, out, spots):
        products(
            rows.ctypes.data,
            rows.strides[0],
            factor.ctypes.data,
            columns,
            out.ctypes.data,
            spots.ctypes.data,
        )

    return fill


@pytest.mark.parametrize(
    ("count", "together"), [(2, 0), (4, 0), (4, INTERLEAVED), (4, 2 * INTERLEAVED)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sums_of_products_are_numpy_s(count: int, together: int, kind: type) -> None:
    """Sums of whole numbers are exact in any order; nothing past the last column is read."""
    fill = make_products(count, together, kind == np.float64)
    width = (2 * STEPS + 3) * LANES
    generator = np.random.default_rng(count)
    for columns in (0, 1, LANES - 1, LANES, LANES + 1, STEPS * LANES, width - LANES - 1):
        rows, factor = generator.integers(-9, 9, (2, count, width)).astype(kind)
        rows[:, columns:], factor[:, columns:] = np.nan, np.nan
        out: Any = np.full(count + 1, 7, kind)
        spots = np.full(2 * INTERLEAVED, rows.ctypes.data)
        fill(rows, factor[0], columns, out, spots)
        expected = rows[:, :columns] @ factor[0, :columns]
        np.testing.assert_array_equal(out, [*expected, 7])
