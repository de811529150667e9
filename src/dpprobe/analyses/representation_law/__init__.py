"""Laws of separability over the blocks of networks, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="representation_law",
    describe=(
        "Laws of separability over the blocks of frozen and tuned networks, not private; "
        "not done where absent."
    ),
    reads=(
        "Representation laws",
        "scatter and regressions of training and test rows, without noise; also of "
        "networks that were tuned with privacy.",
    ),
)
