"""Measures a machine's limits: matrix products, normal numbers, gathers and launches."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.blas import dsyrk

from clock import Clock, Engine, Fastest, Work
from dpprobe.privacy.float32_noise import GaussianNoise

SQUARE = 2048
_NORMALS = 2**20
_NOISE_STEPS = 16
_GATHERS = 256
_BLOCK = 2048


def rates(clock: Clock, features: torch.Tensor) -> dict[str, Engine]:
    """Makes engines for square products, a million normals, gathers of 32 rows, and one op."""
    device = features.device
    left, right = torch.randn(2, SQUARE, SQUARE, device=device).unbind()
    out = torch.empty_like(left)
    normals = torch.empty(_NORMALS, device=device)
    noise = GaussianNoise([1], _NORMALS // _NOISE_STEPS, device)
    index = torch.randint(len(features), (_GATHERS, 32), device=device).sort().values
    rows = cycle(index.unbind())
    batch = features.new_empty(32, features.shape[1])
    single = torch.zeros(1, device=device)
    work: dict[str, Work] = {
        "square, torch": lambda: torch.mm(left, right, out=out),
        "normals, torch": lambda: normals.normal_(),
        "normals, dpprobe": lambda: noise.draw_steps(_NOISE_STEPS, 1.0),
        "gather": lambda: torch.index_select(features, 0, next(rows), out=batch),
        "op": lambda: single.add_(1.0),
    }
    if clock.device == "cpu":
        generator = np.random.Generator(np.random.SFC64(0))
        arrays = [part.numpy() for part in (left, right, out, normals)]
        work["square, NumPy"] = lambda: np.matmul(arrays[0], arrays[1], out=arrays[2])
        work["normals, NumPy"] = lambda: generator.standard_normal(dtype=np.float32, out=arrays[3])
    return {name: Engine(clock.repeated(one)) for name, one in work.items()}


def units(dimension: int) -> dict[str, float]:
    """Counts the work in one call of each of `rates`: operations, normals, bytes, launches."""
    amounts = {f"normals, {library}": float(_NORMALS) for library in ("torch", "NumPy", "dpprobe")}
    amounts |= {f"square, {library}": 2.0 * SQUARE**3 for library in ("torch", "NumPy")}
    return amounts | {"gather": 32 * 4.0 * dimension, "op": 1.0}


def products(clock: Clock, features: torch.Tensor, batch: int, classes: int) -> Engine:
    """Makes an engine for a step's two products, logits and gradient, in their fastest form.

    Tries logits by rows and by columns, the whole batch and blocks that fit the cache, classes
    unpadded and padded to a multiple of 16, torch and (for the whole batch) NumPy.
    """
    rows = features[:batch]
    ways: list[Work] = [_by_numpy(rows, classes)] if clock.device == "cpu" else []
    for width in {classes, -(-classes // 16) * 16}:
        for size in {batch, min(batch, _BLOCK)}:
            ways += [_by_rows(rows, width, size), _by_columns(rows, width, size)]
    return Engine(Fastest([clock.repeated(way) for way in ways]))


def _by_rows(rows: torch.Tensor, width: int, size: int) -> Work:
    weights = torch.randn(rows.shape[1], width, device=rows.device)
    total = torch.zeros(rows.shape[1], width, device=rows.device)
    logits = rows.new_empty(size, width)

    def work() -> None:
        for block in rows.split(size):
            part = logits[: len(block)]
            torch.mm(block, weights, out=part)
            total.addmm_(block.T, part, beta=0)

    return work


def _by_columns(rows: torch.Tensor, width: int, size: int) -> Work:
    weights = torch.randn(width, rows.shape[1], device=rows.device)
    total = torch.zeros(width, rows.shape[1], device=rows.device)

    def work() -> None:
        for block in rows.split(size):
            total.addmm_(torch.mm(weights, block.T), block, beta=0)

    return work


def _by_numpy(rows: torch.Tensor, width: int) -> Work:
    weights = np.ones((rows.shape[1], width), dtype=np.float32)
    array = rows.numpy()
    return lambda: np.matmul(np.matmul(array, weights).T, array)


def second_order(clock: Clock, features: torch.Tensor) -> dict[str, Engine]:
    """Makes engines for X^T X, and for the Cholesky factor and eigenvectors of such a matrix."""
    dimension = features.shape[1]
    out = torch.zeros(dimension, dimension, device=features.device)
    part = features[: 4 * dimension]
    matrix = torch.mm(part.T, part) / len(part)

    def blocks() -> None:
        out.zero_()
        for block in features.split(_BLOCK):
            out.addmm_(block.T, block)

    gram = [clock.repeated(lambda: torch.mm(features.T, features, out=out)), clock.repeated(blocks)]
    triangle = {}
    if clock.device == "cpu":
        # NumPy calls syrk, because the two factors are each other's transpose.
        array = features.numpy()
        triangle["X^T X, one triangle"] = Engine(clock.repeated(lambda: np.matmul(array.T, array)))
        triangle["X^T X, float64 triangle"] = Engine(clock.repeated(lambda: _exact(array)))
    return triangle | {
        "X^T X": Engine(Fastest(gram)),
        "Cholesky": Engine(clock.repeated(lambda: torch.linalg.cholesky(matrix))),
        "eigh": Engine(clock.repeated(lambda: torch.linalg.eigh(matrix))),
    }


def _exact(array: npt.NDArray[np.float32]) -> None:
    """Computes X^T X as exact sums do: in float64, block by block, one triangle."""
    total = np.zeros((array.shape[1], array.shape[1]), order="F")
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK].astype(np.float64)
        total = dsyrk(1.0, block.T, 1.0, total, overwrite_c=1)


def bounds(
    seconds: dict[str, float], *, batch: int, dimension: int, classes: int
) -> dict[str, float]:
    """Returns the seconds of a step's parts at the machine's own rates.

    Products take the fastest rate of square products, noise the fastest rate of normals. Gathering
    rows from memory can overlap with products and noise.

    Args:
      seconds: seconds of one unit of each of `rates`.
      batch: rows of a step.
    """
    columns = dimension + 1
    square, normal = (
        min(value for name, value in seconds.items() if name.startswith(kind))
        for kind in ("square", "normals")
    )
    return {
        "products": 4.0 * batch * columns * classes * square,
        "noise": columns * classes * normal,
        "gather": 4.0 * batch * dimension * seconds["gather"],
    }
