"""Gaussian noise in blocks of steps, one independent stream a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from dpprobe.privacy.randomness import stream, stream_seed

_RADIUS_BITS = 39
_ANGLE_BITS = 24
_PAIRS_A_PASS = 1 << 16


class GaussianNoise:
    """Draws [seeds, steps, size] normals; a seed's numbers depend on that seed alone.

    On the CPU this is the Box-Muller transform of one 64-bit word a pair: 39 bits for the radius
    (and its half), 24 for the angle. PyTorch's own float32 normals take 24 bits for the
    radius and never exceed 5.77 standard deviations; over the 10^8 numbers of a training run that
    missing tail is worth more than a delta of 1e-5. Here the tail ends at 7.45, beyond which a
    normal falls with probability 1e-13. On a GPU normals are drawn in float64 and rounded.

    The numbers are rounded to float32, and the generators are not cryptographic: see
    docs/privacy.md for what that leaves open.
    """

    def __init__(self, seeds: Sequence[int], size: int, device: torch.device) -> None:
        self.size = size
        self._device = device
        self._pairs = -(-size // 2)
        if device.type == "cpu":
            self._streams = [stream(seed, "noise") for seed in seeds]
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
        for out, generator in zip(block, self._streams, strict=True):
            for start in range(0, len(out), at_once):
                part = out[start : start + at_once]
                words = generator.bit_generator.random_raw(len(part) * self._pairs)
                bits = torch.from_numpy(words.view(np.int64)).view(-1, self._pairs)
                box_muller(bits, part, deviation, self._scratch.first(len(part)))


class Scratch(NamedTuple):
    """What `box_muller` writes to on the way, [rows, m] each."""

    bits: torch.Tensor
    radius: torch.Tensor
    angle: torch.Tensor

    @classmethod
    def of(cls, shape: tuple[int, int]) -> Scratch:
        numbers = torch.empty((2, *shape), dtype=torch.float32)
        return cls(torch.empty(shape, dtype=torch.int64), numbers[0], numbers[1])

    def first(self, rows: int) -> Scratch:
        return Scratch(self.bits[:rows], self.radius[:rows], self.angle[:rows])


def box_muller(words: torch.Tensor, out: torch.Tensor, deviation: float, scratch: Scratch) -> None:
    """Fills `out` [rows, 2 m] with normals from int64 words [rows, m], which it consumes.

    Word i of a row gives its numbers i and m + i.
    """
    bits, radius, angle = scratch
    pairs = words.shape[1]
    # Uniform on (0, 1]: the size of a signed 40-bit number, and a half so that it is never 0.
    radius.copy_(torch.bitwise_right_shift(words, _ANGLE_BITS, out=bits))
    radius.abs_().add_(0.5).mul_(2.0**-_RADIUS_BITS)
    radius.log_().mul_(-2 * deviation**2).sqrt_()
    angle.copy_(words.bitwise_and_(2**_ANGLE_BITS - 1)).mul_(2 * math.pi / 2**_ANGLE_BITS)
    torch.cos(angle, out=out[:, :pairs]).mul_(radius)
    torch.sin(angle, out=out[:, pairs:]).mul_(radius)
