"""The picture of a confusion matrix."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from dpprobe.reporting.confusion_matrix import confusion_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("classes", [2, 10, 20, 21, 60, 100])
def test_the_picture_is_whole_and_within_its_frame(classes: int) -> None:
    counts = np.random.default_rng(2).integers(0, 50, size=(classes, classes))
    counts[1] = 0
    names = [f"<class & {k}>" * (1 + k % 3) for k in range(classes)]
    root = ET.fromstring(confusion_svg(counts, names, title="a < b"))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    squares = [s for s in root.iter(f"{SVG}rect") if s.get("fill", "").startswith("#")]
    assert len(squares) == 1 + (counts > 0).sum()
    for square in squares:
        assert float(square.get("x", 0)) + float(square.get("width", 0)) <= width
        assert float(square.get("y", 0)) + float(square.get("height", 0)) <= height
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "a < b" in texts
    assert ("100" in texts or any(t.isdigit() for t in texts)) == (classes <= 20)


def test_darker_is_more() -> None:
    root = ET.fromstring(confusion_svg(np.array([[9, 1], [5, 5]]), ["a", "b"], title=""))
    fills = [s.get("fill", "") for s in root.iter(f"{SVG}rect")][2:]
    red = [int(fill[1:3], 16) for fill in fills]
    assert red[0] < red[2] == red[3] < red[1]
