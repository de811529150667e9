"""Words about classes with few images."""

from __future__ import annotations

import itertools

import pytest

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


@pytest.mark.parametrize(("classes", "more"), [(2, ""), (3, ""), (4, "; and 1 more: "), (9, "6")])
def test_three_rare_classes_are_named(classes: int, more: str) -> None:
    said = rare_words([f"k{n}" for n in range(classes)], [1] * classes, [9] * classes)
    assert said.count("class k") == min(classes, 3)
    assert more in said
    assert ("more" in said) == (classes > 3)
