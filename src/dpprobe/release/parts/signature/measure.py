"""Reads the signing key before anything is booked; `packing` signs."""

from __future__ import annotations

from dpprobe.options import resolve_path
from dpprobe.release.parts.part import PartSteps
from dpprobe.release.signing import read_private_key


class Steps(PartSteps):
    """Raises ConfigError for a key that cannot sign."""

    def check(self) -> None:
        if key := self.task.options.sign_key:
            read_private_key(resolve_path(key))
