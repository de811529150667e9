"""The source of a fit's random numbers: published seeds, or the operating system for a release."""

from __future__ import annotations

import numpy as np

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.randomness import derived_seed, open_stream


class SeededEntropy:
    """Benchmark mode: separate random numbers per use of a head, from published seeds."""

    secret = False

    def open_keystream(self, seed: int, use: str) -> Keystream:
        """Returns the random words of one use of a head, such as "noise of gradients"."""
        return Keystream.from_seed(seed, use)

    def make_generator(self, seed: int, use: str) -> np.random.Generator:
        """Returns a generator for numbers that do not affect privacy, such as initial weights."""
        return open_stream(seed, use)

    def part_seed(self, seed: int, name: str) -> int:
        """Returns the seed of one part of a head's fit, such as a trial of a search."""
        return derived_seed(seed, name)


class SystemEntropy:
    """Derives all random numbers from one key of the operating system: release mode.

    The key has 256 bits, is stored only in this object, and is deleted with it. Here seeds are
    small public numbers that only distinguish heads; no random number derives from a seed.
    """

    secret = True

    def __init__(self) -> None:
        self._root = Keystream.from_system("release")
        self._parts: dict[tuple[int, str], int] = {}

    def open_keystream(self, seed: int, use: str) -> Keystream:
        """Returns the stream of one use in this fit; raises PrivacyError for a second stream."""
        return self._root.make_part(f"{seed}: {use}")

    def make_generator(self, seed: int, use: str) -> np.random.Generator:
        words = self.open_keystream(seed, use).draw_words(4)
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words.tolist())))

    def part_seed(self, seed: int, name: str) -> int:
        if (seed, name) in self._parts:
            raise PrivacyError(f"release: part {name} of head {seed} was already used")
        return self._parts.setdefault((seed, name), len(self._parts) + 1)


Entropy = SeededEntropy | SystemEntropy
SEEDED = SeededEntropy()
