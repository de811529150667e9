"""A turn of a site and of the server, for Flower and for NVFLARE, whose package links to this file.

In a turn, each site gets the files that it lacks, runs `dpprobe site`, and answers with its new
files. dpprobe signs and checks what is in them. So this module only keeps names from leaving the
folder. A site tells the server an exit status, and no word of what dpprobe prints.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

# As dpprobe names them: offer.<site>.json and sums-<round>.<site>.safetensors.
CARRIED = re.compile(r"(offer\.[a-z0-9_]+\.json|sums-[0-9]+\.[a-z0-9_]+\.safetensors)")
FIRST, LATER = "keys", "sums"  # the action of `dpprobe site` in the first turn, and in all others
COMPLETE, WAITING = 0, 3  # exit status of `dpprobe site sums`


def take_turn(
    site: Mapping[str, str], action: str, files: Mapping[str, bytes], known: Iterable[str]
) -> tuple[int, dict[str, bytes]]:
    """Writes files of other sites, and runs `dpprobe site`; returns its exit status and new files.

    Args:
      site: what a site states itself: `command` is the `dpprobe` of its environment, `folder` is
        where its study is and where commands run, `study` is the study's file, `release` the
        release, and `exchange` the folder of messages, `sites.exchange` with the release's name.
      action: FIRST or LATER; ValueError for any other.
      known: names of all files that the server has.
    """
    if action not in (FIRST, LATER):
        raise ValueError(f"{action!r}: a turn is {FIRST} or {LATER}")
    exchange = Path(site["folder"]) / site["exchange"]
    write_files(exchange, files)
    command = [site["command"], "site", action, site["release"], "--configfile", site["study"]]
    status = subprocess.run(command, cwd=site["folder"], check=False).returncode
    return status, read_files(exchange, without=known)


def add_answers(
    files: dict[str, bytes], answers: Mapping[str, tuple[int, Mapping[str, bytes]]]
) -> bool:
    """Adds the sites' new files to `files`; returns whether all these sites are complete.

    Raises RuntimeError for a site whose dpprobe failed, and if the sites wait for each other.
    """
    before = len(files)
    for site, (status, new) in answers.items():
        if status not in (COMPLETE, WAITING):
            raise RuntimeError(f"site {site}: dpprobe ended with status {status}; see its output")
        for name, content in new.items():
            files.setdefault(name, content)
    waiting = [site for site, (status, _) in answers.items() if status != COMPLETE]
    if waiting and len(files) == before:
        raise RuntimeError(f"no site has sent anything new, and still wait: {', '.join(waiting)}")
    return not waiting


def read_files(folder: Path, without: Iterable[str] = ()) -> dict[str, bytes]:
    """Reads the carried files of a folder, but those in `without`."""
    known = set(without)
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob("*"))
        if CARRIED.fullmatch(path.name) and path.name not in known
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files that a message carried; ValueError for any other name.

    A file that is there stays: what a site has sent does not change.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if CARRIED.fullmatch(name) is None:
            raise ValueError(f"{name!r}: not a file of dpprobe's sites")
        path = folder / name
        if not path.exists():
            temporary = path.with_name(f".{name}.partial")
            temporary.write_bytes(content)
            temporary.replace(path)
