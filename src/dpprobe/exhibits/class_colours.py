"""Colours of classes in the plane."""

from __future__ import annotations

# Two of the first ten, or of the second ten, differ by more than 20 in CIELAB to people with full
# colour vision and to people without red, green or blue cones (Machado et al. 2009, severity 1).
# The second ten are drawn as triangles.
CLASS_COLOURS = (
    "#0072B2", "#E69F00", "#332288", "#66CCEE", "#661100", "#A0D8B3", "#000000", "#B15928",
    "#8C8C8C", "#DDCC77",
    "#EE6677", "#6A3D9A", "#999933", "#CC79A7", "#117733", "#785EF0", "#E6C700", "#882255",
    "#D6B8F0", "#B3DE69",
)  # fmt: skip
CIRCLES = 10
NAMED_CLASSES = len(CLASS_COLOURS)  # more classes than this share a colour bar
