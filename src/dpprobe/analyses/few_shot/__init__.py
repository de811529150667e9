"""Linear probes on a few images of each class, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis

ANALYSIS = Analysis(
    name="few_shot",
    describe="Linear probes on a few images a class, not private; none where absent.",
    reads=None,
)
