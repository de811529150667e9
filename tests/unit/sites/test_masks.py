"""Masks vanish in the total, hide everything before, and belong to one use of one pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpprobe.errors import PrivacyError
from dpprobe.sites.masks import mask_numbers

NAMES = ("east", "north", "south", "west")
KEYS = {name: X25519PrivateKey.generate() for name in NAMES}
SIZE = 4096


def mask(site: str, numbers: np.ndarray, use: str = "round 1") -> np.ndarray:
    public = {name: key.public_key().public_bytes_raw() for name, key in KEYS.items()}
    others = {name: public[name] for name in NAMES if name != site}
    return mask_numbers(numbers, use, site=site, key=KEYS[site], others=others)


def add(numbers: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of int64 numbers as words, modulo 2^64."""
    total = np.zeros(SIZE, dtype=np.uint64)
    for each in numbers:
        total += each.view(np.uint64)
    return total


def test_masks_of_all_sites_vanish_in_the_total_modulo_2_to_the_64() -> None:
    generator = np.random.default_rng(1)
    own = {name: generator.integers(-(2**52), 2**52, size=SIZE) for name in NAMES}
    own["east"][:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    masked = [mask(name, own[name]) for name in NAMES]
    np.testing.assert_array_equal(add(masked), add(own.values()))


def test_a_site_and_all_but_one_of_its_masks_tell_nothing() -> None:
    """The masked numbers of any three of four sites add up to uniform words."""
    zeros = np.zeros(SIZE, dtype=np.int64)
    for chosen in itertools.combinations(NAMES, 3):
        words = add(mask(name, zeros) for name in chosen)
        bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 6 * 0.5 / SIZE**0.5
    assert not add(mask(name, zeros) for name in NAMES).any()


def test_another_use_has_other_masks() -> None:
    zeros = np.zeros(SIZE, dtype=np.int64)
    first, again, other = (mask("east", zeros, use) for use in ("round 1", "round 1", "round 2"))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99


def test_numbers_keep_their_shape_and_are_not_changed() -> None:
    numbers = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert mask("west", numbers).shape == (2, 3)
    np.testing.assert_array_equal(numbers.ravel(), np.arange(6))


@pytest.mark.parametrize("public", [bytes(32), b"short"], ids=["of small order", "short"])
def test_keys_that_are_none_are_refused(public: bytes) -> None:
    zeros, others = np.zeros(3, dtype=np.int64), {"north": public}
    with pytest.raises(PrivacyError, match="not one of X25519"):
        mask_numbers(zeros, "use", site="east", key=KEYS["east"], others=others)
