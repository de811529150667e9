"""Generates machine code for vectors of float32 or float64, for the loops in `tiles`."""

# mypy: allow-untyped-defs, disable-error-code="call-arg"
# ruff: noqa: ARG001  (of an intrinsic Numba reads the signature, LLVM gets the values)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# The number of rows whose cache lines are fetched in turn; doubled if there are too few steps.
INTERLEAVED = 4
_FEATURES = binding.get_host_cpu_features()
# The number of float32 per vector; a vector has half as many float64.
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx2") else 4
# The number of vector registers: 16 on x86 without AVX-512, 32 on ARM.
REGISTERS = 16 if _FEATURES.get("sse2") and LANES < 16 else 32
# The number of a tile's steps between two prefetches. With few registers, a step has few products.
STEPS = 128 // REGISTERS
FAST = frozenset({"contract", "reassoc", "nsz"})
FLAGS = tuple(sorted(FAST))
LINE = 64  # bytes of a cache line
BYTE, INT, INT32 = ir.IntType(8), ir.IntType(64), ir.IntType(32)


@intrinsic
def fetch_line(_context, address):
    """Prefetches the cache line at an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        Code(builder).prefetch_line(arguments[0])
        return context.get_dummy_value()

    return types.void(types.intp), generate


class Code:
    """Instructions for numbers of one type.

    Args:
      wide: True for float64, False for float32.

    Attributes:
      size: bytes per number.
      lanes: numbers per vector.
      zero: a vector of zeros.
    """

    def __init__(self, builder: Any, *, wide: bool = False) -> None:
        self.builder = builder
        self.number = ir.DoubleType() if wide else ir.FloatType()
        self.size, self.lanes = (8, LANES // 2) if wide else (4, LANES)
        self._vector = ir.VectorType(self.number, self.lanes)
        self.zero = ir.Constant(self._vector, [0.0] * self.lanes)

    def offset_address(self, address: Any, *terms: tuple[Any, Any]) -> Any:
        for left, right in terms:
            left, right = (
                ir.Constant(INT, term) if isinstance(term, int) else term for term in (left, right)
            )
            address = self.builder.add(address, self.builder.mul(left, right))
        return address

    def read_value(self, address: Any, kind: Any, align: int | None = None) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def read_vector(self, address: Any, mask: Any = None) -> Any:
        """Reads a vector; lanes outside the mask are not read and become 0."""
        pointer = self.builder.inttoptr(address, self._vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.size)
        bits = ir.VectorType(ir.IntType(1), self.lanes)
        kind = ir.FunctionType(self._vector, [pointer.type, INT32, bits, self._vector])
        name = f"llvm.masked.load.v{self.lanes}f{8 * self.size}.p0"
        load = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(load, [pointer, ir.Constant(INT32, self.size), mask, self.zero])

    def write_value(self, value: Any, address: Any) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=self.size)

    def prefetch_line(self, address: Any) -> None:
        """Prefetches the cache line at an address into the second-level cache."""
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT32, INT32, INT32])
        ask = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        pointer = self.builder.inttoptr(address, BYTE.as_pointer())
        self.builder.call(ask, [pointer, *(ir.Constant(INT32, value) for value in (0, 2, 1))])

    def fetch_ahead(self, spots: Any, start: Any, together: Any, line: Any) -> None:
        """Prefetches one cache line per row, for `INTERLEAVED` rows or twice as many.

        `spots` is the address of the rows' addresses; `line` is counted from the byte `start`.
        """
        byte = self.builder.add(start, self.builder.mul(line, ir.Constant(INT, LINE)))

        def fetch_rows(rows: range) -> None:
            for row in rows:
                spot = self.read_value(self.offset_address(spots, (8, row)), INT)
                self.prefetch_line(self.builder.add(spot, byte))

        fetch_rows(range(INTERLEAVED))
        more = self.builder.icmp_signed(">", together, ir.Constant(INT, INTERLEAVED))
        with self.builder.if_then(more):
            fetch_rows(range(INTERLEAVED, 2 * INTERLEAVED))

    def walk_steps(self, steps: Any, advance: Callable[[Any], None], ahead: Sequence[Any]) -> None:
        """Generates a loop that calls `advance` per step, and prefetches every `STEPS` steps."""
        together = ir.Constant(INT, STEPS)
        groups = self.builder.sdiv(steps, together)
        with cgutils.for_range(self.builder, groups, intp=INT) as loop:
            if ahead:
                self.fetch_ahead(*ahead, loop.index)
            first = self.builder.mul(loop.index, together)
            for step in range(STEPS):
                advance(self.builder.add(first, ir.Constant(INT, step)))
        done = self.builder.mul(groups, together)
        with cgutils.for_range(self.builder, self.builder.sub(steps, done), intp=INT) as loop:
            advance(self.builder.add(done, loop.index))

    def splat_value(self, value: Any) -> Any:
        kind = ir.VectorType(value.type, self.lanes)
        none = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(none, value, ir.Constant(INT32, 0))
        order = ir.Constant(ir.VectorType(INT32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, none, order)

    def make_mask(self, count: Any) -> Any:
        lanes = ir.Constant(ir.VectorType(INT, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, self.splat_value(count))

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        product = self.builder.fmul(left, right, flags=FLAGS)
        value = self.builder.fadd(product, self.builder.load(total), flags=FLAGS)
        self.builder.store(value, total)

    def make_zeros(self, rows: int, columns: int) -> list[list[Any]]:
        """Returns variables with value 0, which LLVM keeps in registers."""
        return [
            [cgutils.alloca_once_value(self.builder, self.zero) for _ in range(columns)]
            for _ in range(rows)
        ]

    def sum_vectors(self, vectors: Sequence[Any]) -> Any:
        """Returns the sums of two or four vectors, as one vector."""
        count, vectors, lanes = len(vectors), [*vectors, *vectors], self.lanes
        pairs = [self._fold_lanes(*vectors[i : i + 2], lanes) for i in (0, 2)]
        if lanes == 2:
            return self.pick_lanes(*pairs, range(count))
        folded, size = self._fold_lanes(*pairs, lanes // 2), lanes // 4
        while size > 1:
            size //= 2
            swapped = [lane ^ size for lane in range(lanes)]
            folded = self.builder.fadd(
                folded, self.pick_lanes(folded, folded, swapped), flags=FLAGS
            )
        return self.pick_lanes(folded, folded, range(0, lanes, lanes // 4)[:count])

    def _fold_lanes(self, left: Any, right: Any, size: int) -> Any:
        """Adds the halves of each group of `size` lanes; sums of `left` precede sums of `right`."""
        starts = range(0, 2 * self.lanes, size)
        low = [start + lane for start in starts for lane in range(size // 2)]
        halves = [
            self.pick_lanes(left, right, [lane + half for lane in low]) for half in (0, size // 2)
        ]
        return self.builder.fadd(*halves, flags=FLAGS)

    def pick_lanes(self, left: Any, right: Any, lanes: Sequence[int]) -> Any:
        order = ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(left, right, order)
