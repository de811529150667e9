"""Products of rows with the weights of classes, and of residuals with rows, on the CPU.

`multiply_rows` and `multiply_back` are the two products of a clipped sum, of float32 for
`fused_step` and of float64 for `exact_step`. They read rows by address, without copying.

**Why LLVM.** The two products are most of the work, but Numba's loops reach only a fraction of the
processor's speed. So four functions decorated with `@intrinsic` write instructions for LLVM, the
compiler behind Numba. Python runs an intrinsic once, at compile time: `builder.add(x, y)` does not
compute but appends an instruction, and a Python loop repeats instructions. Loops at run time are
`cgutils.for_range` and `Code.walk_steps`. `vectors.Code` has the few instructions in use. A vector
has 16, 8 or 4 float32 numbers, depending on the processor, or half as many float64. All numbers
have the type of the first argument, an array.

**Tiles.** A tile is a block of partial sums. They stay in registers while products are added:

    _add_products   5 classes x 4 rows     walks along columns; adds to 20 logits
    _add_outer      5 classes x 4 vectors  walks along rows; adds to 5 x 64 numbers of the sum
                    of columns             (with vectors of 16 numbers)

Each loaded vector is used in 4 or 5 products, because loads would otherwise limit the speed.
Afterwards `_add_outer_end` adds the last columns. With many classes, `_lay_out` first copies
columns of rows side by side. On processors with 16 registers, tiles have 10 vectors. Sums are
bit-identical for any tile size.

**Prefetching.** With few classes, rows are read from memory about as slowly as they are multiplied.
So products also prefetch the next chunk into the cache (`_aim_fetches`): one cache line per 20
products of vectors, from four rows in turn. Prefetching one row at a time would be half as fast.
Caches drop prefetched lines long before the cache is full, so chunks are small.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dpprobe.heads.kernels import vectors
from dpprobe.heads.kernels.vectors import INT, INTERLEAVED, LANES, LINE, Code
from dpprobe.privacy.machine_code import MachineCode

# Functions in this module are compiled together with their callers, for the callers' types.
jit = MachineCode(__file__, vectors.__file__).jit

# The most rows of a chunk.
CHUNK = 128
# A tile's classes, rows and vectors; and how many rows are multiplied with 5 classes before the
# next 5 classes. With tiles of two rows it is the whole chunk, to read weights once per chunk.
CLASSES = 5
_ROWS, _VECTORS, _SWEEP = (4, 4, 4) if vectors.REGISTERS == 32 else (2, 2, CHUNK)
# Bytes of the columns that are multiplied at a time.
_COLUMN_BYTES = 4096
# The fewest tiles of classes for which copying rows saves time.
_MANY_KINDS = 4
# Columns of padded arrays are a multiple of this number.
ALIGNED = 16
_VECTOR_BYTES = 4 * LANES


def _is_wide(like: Any) -> bool:
    """Returns True for Numba's type of an array of float64."""
    return bool(like.dtype == types.float64)


@intrinsic
def _add_products(
    _context, like, rows, byte, columns, weights, stride, out, out_stride, spots, start, twice
):
    """Adds products of 5 classes' weights with `_ROWS` rows (given by address) to `out` [5, _ROWS].

    The products cover `columns` columns, from `byte` of each row on. The last three arguments are
    for `Code.fetch_ahead`, which prefetches cache lines.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, rows, byte, columns, weights, stride, out, out_stride, *ahead = arguments
        code = Code(builder, wide=_is_wide(like))
        places = [code.read_value(code.offset_address(rows, (8, i)), INT) for i in range(_ROWS)]
        points = [builder.add(place, byte) for place in places]
        heads = [code.offset_address(weights, (stride, k)) for k in range(CLASSES)]
        totals = code.make_zeros(CLASSES, _ROWS)

        def advance_step(step: Any, mask: Any = None) -> None:
            byte = builder.mul(step, ir.Constant(INT, code.size * code.lanes))
            vectors = [code.read_vector(builder.add(point, byte), mask) for point in points]
            for head, head_totals in zip(heads, totals, strict=True):
                weight = code.read_vector(builder.add(head, byte), mask)
                for total, vector in zip(head_totals, vectors, strict=True):
                    code.add_product(total, weight, vector)

        lanes = ir.Constant(INT, code.lanes)
        whole = builder.sdiv(columns, lanes)
        code.walk_steps(whole, advance_step, ahead)
        left = builder.sub(columns, builder.mul(whole, lanes))
        with builder.if_then(builder.icmp_signed(">", left, ir.Constant(INT, 0))):
            advance_step(whole, code.make_mask(left))
        for k, head_totals in enumerate(totals):
            sums = code.sum_vectors([builder.load(total) for total in head_totals])
            place = code.offset_address(out, (out_stride, k))
            before = code.read_value(place, sums.type, align=code.size)
            code.write_value(builder.fadd(before, sums), place)
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 10), generate


@intrinsic
def _lay_out(_context, like, rows, m, byte, pointers, panel):
    """Copies `_VECTORS` vectors per row, from `byte` on, and writes the addresses of the copies."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _, rows, m, byte, pointers, panel = arguments
        code = Code(builder, wide=_is_wide(like))
        vector = code.size * code.lanes
        with cgutils.for_range(builder, m, intp=INT) as loop:
            point = builder.add(
                code.read_value(code.offset_address(rows, (8, loop.index)), INT), byte
            )
            place = code.offset_address(panel, (vector * _VECTORS, loop.index))
            for j in range(_VECTORS):
                copied = code.read_vector(code.offset_address(point, (vector, j)))
                code.write_value(copied, code.offset_address(place, (vector, j)))
            code.write_value(place, code.offset_address(pointers, (8, loop.index)))
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 5), generate


def _outer_sum(
    code: Code, arguments: Any, vectors: int, mask: Any, ahead: Sequence[Any] = ()
) -> None:
    """Adds residuals [5, m] times m rows (given by address) to 5 sums of `vectors` vectors."""
    _, rows, m, residuals, residual_stride, sums, stride, byte = arguments
    builder, vector = code.builder, code.size * code.lanes
    totals = code.make_zeros(CLASSES, vectors)
    for class_totals in totals:
        for total in class_totals:
            builder.store(code.zero, total)

    def advance_step(step: Any) -> None:
        point = builder.add(code.read_value(code.offset_address(rows, (8, step)), INT), byte)
        parts = [
            code.read_vector(code.offset_address(point, (vector, j)), mask) for j in range(vectors)
        ]
        for k, class_totals in enumerate(totals):
            place = code.offset_address(residuals, (residual_stride, k), (code.size, step))
            residual = code.splat_value(code.read_value(place, code.number))
            for total, part in zip(class_totals, parts, strict=True):
                code.add_product(total, residual, part)

    code.walk_steps(m, advance_step, ahead)
    for k, class_totals in enumerate(totals):
        for j, total in enumerate(class_totals):
            place = code.offset_address(sums, (stride, k), (vector, j))
            code.write_value(builder.fadd(code.read_vector(place), builder.load(total)), place)


@intrinsic
def _add_outer(
    _context, like, rows, m, residuals, residual_stride, sums, stride, byte, spots, start, together
):
    """Adds `_outer_sum` for `_VECTORS` vectors from `byte` on; prefetches like `_add_products`."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        code = Code(builder, wide=_is_wide(like))
        _outer_sum(code, arguments[:-3], _VECTORS, None, arguments[-3:])
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 10), generate


@intrinsic
def _add_outer_end(_context, like, rows, m, residuals, residual_stride, sums, stride, byte, left):
    """Adds `_outer_sum` for the last vector, at `byte`, which has `left` columns of features."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        code = Code(builder, wide=_is_wide(like))
        _outer_sum(code, arguments[:-1], 1, code.make_mask(arguments[-1]))
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 8), generate


@jit()
def _aim_fetches(ahead, place, taken, tiles):
    """Returns the next tile's arguments for `fetch_ahead`, and where prefetching continues.

    The next rows' cache lines are spread evenly over tiles; further tiles fetch cached lines.

    Args:
      ahead: the address of the next rows' addresses; the number of next rows; `together`, how many
        rows are fetched in turn; cache lines per row; the address of the addresses of cached rows.
      place: (0, 0, 0) for the first tile.
      taken: the number of lines that a tile fetches per row.

    Returns:
      (the address of the rows' addresses, the byte of a row to begin at, `together`), next place.
    """
    later, rows, together, lines, resident = ahead
    due, row, line = place
    due += -(-rows // together) * -(-lines // taken)
    if due < tiles or row >= rows:
        return (resident, 0, together), (due, row, line)
    spots, start = later + 8 * row, LINE * max(0, min(line, lines - taken))
    line += taken
    if line >= lines:
        row, line = row + together, 0
    return (spots, start, together), (due - tiles, row, line)


@jit()
def multiply_rows(pointers, m, d, weights, z, ahead):
    """Writes weights times rows to `z`, in blocks of columns that fit a 48-KiB L1 cache."""
    rows, heads, stride = pointers.ctypes.data, weights.ctypes.data, weights.strides[0]
    logits, logit_stride, size = z.ctypes.data, z.strides[0], z.itemsize
    columns, groups = min(d, _COLUMN_BYTES // size), -(-m // _ROWS)
    taken = max(1, columns * size // (_VECTOR_BYTES * vectors.STEPS))
    tiles = groups * (weights.shape[0] // CLASSES) * -(-d // columns)
    place = (0, 0, 0)
    z[:, : groups * _ROWS] = 0
    for j in range(0, d, columns):
        for sweep in range(0, m, _SWEEP):
            for k in range(0, weights.shape[0], CLASSES):
                head, width = heads + k * stride + size * j, min(columns, d - j)
                for i in range(sweep, min(sweep + _SWEEP, m), _ROWS):
                    fetch, place = _aim_fetches(ahead, place, taken, tiles)
                    row, out = rows + 8 * i, logits + k * logit_stride + size * i
                    byte = size * j
                    _add_products(z, row, byte, width, head, stride, out, logit_stride, *fetch)


@jit()
def multiply_back(pointers, m, d, z, total, panel, ahead):
    """Adds z times rows to the total.

    With many classes, columns of the rows are first copied side by side, because columns of long
    rows evict each other from the cache.
    """
    rows, residuals, residual_stride = pointers.ctypes.data, z.ctypes.data, z.strides[0]
    sums, stride, size = total.ctypes.data, total.strides[0], z.itemsize
    lanes = _VECTOR_BYTES // size
    kinds, width = total.shape[0] // CLASSES, lanes * _VECTORS
    whole = d // width
    taken, place = max(1, m // vectors.STEPS), (0, 0, 0)
    side_by_side = kinds >= _MANY_KINDS
    at, byte = rows, 0
    for j in range(0, whole * width, width):
        if side_by_side:
            at = -(-panel.ctypes.data // LINE) * LINE
            _lay_out(z, rows, m, size * j, at, at + 8 * CHUNK)
        else:
            byte = size * j
        for k in range(0, total.shape[0], CLASSES):
            fetch, place = _aim_fetches(ahead, place, taken, whole * kinds)
            part, out = residuals + k * residual_stride, sums + k * stride + size * j
            _add_outer(z, at, m, part, residual_stride, out, stride, byte, *fetch)
    for j in range(whole * width, d, lanes):
        for k in range(0, total.shape[0], CLASSES):
            part, out = residuals + k * residual_stride, sums + k * stride + size * j
            _add_outer_end(z, rows, m, part, residual_stride, out, stride, size * j, d - j)


@jit()
def make_panel():
    """Returns working memory for `multiply_back`."""
    return np.empty(CHUNK + CHUNK * _VECTOR_BYTES * _VECTORS // 8 + LINE // 8, dtype=np.int64)


@jit()
def make_pointers():
    """Allocates an array for the addresses of a chunk's rows and of rows to prefetch."""
    return np.empty(CHUNK + 2 * INTERLEAVED, dtype=np.int64)


@jit()
def aim_at(first, stride, following, m, kinds, later):
    """Writes the addresses of the next rows to `later`, in the order of prefetching.

    Args:
      first, stride: the address of row 0, and the bytes per row.
      following: the indices of the next rows.
      m, kinds: the present chunk's number of rows, and number of tiles of classes.

    Returns:
      The number of rows fetched in turn.
    """
    next_rows = following.shape[0]
    # Fetching four rows in turn is fast enough unless the next rows exceed m * kinds / 2.
    together = INTERLEAVED if 2 * next_rows <= m * kinds else 2 * INTERLEAVED
    # Rows are fetched in turn from `together` long runs. If rows are adjacent in memory, the
    # processor itself reads ahead in a few long runs, but not in many short runs.
    apart = -(-next_rows // together)
    for i in range(apart * together):
        row = following[min(i % together * apart + i // together, next_rows - 1)]
        later[i] = first + stride * row
    return together


@jit()
def split_fetches(later, rows, together, lines, pointers):
    """Divides the next rows between both products; returns the argument `ahead` for each.

    Args:
      later, together: as in `aim_at`; `rows` is the number of next rows to fetch.
      lines: the number of cache lines per row.
      pointers: the addresses of the present rows.
    """
    half, address = rows // 2 // together * together, later.ctypes.data
    return (
        (address, half, together, lines, pointers.ctypes.data),
        (address + 8 * half, rows - half, together, lines, pointers.ctypes.data),
    )


@jit()
def spare_pointers(m):
    """Returns how many addresses the products of m rows read: whole tiles, and rows to prefetch."""
    return max(-(-m // _ROWS) * _ROWS, 2 * INTERLEAVED)
