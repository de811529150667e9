"""Reads the signing key before anything is booked; `packing` signs the bundle."""

from __future__ import annotations

from pathlib import Path

from dpprobe.options import resolve_path
from dpprobe.release.bundle import SIGNATURE_FILE
from dpprobe.release.checks import DEPENDS, Checks
from dpprobe.release.parts.part import PartReader, PartSteps
from dpprobe.release.signing import read_private_key, signature_holds


class Steps(PartSteps):
    def check(self) -> None:
        if key := self.release.options.sign_key:
            read_private_key(resolve_path(key))


# verification and words


class Reader(PartReader):
    def verify_files(self, checks: Checks, folder: Path | None, public_key: Path | None) -> None:
        if folder is None:
            checks.note_check("signature", None, DEPENDS)
        elif not (folder / SIGNATURE_FILE).is_file():
            asked = public_key is not None
            checks.note_check(
                "signature",
                False if asked else None,
                "no signature, although you passed a public key"
                if asked
                else "none, so anyone may have made this bundle",
            )
        elif public_key is None:
            checks.note_check("signature", None, "pass --public-key")
        else:
            holds = signature_holds(folder, public_key)
            of = f"{SIGNATURE_FILE} is{'' if holds else ' not'} of the key {public_key.name}"
            checks.note_check("signature", holds, of)


READER = Reader("signature")
