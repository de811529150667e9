"""Checks that a bundle's files are whole, hold what they must, and nothing private."""

from __future__ import annotations

import stat
from pathlib import Path

from dpprobe.artifacts import sha256_file
from dpprobe.release.bundle import (
    BUNDLE_FILES,
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    SUMS_FILE,
    BundleFacts,
    damaged_files,
)
from dpprobe.release.leak_check import check_keys, check_text
from dpprobe.release.signing import signature_holds
from dpprobe.release.verification.checks import Checks
from dpprobe.release.verification.stated import is_hash, read_json, require_true

# Bytes beyond which a file is refused before it is read.
LARGEST_TEXT, LARGEST_HEAD = 16 * 2**20, 8 * 2**30


def check_files(folder: Path) -> tuple[str, Path]:
    """Checks that the folder holds a bundle's files, plain ones, and no others."""
    modes = {path.name: path.lstat() for path in folder.iterdir()}
    missing = [name for name in BUNDLE_FILES if name not in modes]
    others = sorted(set(modes) - {*BUNDLE_FILES, SIGNATURE_FILE})
    require_true(not missing, f"missing: {', '.join(missing)}; fetch the bundle again")
    require_true(not others, f"not of a bundle: {', '.join(others)}; remove them")
    for name, status in modes.items():
        require_true(
            stat.S_ISREG(status.st_mode), f"{name}: not a plain file; fetch the bundle again"
        )
        largest = LARGEST_HEAD if name == HEAD_FILE else LARGEST_TEXT
        require_true(status.st_size <= largest, f"{name}: {status.st_size} bytes, above {largest}")
    return f"{len(modes)}, all of a bundle and no others", folder


def check_hashes(folder: Path) -> tuple[str, bool]:
    """Checks all files against the list of their hashes."""
    damaged = damaged_files(folder)
    require_true(
        not damaged, f"not as {SUMS_FILE} says: {', '.join(damaged)}; fetch the bundle again"
    )
    lines = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in LISTED_FILES)
    require_true(
        (folder / SUMS_FILE).read_bytes() == lines.encode(),
        f"{SUMS_FILE}: not as dpprobe writes it; fetch the bundle again",
    )
    return f"all files are as {SUMS_FILE} says", True


def check_signature(checks: Checks, folder: Path | None, public_key: Path | None) -> None:
    """Checks the signature where there is one, and a key to check it by."""
    if folder is None:
        checks.note_check("signature", None, "not checked: it rests on what failed above")
    elif not (folder / SIGNATURE_FILE).is_file():
        asked = public_key is not None
        checks.note_check(
            "signature",
            False if asked else None,
            "none, and a public key was given" if asked else "none: anyone can have made this",
        )
    elif public_key is None:
        checks.note_check("signature", None, "not checked: give --public-key")
    else:
        holds = signature_holds(folder, public_key)
        of = f"{SIGNATURE_FILE} is{'' if holds else ' not'} of the key {public_key.name}"
        checks.note_check("signature", holds, of)


def read_facts(folder: Path) -> tuple[str, BundleFacts]:
    """Reads bundle.json, and checks its names, classes and hash."""
    path = folder / FACTS_FILE
    read_json(path)
    facts = BundleFacts.model_validate_json(path.read_bytes(), strict=True)
    names = facts.class_names
    require_true(0 < len(set(names)) == len(names), "class_names: none, or one stands twice")
    if not facts.backbone.trained:
        require_true(
            facts.backbone.checkpoint is None, "backbone: not trained, yet with a checkpoint"
        )
    for name in (facts.backbone.checkpoint or "", facts.name, facts.study, facts.dataset):
        require_true("/" not in name and "\\" not in name, f"{name}: a path where a name belongs")
    sha256 = facts.backbone.weights_sha256
    require_true(sha256 is None or is_hash(sha256), f"weights_sha256 {sha256}: not a SHA-256")
    return f"release {facts.name} of {facts.dataset}, by dpprobe {facts.dpprobe}", facts


def check_leaks(folder: Path) -> tuple[str, bool]:
    """Looks for keys and texts that must not be in a bundle."""
    for name in (FACTS_FILE, STATEMENT_FILE):
        check_keys(read_json(folder / name), where=name)
    for name in LISTED_FILES:
        if name != HEAD_FILE:
            check_text((folder / name).read_text(encoding="utf-8"), where=name)
    return "no seeds, fingerprints, paths or times by their names or looks", True
