"""Messages about labels."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.data.dataset_checks import label_words


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (0, "cat"),
        (2, "1"),
        (3, "3"),
        (7, "7"),
        (-1, "-1"),
        (None, "None"),
        ([1, 0, 1], "cat+1"),
        ([0, 0, 0], "none"),
        ([0, 1], "dog"),
    ],
)
def test_a_label_has_the_names_of_its_classes(label: Any, words: str) -> None:
    assert label_words(label, ["cat", "dog", "1"]) == words
