"""Multiplies rows on the grid as 16-bit integers: second moments and gradients, to the last bit.

A processor multiplies 16-bit integers up to four times as fast as float64 numbers, and adds their
products in 32 bits. By Cauchy-Schwarz no partial sum of products of vectors a and b exceeds
|a| |b|, so it is exact if |a| |b| < 2^31. It is then added in float64, where all sums on the grid
are exact (`privacy.grid`). So the results have the bits of float64 products. The bounds:

- Rows: integers of at most 32,767 (`LARGEST`). Blocks with a larger one are multiplied in float64.
  So are the constants of rows, which are larger than most entries.
- Second moments: 32 bits take as many rows as the columns' sums of squares allow (`pack_rows`).
- Gradients: a factor of at most 2^17 is 2^9 h + l with |h|, |l| <= 2^8. A chunk has 128 rows, and
  128 x 2^8 x 32,767 < 2^30.
- Logits: unit rows with entries of e = 13 to 17 bits have norm 2^(e - 1) at most. A class's
  weights have norm 2^(51 - e) at most. Weights are three digits of 12 bits. The lower two are at
  most 2^11, and over 128 columns 2^(e - 1) 2^11 sqrt(128) < 2^31. The highest have norm
  2^(27 - e) + 6 at most.

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
# Digits and bits of weights, and of gradients' factors.
DIGITS, DIGIT_BITS, FACTOR_BITS = 3, 12, 9
NO_DIGITS: npt.NDArray[np.int32] = np.zeros((0, 0, 0), np.int32)
# Columns that are multiplied at a time: two vectors, each of pairs of rows.
PANEL = 2 * LANES
# Factors of a tile of sums that registers hold, if they have two digits.
KINDS = 4 if LANES == 16 else 2
# Columns of logits, and the fewest rows of squares, that are added in 32 bits at a time.
_SEGMENT, _GROUP = 128, 4
_PAIRS = ir.VectorType(ir.IntType(16), 2 * LANES)
_INTEGERS, _DOUBLES = ir.VectorType(INT32, LANES), ir.VectorType(ir.DoubleType(), LANES)
_MULTIPLY = {
    16: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
    8: ("avx2", "llvm.x86.avx2.pmadd.wd"),
    4: ("sse2", "llvm.x86.sse2.pmadd.wd"),
}


@jit("i8(i8)")
def padded(columns):
    """Rounds a number of columns, or classes, up to whole panels, or tiles, of any processor."""
    return -(-columns // 32) * 32


def _multiply_pairs(code: Code, features: str, left: Any, right: Any) -> Any:
    """Returns int32 sums of two products each, of int16 vectors, by a processor's `features`."""
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


def _make_tile(kinds: int, digits: int) -> Any:
    """Makes a function that adds the products of factors of some digits to float64 sums."""

    @intrinsic
    def add_tile(_context, left, left_place, left_stride, right, right_place, pairs, base, total,
                 place, stride):  # fmt: skip
        """Adds the products of `kinds` factors with the columns of a panel.

        Args:
          left: int32, pair p of digit m at left_place + p * left_stride + m, the lowest digit
            of each factor first.
          right: int32, pair p of each column from right_place + p * PANEL on.
          base: of the digits.
          place: of the first sum in `total`. The factors' sums are `stride` apart.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def address(array: int, place: int, size: int) -> Any:
                kind = context.make_array(signature.args[array])
                data = builder.ptrtoint(kind(context, builder, arguments[array]).data, INT)
                return code.offset_address(data, (arguments[place], size))

            code, stride = Code(builder), builder.mul(arguments[2], ir.Constant(INT, 4))
            totals = [cgutils.alloca_once(builder, _INTEGERS) for _ in range(2 * kinds * digits)]
            features = context.codegen().magic_tuple()[2]
            left, right, sums = address(0, 1, 4), address(3, 4, 4), address(7, 8, 8)
            _sum_products(code, features, left, stride, right, arguments[5], totals)
            for k in range(kinds):
                part = totals[k * 2 * digits : (k + 1) * 2 * digits]
                _add_digits(code, part, arguments[6], sums, (arguments[9], 8 * k))
            return context.get_dummy_value()

        i8, f8 = types.intp, types.float64
        return types.void(left, i8, i8, right, i8, i8, f8, total, i8, i8), generate

    return add_tile


def _sum_products(
    code: Code, features: str, left: Any, stride: Any, right: Any, pairs: Any, totals: Any
) -> None:
    """Writes int32 sums of the products of each left digit with two vectors of columns."""
    builder = code.builder
    for total in totals:
        builder.store(ir.Constant(_INTEGERS, [0] * LANES), total)
    with cgutils.for_range(builder, pairs, intp=INT) as loop:
        place = code.offset_address(right, (loop.index, 4 * PANEL))
        places = [code.offset_address(place, (4 * LANES, j)) for j in (0, 1)]
        vectors = [code.read_value(place, _PAIRS, align=4) for place in places]
        for m in range(len(totals) // 2):
            place = code.offset_address(left, (loop.index, stride), (4, m))
            digit = code.splat_value(code.read_value(place, INT32, align=4))
            for total, vector in zip(totals[2 * m : 2 * m + 2], vectors, strict=True):
                product = _multiply_pairs(code, features, builder.bitcast(digit, _PAIRS), vector)
                builder.store(builder.add(builder.load(total), product), total)


def _add_digits(code: Code, totals: Any, base: Any, sums: Any, term: tuple[Any, int]) -> None:
    """Adds a factor's two vectors, of its digits' sums, to float64 numbers at an address."""
    builder, bases = code.builder, code.splat_value(base)
    for j in (0, 1):
        value = ir.Constant(_DOUBLES, [0.0] * LANES)
        for total in totals[j::2][::-1]:
            digit = builder.sitofp(builder.load(total), _DOUBLES)
            value = builder.fadd(builder.fmul(value, bases), digit)
        place = code.offset_address(sums, term, (8 * LANES, j))
        code.write_value(builder.fadd(code.read_value(place, _DOUBLES, align=8), value), place)


_add_squares_tile = _make_tile(2 * KINDS, 1)
_add_factors_tile = _make_tile(KINDS, 2)
_add_logits_tile = _make_tile(2, DIGITS)


@jit("i8(f8[:, ::1], i4[:, :, ::1], i8[::1], f8[::1])")
def pack_rows(block, packed, stops, last):
    """Packs whole numbers [m, d + 1] but for the last column, which is a constant.

    Writes pairs of rows in panels of columns [panels, pairs, PANEL]. Writes the pairs at which 32
    bits must be emptied to `stops`. Writes the sum of the rows times their constants to `last`
    [d + 1]. A group of rows joins the ones before it if no column's sum of squares reaches 2^31.
    Then no product of two columns does.

    Returns:
      How many stops there are; 0 if a number is too large, or the squares of 4 rows are.
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
            # also true of NaN
            alone += not group[j] < 2.0**31
            together += not summed[j] < 2.0**31
        if used or alone:
            return 0
        if together:
            stops[count] = start // 2
            count += 1
            summed[:] = group
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
                    _add_squares_tile(
                        packed, i * size + start * PANEL + row, PANEL,
                        packed, j * size + start * PANEL, stop - start, 1.0,
                        total, (i * PANEL + row) * columns + j * PANEL, columns,
                    )  # fmt: skip
                start = stop


@jit("i4[:, :, ::1](f8[:, ::1], i8, i8, i8, i8)")
def split_digits(numbers, pairs, kinds, digits, bits):
    """Splits whole numbers [K, m] into digits, the lowest first: pairs, in tiles of `kinds`."""
    classes, columns = numbers.shape
    out = np.zeros((-(-classes // kinds), pairs, kinds * digits), np.int32)
    for k in range(classes):
        tile, first = out[k // kinds], k % kinds * digits
        for j in range(columns):
            rest, place, move = np.int64(numbers[k, j]), first, 16 * (j % 2)
            for left in range(digits - 1, -1, -1):
                higher = (rest + (1 << (bits - 1))) >> bits if left else 0
                tile[j // 2, place] |= ((rest - (higher << bits)) & 0xFFFF) << move
                rest, place = higher, place + 1
    return out


@jit("b1(f4[:, ::1], f8[::1], f8[::1], f8[::1], i2[:, ::1])")
def fill_rows(features, scale, shift, centre, out):
    """Fills int16 rows like `grid_rows.fill_rows`, without constants; False if they do not fit."""
    columns, used = features.shape[1], 0
    around = centre if centre.shape[0] else np.zeros(columns)
    for i in range(features.shape[0]):
        row, source, factor, length = out[i], features[i], scale[i], shift[i]
        for j in range(columns):
            value = np.int32(factor * source[j] - length * around[j])
            used |= ((value + LARGEST) | (LARGEST - value)) >> 16
            row[j] = value
    return used == 0


@jit("void(i2[:, ::1], i4[:, :, ::1], f8[:, ::1])")
def multiply_weights(rows, digits, out):
    """Fills [K, CHUNK] with the products of rows and the weights of `split_weights`."""
    out[:] = 0.0
    tiles, pairs, size = digits.shape
    panel, columns = np.empty((_SEGMENT // 2, PANEL), np.int32), rows.view(np.int32)
    for start in range(0, pairs, _SEGMENT // 2):
        stop = min(start + _SEGMENT // 2, pairs)
        for low in range(0, CHUNK, PANEL):
            panel[: stop - start] = columns[low : low + PANEL, start:stop].T
            for tile in range(tiles):
                _add_logits_tile(
                    digits, (tile * pairs + start) * size, size, panel, 0, stop - start,
                    2.0**DIGIT_BITS, out, 2 * tile * CHUNK + low, CHUNK,
                )  # fmt: skip


@jit("void(f8[:, ::1], i2[:, ::1], f8[:, ::1])")
def add_products(factors, rows, total):
    """Adds the products of factors [K, m] and the first m rows to `total`, its K padded too."""
    pairs, columns = CHUNK // 2, total.shape[1]
    digits = split_digits(factors, pairs, KINDS, 2, FACTOR_BITS)
    panel = np.empty((pairs, PANEL), np.int32)
    for low in range(0, columns, PANEL):
        for pair in range(pairs):
            first, second = rows[2 * pair], rows[2 * pair + 1]
            for j in range(PANEL):
                panel[pair, j] = (first[low + j] & 0xFFFF) | (second[low + j] << 16)
        for tile in range(digits.shape[0]):
            _add_factors_tile(
                digits, tile * pairs * 2 * KINDS, 2 * KINDS, panel, 0, pairs, 2.0**FACTOR_BITS,
                total, tile * KINDS * columns + low, columns,
            )  # fmt: skip


MACHINE_CODE.keep()


def split_weights(factors: npt.NDArray[np.float64], entry_bits: int) -> Any:
    """Splits weights [d + 1, K] that meet rows with entries of so many bits, at least 13.

    The last row is zero. Returns no digits for fewer bits: weights are then too long.
    """
    if entry_bits < 13:
        return NO_DIGITS
    pairs = padded(len(factors) - 1) // 2
    return split_digits(np.ascontiguousarray(factors[:-1].T), pairs, 2, DIGITS, DIGIT_BITS)


class Squares:
    """The sum of the rows' outer products, [d + 1, d + 1], of rows whose numbers fit."""

    def __init__(self, columns: int) -> None:
        width = padded(columns - 1)
        self._total, self._constant = np.zeros((width, width)), np.zeros(columns)
        self._packed = np.zeros((width // PANEL, 0, PANEL), np.int32)

    def add_rows(self, block: npt.NDArray[np.float64]) -> bool:
        """Adds whole numbers [m, d + 1]; returns False, and adds nothing, if they do not fit."""
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
