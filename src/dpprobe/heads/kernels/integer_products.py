"""Multiplies rows on the grid as 16-bit integers: second moments and gradients, to the last bit.

A processor multiplies 16-bit integers up to four times as fast as float64 numbers, and adds their
products in 32 bits. By Cauchy-Schwarz no partial sum of products of vectors a and b exceeds |a|
|b|, so every partial sum is exact if |a| |b| < 2^31. Partial sums are added in float64, where all
sums on the grid are exact (`privacy.grid`). So results equal float64 products bit for bit:

- Rows: integers of at most 32,767 (`LARGEST`). Larger entries are cut, and their excess, or the
  whole block, is multiplied in float64, as are the rows' constants.
- Second moments: a 32-bit sum spans rows while no column's sum of squares reaches 2^31.
- Gradients: a factor of at most 2^17 is 2^9 h + l with |h|, |l| <= 2^8. A chunk has 128 rows, and
  128 x 2^8 x 32,767 < 2^30.
- Logits: unit rows with entries of e = 8 to 17 bits have norm 2^e at most, and a class's weights
  2^(51 - e). Weights are three digits of b = min(15, 28 - e) bits. The lower two digits are at most
  2^(b - 1), and over 128 columns 2^e 2^(b - 1) sqrt(128) < 2^31. The highest digits have norm 2^(51
  - e - 2b) + 12 <= 2^13 + 12, and 2^e times this norm is below 2^31 too.

Compiled functions take arrays, not addresses, so that no array is freed while it is read.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg, assignment"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dpprobe.heads.kernels import vectors
from dpprobe.heads.kernels.vectors import INT, INT32, LANES, Code
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__, vectors.__file__)
jit = MACHINE_CODE.jit

LARGEST = 32_767
CHUNK = 128
# Digits of weights, and bits of the lower digit of gradients' factors.
DIGITS, FACTOR_BITS = 3, 9
NO_DIGITS: npt.NDArray[np.int32] = np.zeros((0, 0), np.int32)
# The columns that are multiplied at a time: two vectors, each of pairs of rows.
PANEL = 2 * LANES
# The number of two-digit factors whose sums fit into registers as one tile.
KINDS = 4 if LANES == 16 else 2
# Pairs of columns of logits, and the fewest rows of squares, that are added in 32 bits at a time.
_SEGMENT, _GROUP = 64, 4
_PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
_INTEGERS, _DOUBLES = ir.VectorType(INT32, LANES), ir.VectorType(ir.DoubleType(), LANES)
# Lanes that pair the columns of two rows by fast instructions, and lanes that restore their order.
_TO_PAIRS = [
    [i // 8 * 8 + i % 8 // 2 + i % 2 * 2 * LANES + half for i in range(2 * LANES)]
    for half in (0, 4)
]
_IN_ORDER = [i // 8 * 4 + i % 4 + i % 8 // 4 * LANES for i in range(2 * LANES)]
_MULTIPLY = {
    16: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
    8: ("avx2", "llvm.x86.avx2.pmadd.wd"),
    4: ("sse2", "llvm.x86.sse2.pmadd.wd"),
}


@jit("i8(i8, i8)")
def padded(count, unit):
    """Rounds up: 32 columns are whole panels of any processor, 4 classes whole tiles."""
    return -(-count // unit) * unit


@jit("i8(i8)")
def row_width(columns):
    """Returns a row width of an odd number of cache lines; even numbers collide in the cache."""
    return (-(-columns // 32) | 1) * 32


def _multiply_pairs(code: Code, features: str, left: Any, right: Any) -> Any:
    """Returns int32 sums of pairs of products of int16 vectors, by a processor's `features`."""
    builder, (needs, name) = code.builder, _MULTIPLY[LANES]
    if f"+{needs}" in features.split(","):
        kind = ir.FunctionType(_INTEGERS, [_PAIRS, _PAIRS])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(function, [left, right])
    left, right = (builder.bitcast(one, _INTEGERS) for one in (left, right))
    half = ir.Constant(_INTEGERS, [16] * LANES)
    high = [builder.ashr(one, half) for one in (left, right)]
    low = [builder.ashr(builder.shl(one, half), half) for one in (left, right)]
    return builder.add(builder.mul(*low), builder.mul(*high))


def _make_tile(kinds: int, digits: int, *, packed: bool) -> Any:
    """Makes a function that adds products of factors with `digits` digits to float64 sums."""

    @intrinsic
    def add_tile(
        _context,
        left,
        left_place,
        step,
        left_stride,
        right,
        right_place,
        width,
        pairs,
        base,
        total,
        place,
        stride,
    ):
        """Adds the products of `kinds` factors with the columns of a panel.

        Args:
          left: int32, pair p of digit m at left_place + p * step + m * left_stride, the lowest
            digit of each factor first.
          right: if `packed`, int32, pair p of each column from right_place + p * width on.
            Otherwise int16, row i from right_place + i * width on.
          base: the base of the digits.
          place: the index of the first sum in `total`. The factors' sums are `stride` apart.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def address(array: int, place: int, size: int) -> Any:
                kind = context.make_array(signature.args[array])
                data = builder.ptrtoint(kind(context, builder, arguments[array]).data, INT)
                return code.offset_address(data, (arguments[place], size))

            code = Code(builder)
            strides = [
                builder.mul(arguments[place], ir.Constant(INT, size))
                for place, size in ((2, 4), (3, 4), (6, 4), (6, 2))
            ]
            totals = [cgutils.alloca_once(builder, _INTEGERS) for _ in range(2 * kinds * digits)]
            features = context.codegen().magic_tuple()[2]
            left, sums = address(0, 1, 4), address(9, 10, 8)
            right = address(4, 5, 4 if packed else 2)
            _sum_products(code, features, left, right, strides, arguments[7], totals, packed)
            for k in range(kinds):
                part = totals[k * 2 * digits : (k + 1) * 2 * digits]
                _add_digits(code, part, arguments[8], sums, (arguments[11], 8 * k), packed)
            return context.get_dummy_value()

        i8, f8 = types.intp, types.float64
        return types.void(left, i8, i8, i8, right, i8, i8, i8, f8, total, i8, i8), generate

    return add_tile


def _sum_products(
    code: Code,
    features: str,
    left: Any,
    right: Any,
    strides: Any,
    pairs: Any,
    totals: Any,
    packed: bool,
) -> None:
    """Writes int32 sums of the products of each left digit with two vectors of columns."""
    builder, (step, stride, width, row) = code.builder, strides
    for total in totals:
        builder.store(ir.Constant(_INTEGERS, [0] * LANES), total)
    with cgutils.for_range(builder, pairs, intp=INT) as loop:
        first = code.offset_address(right, (loop.index, width))
        second = code.offset_address(first, (4 * LANES, 1) if packed else (row, 1))
        vectors = [code.read_value(place, _PAIRS, align=2) for place in (first, second)]
        if not packed:
            vectors = [code.pick_lanes(*vectors, order) for order in _TO_PAIRS]
        for m in range(len(totals) // 2):
            place = code.offset_address(left, (loop.index, step), (stride, m))
            digit = code.splat_value(code.read_value(place, INT32, align=4))
            for total, vector in zip(totals[2 * m : 2 * m + 2], vectors, strict=True):
                product = _multiply_pairs(code, features, builder.bitcast(digit, _PAIRS), vector)
                builder.store(builder.add(builder.load(total), product), total)


def _add_digits(
    code: Code, totals: Any, base: Any, sums: Any, term: tuple[Any, int], packed: bool
) -> None:
    """Adds a factor's two vectors, of its digits' sums, to float64 numbers at an address."""
    builder, bases = code.builder, code.splat_value(base)
    values = [ir.Constant(_DOUBLES, [0.0] * LANES)] * 2
    for place, total in reversed(list(enumerate(totals))):
        digit = builder.sitofp(builder.load(total), _DOUBLES)
        values[place % 2] = builder.fadd(builder.fmul(values[place % 2], bases), digit)
    if not packed:
        orders = _IN_ORDER[:LANES], _IN_ORDER[LANES:]
        values = [code.pick_lanes(*values, order) for order in orders]
    for j, value in enumerate(values):
        place = code.offset_address(sums, term, (8 * LANES, j))
        code.write_value(builder.fadd(code.read_value(place, _DOUBLES, align=8), value), place)


_add_tile = _make_tile(2 * KINDS, 1, packed=True)
_add_factors_tile = _make_tile(KINDS, 2, packed=False)


@jit("i8(f8[:, ::1], i4[:, :, ::1], i8[::1], f8[::1])")
def pack_rows(block, packed, stops, last):
    """Packs whole numbers [m, d + 1], except the last column, the rows' constants.

    Writes pairs of rows in panels of columns to `packed` [panels, pairs, PANEL]. Writes to `stops`
    the pairs after which 32-bit sums are moved to float64. Writes the sum of the rows times their
    constants to `last` [d + 1]. A group of rows joins the previous group if no column's sum of
    squares, and so no product of two columns, reaches 2^31.

    Returns:
      The number of stops; 0 if an entry, or a column's sum of 4 squares, is too large.
    """
    rows, columns = block.shape[0], block.shape[1] - 1
    summed, group, none = np.zeros(columns), np.zeros(columns), np.zeros(columns + 1)
    last[:] = count = used = 0
    for start in range(0, rows, _GROUP):
        group[:] = 0.0
        for pair in range(start // 2, (start + _GROUP) // 2):
            first = block[2 * pair] if 2 * pair < rows else none
            second = block[2 * pair + 1] if 2 * pair + 1 < rows else none
            for panel in range(packed.shape[0]):
                low = panel * PANEL
                out = packed[panel, pair]
                for j in range(min(PANEL, columns - low)):
                    a, b = np.int32(first[low + j]), np.int32(second[low + j])
                    used |= ((a + LARGEST) | (LARGEST - a) | (b + LARGEST) | (LARGEST - b)) >> 16
                    out[j] = (a & 0xFFFF) | (b << 16)
            for j in range(columns):
                group[j] += first[j] * first[j] + second[j] * second[j]
            for j in range(columns + 1):
                last[j] += first[j] * first[columns] + second[j] * second[columns]
        alone = together = 0
        for j in range(columns):
            summed[j] += group[j]
            # NaN counts as too large
            alone += not group[j] < 2.0**31
            together += not summed[j] < 2.0**31
        if used or alone:
            return 0
        if together:
            stops[count] = start // 2
            count += 1
            for j in range(columns):  # Numba takes seconds to compile whole-array copies
                summed[j] = group[j]
    stops[count] = (rows + _GROUP - 1) // _GROUP * (_GROUP // 2)
    return count + 1


@jit("void(i4[:, :, ::1], i8[::1], f8[:, ::1])")
def add_squares(packed, stops, total):
    """Adds X^T X of the rows X that `pack_rows` packed to the upper panels of `total`."""
    panels, size, columns = packed.shape[0], packed.shape[1] * PANEL, total.shape[1]
    for i in range(panels):
        for j in range(i, panels):
            start = 0
            for stop in stops:
                for row in range(0, PANEL, 2 * KINDS):
                    _add_tile(
                        packed,
                        i * size + start * PANEL + row,
                        PANEL,
                        1,
                        packed,
                        j * size + start * PANEL,
                        PANEL,
                        stop - start,
                        1.0,
                        total,
                        (i * PANEL + row) * columns + j * PANEL,
                        columns,
                    )
                start = stop


@jit("void(f8[::1], i8, i2[:, ::1])")
def fill_digits(numbers, bits, out):
    """Splits whole numbers [m] into digits, the lowest first: out [digits, m or more].

    Digits of b bits are from -2^(b - 1) to 2^(b - 1), except the highest digit.
    """
    base, inverse = 2.0**bits, 2.0**-bits
    rest, whole = numbers.copy(), np.empty(numbers.shape[0], np.int32)
    for digit in range(out.shape[0]):
        line = out[digit]
        # loops that convert numbers only once are vectorised better
        if digit == out.shape[0] - 1:
            for j in range(rest.shape[0]):
                whole[j] = np.int32(rest[j])
        else:
            for j in range(rest.shape[0]):
                higher = np.rint(rest[j] * inverse)
                whole[j] = np.int32(rest[j] - higher * base)
                rest[j] = higher
        for j in range(rest.shape[0]):
            line[j] = np.int16(whole[j])


@jit("i4[:, ::1](f8[:, :], i8)")
def split_weights(weights, bits):
    """Splits whole numbers [K, d] into digits of `bits` bits, by column pairs: [pairs, K * 3]."""
    classes, columns = weights.shape
    out = np.zeros((padded(columns, 32) // 2, padded(classes * DIGITS, 32)), np.int32)
    digits = np.zeros((classes * DIGITS, 2 * out.shape[0]), np.int16)
    for k in range(classes):
        fill_digits(weights[k].copy(), bits, digits[k * DIGITS : (k + 1) * DIGITS])
    pairs = digits.view(np.int32)
    for pair in range(out.shape[0]):
        for line in range(classes * DIGITS):
            out[pair, line] = pairs[line, pair]
    return out


@jit("b1(f4[:, ::1], f8[::1], f8[::1], f8[::1], i2[:, ::1])")
def fill_rows(features, scale, shift, centre, out):
    """Fills int16 rows like `grid_rows.fill_rows`, without constants; False for larger numbers."""
    columns, used = features.shape[1], 0
    around = centre if centre.shape[0] else np.zeros(columns)
    for i in range(features.shape[0]):
        row, source, factor, length = out[i], features[i], scale[i], shift[i]
        for j in range(columns):
            value = np.int32(factor * source[j] - length * around[j])
            used |= ((value + LARGEST) | (LARGEST - value)) >> 16
            row[j] = value
    return used == 0


@jit("void(i2[:, ::1], i4[:, ::1], f8, f8[:, ::1])")
def multiply_weights(rows, digits, base, logits):
    """Fills [m, K] with products of the first m rows and `split_weights`; `rows` has 8 k rows."""
    (m, classes), (pairs, lanes), kinds = logits.shape, digits.shape, 2 * KINDS
    columns = rows.view(np.int32)
    sums, width = np.zeros((padded(m, 8), lanes)), columns.shape[1]
    for start in range(0, pairs, _SEGMENT):
        for i in range(0, m, kinds):
            for low in range(0, lanes, PANEL):
                _add_tile(
                    columns,
                    i * width + start,
                    1,
                    width,
                    digits,
                    start * lanes + low,
                    lanes,
                    min(_SEGMENT, pairs - start),
                    1.0,
                    sums,
                    i * lanes + low,
                    lanes,
                )
    for i in range(m):
        for k in range(classes):
            low, middle, high = sums[i, 3 * k], sums[i, 3 * k + 1], sums[i, 3 * k + 2]
            logits[i, k] = (high * base + middle) * base + low


@jit("void(f8[:, ::1], i2[:, ::1], f8[:, ::1])")
def add_products(factors, rows, total):
    """Adds the products of factors [K, m] and the first m rows to `total`, with padded classes."""
    (classes, m), columns = factors.shape, total.shape[1]
    digits = np.zeros((padded(classes, 4), 2, CHUNK), np.int16)
    for k in range(classes):
        fill_digits(factors[k], FACTOR_BITS, digits[k])
    pairs = digits.view(np.int32)
    for low in range(0, columns, PANEL):
        for k in range(0, classes, KINDS):
            _add_factors_tile(
                pairs,
                k * CHUNK,
                1,
                CHUNK // 2,
                rows,
                low,
                rows.shape[1],
                (m + 1) // 2,
                2.0**FACTOR_BITS,
                total,
                k * columns + low,
                columns,
            )


MACHINE_CODE.keep()


def digit_bits(entry_bits: int) -> int:
    """Returns the bits per digit of weights, for rows whose entries have a given number of bits."""
    return min(15, 28 - entry_bits)


class Squares:
    """The sum of outer products, [d + 1, d + 1], of rows whose entries fit into 16 bits."""

    def __init__(self, columns: int) -> None:
        width = padded(columns - 1, 32)
        self._total, self._constant = np.zeros((width, width)), np.zeros(columns)
        self._packed = np.zeros((width // PANEL, 0, PANEL), np.int32)

    def add_rows(self, block: npt.NDArray[np.float64]) -> bool:
        """Adds whole numbers [m, d + 1]; if they exceed 16 bits, adds nothing and returns False."""
        groups = -(-len(block) // _GROUP)
        if self._packed.shape[1] < groups * _GROUP // 2:
            self._packed = np.zeros((len(self._packed), groups * _GROUP // 2, PANEL), np.int32)
        stops, last = np.empty(groups, np.int64), np.empty_like(self._constant)
        count = pack_rows(block, self._packed, stops, last)
        if count:
            add_squares(self._packed, stops[:count], self._total)
            self._constant += last
        return bool(count)

    def add_to(self, total: npt.NDArray[np.float64]) -> None:
        """Adds the upper triangle of the sums to `total` [d + 1, d + 1]."""
        columns = len(self._constant) - 1
        total[:-1, :-1] += self._total[:columns, :columns]
        total[:, -1] += self._constant
