"""Clipped gradient sums on the CPU, in machine code: the sums of `clipping`, in one pass.

Written here, since no library clips in the middle of two products without a pass over memory.

A chunk of rows is multiplied with the weights, turned into clipped residuals, and multiplied with
them again while it is still in the processor's cache. Both products go by tiles of 20 vectors of
partial sums that stay in registers (5 classes x 4 rows, then 5 classes x 4 vectors of columns):
105 to 113 of 112 GF/s a core on AVX-512, at 32 rows of 768 x 10 as at 2048 x 100, where a matrix
product of MKL reaches 30 to 70 %. So there is no size from which another way would win on one
core. Rows are read where they lie; the rows of the next batch are fetched into the cache
meanwhile, which takes a fifth off a step of 32 rows that come from main memory.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dpprobe.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

# The bound of a row that may not contribute: not 0, since 0 / 0 is no number.
NOT_USABLE = 1e-300
# Rows of a chunk: the residuals of so many, and the rows, fit the second-level cache.
CHUNK = 128
_CLASSES, _ROWS, _VECTORS = 5, 4, 4
# Rows of the next chunk that are fetched beside a tile: the four of its place by two tiles.
_AHEAD = 2


def _lanes() -> int:
    """Returns the number of float32 values in a vector register."""
    features = binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


_LANES = _lanes()
_ALIGNED = 16

_FAST = frozenset({"contract", "reassoc", "nsz"})
_FLAGS = tuple(sorted(_FAST))
_FLOAT, _BYTE = ir.FloatType(), ir.IntType(8)
_INT, _INT32 = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * _LANES)


class _Code:
    """Instructions on vectors of float32 at addresses."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def offset(self, address: Any, *terms: tuple[Any, Any]) -> Any:
        """Returns the address plus the sum of products."""
        for left, right in terms:
            left, right = (
                ir.Constant(_INT, term) if isinstance(term, int) else term for term in (left, right)
            )
            address = self.builder.add(address, self.builder.mul(left, right))
        return address

    def read(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))

    def vector(self, address: Any, mask: Any = None) -> Any:
        """Reads a vector; lanes that the mask leaves out are not read and 0."""
        pointer = self.builder.inttoptr(address, _VECTOR.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=4)
        kind = ir.FunctionType(
            _VECTOR,
            [_VECTOR.as_pointer(), _INT32, ir.VectorType(ir.IntType(1), _LANES), _VECTOR],
        )
        load = cgutils.get_or_insert_function(
            self.builder.module, kind, f"llvm.masked.load.v{_LANES}f32.p0"
        )
        return self.builder.call(load, [pointer, ir.Constant(_INT32, 4), mask, _ZERO])

    def write(self, value: Any, address: Any) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def prefetch(self, address: Any) -> None:
        """Asks for the cache line at an address, in the second-level cache."""
        kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _INT32, _INT32, _INT32])
        ask = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        pointer = self.builder.inttoptr(address, _BYTE.as_pointer())
        self.builder.call(ask, [pointer, *(ir.Constant(_INT32, value) for value in (0, 2, 1))])

    def splat(self, value: Any) -> Any:
        kind = ir.VectorType(value.type, _LANES)
        none = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(none, value, ir.Constant(_INT32, 0))
        order = ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES)
        return self.builder.shuffle_vector(first, none, order)

    def mask(self, count: Any) -> Any:
        """Returns the mask of the first `count` lanes."""
        lanes = ir.Constant(ir.VectorType(_INT, _LANES), list(range(_LANES)))
        return self.builder.icmp_signed("<", lanes, self.splat(count))

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        """Adds left * right to a variable of the function."""
        product = self.builder.fmul(left, right, flags=_FLAGS)
        value = self.builder.fadd(product, self.builder.load(total), flags=_FLAGS)
        self.builder.store(value, total)

    def zeros(self, rows: int, columns: int) -> list[list[Any]]:
        """Returns variables that are 0, which LLVM keeps in registers."""
        return [
            [cgutils.alloca_once_value(self.builder, _ZERO) for _ in range(columns)]
            for _ in range(rows)
        ]

    def sum(self, value: Any) -> Any:
        add = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR]),
            f"llvm.vector.reduce.fadd.v{_LANES}f32",
        )
        return self.builder.call(add, [ir.Constant(_FLOAT, 0.0), value], fastmath=_FLAGS)


@intrinsic
def _products(_context, rows, d, weights, stride, out, out_stride, later):
    """Writes [5, 4]: the products of 5 rows of weights and the rows that 4 addresses point to.

    On the way the rows that 2 further addresses point to are fetched into the cache.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        rows, d, weights, stride, out, out_stride, later = arguments
        code = _Code(builder)
        ahead = [code.read(code.offset(later, (8, i)), _INT) for i in range(_AHEAD)]
        points = [code.read(code.offset(rows, (8, i)), _INT) for i in range(_ROWS)]
        heads = [code.offset(weights, (stride, k)) for k in range(_CLASSES)]
        totals = code.zeros(_CLASSES, _ROWS)

        def advance(byte: Any, mask: Any) -> None:
            for point in ahead:
                code.prefetch(builder.add(point, byte))
            vectors = [code.vector(builder.add(point, byte), mask) for point in points]
            for head, head_totals in zip(heads, totals, strict=True):
                weight = code.vector(builder.add(head, byte), mask)
                for total, vector in zip(head_totals, vectors, strict=True):
                    code.add_product(total, weight, vector)

        whole = builder.sdiv(d, ir.Constant(_INT, _LANES))
        with cgutils.for_range(builder, whole, intp=_INT) as loop:
            advance(builder.mul(loop.index, ir.Constant(_INT, 4 * _LANES)), None)
        left = builder.sub(d, builder.mul(whole, ir.Constant(_INT, _LANES)))
        with builder.if_then(builder.icmp_signed(">", left, ir.Constant(_INT, 0))):
            advance(builder.mul(whole, ir.Constant(_INT, 4 * _LANES)), code.mask(left))
        for k in range(_CLASSES):
            for i in range(_ROWS):
                total = code.sum(builder.load(totals[k][i]))
                code.write(total, code.offset(out, (out_stride, k), (4, i)))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


def _outer_sum(code: _Code, arguments: Any, vectors: int, mask: Any) -> None:
    """Adds to 5 rows of sums, `vectors` wide: residuals [5, m] times [m] rows at addresses."""
    rows, m, residuals, residual_stride, sums, stride, byte = arguments
    builder = code.builder
    totals = code.zeros(_CLASSES, vectors)
    for class_totals in totals:
        for total in class_totals:
            builder.store(_ZERO, total)
    with cgutils.for_range(builder, m, intp=_INT) as loop:
        point = builder.add(code.read(code.offset(rows, (8, loop.index)), _INT), byte)
        parts = [code.vector(code.offset(point, (4 * _LANES, j)), mask) for j in range(vectors)]
        for k, class_totals in enumerate(totals):
            place = code.offset(residuals, (residual_stride, k), (4, loop.index))
            residual = code.splat(code.read(place, _FLOAT))
            for total, part in zip(class_totals, parts, strict=True):
                code.add_product(total, residual, part)
    for k, class_totals in enumerate(totals):
        for j, total in enumerate(class_totals):
            place = code.offset(builder.add(sums, byte), (stride, k), (4 * _LANES, j))
            code.write(builder.fadd(code.vector(place), builder.load(total)), place)


@intrinsic
def _add_outer(_context, rows, m, residuals, residual_stride, sums, stride, byte):
    """Adds `_outer_sum` over 4 vectors of columns, from `byte` on."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _outer_sum(_Code(builder), arguments, _VECTORS, None)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


@intrinsic
def _add_outer_end(_context, rows, m, residuals, residual_stride, sums, stride, byte, left):
    """Adds `_outer_sum` over the vector at `byte`, of which `left` columns are features."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        code = _Code(builder)
        _outer_sum(code, arguments[:-1], 1, code.mask(arguments[-1]))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 8), generate


_f4, _i4, _f8 = np.float32, np.int32, np.float64
_ONE, _HALF, _NONE = _f4(1), _f4(0.5), _f4(0)
_LARGEST = np.finfo(np.float32).max
_LEAST_EXPONENT = _f4(-87)
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = _f4(1.44269504088896341), _f4(0.693359375), _f4(-2.12194440e-4)
_BIAS, _MANTISSA_BITS = _i4(127), _i4(23)
# exp(x) for |x| up to ln(2) / 2: Cephes, expf.
_E0, _E1, _E2 = _f4(5.0000001201e-1), _f4(1.6666665459e-1), _f4(4.1665795894e-2)
_E3, _E4, _E5 = _f4(8.3334519073e-3), _f4(1.3981999507e-3), _f4(1.9875691500e-4)


@jit(fastmath=_FAST)
def _exp(x):
    """Returns exp(x) for x up to 0, which is not NaN; e^-87 below -87."""
    x = max(x, _LEAST_EXPONENT)
    power = _i4(x * _LOG2_E - _HALF)
    whole = _f4(power)
    x = (x - whole * _LN_2_HIGH) - whole * _LN_2_LOW
    series = ((((_E5 * x + _E4) * x + _E3) * x + _E2) * x + _E1) * x + _E0
    return (series * (x * x) + x + _ONE) * _i4(_i4(power + _BIAS) << _MANTISSA_BITS).view(_f4)


@jit("void(f4[:, ::1], i8, i8, f4[::1], f4[::1], f4[:, ::1], i8, f4[::1])", fastmath=_FAST)
def _finish_logits(z, classes, m, scale, top, weights, d, usable):
    """Applies scale and bias; finds each row's largest logit.

    A row with a logit that is not finite gets 0 in `usable` and in all its logits.
    """
    for i in range(m):
        top[i] = -_LARGEST
        usable[i] = _ONE
    for k in range(classes):
        line = z[k]
        bias = weights[k, d]
        for i in range(m):
            value = line[i] * scale[i] + bias
            usable[i] = usable[i] if abs(value) <= _LARGEST else _NONE
            top[i] = max(top[i], value)
            line[i] = value
    for k in range(classes):
        line = z[k]
        for i in range(m):
            line[i] = line[i] if usable[i] > _NONE else _NONE
    for i in range(m):
        top[i] = top[i] if usable[i] > _NONE else _NONE


@jit("void(f4[:, ::1], i8, i8, f4[::1], f4[::1])", fastmath=_FAST)
def _softmax(z, classes, m, top, total):
    for i in range(m):
        total[i] = _NONE
    for k in range(classes):
        line = z[k]
        for i in range(m):
            power = _exp(line[i] - top[i])
            line[i] = power
            total[i] += power
    for i in range(m):
        total[i] = _ONE / total[i]
    for k in range(classes):
        line = z[k]
        for i in range(m):
            line[i] *= total[i]


@jit("void(f4[:, ::1], i8, i8)", fastmath=_FAST)
def _sigmoid(z, classes, m):
    for k in range(classes):
        line = z[k]
        for i in range(m):
            power = _exp(-abs(line[i]))
            line[i] = (_ONE if line[i] > _NONE else power) / (_ONE + power)


@jit(
    "void(f4[:, ::1], i8, i8, f8[::1], f4[::1], f4[::1], f4[::1], f8[::1], f4[:, ::1], i8)",
    fastmath=_FAST,
)
def _clip(z, classes, m, bounds, scale, parts, usable, factors, release, d):
    """Scales residuals down to the bounds, then by the parts; adds them to the biases' column.

    Then the residuals are multiplied with the rows' scale.
    """
    for i in range(m):
        factors[i] = 0.0
    for k in range(classes):
        line = z[k]
        for i in range(m):
            factors[i] += _f8(line[i]) * _f8(line[i])
    for i in range(m):
        factor = min(bounds[i] / np.sqrt(factors[i]), 1.0)
        factors[i] = factor * _f8(parts[i]) if usable[i] > _NONE else 0.0
    for k in range(classes):
        line = z[k]
        total = _NONE
        for i in range(m):
            clipped = _f8(line[i]) * factors[i]
            total += _f4(clipped)
            line[i] = _f4(clipped * _f8(scale[i]))
        release[k, d] += total


@jit()
def _multiply(pointers, m, d, weights, z, later):
    """Writes weights times rows to z; the rows that `later` points to are fetched on the way."""
    rows, heads, stride = pointers.ctypes.data, weights.ctypes.data, weights.strides[0]
    logits, logit_stride = z.ctypes.data, z.strides[0]
    for k in range(0, weights.shape[0], _CLASSES):
        for i in range(0, m, _ROWS):
            # Of the first two blocks of classes; the others ask for what they read anyway.
            ahead = rows + 8 * i
            if k < 2 * _CLASSES:
                ahead = later.ctypes.data + 8 * (i + k // _CLASSES * _AHEAD)
            _products(
                rows + 8 * i, d, heads + k * stride, stride,
                logits + k * logit_stride + 4 * i, logit_stride, ahead,
            )  # fmt: skip


@jit()
def _multiply_back(pointers, m, d, z, release):
    """Adds z times rows to the release."""
    rows, residuals, residual_stride = pointers.ctypes.data, z.ctypes.data, z.strides[0]
    sums, stride = release.ctypes.data, release.strides[0]
    whole = d // (_LANES * _VECTORS) * (_LANES * _VECTORS)
    for j in range(0, whole, _LANES * _VECTORS):
        for k in range(0, release.shape[0], _CLASSES):
            _add_outer(
                rows, m, residuals + k * residual_stride, residual_stride,
                sums + k * stride, stride, 4 * j,
            )  # fmt: skip
    for j in range(whole, d, _LANES):
        for k in range(0, release.shape[0], _CLASSES):
            _add_outer_end(
                rows, m, residuals + k * residual_stride, residual_stride,
                sums + k * stride, stride, 4 * j, d - j,
            )  # fmt: skip


@jit()
def _add_chunk(
    features, scale, labels, multi_hot, bounds, parts, sigmoid, rows, following, weights, classes,
    release,
):  # fmt: skip
    """Adds the clipped sum over at most `CHUNK` rows to each seed's release."""
    m, d = rows.shape[0], features.shape[1]
    z = np.empty((weights.shape[1], CHUNK), dtype=np.float32)
    pointers, later = np.empty(CHUNK, dtype=np.int64), np.empty(CHUNK, dtype=np.int64)
    row_scale, row_bounds = np.empty(m, dtype=np.float32), np.empty(m, dtype=np.float64)
    row_parts = np.ones(m, dtype=np.float32)
    top, total = np.empty(m, dtype=np.float32), np.empty(m, dtype=np.float32)
    usable, factors = np.empty(m, dtype=np.float32), np.empty(m, dtype=np.float64)
    for i in range(m):
        row_scale[i], row_bounds[i] = scale[rows[i]], bounds[rows[i]]
    if parts.shape[0]:
        for i in range(m):
            row_parts[i] = parts[rows[i]]
    for i in range(-(-m // _ROWS) * _ROWS):
        pointers[i] = features.ctypes.data + 4 * d * rows[min(i, m - 1)]
        later[i] = pointers[i]
        if i < following.shape[0]:
            later[i] = features.ctypes.data + 4 * d * following[i]
    for seed in range(weights.shape[0]):
        head = weights[seed]
        _multiply(pointers, m, d, head, z, later if seed == 0 else pointers)
        _finish_logits(z, classes, m, row_scale, top, head, d, usable)
        if sigmoid:
            _sigmoid(z, classes, m)
        else:
            _softmax(z, classes, m, top, total)
        if multi_hot.shape[0]:
            for i in range(m):
                for k in range(classes):
                    z[k, i] -= _f4(multi_hot[rows[i], k])
        else:
            for i in range(m):
                z[labels[rows[i]], i] -= _ONE
        _clip(z, classes, m, row_bounds, row_scale, row_parts, usable, factors, release[seed], d)
        _multiply_back(pointers, m, d, z, release[seed])


_DATA = "f4[:, ::1], f4[::1], i8[::1], u1[:, ::1], f8[::1], f4[::1], b1, i8[::1]"


@jit(f"void({_DATA}, f4[:, :, ::1], i8, f4[:, :, ::1])")
def add_clipped_sums(
    features, scale, labels, multi_hot, bounds, parts, sigmoid, rows, weights, classes, releases
):
    """Adds each seed's clipped sum over the same rows [m] to its release.

    Args:
      features: float32 [n, d].
      scale: float32 [n], what each row is multiplied with.
      labels: int64 [n]; or [0] for rows of several labels.
      multi_hot: uint8 [n, classes] for rows of several labels; or [0, 0].
      bounds: float64 [n], from `clipping.clip_bounds`.
      parts: float32 [n], what each row's clipped gradient is multiplied with; or [0] for ones.
      sigmoid: True if the loss is a sum of sigmoid cross-entropies.
      rows: int64 [m], each from 0 to n - 1: this is not checked.
      weights, releases: float32 [seeds, padded classes, padded d + 1], from `padded`.
      classes: how many there are.
    """
    for start in range(0, rows.shape[0], CHUNK):
        stop = min(start + CHUNK, rows.shape[0])
        _add_chunk(
            features, scale, labels, multi_hot, bounds, parts, sigmoid, rows[start:stop],
            rows[stop : stop + CHUNK], weights, classes, releases,
        )  # fmt: skip


_HEAD = "f4[:, :, ::1]"


@jit(f"void({_DATA}, i8[::1], f4[:, ::1], f4[::1], {_HEAD}, i8, {_HEAD}, f4[::1], {_HEAD})")
def descend(
    features, scale, labels, multi_hot, bounds, parts, sigmoid, rows, sizes, noise, rates,
    weights, classes, release, mixing, average,
):  # fmt: skip
    """Takes steps of one head, a batch each: weights -= rate * (clipped sum + noise).

    Args:
      features, scale, labels, multi_hot, bounds, parts, sigmoid, classes: as in
        `add_clipped_sums`.
      rows: the batches' rows, batch after batch.
      sizes: int64 [steps], each batch's rows.
      noise: float32 [steps, at least classes * (d + 1)].
      rates: float32 [steps].
      weights, release: [1, padded classes, padded d + 1]; the release is scratch.
      mixing: float32 [steps], how far the average moves towards the weights; or [0].
      average: like weights, where there is one.
    """
    columns = features.shape[1] + 1
    start = 0
    for step in range(sizes.shape[0]):
        for k in range(classes):
            total, drawn = release[0, k], noise[step, k * columns : (k + 1) * columns]
            for j in range(columns):
                total[j] = drawn[j]
        stop = start + sizes[step]
        for first in range(start, stop, CHUNK):
            last = min(first + CHUNK, stop)
            _add_chunk(
                features, scale, labels, multi_hot, bounds, parts, sigmoid, rows[first:last],
                rows[last : last + last - first], weights, classes, release,
            )  # fmt: skip
        start, rate = stop, rates[step]
        for k in range(classes):
            total, head = release[0, k], weights[0, k]
            for j in range(columns):
                head[j] -= rate * total[j]
        if mixing.shape[0]:
            mix = mixing[step]
            for k in range(classes):
                head, mean = weights[0, k], average[0, k]
                for j in range(columns):
                    mean[j] += mix * (head[j] - mean[j])


MACHINE_CODE.keep()


def padded(seeds: int, classes: int, columns: int) -> torch.Tensor:
    """Returns zeros [seeds, classes, columns], the last two rounded up to whole tiles."""
    rows = -(-classes // _CLASSES) * _CLASSES
    return torch.zeros((seeds, rows, -(-columns // _ALIGNED) * _ALIGNED))


class Arrays(NamedTuple):
    """The first arguments of `add_clipped_sums` and `descend`."""

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    multi_hot: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.float64]
    parts: npt.NDArray[np.float32]
    sigmoid: bool

    @classmethod
    def of(
        cls,
        features: torch.Tensor,
        scale: torch.Tensor,
        labels: torch.Tensor,
        bounds: torch.Tensor,
        parts: torch.Tensor | None = None,
        *,
        sigmoid: bool,
    ) -> Arrays:
        """Makes arrays of tensors on the CPU, labels int64 [n] or uint8 [n, classes].

        A row that may not contribute, whose bound is next to 0, is multiplied with 0.
        """
        scale = torch.where(bounds > NOT_USABLE, scale, 0.0)
        several = labels.ndim == 2
        return cls(
            features.contiguous().numpy(),
            scale.numpy(),
            np.zeros(0, dtype=np.int64) if several else labels.contiguous().numpy(),
            labels.contiguous().numpy() if several else np.zeros((0, 0), dtype=np.uint8),
            bounds.contiguous().numpy(),
            np.zeros(0, dtype=np.float32) if parts is None else parts.contiguous().numpy(),
            sigmoid,
        )
