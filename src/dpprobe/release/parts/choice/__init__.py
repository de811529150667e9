"""The privacy cost of choosing a release among the study's cells, which each statement has."""

from __future__ import annotations

from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(name="choice")
