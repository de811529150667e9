"""Colours of classes in plots of embeddings."""

from __future__ import annotations

# Within the first ten, and within the second ten, colours differ by more than 20 in CIELAB, even
# for people without red, green or blue cones (Machado et al. 2009, severity 1). Classes with a
# colour among the second ten are drawn as triangles.
CLASS_COLOURS = (
    "#0072B2", "#E69F00", "#332288", "#66CCEE", "#661100", "#A0D8B3", "#000000", "#B15928",
    "#8C8C8C", "#DDCC77",
    "#EE6677", "#6A3D9A", "#999933", "#CC79A7", "#117733", "#785EF0", "#E6C700", "#882255",
    "#D6B8F0", "#B3DE69",
)  # fmt: skip
CIRCLES = 10
NAMED_CLASSES = len(CLASS_COLOURS)  # more classes get a colour bar in place of names
