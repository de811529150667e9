"""The total cost of all releases from the dataset, by the dataset's ledger."""

from __future__ import annotations

from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(name="ledger")
