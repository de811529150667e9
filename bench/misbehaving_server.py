"""What a person sees when a download goes wrong: fault, message, what is on disk after.

Each fault goes through the `url` source against a local server that misbehaves in that way; the
last column is a good attempt after it, from what is on disk. Prints a Markdown table.

    python -m bench.misbehaving_server
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from tests.support.misbehaving_server import Answer, Cut, Fault, Server, Silent, Slow, page, serve

from dpprobe.data import downloads, sources
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.errors import DpprobeError

FOLDER = Path("data/downloads/xrays")
REMOTE = "/xrays.zip"
POLICY = downloads.Policy(attempts=3, first_wait=0.01, timeout=0.5)
PART = 60_000
PROGRAM = (
    "import json, sys; from pathlib import Path; from dpprobe.data import sources; "
    "from dpprobe.data.registry import dataset_options; "
    "sources.download(dataset_options(json.loads(sys.argv[1])), Path(sys.argv[2]))"
)


def zipped(names: Iterable[str]) -> bytes:
    stream = io.BytesIO()
    noise = random.Random(0)
    with zipfile.ZipFile(stream, "w") as packed:
        for name in names:
            packed.writestr(zipfile.ZipInfo(name), noise.randbytes(25_000))
    return stream.getvalue()


GOOD = zipped(f"{kind}/{number}.png" for kind in ("normal", "sick") for number in range(2))
OTHER = zipped(f"{kind}/{number}.png" for kind in ("sick", "normal") for number in range(2))
ESCAPING = zipped(["normal/0.png", "../../evil.png"])


@dataclass(frozen=True)
class Case:
    """A fault: what the server does, and what is served when it does nothing wrong."""

    name: str
    faults: Callable[[], Iterable[Fault]] = tuple
    content: bytes = GOOD
    expected: bytes = GOOD
    ranges: bool = True
    around: Callable[[], contextlib.AbstractContextManager[object]] = field(
        default=contextlib.nullcontext
    )


def always(fault: Fault) -> Callable[[], Iterable[Fault]]:
    return lambda: itertools.repeat(fault)


def breaks() -> Iterable[Fault]:
    return itertools.chain([Cut(PART)], itertools.repeat(Cut(0)))


def full_before() -> contextlib.AbstractContextManager[object]:
    usage = shutil.disk_usage(".")._replace(free=50_000)
    return mock.patch.object(shutil, "disk_usage", return_value=usage)


@contextlib.contextmanager
def full_within() -> Iterator[None]:
    write, usage = downloads._Partial.write, shutil.disk_usage(".")
    free = [usage.free]

    def limited(partial: downloads._Partial, chunk: bytes) -> None:
        write(partial, chunk[: max(PART - partial.size, 0)])
        if partial.size >= PART:
            free[0] = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        mock.patch.object(downloads._Partial, "write", limited),
        mock.patch.object(shutil, "disk_usage", side_effect=lambda _: usage._replace(free=free[0])),
    ):
        yield


CASES = (
    Case("breaks in the middle once, then resumes", lambda: [Cut(PART)]),
    Case("breaks in the middle, then at once, again and again", breaks),
    Case("the same, and the server knows no ranges", always(Cut(PART)), ranges=False),
    Case("another file (wrong checksum)", content=OTHER),
    Case("short file that claims to be whole", content=GOOD[:PART]),
    Case("web page with status 200", always(page())),
    Case("404", always(Answer(404))),
    Case("403", always(Answer(403))),
    Case("401", always(Answer(401))),
    Case("500 twice, then fine", lambda: [Answer(500)] * 2),
    Case("500 always", always(Answer(500))),
    Case("429, wait a day", always(Answer(429, headers={"Retry-After": "86400"}))),
    Case("takes the request and says nothing", always(Silent())),
    Case("redirects to itself", always(Answer(302, headers={"Location": REMOTE}))),
    Case("zip that escapes its folder", content=ESCAPING, expected=ESCAPING),
    Case("zip that was published cut off", content=GOOD[:PART], expected=GOOD[:PART]),
    Case("disk without room (simulated)", around=full_before),
    Case("disk that fills (simulated)", around=full_within),
)


def options(server: Server, expected: bytes = GOOD) -> DatasetOptions:
    return dataset_options(
        {
            "source": "url",
            "files": [{"url": server.url(REMOTE), "sha256": hashlib.sha256(expected).hexdigest()}],
            "layout": {"source": "imagefolder", "path": "xrays"},
        }
    )


def attempt(chosen: DatasetOptions) -> str:
    try:
        sources.download(chosen, FOLDER)
    except DpprobeError as error:
        return str(error)
    return "(none: it succeeds)"


def on_disk() -> str:
    """Files with their sizes; a folder with how many it holds."""
    found = [
        f"{path.name}/ ({sum(each.is_file() for each in path.rglob('*'))} files)"
        if path.is_dir()
        else f"{path.name} ({path.stat().st_size})"
        for path in sorted(FOLDER.iterdir())
    ]
    stray = [str(path) for path in Path().rglob("evil*")]
    return ", ".join(found + stray) or "nothing"


def after(server: Server) -> str:
    """What a good attempt sends and gives, from what is on disk."""
    server.put(REMOTE, GOOD)
    before = len(server.visits)
    said = attempt(options(server))
    if not said.startswith("(none") or not (FOLDER / "xrays" / "sick" / "1.png").is_file():
        return said
    sent = sum(visit.sent for visit in server.visits[before:])
    return f"whole; {sent} of {len(GOOD)} bytes sent"


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """An empty working directory."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        FOLDER.mkdir(parents=True)
        yield


def run(case: Case, server: Server) -> tuple[str, str, str]:
    server.put(REMOTE, case.content, faults=case.faults(), ranges=case.ranges)
    with elsewhere():
        with case.around():
            said = attempt(options(server, case.expected))
        return said, on_disk(), after(server)


def run_changed(server: Server) -> tuple[str, str, str]:
    """A file that is replaced between two attempts: its parts must not be put together."""
    with elsewhere():
        server.put(REMOTE, OTHER, faults=breaks(), etag='"old"')
        attempt(options(server))
        before = on_disk()
        server.put(REMOTE, GOOD, etag='"new"')
        visits = len(server.visits)
        said = attempt(options(server))
        sent = sum(visit.sent for visit in server.visits[visits:])
        return said, f"{before}; then {on_disk()}", f"whole; {sent} of {len(GOOD)} bytes sent"


def run_killed(server: Server) -> tuple[str, str, str]:
    """A process that is killed in mid-transfer."""
    with elsewhere():
        server.put(REMOTE, GOOD, faults=[Slow(chunk=5_000, pause=0.05)])
        chosen = options(server).model_dump_json(exclude_defaults=True)
        chosen = chosen.replace("{", '{"source":"url",', 1)
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, chosen, str(FOLDER)])
        partial = FOLDER / ".xrays.zip.partial"
        while process.poll() is None and not (partial.is_file() and partial.stat().st_size > PART):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return "(none: SIGKILL)", on_disk(), after(server)


def main() -> None:
    logging.getLogger("dpprobe").setLevel(logging.CRITICAL)
    print("| fault | message | on disk after (bytes) | a good attempt then |")
    print("|---|---|---|---|")
    with mock.patch.object(downloads, "POLICY", POLICY), serve() as server:
        rows = [(case.name, run(case, server)) for case in CASES]
        rows.append(("file replaced between two attempts", run_changed(server)))
        rows.append(("process killed in mid-transfer", run_killed(server)))
        for name, cells in rows:
            said, disk, then = (cell.replace(server.url(""), "http://host") for cell in cells)
            print(f"| {name} | {said} | {disk} | {then} |")


if __name__ == "__main__":
    main()
