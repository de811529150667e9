"""Counts with their nouns."""

from __future__ import annotations

import pytest

from dpprobe.counted_nouns import count_noun


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (0, "more figure", "0 more figures"),
        (1200, "class", "1,200 classes"),
    ],
)
def test_a_noun_follows_its_count(count: int, noun: str, words: str) -> None:
    assert count_noun(count, noun) == words
