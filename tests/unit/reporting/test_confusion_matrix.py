"""The page of a confusion matrix."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dpprobe.reporting.confusion_matrix import confusion_html


def parse(page: str) -> ET.Element:
    return ET.fromstring(page.removeprefix("<!doctype html>"))


@pytest.mark.parametrize("classes", [2, 10, 20, 21, 60, 100])
def test_the_table_has_a_square_for_each_pair_of_classes(classes: int) -> None:
    counts = np.random.default_rng(2).integers(0, 50, size=(classes, classes))
    counts[1] = 0
    names = [f"<class & {k}>" * (1 + k % 3) for k in range(classes)]
    root = parse(confusion_html(counts, names, title="a < b"))
    squares = list(root.iter("td"))
    assert len(squares) == classes**2
    assert sum("style" in square.attrib for square in squares) == (counts > 0).sum()
    assert root.findtext("body/div") == "a < b"
    assert any(square.text for square in squares) == (classes <= 20)
    heads = [head.text for head in root.iter("th")]
    assert len(heads) == 1 + 2 * classes
    assert (heads.count("<class & 0>") == 2) == (classes <= 70)


def test_darker_is_more() -> None:
    page = confusion_html(np.array([[9, 1], [5, 5]]), ["a", "b"], title="")
    assert re.findall(r"rgb\(0 70 130 / ([\d.]+)\)", page) == ["0.900", "0.100", "0.500", "0.500"]
    assert [square.text for square in parse(page).iter("td")] == ["90", "10", "50", "50"]
