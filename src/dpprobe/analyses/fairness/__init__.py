"""Subgroups of the test rows compared in every cell, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="fairness",
    describe=(
        "Compare subgroups of the test rows, private heads beside non-private ones; not "
        "done where absent."
    ),
    reads=(
        "Results of subgroups",
        "computed from labels and groups of test rows, without noise; those of a small "
        "group tell of few people.",
    ),
)
