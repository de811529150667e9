"""The page of a confusion matrix."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dpprobe.reporting.confusion_matrix import confusion_html


def parse(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!doctype html>"))


@pytest.mark.parametrize(
    ("classes", "side"), [(2, 28), (20, 28), (21, 28), (25, 25), (70, 9), (71, 9), (170, 4)]
)
def test_the_table_has_a_square_for_each_pair_of_classes(classes: int, side: int) -> None:
    counts = np.random.default_rng(2).integers(0, 50, size=(classes, classes))
    counts[1] = 0
    names = [f"<class & {k}>" * (1 + k % 3) for k in range(classes)]
    page = confusion_html(counts, names, title="a < b")
    root = parse(page)
    assert f"min-width: {side}px; height: {side}px" in page
    squares = list(root.iter("td"))
    assert len(squares) == classes**2
    assert sum("style" in square.attrib for square in squares) == (counts > 0).sum()
    assert root.findtext("body/div") == "a < b"
    assert any(square.text for square in squares) == (classes <= 20)
    heads = [head.text for head in root.iter("th")]
    assert len(heads) == 1 + 2 * classes
    assert (heads.count("<class & 0>") == 2) == (classes <= 70)


def test_squares_are_percent_of_their_class_and_long_names_are_cut() -> None:
    page = confusion_html(np.array([[199, 1], [3, 3]]), ["a" * 16, "b" * 17], title="")
    assert [square.text for square in parse(page).iter("td")] == ["100", "0", "50", "50"]
    assert [each.text for each in parse(page).iter("th")][1:3] == ["a" * 16, "b" * 15 + "…"]
