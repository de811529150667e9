"""Derives seeds and streams of random numbers: benchmark mode, which anyone can reproduce.

The seeds of a cell derive from all of its options and inputs, and each use of randomness has a
separate stream. So no two cells, seeds or uses share noise.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from dpprobe import json_values
from dpprobe.errors import PrivacyError

SEED_BITS = 128


def cell_seed(identity: Any, index: int) -> int:
    """Derives the seed of one repetition of a cell: 128 bits of a SHA-256.

    Args:
      identity: the JSON-compatible options and inputs that decide the cell's contents.
      index: the number of the repetition, from 0.
    """
    text = json_values.canonical_json({"identity": identity, "index": index})
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: SEED_BITS // 8], "big")


def open_stream(seed: int, name: str) -> np.random.Generator:
    """Returns a seed's stream of random numbers for one use, such as "noise" or "sampling".

    The generator (SFC64) uses all 128 bits of a seed; PyTorch's CPU generator would use only 32.

    Example:
      >>> first, second = open_stream(1, "noise"), open_stream(1, "sampling")
      >>> first.standard_normal() == second.standard_normal()
      False
      >>> open_stream(1, "noise").standard_normal() == open_stream(1, "noise").standard_normal()
      True
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(derived_seed(seed, name))))


def stream_seed(seed: int, name: str) -> int:
    """Derives a 64-bit seed, for generators that take no longer one, such as PyTorch's on a GPU."""
    return derived_seed(seed, name) >> (SEED_BITS - 64)


def derived_seed(seed: int, name: str) -> int:
    """Derives the 128-bit seed of one part of a fit; raises PrivacyError for longer seeds."""
    digest = hashlib.sha256(seed_bytes(seed) + name.encode()).digest()
    return int.from_bytes(digest[: SEED_BITS // 8], "big")


def seed_bytes(seed: int) -> bytes:
    """Returns the 16 bytes of a seed; raises PrivacyError for longer seeds."""
    if not 0 <= seed < 2**SEED_BITS:
        raise PrivacyError(f"seed {seed}: must be a whole number of at most {SEED_BITS} bits")
    return seed.to_bytes(SEED_BITS // 8, "big")
