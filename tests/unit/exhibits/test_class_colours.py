"""Colours of classes: apart for everybody, on white."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dpprobe.exhibits import style
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS, NAMED_CLASSES

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen.
VISION = {
    "full": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                        [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                        [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def lab(colours: Sequence[str], vision: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of colours as somebody sees them, [n, 3]."""
    rgb = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                       [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
    xyz = np.clip(linear @ vision.T, 0, 1) @ to_xyz.T / (0.95047, 1.0, 1.08883)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("first", [0, CIRCLES])
def test_classes_of_one_marker_differ_in_colour_to_everybody(vision: str, first: int) -> None:
    seen = lab(CLASS_COLOURS[first : first + CIRCLES], VISION[vision])
    distances = np.linalg.norm(seen[:, None] - seen, axis=2)[np.triu_indices(CIRCLES, 1)]
    assert len(seen) == CIRCLES
    assert distances.min() > 20
    assert seen[:, 0].max() < 88, "seen on white"


def test_class_colours_are_distinct() -> None:
    assert len(set(style.COLOURS)) == len(style.COLOURS)
    assert len(set(CLASS_COLOURS)) == NAMED_CLASSES == 20
    assert len({repr(style) for style in style.LINE_STYLES}) == len(style.LINE_STYLES)
