"""The compiled steps: every shape's tiles, and whole steps against steps one by one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpprobe.heads import clipping
from dpprobe.heads.clipping import ClippedGradients, NativePoissonSum
from dpprobe.heads.kernels import fused_step
from dpprobe.heads.rows import Rows
from dpprobe.privacy.gradient_noise import GaussianNoise
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import NOT_OBSERVED
from dpprobe.privacy.sampling import PoissonSampler
from tests.conftest import REPOSITORY
from tests.support.gradient_sums import full_sum, padded, random_weights, unpadded
from tests.support.linear_heads import CPU, oracle_sum, relative, rows_of, training_set
from tests.support.poisson_batches import poisson_batches

pytestmark = pytest.mark.usefixtures("one_thread")


SMALL = itertools.product((1, 3, 15, 16, 17, 63, 64, 65, 128, 200), (2, 5, 6, 11))
# long rows and many classes, which go by blocks
LARGE = [(64, 16), (65, 21), (200, 1000), (1024, 16), (1025, 21), (2100, 3), (2100, 40)]


@pytest.mark.parametrize(
    ("dimension", "classes", "counts"),
    [
        *((*shape, (1, 2, 3, 4, 5, 127, 128, 129, 131)) for shape in SMALL),
        *((*shape, (1, 31, 127, 150)) for shape in LARGE),
    ],
)
def test_every_shape_has_its_tiles(dimension: int, classes: int, counts: tuple[int, ...]) -> None:
    """Rows, classes and columns that do not fill the last tile, and rows that end the memory."""
    for count in counts:
        rows = rows_of(training_set(count, dimension, classes), "l2")
        weights = random_weights(rows, 2)
        native = full_sum(rows, 0.7, weights, sigmoid=False, native=True)
        wanted = full_sum(rows, 0.7, weights, sigmoid=False, native=False)
        assert relative(native, wanted) < (2e-6 if dimension <= 200 and classes <= 11 else 5e-6)


def test_sums_on_narrower_vectors_are_right(tmp_path: Path) -> None:
    """Tiles, tails and horizontal sums of 8 and 4 lanes."""
    command = [sys.executable, "-m", "tests.support.narrower_vectors"]
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, cwd=REPOSITORY, env=variables, check=True)


@pytest.mark.parametrize("chunk", [16, 32, 85])
def test_chunks_are_of_one_batch_and_fit_their_buffers(chunk: int) -> None:
    sizes = np.array([0, 1, 15, 0, 16, 47, 48, 127, 128, 129, 1000, 0])
    cuts = fused_step._cut_chunks(sizes, chunk)
    stops = np.cumsum(sizes)
    assert cuts[0] == 0
    assert cuts[-1] == stops[-1]
    lengths = np.diff(cuts)
    assert lengths.min() > 0
    assert lengths.max() <= min(1.5 * chunk, fused_step.CHUNK)
    assert set(stops[sizes > 0]) <= set(cuts)


@pytest.mark.parametrize("dimension", [1, 64, 768, 2048, 100_000])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_chunks_of_any_shape_fit_their_buffers(dimension: int, classes: int) -> None:
    assert 1 <= 1.5 * fused_step.chunk_rows(dimension, classes) <= fused_step.CHUNK


def descend(
    rows: Rows, start: torch.Tensor, steps: int, mixing: npt.NDArray[np.float32],
    observed: Any = NOT_OBSERVED,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Steps of the native loop: weights, average."""
    weights, average = padded(start), padded(start)
    sums = NativePoissonSum(
        ClippedGradients(rows, 1.0, sigmoid=False),
        weights,
        PoissonSampler(rows.n, 0.1, open_stream(1, "sampling")),
        None,
    )
    sums.draw_batches(steps)
    batches = sums.next_batches()
    assert batches is not None
    arrays, index, sizes = batches
    noise = GaussianNoise([1], start[0].numel(), CPU)
    rates = np.linspace(0.1, 0.2, steps).astype(np.float32)
    scratch = torch.zeros_like(weights).numpy()
    fused_step.take_steps(
        *arrays, index, sizes, *noise.noise_source(0.3), rates, weights.numpy(), start.shape[1],
        scratch, mixing, average.numpy(), *observed,
    )  # fmt: skip
    assert not weights[:, start.shape[1] :].any()
    assert not weights[..., start.shape[2] :].any()
    return unpadded(weights, start), unpadded(average, start)


def test_batches_that_are_too_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps go as far as the first of them, and on behind it."""
    rows = rows_of(training_set(200, 8, 3), "none")
    sampler = PoissonSampler(rows.n, 0.1, open_stream(1, "sampling"))
    wanted, sizes = PoissonSampler(rows.n, 0.1, open_stream(1, "sampling")).draw_block(50)
    limit = int(sizes.max()) - 1
    monkeypatch.setattr(clipping, "_LARGEST_BATCH", limit)
    weights = padded(random_weights(rows, 1))
    sums = NativePoissonSum(ClippedGradients(rows, 1.0, sigmoid=False), weights, sampler, None)
    sums.draw_batches(50)
    step, start, alone = 0, 0, 0
    while step < 50:
        batches = sums.next_batches()
        if batches is None:
            assert sizes[step] > limit
            sums.add_to(torch.zeros_like(weights))
            taken, alone = 1, alone + 1
        else:
            _, index, counts = batches
            taken = len(counts)
            stop = start + counts.sum()
            np.testing.assert_array_equal(counts, sizes[step : step + taken])
            np.testing.assert_array_equal(index[: stop - start], wanted[start:stop])
        start += int(sizes[step : step + taken].sum())
        step += taken
    assert alone == (sizes > limit).sum() > 0


def test_a_step_s_noise_is_what_is_drawn_elsewhere() -> None:
    """Of several pieces, the last of which is not whole, without rows: the sum is the noise."""
    classes, columns, steps = 7, 5001, 3
    assert classes * columns > 2 * fused_step._DRAWN
    wanted = GaussianNoise([1], classes * columns, CPU).draw_steps(steps, 0.3)[0].double().sum(0)
    data = fused_step.Arrays.make_arrays(
        torch.zeros(1, columns - 1), torch.ones(1), torch.zeros(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.float64), sigmoid=False,
    )  # fmt: skip
    head = fused_step.padded_zeros(1, classes, columns)
    rates, none = np.full(steps, -1, dtype=np.float32), np.zeros(0, dtype=np.int64)
    fused_step.take_steps(
        *data, none, np.zeros(steps, dtype=np.int64),
        *GaussianNoise([1], classes * columns, CPU).noise_source(0.3), rates, head.numpy(), classes,
        torch.full_like(head, 9.0).numpy(), np.zeros(0, dtype=np.float32), head.numpy(),
        *NOT_OBSERVED,
    )  # fmt: skip
    drawn = head[0, :classes, :columns].flatten()
    np.testing.assert_allclose(drawn, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "layer_norm"])
def test_steps_in_the_native_loop_are_the_steps_one_by_one(kind: str) -> None:
    rows = rows_of(training_set(), kind)
    start = random_weights(rows, 1)
    mixing = np.linspace(1, 0.1, 9).astype(np.float32)
    actual, average = descend(rows, start, 9, mixing)
    weights, wanted_average = start.double(), start.double()
    noise = GaussianNoise([1], start[0].numel(), CPU).draw_steps(9, 0.3).double()
    batches = poisson_batches(rows.n, 0.1, 9, open_stream(1, "sampling"))
    totals = torch.zeros(2, 9, *start.shape[1:], dtype=torch.float64)
    for step, batch in enumerate(batches):
        total = torch.from_numpy(oracle_sum(rows, weights[0].numpy(), batch, 1.0))
        release = total + noise[0, step].view(total.shape)
        totals[:, step] = torch.stack([total, release])
        weights = weights - float(np.float32(0.1 + 0.1 * step / 8)) * release
        wanted_average += float(mixing[step]) * (weights - wanted_average)
    assert relative(actual, weights) < 2e-6
    assert relative(average, wanted_average) < 2e-6
    same, untouched = descend(rows, start, 9, np.zeros(0, dtype=np.float32))
    assert torch.equal(same, actual)
    assert torch.equal(untouched, start)
    seen = torch.zeros_like(totals, dtype=torch.float32).numpy()
    observed, _ = descend(rows, start, 9, mixing, (*seen, False))
    assert relative(observed, weights) < 2e-6
    assert relative(torch.from_numpy(seen), totals) < 2e-6
    replayed, _ = descend(rows, start, 9, mixing, (np.zeros_like(seen[0]), seen[1], True))
    assert torch.equal(replayed, observed)


def test_buffers_are_whole_tiles() -> None:
    buffer: Any = fused_step.padded_zeros(2, 11, 17)
    assert buffer.shape == (2, 15, 32)
    assert not buffer.any()
