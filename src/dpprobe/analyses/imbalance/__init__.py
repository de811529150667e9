"""Classes made rare, and what private heads learn of them; not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="imbalance",
    describe=(
        "Make one class after another rare and compare what private heads learn of it; "
        "not done where absent."
    ),
    reads=(
        "Results of rare classes",
        "test labels and gradients of training rows, without noise.",
    ),
)
