"""The compiled steps: sums for tiles of every shape, and whole runs against single steps."""

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
from dpprobe.heads.kernels import fused_step, tiles
from dpprobe.heads.rows import Rows
from dpprobe.privacy.float32_noise import GaussianNoise
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import NOT_OBSERVED
from dpprobe.privacy.sampling import PoissonSampler
from tests.conftest import REPOSITORY
from tests.support.gradient_sums import numpy_sum, padded, random_weights, unpadded
from tests.support.linear_heads import CPU, oracle_sum, relative, rows_of, training_set
from tests.support.poisson_batches import poisson_batches

SMALL = itertools.product((1, 3, 15, 16, 17, 63, 64, 65, 128, 200), (2, 5, 6, 11))
# long rows and many classes, which are processed in blocks
LARGE = [(64, 16), (65, 21), (200, 1000), (1024, 16), (1025, 21), (2100, 3), (2100, 40)]


def made_arrays(
    rows: int, dimension: int, classes: int, *, several: bool, weighted: bool
) -> fused_step.Arrays:
    """Returns rows of several scales; every ninth is unusable, another's logits overflow."""
    generator = torch.Generator().manual_seed(rows)
    features = torch.randn(rows, dimension, generator=generator)
    scale, bounds = torch.rand(rows, generator=generator) + 0.5, torch.rand(rows).double()
    features[4::9], scale[4::9], bounds[3::9] = 1e3, 3e38, fused_step.NOT_USABLE
    labels = torch.randint(classes, (rows,), generator=generator)
    if several:
        labels = torch.randint(2, (rows, classes), generator=generator).to(torch.uint8)
    parts = torch.rand(rows, generator=generator) if weighted else None
    return fused_step.Arrays.make_arrays(
        features, scale, labels, bounds, parts, sigmoid=several or weighted
    )


@pytest.mark.parametrize(("several", "weighted"), itertools.product([False, True], repeat=2))
@pytest.mark.parametrize(("dimension", "classes"), [*SMALL, *LARGE])
def test_sums_of_any_shape_are_numpys(
    dimension: int, classes: int, several: bool, weighted: bool
) -> None:
    """Tiles may be incomplete; batches have 0, 1 or more rows, in any order, with repetitions."""
    if (dimension, classes) in LARGE and weighted != several:
        return
    arrays = made_arrays(160, dimension, classes, several=several, weighted=weighted)
    sizes = np.array([0, 1, 2, 3, 4, 5, 0, 127, 128, 129, 131, 0])
    order = np.random.default_rng(classes).integers(160, size=sizes.sum() + 7)
    heads = fused_step.padded_zeros(2, classes, dimension + 1).numpy()
    kept = heads[:, :classes, : dimension + 1]
    kept[:] = np.random.default_rng(dimension).standard_normal(kept.shape) / 4
    sums = np.ones((len(sizes), *heads.shape), np.float32)
    fused_step.add_clipped_sums(tuple(arrays), order, sizes, heads, classes, sums)
    for total, rows in zip(sums, np.split(order, np.cumsum(sizes)), strict=False):
        for head, actual in zip(kept, total, strict=True):
            wanted = np.pad(
                numpy_sum(arrays, rows, head),
                [(0, size - kept.shape[1 + axis]) for axis, size in enumerate(actual.shape)][:2],
            )
            error = np.linalg.norm(actual - 1.0 - wanted)
            assert error <= 2e-6 * (np.linalg.norm(wanted) + np.sqrt(wanted.size))


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_probabilities_equal_those_of_float64(classes: int) -> None:
    """Logits reach the ends of float32's exponent range, are tied, or are not finite."""
    logits = np.random.default_rng(1).uniform(-40, 40, (classes, 128)).astype(np.float32)
    logits[:, 0], logits[:, 1], logits[-1, 2:6] = 0, 1e30, [np.nan, np.inf, -np.inf, -86]
    logits[0, 6:9] = [np.nan, np.inf, -np.inf]
    weights = np.full((classes, 3), 0.25, np.float32)
    scale, top, usable, total = np.full((4, 128), 0.5, np.float32)
    z = logits.copy()
    fused_step._finish_logits(z, classes, 127, scale, top, weights, 2, usable)
    finite: Any = np.isfinite(logits[:, :127]).all(0)
    wanted = np.where(finite, logits[:, :127] * 0.5 + 0.25, 0).astype(float)
    np.testing.assert_allclose(z[:, :127], wanted, rtol=1e-7)
    np.testing.assert_allclose(top[:127], wanted.max(0), rtol=1e-7)
    np.testing.assert_array_equal(usable[:127], finite)
    sigmoid = z.copy()
    fused_step._apply_sigmoid(sigmoid, classes, 127)
    exact = 1 / (1 + np.exp(-np.clip(z[:, :127].astype(float), -87, None)))
    np.testing.assert_allclose(sigmoid[:, :127], exact, rtol=4e-7)
    fused_step._apply_softmax(z, classes, 127, top, total)
    powers = np.exp(np.maximum(wanted - wanted.max(0), -87))
    np.testing.assert_allclose(z[:, :127], powers / powers.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(z[:, 127], logits[:, 127])


@pytest.mark.parametrize("chunk", [16, 32, 85])
def test_chunks_are_of_one_batch_and_fit_their_buffers(chunk: int) -> None:
    sizes = np.array([0, 1, 15, 0, 16, 47, 48, 127, 128, 129, 1000, 0])
    cuts = fused_step._cut_chunks(sizes, chunk)
    stops = np.cumsum(sizes)
    assert cuts[0] == 0
    assert cuts[-1] == stops[-1]
    lengths = np.diff(cuts)
    assert lengths.min() > 0
    assert lengths.max() <= min(1.5 * chunk, tiles.CHUNK)
    for start, stop in itertools.pairwise([0, *stops]):
        parts = np.diff([cut for cut in cuts if start <= cut <= stop])
        assert len(parts) == (max(1, (stop - start) / chunk + 0.5) // 1 if stop > start else 0)
        assert np.ptp([*parts, *parts[:1]] or [0]) <= 1


@pytest.mark.parametrize("dimension", [1, 64, 768, 2048, 100_000])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_chunks_of_any_shape_fit_their_buffers(dimension: int, classes: int) -> None:
    assert 1 <= 1.5 * fused_step.chunk_rows(dimension, classes) <= tiles.CHUNK


def descend(
    rows: Rows,
    start: torch.Tensor,
    steps: int,
    mixing: npt.NDArray[np.float32],
    observed: Any = NOT_OBSERVED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes steps with the native loop; returns the weights and their average."""
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
        tuple(arrays),
        index,
        sizes,
        noise.noise_source(0.3),
        rates,
        weights.numpy(),
        start.shape[1],
        scratch,
        mixing,
        average.numpy(),
        tuple(observed),
    )
    assert not weights[:, start.shape[1] :].any()
    assert not weights[..., start.shape[2] :].any()
    return unpadded(weights, start), unpadded(average, start)


def test_batches_that_are_too_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps stop before a batch that is too large and continue after it."""
    rows = rows_of(training_set(200, 8, 3), "none")
    sampler = PoissonSampler(rows.n, 0.1, open_stream(1, "sampling"))
    wanted, sizes = PoissonSampler(rows.n, 0.1, open_stream(1, "sampling")).draw_block(50)
    limit = int(sizes.max()) - 1
    monkeypatch.setattr(clipping, "LARGEST_BATCH", limit)
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
    """Without rows the sum is pure noise, drawn in several pieces; the last one is incomplete."""
    classes, columns, steps = 7, 5001, 3
    assert classes * columns > 2 * fused_step._DRAWN
    wanted = GaussianNoise([1], classes * columns, CPU).draw_steps(steps, 0.3)[0].double().sum(0)
    data = fused_step.Arrays.make_arrays(
        torch.zeros(1, columns - 1),
        torch.ones(1),
        torch.zeros(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.float64),
        sigmoid=False,
    )
    head = fused_step.padded_zeros(1, classes, columns)
    rates, none = np.full(steps, -1, dtype=np.float32), np.zeros(0, dtype=np.int64)
    fused_step.take_steps(
        tuple(data),
        none,
        np.zeros(steps, dtype=np.int64),
        GaussianNoise([1], classes * columns, CPU).noise_source(0.3),
        rates,
        head.numpy(),
        classes,
        torch.full_like(head, 9.0).numpy(),
        np.zeros(0, dtype=np.float32),
        head.numpy(),
        tuple(NOT_OBSERVED),
    )
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


def test_sums_on_narrower_vectors_are_right(tmp_path: Path) -> None:
    """Checks tiles, tails and horizontal sums with 8 and 4 lanes, in this and other kernels."""
    command = [sys.executable, "-m", "tests.support.narrower_vectors"]
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, cwd=REPOSITORY, env=variables, check=True)
