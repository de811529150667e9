"""Compares compiled sums with NumPy's in float64, on vectors of fewer lanes than this processor's.

Run as `python -m tests.support.narrower_vectors`. Each number of lanes has a process of its own, as
Numba looks at the processor once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import binding

# By the most lanes: the beginnings of names of features that the processor is to lack. LLVM takes a
# feature back in with any that needs it: AVX with FMA, say.
LACKS = {
    8: ["avx512"],
    4: ["avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop", "sha512", "sm3", "sm4"],
}
# Rows, dimension, classes.
SHAPES = ((1, 1, 2), (7, 15, 3), (131, 65, 7), (40, 768, 10), (127, 64, 21), (60, 1030, 16))

Matrix = npt.NDArray[np.float64]


def hide(prefixes: list[str]) -> None:
    """Lets the processor seem to lack the features whose names begin so, to LLVM as well."""
    features = binding.get_host_cpu_features()
    features.update({name: False for name in features if name.startswith(tuple(prefixes))})
    binding.get_host_cpu_features = lambda: features


def compile_what_is_called() -> None:
    """Compiles functions at their first call, for the types of its arguments.

    Else steps and their noise are compiled too, which takes as long again and nothing calls them.
    For the same reason sums are added chunk by chunk here: what cuts rows into chunks has no lanes.
    """
    from dpprobe.privacy import machine_code

    code: Any = machine_code.MachineCode
    jit = code.jit
    code.jit = lambda self, *_, **flags: jit(self, **flags)


def numpy_sum(arrays: Any, rows: Any, weights: Any) -> Matrix:
    """Returns one head's clipped sum in float64, [classes, dimension + 1]."""
    x = arrays.scale[rows].astype(float)[:, None] * arrays.features[rows]
    logits = x @ weights[:, :-1].astype(float).T + weights[:, -1]
    used = (abs(logits) <= np.finfo(np.float32).max).all(1)
    x, logits, rows = x[used], logits[used], rows[used]
    powers = np.exp(logits - logits.max(1, initial=-np.inf, keepdims=True))
    residual = 1 / (1 + np.exp(-logits)) if arrays.sigmoid else powers / powers.sum(1)[:, None]
    residual -= arrays.multi_hot[rows] if len(arrays.multi_hot) else (
        np.eye(len(weights))[arrays.labels[rows]])  # fmt: skip
    length = np.linalg.norm(residual, axis=1)
    parts = arrays.parts[rows] if len(arrays.parts) else 1.0
    residual *= (np.minimum(1, arrays.bounds[rows] / length) * parts)[:, None]
    return np.column_stack([residual.T @ x, residual.sum(0)])


def compare(n: int, dimension: int, classes: int) -> float:
    """Returns the largest difference of the compiled sum, over the sum's largest value."""
    from dpprobe.heads.kernels import fused_step

    generator = np.random.default_rng(n)
    features = generator.standard_normal((n, dimension), dtype=np.float32)
    labels = generator.integers(0, classes, n)
    weights = fused_step.padded_zeros(1, classes, dimension + 1).numpy()
    weights[0, :classes, : dimension + 1] = generator.standard_normal((classes, dimension + 1)) / 2
    arrays = fused_step.Arrays.make_arrays(
        torch.from_numpy(features),
        torch.ones(n),
        torch.from_numpy(labels),
        torch.full((n,), 0.7, dtype=torch.float64),
        sigmoid=False,
    )
    sums, order = np.zeros_like(weights), np.arange(n)
    scratch, most = fused_step._make_scratch(weights.shape[1]), fused_step.CHUNK // 2
    for start in range(0, n, most):
        chunk, following = np.split(order[start : start + 2 * most], [most])
        fused_step._add_chunk(*arrays, chunk, following, weights, classes, sums, scratch)
    wanted = numpy_sum(arrays, order, weights[0, :classes, : dimension + 1])
    return float(abs(sums[0, :classes, : dimension + 1] - wanted).max() / abs(wanted).max())


def compare_integers(n: int, dimension: int, classes: int) -> bool:
    """Returns True if products of 16-bit integers are those of 64 bits."""
    from dpprobe.heads.kernels import integer_products as products

    n, generator = min(n, products.CHUNK), np.random.default_rng(n)
    rows = generator.integers(-9000, 9000, (products.CHUNK, products.padded(dimension, 32)))
    rows[:, dimension:] = 0
    weights = generator.integers(-(2**28), 2**28, (classes, dimension))
    factors = generator.integers(-(2**17), 2**17, (classes, n))
    squares = products.Squares(dimension + 1)
    assert squares.add_rows(np.c_[rows[:n, :dimension], rows[:n, 0]].astype(float))
    gram = np.zeros((dimension + 1, dimension + 1))
    squares.add_to(gram)
    logits, bits = np.empty((n, classes)), products.digit_bits(17)
    digits = products.split_weights(weights.astype(float), bits)
    products.multiply_weights(rows.astype(np.int16), digits, 2.0**bits, logits)
    sums = np.zeros((products.padded(classes, 4), rows.shape[1]))
    products.add_products(factors.astype(float), rows.astype(np.int16), sums)
    kept = rows[:, :dimension]
    return (
        np.array_equal(np.triu(gram[:-1, :-1]), np.triu(kept[:n].T @ kept[:n]))
        and np.array_equal(logits, kept[:n] @ weights.T)
        and np.array_equal(sums[:classes], factors @ rows[:n])
    )


def check_sums(lanes: int) -> None:
    hide(LACKS[lanes])
    compile_what_is_called()
    from dpprobe.heads.kernels import vectors

    assert lanes >= vectors.LANES, f"{vectors.LANES} lanes"
    for shape in SHAPES:
        difference = compare(*shape)
        assert difference < 2e-6, (shape, difference)
        assert compare_integers(*shape), shape


def main() -> None:
    for lanes in LACKS:
        if os.fork():
            assert os.wait()[1] == 0, f"{lanes} lanes"
        else:
            check_sums(lanes)
            return


if __name__ == "__main__":
    main()
