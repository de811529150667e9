"""Keystreams are the cipher's words, each used once, however many are drawn at a time."""

from __future__ import annotations

import hmac
import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream


def test_words_equal_those_of_the_cipher() -> None:
    """NIST SP 800-38A tests the cipher in F.1.5; F.5.5 has this key with another first counter."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    blocks = b"".join(number.to_bytes(16, "big") for number in range(50))
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    wanted = np.frombuffer(cipher.update(blocks), dtype="<u8")
    np.testing.assert_array_equal(Keystream(key, "test").draw_words(100), wanted)
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert cipher.update(plain).hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"


def test_a_seed_s_key_is_a_hash_of_seed_and_name() -> None:
    key = hmac.digest((7).to_bytes(16, "big"), b"noise", "sha256")
    np.testing.assert_array_equal(
        Keystream.from_seed(7, "noise").draw_words(9), Keystream(key, "any name").draw_words(9)
    )
    part = Keystream(hmac.digest(key, b"first", "sha256"), "any name")
    np.testing.assert_array_equal(
        Keystream.from_seed(7, "noise").make_part("first").draw_words(9), part.draw_words(9)
    )


def test_words_do_not_depend_on_how_many_are_drawn_at_a_time() -> None:
    whole = Keystream.from_seed(1, "a").draw_words(40_000)
    stream = Keystream.from_seed(1, "a")
    parts = [stream.draw_words(count) for count in (1, 0, 2, 8191, 3, 8192, 8193, 15_418)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    out = np.ones(40_000, dtype=np.uint64)
    Keystream.from_seed(1, "a").fill_words(out)
    np.testing.assert_array_equal(out, whole)


def test_no_two_streams_are_the_same() -> None:
    seeded = [
        Keystream.from_seed(seed, name) for seed in (0, 1, 1 + 2**64, 2**128 - 1) for name in "ab"
    ]
    parts = [stream.make_part(name) for stream in seeded for name in "ab"]
    system = [Keystream.from_system("a"), Keystream.from_system("a")]
    words = np.concatenate([stream.draw_words(500) for stream in (*seeded, *parts, *system)])
    assert len(np.unique(words)) == words.size


def test_the_key_is_not_shown() -> None:
    key = bytes(range(65, 97))
    stream = Keystream(key, "noise")
    assert repr(stream) == f"{stream}" == "Keystream('noise')"
    assert repr(stream.make_part("words")) == "Keystream('noise, words')"


def test_parts_are_given_away_once_and_keys_have_their_length() -> None:
    stream = Keystream.from_seed(1, "noise")
    assert stream.make_part("words").name == "noise, words"
    stream.make_part("further words")
    with pytest.raises(PrivacyError, match=r"^keystream noise: part words was already used$"):
        stream.make_part("words")
    for seed in (-1, 2**128):
        with pytest.raises(PrivacyError, match="at most 128 bits"):
            Keystream.from_seed(seed, "noise")
    for size in (0, 16, 31, 33):
        with pytest.raises(PrivacyError, match=f"^keystream noise: its key has {size} bytes; pass"):
            Keystream(bytes(size), "noise")


def _draw(stream: Keystream, sender: Connection) -> None:
    try:
        sender.send(stream.draw_words(1).tolist())
    except PrivacyError as error:
        sender.send(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_draw_the_same_words_again() -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_draw, args=(Keystream.from_system("noise"), sender))
    child.start()
    assert receiver.recv() == (
        "keystream noise: was started in another process; start a keystream in this process"
    )
    child.join()


def test_words_are_uniform_in_every_bit_and_byte() -> None:
    words = Keystream.from_seed(3, "a").draw_words(1 << 18)
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(axis=0)
    assert np.abs(bits - words.size / 2).max() < 5 * (words.size / 4) ** 0.5
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
