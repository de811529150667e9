"""Measures how fast rows come from memory while the processor multiplies: one loop, machine code.

Every row of a batch is read once, the next rows are fetched meanwhile, and each vector that was
read is followed by as many multiplications in registers as the step's two products make of it.
Nothing is written, no weight is loaded, no row is read again.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from clock import Clock, Engine
from dpprobe.heads.kernels.vectors import FLAGS, LANES, REGISTERS, ZERO, Code

_TOTALS = 20 if REGISTERS == 32 else 10
_AHEAD = 8


def streamed(clock: Clock, features: torch.Tensor, batch: int, classes: int) -> Engine:
    """Times reading a batch's rows under the multiplications of its two products.

    Args:
      features: [n, d], on the CPU.
      batch: rows of a step, drawn at random; n of them are all, in order.
      classes: that each row is multiplied with, twice.
    """
    generator, n = np.random.default_rng(0), len(features)
    steps = max(1, n // batch)  # so many read as many rows as there are
    rows = [
        np.arange(n) if batch == n else np.sort(generator.integers(n, size=batch))
        for _ in range(steps)
    ]
    index, array, read = np.concatenate(rows), features.numpy(), _reader(2 * classes)

    def work(count: int) -> None:
        while count > 0:
            taken = min(count, steps)
            read(array, index[: taken * batch])
            count -= taken

    return Engine(lambda count: clock.seconds(lambda: work(count)))


def _reader(products: int) -> Callable[[npt.NDArray[np.float32], npt.NDArray[np.int64]], float]:
    """Compiles a loop over rows, with so many multiplications for each vector that is read."""

    @intrinsic
    def read_row(_context, row, ahead, d):
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            row, ahead, d = arguments
            code = Code(builder)
            totals = [cgutils.alloca_once_value(builder, ZERO) for _ in range(_TOTALS)]
            weight = code.splat_value(builder.sitofp(d, ir.FloatType()))
            size = ir.Constant(ir.IntType(64), 4 * LANES)
            vectors = builder.sdiv(d, ir.Constant(ir.IntType(64), LANES))
            with cgutils.for_range(builder, vectors, intp=ir.IntType(64)) as loop:
                byte = builder.mul(loop.index, size)
                code.prefetch_line(builder.add(ahead, byte))
                vector = code.read_vector(builder.add(row, byte))
                for k in range(products):
                    total = totals[k % _TOTALS]
                    product = builder.fmul(builder.load(total), weight, flags=FLAGS)
                    builder.store(builder.fadd(product, vector, flags=FLAGS), total)
            summed = builder.load(totals[0])
            for total in totals[1:]:
                summed = builder.fadd(summed, builder.load(total))
            return builder.extract_element(summed, ir.Constant(ir.IntType(32), 0))

        return types.float32(types.intp, types.intp, types.intp), generate

    @numba.njit
    def read(features, rows):
        total, d, first = 0.0, features.shape[1], features.ctypes.data
        for i in range(rows.shape[0]):
            ahead = first + 4 * d * rows[min(i + _AHEAD, rows.shape[0] - 1)]
            total += read_row(first + 4 * d * rows[i], ahead, d)
        return total

    return read
