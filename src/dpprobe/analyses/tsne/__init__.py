"""Embeds the features of each (dataset, backbone) in the plane by t-SNE, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="tsne",
    describe="The t-SNE plot of each (dataset, backbone).",
    reads=None,
)
