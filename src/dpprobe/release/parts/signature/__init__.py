"""The release part `sign_key`: an Ed25519 signature of the bundle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.options import resolve_path
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    key = wanted.release.sign_key
    if key and not resolve_path(key).is_file():
        yield f"sign_key: no file {key}; correct the path or put the key there"


PART = ReleasePart(faults=list_faults)
