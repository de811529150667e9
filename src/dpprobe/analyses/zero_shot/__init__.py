"""Classifiers from the class names alone, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="zero_shot",
    describe="Classifies test rows by the text embeddings of their classes.",
    reads=None,
)
