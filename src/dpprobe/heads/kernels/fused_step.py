"""Computes the clipped gradient sums of `clipping` on the CPU, compiled, in one pass over rows.

**What it computes.** For a chunk X of at most 128 rows, weights W and biases b:

    Z = W X^T + b                  logits [classes, rows]                 tiles.multiply_rows
    R = softmax(Z) - Y             or sigmoids: residuals                 _apply_softmax
    r_i *= min(1, bound_i / |r_i|) each row's residual is clipped         _clip_residuals
    sum += R X                     added to the release [classes, d]      tiles.multiply_back

`add_clipped_sums` does this for any number of rows. `take_steps` also draws noise and subtracts the
noisy sums from the weights, several steps per call. It is best to read this file from the bottom
upwards: functions are plain loops, compiled by Numba.

**Why not NumPy or PyTorch.** Clipping separates the two products, so a library reads all rows from
memory twice. For a batch of 32 rows, calling a library takes longer than computing. Here a chunk is
still in the processor's cache for the second product.

`tiles` has the two products, which also prefetch the next chunk.
"""

# mypy: allow-untyped-defs, disable-error-code="call-arg"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.heads.kernels import tiles, vectors
from dpprobe.heads.kernels.tiles import ALIGNED, CHUNK, CLASSES
from dpprobe.heads.kernels.vectors import FAST, LINE
from dpprobe.privacy import float32_noise
from dpprobe.privacy.machine_code import MachineCode

MACHINE_CODE = MachineCode(__file__, float32_noise.__file__, tiles.__file__, vectors.__file__)
jit = MACHINE_CODE.jit

# The bound of a row that must not contribute. With a bound of 0, 0 / 0 would give NaN.
NOT_USABLE = 1e-300
# The approximate size of a chunk in bytes, and its smallest number of rows; see `chunk_rows`.
_CHUNK_BYTES = 96 * 2**10
_LEAST_CHUNK = 16

_f4, _i4, _f8 = np.float32, np.int32, np.float64
_ONE, _HALF, _NONE = _f4(1), _f4(0.5), _f4(0)
_LARGEST = np.finfo(np.float32).max
_LEAST_EXPONENT = _f4(-87)
_LOG2_E, _LN_2_HIGH, _LN_2_LOW = _f4(1.44269504088896341), _f4(0.693359375), _f4(-2.12194440e-4)
_BIAS, _MANTISSA_BITS = _i4(127), _i4(23)
# exp(x) for |x| up to ln(2) / 2: Cephes, expf.
_E0, _E1, _E2 = _f4(5.0000001201e-1), _f4(1.6666665459e-1), _f4(4.1665795894e-2)
_E3, _E4, _E5 = _f4(8.3334519073e-3), _f4(1.3981999507e-3), _f4(1.9875691500e-4)


# Without "reassoc", because the two parts of ln(2) must not be added first: without FMA
# instructions, the result would lose three bits.
@jit(fastmath=FAST - {"reassoc"})
def _exp(x):
    """Returns exp(max(x, -87)) for x <= 0; x must not be NaN."""
    x = max(x, _LEAST_EXPONENT)
    power = _i4(x * _LOG2_E - _HALF)
    whole = _f4(power)
    x = (x - whole * _LN_2_HIGH) - whole * _LN_2_LOW
    series = ((((_E5 * x + _E4) * x + _E3) * x + _E2) * x + _E1) * x + _E0
    return (series * (x * x) + x + _ONE) * _i4(_i4(power + _BIAS) << _MANTISSA_BITS).view(_f4)


@jit("void(f4[:, ::1], i8, i8, f4[::1], f4[::1], f4[:, ::1], i8, f4[::1])", fastmath=FAST)
def _finish_logits(z, classes, m, scale, top, weights, d, usable):
    """Applies scale and bias; finds each row's largest logit.

    If a row has a logit that is not finite, its `usable` and all its logits become 0.
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


@jit("void(f4[:, ::1], i8, i8, f4[::1], f4[::1])", fastmath=FAST)
def _apply_softmax(z, classes, m, top, total):
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


@jit("void(f4[:, ::1], i8, i8)", fastmath=FAST)
def _apply_sigmoid(z, classes, m):
    for k in range(classes):
        line = z[k]
        for i in range(m):
            power = _exp(-abs(line[i]))
            line[i] = (_ONE if line[i] > _NONE else power) / (_ONE + power)


@jit(
    "void(f4[:, ::1], i8, i8, f8[::1], f4[::1], f4[::1], f4[::1], f8[::1], f4[:, ::1], i8)",
    fastmath=FAST,
)
def _clip_residuals(z, classes, m, bounds, scale, parts, usable, factors, release, d):
    """Clips residuals, multiplies by `parts`, adds to the bias sums, multiplies by `scale`."""
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
def _cut_chunks(sizes, chunk):
    """Returns the bounds of chunks of about `chunk` rows each; no chunk spans two batches."""
    cuts = [0]
    start = 0
    for size in sizes:
        count = (2 * size + chunk) // (2 * chunk)
        if size:
            count = max(count, 1)
        for part in range(count):
            cuts.append(start + size * (part + 1) // count)
        start += size
    return np.array(cuts)


@jit()
def _make_scratch(classes):
    """Returns working memory for `_add_chunk`: float32, float64, logits, addresses, row copies."""
    floats = np.empty((5, CHUNK), dtype=np.float32)
    doubles = np.empty((2, CHUNK), dtype=np.float64)
    z = np.empty((classes, CHUNK), dtype=np.float32)
    addresses = tiles.make_pointers(), tiles.make_pointers()
    return floats, doubles, z, *addresses, tiles.make_panel()


@jit()
def _add_chunk(data, rows, following, weights, classes, release, scratch):
    """Adds the clipped sum over at most `CHUNK` rows to each seed's release."""
    features, scale, labels, multi_hot, bounds, parts, sigmoid = data
    m, d, padded_classes = rows.shape[0], features.shape[1], weights.shape[1]
    floats, doubles, z, pointers, later, panel = scratch
    row_scale, row_parts, usable = floats[0][:m], floats[1][:m], floats[2][:m]
    top, total = floats[3][:m], floats[4][:m]
    row_bounds, factors = doubles[0][:m], doubles[1][:m]
    first = features.ctypes.data
    for i in range(m):
        row_scale[i], row_bounds[i] = scale[rows[i]], bounds[rows[i]]
    row_parts[:] = _ONE
    if parts.shape[0]:
        for i in range(m):
            row_parts[i] = parts[rows[i]]
    for i in range(tiles.spare_pointers(m)):
        pointers[i] = first + 4 * d * rows[min(i, m - 1)]
    next_rows = following.shape[0]
    for i in range(next_rows):
        row = following[i]
        vectors.fetch_line(scale.ctypes.data + 4 * row)
        vectors.fetch_line(bounds.ctypes.data + 8 * row)
        if labels.shape[0]:
            vectors.fetch_line(labels.ctypes.data + 8 * row)
    kinds, lines, seeds = padded_classes // CLASSES, -(-4 * d // LINE), weights.shape[0]
    together = tiles.aim_at(first, 4 * d, following, m, kinds, later)
    for seed in range(seeds):
        # Only the last seed's products prefetch rows: the cache would drop rows fetched earlier.
        due = next_rows if seed == seeds - 1 else 0
        ahead, afterwards = tiles.split_fetches(later, due, together, lines, pointers)
        head = weights[seed]
        tiles.multiply_rows(pointers, m, d, head, z, ahead)
        _finish_logits(z, classes, m, row_scale, top, head, d, usable)
        if sigmoid:
            _apply_sigmoid(z, classes, m)
        else:
            _apply_softmax(z, classes, m, top, total)
        if multi_hot.shape[0]:
            for i in range(m):
                for k in range(classes):
                    z[k, i] -= _f4(multi_hot[rows[i], k])
        else:
            for i in range(m):
                z[labels[rows[i]], i] -= _ONE
        _clip_residuals(
            z, classes, m, row_bounds, row_scale, row_parts, usable, factors, release[seed], d
        )
        tiles.multiply_back(pointers, m, d, z, release[seed], panel, afterwards)


@jit("i8(i8, i8)")
def chunk_rows(d, classes):
    """Returns the number of rows of d features for a chunk.

    With more classes, a row's products take longer, so prefetching the next rows matters less.
    """
    rows = _CHUNK_BYTES * max(20, classes) // (20 * 4 * d)
    # `_cut_chunks` may make chunks 1.5 times as large. Sizes must not depend on the tile.
    return max(_LEAST_CHUNK, min(CHUNK * 2 // 3, rows // 4 * 4))


@jit()
def _add_rows(data, rows, cuts, chunk, stop, weights, classes, release, scratch):
    """Adds chunks, from index `chunk` on, up to row `stop`; returns the index of the next chunk."""
    while cuts[chunk] < stop:
        first, last = cuts[chunk], cuts[chunk + 1]
        # After the last chunk, the next call's rows may follow; prefetches at most a chunk of them.
        end = cuts[chunk + 2] if chunk + 2 < cuts.shape[0] else 2 * last - first
        _add_chunk(data, rows[first:last], rows[last:end], weights, classes, release, scratch)
        chunk += 1
    return chunk


_DATA = "Tuple((f4[:, ::1], f4[::1], i8[::1], u1[:, ::1], f8[::1], f4[::1], b1)), i8[::1]"


@jit(f"void({_DATA}, i8[::1], f4[:, :, ::1], i8, f4[:, :, :, ::1])")
def add_clipped_sums(data, rows, sizes, weights, classes, releases):
    """Adds clipped sums over slices of rows to `releases`, for each slice and seed.

    Args:
      data: `Arrays` as a tuple.
      rows: int64 [m], each from 0 to n - 1, unchecked.
      sizes: int64 [slices], the number of rows per slice.
      weights: float32 [seeds, padded classes, padded d + 1], from `padded_zeros`.
      releases: [slices, ...], each like weights.
    """
    cuts = _cut_chunks(sizes, chunk_rows(data[0].shape[1], classes))
    scratch = _make_scratch(weights.shape[1])
    stop, chunk = 0, 0
    for index in range(sizes.shape[0]):
        stop += sizes[index]
        release = releases[index]
        chunk = _add_rows(data, rows, cuts, chunk, stop, weights, classes, release, scratch)


# Numbers per call of `fill_normals`: whole passes, so that several calls draw what one would.
_DRAWN = 16 * float32_noise.PAIRS


@jit()
def _draw_noise(noise, drawn, classes, columns, release):
    """Writes the next normals to a release, `columns` normals per class, class by class."""
    lanes, tail, deviation = noise
    size = classes * columns
    padded = float32_noise.padded_size(size)
    for first in range(0, padded, drawn.shape[0]):
        count = min(drawn.shape[0], padded - first)
        float32_noise.fill_normals(lanes, tail, drawn[:count].reshape(1, count), deviation)
        place, stop = first, min(first + count, size)
        while place < stop:
            k = place // columns
            last = min((k + 1) * columns, stop)
            total = release[k, place - k * columns : last - k * columns]
            part = drawn[place - first : last - first]
            for j in range(total.shape[0]):
                total[j] = part[j]
            place = last


@jit()
def _observe_step(noise, drawn, release, sums, outputs, given):
    """Copies a clipped sum to an observer's array, and replaces the sum by the step's output.

    The output is the sum plus the next noise, or a replayed run's output if outputs are `given`.
    """
    classes, columns = sums.shape
    for k in range(classes):
        for j in range(columns):
            sums[k, j] = release[k, j]
    if not given:
        _draw_noise(noise, drawn, classes, columns, release)
        for k in range(classes):
            for j in range(columns):
                outputs[k, j] = sums[k, j] + release[k, j]
    for k in range(classes):
        for j in range(columns):
            release[k, j] = outputs[k, j]


_HEAD = "f4[:, :, ::1]"
_NOISE = "Tuple((u8[:, ::1], u8[:, ::1], f4))"


@jit(
    f"void({_DATA}, i8[::1], {_NOISE}, f4[::1], {_HEAD}, i8, {_HEAD}, f4[::1], {_HEAD}, "
    f"Tuple(({_HEAD}, {_HEAD}, b1)))"
)
def take_steps(data, rows, sizes, noise, rates, weights, classes, release, mixing, average, audit):
    """Takes steps on one head, one batch per step: weights -= rate * (clipped sum + noise).

    Args (others as in `add_clipped_sums`):
      rows, sizes: the rows, batch after batch, and each batch's size, int64 [steps]; `rows` may
        continue with the next call's rows, which are prefetched.
      noise: `GaussianNoise.noise_source`; deviation 0 draws nothing.
      rates: float32 [steps].
      weights, release: [1, padded classes, padded d + 1]; `release` is working memory.
      mixing: float32 [steps], the share by which the average moves to the weights; or [0].
      average: like weights; unused without mixing.
      audit: `ObservedSteps` as a tuple. `sums` receives each step's clipped sum, and `outputs` the
        sum plus noise. If `given`, `outputs` is read instead, in place of sum plus noise.
    """
    columns = data[0].shape[1] + 1
    sums, outputs, given = audit
    observed = sums.shape[0] > 0
    drawn = np.empty(_DRAWN, dtype=np.float32)
    cuts = _cut_chunks(sizes, chunk_rows(columns - 1, classes))
    scratch = _make_scratch(weights.shape[1])
    stop, chunk = 0, 0
    for step in range(sizes.shape[0]):
        if noise[2] > _NONE and not observed:
            _draw_noise(noise, drawn, classes, columns, release[0])
        else:
            release[0, :classes, :columns] = _NONE
        stop += sizes[step]
        chunk = _add_rows(data, rows, cuts, chunk, stop, weights, classes, release, scratch)
        if observed:
            _observe_step(noise, drawn, release[0], sums[step], outputs[step], given)
        rate = rates[step]
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


def padded_zeros(seeds: int, classes: int, columns: int) -> torch.Tensor:
    """Returns zeros [seeds, classes, columns], rounded up to whole tiles of classes and columns."""
    rows = -(-classes // CLASSES) * CLASSES
    return torch.zeros((seeds, rows, -(-columns // ALIGNED) * ALIGNED))


class Arrays(NamedTuple):
    """The rows for `add_clipped_sums` and `take_steps`: row i is scale[i] * features[i].

    Attributes:
      features, scale: [n, d] and [n].
      labels, multi_hot: shapes [n] and [0, 0], or [0] and [n, classes] for several labels per row.
      bounds: [n], from `clipping.clip_bounds`.
      parts: [n], factors of the clipped gradients; or [0] if all are 1.
      sigmoid: True if the loss is a sum of sigmoid cross-entropies.
    """

    features: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    multi_hot: npt.NDArray[np.uint8]
    bounds: npt.NDArray[np.float64]
    parts: npt.NDArray[np.float32]
    sigmoid: bool

    @classmethod
    def make_arrays(
        cls,
        features: torch.Tensor,
        scale: torch.Tensor,
        labels: torch.Tensor,
        bounds: torch.Tensor,
        parts: torch.Tensor | None = None,
        *,
        sigmoid: bool,
    ) -> Arrays:
        """Converts tensors on the CPU; an unusable row, whose bound is almost 0, gets scale 0."""
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
