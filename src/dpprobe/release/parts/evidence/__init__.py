"""The audit that supports a release's guarantee, if the study has one."""

from __future__ import annotations

from dpprobe.release.parts.part import ReleasePart

PART = ReleasePart(name="evidence")
