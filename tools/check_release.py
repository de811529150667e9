"""Checks that a tag may be published: tag, code and files must name the same version and date.

Files for archives and the software paper have placeholders for facts that only a person knows.
Each placeholder that is left is a fault.

    python tools/check_release.py v0.1.0

Prints the version, or one line per fault. Needs only the standard library.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from dpprobe.version_number import ROOT, TAG, VERSION, name_code

UNRELEASED = "unreleased"
PLACEHOLDER = re.compile(r"PLACEHOLDER: ([^\"]+)")
PREPARED = ("CITATION.cff", ".zenodo.json", "codemeta.json", "paper/paper.md")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
_HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", re.MULTILINE)


class Stated(NamedTuple):
    """The version and its date, as stated in a file."""

    version: str
    day: str


def of_changelog(text: str) -> Stated:
    """Reads the newest version's heading; the next version's notes may precede this heading."""
    found = _HEADING.search(text)
    return Stated(*found.groups()) if found else Stated("no version", UNRELEASED)


def of_citation(text: str) -> Stated:
    lines = dict(line.split(": ", 1) for line in text.splitlines() if re.match(r"[\w-]+: ", line))
    version, day = (lines.get(key, "").strip("\"'") for key in ("version", "date-released"))
    return Stated(version, day or UNRELEASED)


def find_placeholders(root: Path = ROOT) -> Iterator[str]:
    """Yields a fault for each placeholder of the prepared files, and for each missing file."""
    for name in PREPARED:
        if not (root / name).is_file():
            yield f"{name}: missing; restore it from git"
            continue
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            for wanted in PLACEHOLDER.findall(line):
                yield f"{name}: line {number}: placeholder; write the {wanted}"


def find_faults(tag: str, root: Path = ROOT) -> Iterator[str]:
    if tag != TAG:
        yield f"tag {tag}: src/dpprobe/version_number.py has {VERSION}, whose tag is {TAG}"
    if (named := name_code(root)) != VERSION:
        yield f"this code is {named}: check out {TAG}, without edits"
    changes = of_changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    citation = of_citation((root / "CITATION.cff").read_text(encoding="utf-8"))
    for name, stated in (("CHANGELOG.md", changes), ("CITATION.cff", citation)):
        if stated.version != VERSION:
            yield f"{name}: {stated.version}, not {VERSION}"
        if not DAY.fullmatch(stated.day):
            yield f"{name}: {stated.day}; write the day of the release, as 2026-01-31"
    if changes.day != citation.day:
        yield f"CITATION.cff: {citation.day}, but CHANGELOG.md has {changes.day}"
    yield from find_placeholders(root)
    codemeta = root / "codemeta.json"
    if (
        codemeta.is_file()
        and (stated_there := json.loads(codemeta.read_text())["version"]) != VERSION
    ):
        yield f"codemeta.json: {stated_there}, not {VERSION}"


def main() -> None:
    (tag,) = sys.argv[1:]
    if faults := list(find_faults(tag)):
        sys.exit("\n".join(faults))
    print(VERSION)


if __name__ == "__main__":
    main()
