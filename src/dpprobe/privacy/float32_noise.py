"""Draws Gaussian noise in blocks of steps, one independent stream per seed."""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe import devices
from dpprobe.privacy.machine_code import MachineCode
from dpprobe.privacy.randomness import open_stream, stream_seed

MACHINE_CODE = MachineCode(__file__)
jit = MACHINE_CODE.jit

# The number of parallel generators, which vector instructions advance together.
LANES = 32
_WARM_UP = 18
# Pairs per pass, whose words fit the first-level cache; PAIRS affects a seed's numbers.
PAIRS = 1024
_BITS = 31
# Near 0, float32 is finer than 31 bits, so uniform numbers below _COARSE 2^-31 get 64 more bits.
_COARSE = 2**18

_f4, _i4, _u8 = np.float32, np.int32, np.uint64
_ONE, _HALF = _f4(1), _f4(0.5)
# The largest uniform number, the float32 below 1, since the logarithm of 1 is 0.
_SHORT = 1 - 2.0**-24
_UNIT = _f4(2.0**-_BITS * _SHORT)
_SMALL, _SMALL_UNSIGNED = _i4(_COARSE), np.uint32(2 * _COARSE)
_EIGHTH_TURN = _f4(math.pi / 4 / 2**31)
_ODD_BIT, _LOW_BIT = _i4(2), _i4(1)
_SIGN, _HALF_QUADRANT = _i4(-(2**31)), _i4(2**29)
_MANTISSA_BITS, _SQRT_HALF = _i4(23), _i4(0x3F3504F3)
_MINUS_2_LN_2 = _f4(-2 * math.log(2))
# Minimax polynomials (relative error): log2(1 + x) / x for 1 + x from 1/sqrt(2) to sqrt(2),
# 2.6e-8; sin(x) / x and cos(x) in x^2 for |x| up to pi/4, 3.2e-9 and 3.3e-8.
_L0, _L1, _L2 = _f4(1.4426950216293335), _f4(-0.7213473320007324), _f4(0.48091062903404236)
_L3, _L4, _L5 = _f4(-0.3607036769390106), _f4(0.28791624307632446), _f4(-0.23894482851028442)
_L6, _L7, _L8 = _f4(0.21571561694145203), _f4(-0.20726972818374634), _f4(0.12583698332309723)
_S0, _S1 = _f4(0.9999999967636848), _f4(-0.1666665022664627)
_S2, _S3 = _f4(0.008332016530311992), _f4(-0.00019501829121096036)
_C0, _C1 = _f4(0.9999999674053692), _f4(-0.4999984245757811)
_C2, _C3 = _f4(0.04165442029319442), _f4(-0.0013579410696506176)

_CONTRACT = frozenset({"contract"})


def _rounded_up(deviation: float) -> np.float32:
    """Rounds a standard deviation up to float32, because less noise would have a larger epsilon."""
    nearest = np.float32(deviation)
    return nearest if float(nearest) >= deviation else np.nextafter(nearest, np.float32(np.inf))


class GaussianNoise:
    """Draws [seeds, steps, size] normals; adding a seed does not change the other seeds' numbers.

    On the CPU, the Box-Muller transform makes two normals from one 64-bit word: half of the word
    gives the radius, half the angle. The tail must reach far: a number beyond its end would
    distinguish neighbouring datasets. PyTorch's float32 normals end at 5.77 standard deviations,
    beyond which two of the foundation-features recipe's 2.4e8 numbers are expected. Normals from a
    40-bit uniform end at 7.45, beyond which 2e-5 numbers are expected, more than a delta of 1e-5.
    So small uniforms, one radius in 8,000, get 64 more bits. With 64 more bits the tail ends at
    11.5, beyond which a normal falls with probability 1e-30.

    The words come from 32 SFC64 generators per seed (Chris Doty-Humphrey's; NumPy's `SFC64`), each
    started with 192 bits of the seed's NumPy stream. Generating 32 words together is eight times as
    fast as one at a time.

    On a GPU normals are drawn in float64 and rounded. Their tail ends at 8.65 standard deviations;
    a fit by the foundation-features recipe expects 1e-9 numbers beyond. GPU normals also depend on
    the number of steps drawn at a time.

    Normals are rounded to float32, and the generators are not cryptographic: docs/methods/sgd.md
    explains the consequences.
    """

    def __init__(self, seeds: Sequence[int], size: int, device: torch.device) -> None:
        self.size = size
        self._device = device
        self._width = padded_size(size)
        if devices.has_kernels(device):
            self._words = [Words.start_words(seed) for seed in seeds]
        else:
            self._generators = [
                torch.Generator(device).manual_seed(stream_seed(seed, "noise")) for seed in seeds
            ]
        self._count = len(seeds)
        self._buffer = torch.empty(0)

    def draw_steps(self, steps: int, deviation: float) -> torch.Tensor:
        """Draws normals for the next `steps` >= 1 steps; at deviation 0, returns zeros undrawn.

        Returns:
          A view [seeds, steps, size] of a buffer that the next call overwrites.
        """
        if self._buffer.shape[1:2] < (steps,):
            shape = (self._count, steps, self._width)
            self._buffer = torch.empty(shape, dtype=torch.float32, device=self._device)
        block = self._buffer[:, :steps]
        if deviation == 0:
            block.zero_()
        elif devices.has_kernels(self._device):
            scale = _rounded_up(deviation)
            for out, words in zip(block.numpy(), self._words, strict=True):
                fill_normals(words.lanes, words.tail, out, scale)
        else:
            for out, source in zip(block, self._generators, strict=True):
                normals = torch.empty(out.shape, dtype=torch.float64, device=self._device)
                out.copy_(normals.normal_(generator=source).mul_(deviation))
        return block[..., : self.size]

    def noise_source(
        self, deviation: float
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], np.float32]:
        """Returns a single seed's arguments for `fill_normals`, for compiled loops on the CPU.

        A compiled loop draws the numbers that `draw_steps` would, and advances the generators. At a
        deviation of 0 a compiled loop must draw nothing, as `draw_steps` does. The deviation is
        rounded up to float32.
        """
        (words,) = self._words
        return words.lanes, words.tail, _rounded_up(deviation)

    def copy_state(self) -> dict[str, torch.Tensor]:
        """Returns a copy of the streams' states, which determine all future numbers.

        Only benchmarks may copy states, because their seeds are published anyway.
        """
        if devices.has_kernels(self._device):
            parts = {"lanes": [w.lanes for w in self._words], "tail": [w.tail for w in self._words]}
            return {
                name: torch.from_numpy(np.stack(states).view(np.int64))
                for name, states in parts.items()
            }
        return {"generators": torch.stack([one.get_state() for one in self._generators])}

    def restore_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues from `state`, copied from another noise of equal seeds, size and device."""
        if devices.has_kernels(self._device):
            for place, words in enumerate(self._words):
                words.lanes[:] = state["lanes"][place].numpy().view(np.uint64)
                words.tail[:] = state["tail"][place].numpy().view(np.uint64)
            return
        for source, one in zip(self._generators, state["generators"], strict=True):
            source.set_state(one.cpu())


class Words(NamedTuple):
    """A seed's generators: [4, 32] states of 64 bits, and [4, 1] for small radii.

    Small radii have a separate generator, so numbers do not depend on the size of a draw.
    """

    lanes: npt.NDArray[np.uint64]
    tail: npt.NDArray[np.uint64]

    @classmethod
    def start_words(cls, seed: int) -> Words:
        return cls(start_lanes(seed, "noise", LANES), start_lanes(seed, "noise tail", 1))


def start_lanes(seed: int, name: str, lanes: int) -> npt.NDArray[np.uint64]:
    """Returns the state [4, lanes] with which `draw_words` begins a stream."""
    state = np.ones((4, lanes), dtype=np.uint64)
    state[:3] = open_stream(seed, name).bit_generator.random_raw(3 * lanes).reshape(3, lanes)
    out = np.empty(lanes * _WARM_UP, dtype=np.uint64)
    draw_words(state, out)
    return state


@jit("i8(i8)")
def padded_size(size):
    """Rounds a step's size up to whole pairs of all lanes, as `fill_normals` draws them."""
    return -(-size // (2 * LANES)) * 2 * LANES


@jit("void(u8[:, ::1], u8[::1])")
def draw_words(state, out):
    """Fills `out` [m * lanes] with the next m SFC64 words per lane, one word per lane in turn."""
    lanes = state.shape[1]
    a, b, c = state[0], state[1], state[2]
    counter = state[3, 0]
    for start in range(0, out.shape[0], lanes):
        for lane in range(lanes):
            word = a[lane] + b[lane] + counter
            a[lane] = b[lane] ^ (b[lane] >> _u8(11))
            b[lane] = c[lane] + (c[lane] << _u8(3))
            c[lane] = ((c[lane] << _u8(24)) | (c[lane] >> _u8(40))) + word
            out[start + lane] = word
        counter += _u8(1)
    state[3, :] = counter


@jit()
def _draw_halves(a, b, c, counter, low, high):
    """Draws words of 32 lanes as `draw_words` does, split into halves; returns the counter.

    The states are separate arrays, because LLVM cannot prove that rows of one array do not overlap.
    """
    for group in range(low.shape[0] // LANES):
        for lane in range(LANES):
            word = a[lane] + b[lane] + counter
            a[lane] = b[lane] ^ (b[lane] >> _u8(11))
            b[lane] = c[lane] + (c[lane] << _u8(3))
            c[lane] = ((c[lane] << _u8(24)) | (c[lane] >> _u8(40))) + word
            low[group * LANES + lane] = _i4(word)
            high[group * LANES + lane] = _i4(word >> _u8(32))
        counter += _u8(1)
    return counter


@jit("void(i4[::1], i4[::1], f4[::1], f4[::1], f4)", fastmath=_CONTRACT)
def box_muller(radii, angles, cosines, sines, deviation):
    """Computes two normals for each radius and angle of 32 bits; all arrays are [m].

    No normal is 0, as no radius is 0 and no angle a multiple of a right angle.
    """
    for i in range(radii.shape[0]):
        # |signed integer + 1/2| is uniform on 1/2, 3/2, ... in units of 2^-31.
        uniform = abs(_f4(radii[i]) + _HALF) * _UNIT
        bits = _f4(uniform).view(_i4)
        exponent = _i4(_i4(bits - _SQRT_HALF) >> _MANTISSA_BITS)
        x = _i4(bits - _i4(exponent << _MANTISSA_BITS)).view(_f4) - _ONE
        log = (
            ((((((_L8 * x + _L7) * x + _L6) * x + _L5) * x + _L4) * x + _L3) * x + _L2) * x + _L1
        ) * x + _L0
        radius = deviation * np.sqrt((log * x + _f4(exponent)) * _MINUS_2_LN_2)
        # Two bits choose the quadrant; all other bits are the angle from the quadrant's middle.
        angle = angles[i]
        t = _f4(_i4(_i4(angle << _ODD_BIT) | _ODD_BIT)) * _EIGHTH_TURN
        quadrant = _i4(angle + _HALF_QUADRANT)
        odd = _i4(quadrant << _LOW_BIT)
        square = t * t
        sine = (((_S3 * square + _S2) * square + _S1) * square + _S0) * t
        cosine = ((_C3 * square + _C2) * square + _C1) * square + _C0
        along = _f4((sine if odd < 0 else cosine) * radius)
        across = _f4((cosine if odd < 0 else sine) * radius)
        cosines[i] = _i4(along.view(_i4) ^ _i4((quadrant ^ odd) & _SIGN)).view(_f4)
        sines[i] = _i4(across.view(_i4) ^ _i4(quadrant & _SIGN)).view(_f4)


@jit("void(u8[:, ::1], i4[::1], i4[::1], f4[::1], f4[::1], f4)")
def refine_pairs(tail, radii, angles, cosines, sines, deviation):
    """Computes each pair with a radius below `_COARSE` again, with 64 more bits in the radius."""
    few: Any = False
    for i in range(radii.shape[0]):
        few |= np.uint32(radii[i] + _SMALL) < _SMALL_UNSIGNED
    if not few:
        return
    word = np.empty(1, dtype=np.uint64)
    for i in range(radii.shape[0]):
        unit = radii[i] if radii[i] >= 0 else -1 - radii[i]
        if unit < _COARSE:
            draw_words(tail, word)
            uniform = (unit + (np.float64(word[0]) + 0.5) * 2.0**-64) * 2.0**-_BITS
            radius = deviation * math.sqrt(-2 * math.log(uniform * _SHORT))
            angle = (angles[i] + 0.5) * (math.pi / 2**31)
            cosines[i] = _f4(radius * math.cos(angle))
            sines[i] = _f4(radius * math.sin(angle))


@jit("void(u8[:, ::1], u8[:, ::1], f4[:, ::1], f4)")
def fill_normals(lanes, tail, out, deviation):
    """Fills `out` [steps, m], m a multiple of 64, with a seed's next normals times `deviation`."""
    low, high = np.empty(PAIRS, dtype=np.int32), np.empty(PAIRS, dtype=np.int32)
    a, b, c = lanes[0].copy(), lanes[1].copy(), lanes[2].copy()
    counter = lanes[3, 0]
    pairs = out.shape[1] // 2
    for step in range(out.shape[0]):
        for start in range(0, pairs, PAIRS):
            count = min(PAIRS, pairs - start)
            radii, angles = low[:count], high[:count]
            normals = out[step, 2 * start : 2 * (start + count)]
            counter = _draw_halves(a, b, c, counter, radii, angles)
            box_muller(radii, angles, normals[:count], normals[count:], deviation)
            refine_pairs(tail, radii, angles, normals[:count], normals[count:], deviation)
    for lane in range(a.shape[0]):  # assigning rows would take seconds to compile
        lanes[0, lane], lanes[1, lane], lanes[2, lane] = a[lane], b[lane], c[lane]
        lanes[3, lane] = counter


MACHINE_CODE.keep()
