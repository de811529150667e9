"""Gaussian noise in blocks of steps, one independent stream a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.privacy.randomness import stream, stream_seed

_BITS = 31
# A uniform below so many units of 2^-31 gets 64 bits more: its own are coarser than float32.
_COARSE = 2**18
_PAIRS_A_PASS = 1 << 16

Words = Callable[[int], npt.NDArray[np.uint64]]


class GaussianNoise:
    """Draws [seeds, steps, size] normals; a seed's numbers depend on that seed alone.

    On the CPU this is the Box-Muller transform of one 64-bit word a pair, half for the radius and
    half for the angle. How far the tail reaches matters: beyond its end every number would tell
    neighbouring datasets apart. Of the 2.4e8 numbers of the foundation-features recipe one expects
    two beyond 5.77 standard deviations, where PyTorch's own float32 normals end, and 2e-5 beyond
    the 7.45 of a 40-bit uniform, which is more than a delta of 1e-5. So small uniforms, one radius
    in 8,000, take 64 bits more: down to 2^-96, a tail that ends at 11.5 standard deviations,
    beyond which a normal falls with probability 1e-30.

    On a GPU normals are drawn in float64 and rounded. Their tail ends at 8.65, which leaves out
    1e-9 of such a run. They depend on the number of steps drawn at a time as well.

    The numbers are rounded to float32, and the generators are not cryptographic: see
    docs/privacy.md for what that leaves open.
    """

    def __init__(self, seeds: Sequence[int], size: int, device: torch.device) -> None:
        self.size = size
        self._device = device
        self._pairs = -(-size // 2)
        if device.type == "cpu":
            self._streams = [stream(seed, "noise").bit_generator.random_raw for seed in seeds]
            # Apart, so that numbers do not depend on how many are drawn at a time.
            self._tails = [stream(seed, "noise tail").bit_generator.random_raw for seed in seeds]
        else:
            self._generators = [
                torch.Generator(device).manual_seed(stream_seed(seed, "noise")) for seed in seeds
            ]
        self._count = len(seeds)
        self._buffer = torch.empty(0)
        self._scratch: Scratch | None = None

    def draw(self, steps: int, deviation: float) -> torch.Tensor:
        """The next `steps` steps' numbers, scaled.

        Args:
          steps: how many.
          deviation: their standard deviation; at 0 zeros are returned and nothing is drawn.

        Returns:
          A view [seeds, steps, size] of a buffer that the next call overwrites.
        """
        if self._buffer.shape[1:2] < (steps,):
            shape = (self._count, steps, 2 * self._pairs)
            self._buffer = torch.empty(shape, dtype=torch.float32, device=self._device)
        block = self._buffer[:, :steps]
        if deviation == 0:
            block.zero_()
        elif self._device.type == "cpu":
            self._draw_cpu(block, deviation)
        else:
            for out, source in zip(block, self._generators, strict=True):
                normals = torch.empty(out.shape, dtype=torch.float64, device=self._device)
                out.copy_(normals.normal_(generator=source).mul_(deviation))
        return block[..., : self.size]

    def _draw_cpu(self, block: torch.Tensor, deviation: float) -> None:
        """Passes short enough for the processor's cache, long enough to hide the calls."""
        at_once = max(1, _PAIRS_A_PASS // self._pairs)
        if self._scratch is None:
            self._scratch = Scratch.of((at_once, self._pairs))
        for out, words, further in zip(block, self._streams, self._tails, strict=True):
            for start in range(0, len(out), at_once):
                part = out[start : start + at_once]
                drawn = words(len(part) * self._pairs).view(np.int32)
                halves = drawn.reshape(-1, 2 * self._pairs)
                box_muller(halves, part, deviation, self._scratch.first(len(part)), further)


class Scratch(NamedTuple):
    """What `box_muller` writes to on the way, [rows, m] each."""

    radius: torch.Tensor
    angle: torch.Tensor

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Scratch:
        return cls(torch.empty(shape), torch.empty(shape))

    def first(self, rows: int) -> Scratch:
        return Scratch(self.radius[:rows], self.angle[:rows])


def box_muller(
    words: npt.NDArray[np.int32],
    out: torch.Tensor,
    deviation: float,
    scratch: Scratch,
    further: Words,
) -> None:
    """Fills `out` [rows, 2 m] with normals from 32-bit words [rows, 2 m].

    Of a row's words the first m are radii and the others angles; words i and m + i give numbers i
    and m + i. `further` gives the 64-bit words that small radii need beside their own. No number
    is 0: no radius is, and no angle is a multiple of a right angle.
    """
    radius, angle = scratch
    pairs = words.shape[1] // 2
    bits = torch.from_numpy(words)
    # The size of a signed integer and a half: uniform on 1/2, 3/2, ... in units of 2^-31.
    radius.copy_(bits[:, :pairs]).add_(0.5).abs_()
    refine(radius.numpy(), words[:, :pairs], further)
    # Short of 1 by a unit of float32, since the logarithm of 1 is 0.
    radius.mul_(2.0**-_BITS * (1 - 2.0**-24)).log_().mul_(-2).sqrt_().mul_(deviation)
    angle.copy_(bits[:, pairs:]).add_(0.5).mul_(math.pi / 2**_BITS)
    torch.cos(angle, out=out[:, :pairs]).mul_(radius)
    torch.sin(angle, out=out[:, pairs:]).mul_(radius)


def refine(radius: npt.NDArray[np.float32], words: npt.NDArray[np.int32], further: Words) -> None:
    """Replaces radii below `_COARSE` by uniform ones within their unit, to 64 bits more.

    Args:
      radius: [rows, m], |words + 1/2|, written to.
      words: [rows, m].
      further: gives as many 64-bit words as it is asked for.
    """
    small = np.divmod(np.flatnonzero(radius < _COARSE), radius.shape[1])
    units = words[small]
    units = np.where(units < 0, -1 - units, units)
    radius[small] = units + (further(len(units)).astype(np.float64) + 0.5) * 2.0**-64
