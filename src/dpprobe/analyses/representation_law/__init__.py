"""Laws of separability over the blocks of networks, not private."""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis
from dpprobe.analyses.representation_law.measured_networks import (
    law_backbones,
    law_datasets,
    law_faults,
)
from dpprobe.analyses.representation_law.options import RepresentationLawOptions

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
    unpriced="representation law",
    options=RepresentationLawOptions,
    faults=law_faults,
    datasets=law_datasets,
    backbones=law_backbones,
)
