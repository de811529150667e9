"""Messages about classes with few images."""

from __future__ import annotations

import itertools

from dpprobe.data.rare_classes import rare_words


def test_classes_of_few_images_are_named() -> None:
    end = "numbers about {} are meaningless"
    assert rare_words("abc", [5, 9, 0], [5, 5, 9]) == ""
    for train, test in itertools.product(range(7), repeat=2):
        assert bool(rare_words(("a",), (train,), (test,))) == (0 < min(train, test) < 5)
    one = rare_words(["a"], [4], [9])
    assert one == f"class a: 4 training images, 9 test images: {end.format('it')}"
    two = rare_words(["a", "b", "c"], [1, 5, 9], [9, 1, 9])
    assert two == (
        "class a: 1 training image, 9 test images; class b: 5 training images, 1 test image: "
        + end.format("them")
    )
