"""The part `monitor`: noisy tables of the test images, to be compared with new images."""

from __future__ import annotations

from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(name="monitor")
