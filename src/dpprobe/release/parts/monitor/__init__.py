"""The release part `monitor`: noisy tables of test images, for comparison with new images."""

from __future__ import annotations

from pydantic import Field

from dpprobe.options import Options
from dpprobe.privacy.limits import Budget
from dpprobe.release.parts.part import ReleasePart


class MonitorOptions(Options):
    """Noisy counts of the test units in a release's bundle, to be compared with new images."""

    epsilon: Budget = Field(description="Epsilon of the counts, spent by test units.")


PART = ReleasePart(
    key="monitor",
    options=MonitorOptions,
    describe="Publish reference values of the test images, so that `dpprobe predict --monitor` "
    "warns if new images differ from them.",
)
