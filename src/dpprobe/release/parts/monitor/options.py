"""The options of the part `monitor`."""

from __future__ import annotations

from pydantic import Field

from dpprobe.options import Options
from dpprobe.privacy.limits import Budget


class MonitorOptions(Options):
    """Noisy counts of the test units in a release's bundle, to be compared with new images."""

    epsilon: Budget = Field(description="Epsilon of the counts, spent by test units.")
