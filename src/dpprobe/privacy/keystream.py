"""Draws random words: a cipher's keystream, keyed by a seed or by the operating system.

The words are the keystream of AES-256 in counter mode, from the library `cryptography`. If AES-256
is secure, nobody without the key can distinguish the words from independent uniform words, even
after seeing other words of the stream, or noise from the distribution that the accountants assume.
In benchmark mode the key derives from a published seed. For a release the operating system draws
the key, and nothing stores it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpprobe.errors import PrivacyError
from dpprobe.privacy.randomness import seed_bytes

Words = npt.NDArray[np.uint64]

KEY_BYTES = 32
# The zeros that are encrypted per call; together with the output, they fit the second-level cache.
_ZEROS = memoryview(bytes(1 << 16))


class Keystream:
    """A stream of random words, the same words however many are drawn per call.

    No two streams share a key: each part has its own key, and is returned only once.
    """

    def __init__(self, key: bytes, name: str) -> None:
        if len(key) != KEY_BYTES:
            raise PrivacyError(
                f"keystream {name}: its key has {len(key)} bytes; pass {KEY_BYTES} bytes"
            )
        self.name = name
        self._key = key
        # The counter may start at 0, because no other stream has this key.
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._parts: set[str] = set()
        self._process = os.getpid()

    @classmethod
    def from_seed(cls, seed: int, name: str) -> Keystream:
        """Returns the stream of a seed of at most 128 bits for one use: benchmark mode."""
        return cls(_derive_key(seed_bytes(seed), name), name)

    @classmethod
    def from_system(cls, name: str) -> Keystream:
        """Returns a stream that the operating system keys and nobody can repeat."""
        return cls(secrets.token_bytes(KEY_BYTES), name)

    def __repr__(self) -> str:
        """Names the stream; the key stays hidden."""
        return f"Keystream({self.name!r})"

    def make_part(self, name: str) -> Keystream:
        """Returns a separate stream for one part of this stream's use.

        Raises PrivacyError for a part returned before, and in a forked process, to use no word
        twice.
        """
        self._check_process()
        if name in self._parts:
            raise PrivacyError(f"keystream {self.name}: part {name} was already used")
        self._parts.add(name)
        return Keystream(_derive_key(self._key, name), f"{self.name}, {name}")

    def draw_words(self, count: int) -> Words:
        words = np.empty(count, dtype=np.uint64)
        self.fill_words(words)
        return words

    def draw_uniform(self) -> float:
        """Draws a number between 0 and 1: the middle of one of 2^52 equal parts."""
        return (float(self.draw_words(1)[0] >> np.uint64(12)) + 0.5) * 2.0**-52

    def fill_words(self, out: Words) -> None:
        """Fills a contiguous 1-D array with next words; raises PrivacyError in a forked process."""
        self._check_process()
        view = out.view(np.uint8).data
        for start in range(0, len(view), len(_ZEROS)):
            piece = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PrivacyError(
                f"keystream {self.name}: was started in another process; start a keystream in "
                "this process"
            )


def _derive_key(key: bytes, name: str) -> bytes:
    return hmac.digest(key, name.encode(), "sha256")
