"""The release part `monitor`: noisy tables of the test images, to be compared with new images."""

from __future__ import annotations

from dpprobe.release.parts.monitor.options import MonitorOptions
from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(
    name="monitor",
    key="monitor",
    options=MonitorOptions,
    describe="Publish reference values of the test images, so that `dpprobe predict --monitor` "
    "warns if new images differ from them.",
)
