"""The cost of all releases from the dataset together, as their ledger adds it up."""

from __future__ import annotations

from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(name="ledger")
