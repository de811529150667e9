"""Kills a release with SIGKILL before each kind of step, and says what the next runs do.

    python -m tests.support.kill_walk FOLDER [METHOD]

A step is a call that changes the disk (a file opened for writing, a rename, a folder made or
removed), a lock, or a draw of random words. For each step one line of JSON: its name and what is
left before it. A step is killed if no earlier one left the same files. Its line also tells what the
next run did, and the run after a person's `abandon`. The next run deletes a bundle that is not
whole, so all steps that write its files count as one kind.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import Keystream
from dpprobe.release.bundle import BUNDLE_FILES
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.parts.choice import measure as choice
from dpprobe.study.study import Study
from tests.support.compiled_templates import keep_templates
from tests.support.release_study import release, study, write_features

EVENTS = {
    "open",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.remove",
    "os.truncate",
    "shutil.rmtree",
}
# The draws that are steps: how many more there are depends on what was drawn.
DRAWS = 4
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def step_name(event: str, arguments: tuple[Any, ...], folder: Path) -> str | None:
    """A step's name; None for an event that changes nothing in the folder."""
    if event == "fcntl.lockf":
        return "lock"
    if event not in EVENTS or (event == "open" and not arguments[2] & WRITES):
        return None
    place = str(arguments[0])
    return f"{event} {without_token(Path(place).name)}" if place.startswith(str(folder)) else None


def without_token(name: str) -> str:
    """A file's name without a temporary file's machine, process and token, and a key's hash."""
    parts = re.sub("[0-9a-f]{16}", "", name).split(".")
    return ".".join(part for part in parts if not re.fullmatch(r"[0-9a-f]{8}(-\d+)?", part))


def watch(folder: Path, reached: Callable[[str], None]) -> None:
    """Calls `reached` before each step of this process."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if name := step_name(event, arguments, folder):
            reached(name)

    fill, draws = Keystream.fill_words, 0

    def drawn(self: Keystream, out: Any) -> None:
        nonlocal draws
        draws += 1
        if draws <= DRAWS:
            reached(f"draw {draws}")
        fill(self, out)

    Keystream.fill_words = drawn  # type: ignore[method-assign]
    sys.addaudithook(hook)


def in_child(work: Callable[[], None]) -> int:
    """Runs something in a forked process; returns its exit status, negative for a signal."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except PrivacyError as error:
            Path(os.environ["KILL_WALK_SAID"]).write_text(str(error))
            status = 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def unbooked(folder: Path) -> bool:
    """True if no open entry of the release is on the disk."""
    entry = Ledger.of_dataset(folder / "data", "toy").entry_of("first")
    return entry is None or entry.state != "open"


def run_until(
    folder: Path, work: Callable[[], object], kill_at: int | None, note: Callable[[str], None]
) -> int:
    """Works in a process that dies before step `kill_at`, from 0, and notes each step before."""

    def watched() -> None:
        count, inside = 0, False

        def reached(name: str) -> None:
            nonlocal count, inside
            if inside:
                return
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            inside = True
            note(name)
            inside = False

        watch(folder, reached)
        work()

    return in_child(watched)


def run(folder: Path, made: Study, *, kill_at: int | None, steps: Path | None = None) -> int:
    """Makes the release up to a step; `steps` takes the names, and what the folder holds before."""

    def note(name: str) -> None:
        if name.startswith("draw") and unbooked(folder):
            (folder / "UNBOOKED").touch()
        if steps is not None:
            with steps.open("a") as stream:
                stream.write(json.dumps([name, state(folder), files(folder)]) + "\n")

    return run_until(folder, lambda: release(folder, made), kill_at, note)


def heads(folder: Path) -> dict[str, str]:
    """Every whole head file on the disk: digest by place."""
    places = folder.glob("results/releases/**/head.safetensors")  # hidden folders too
    return {
        str(path.parent.name): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(places)
    }


def state(folder: Path) -> dict[str, Any]:
    """The ledger's entries and the heads on the disk."""
    entries = Ledger.of_dataset(folder / "data", "toy").read_entries()
    return {"entries": [entry.state for entry in entries], "heads": heads(folder)}


def files(folder: Path) -> tuple[str, ...]:
    """Every file and folder of a killed run, and the ledger's lines, without the drawn numbers."""
    places = (path.relative_to(folder) for path in folder.rglob("*"))
    names = (str(place.with_name(without_token(place.name))) for place in places)
    entries = Ledger.of_dataset(folder / "data", "toy").read_entries()
    return *sorted(names), *(entry.state for entry in entries)


def run_again(folder: Path, made: Study) -> dict[str, Any]:
    """Makes a release again where a run was killed; abandons its entry where that is asked for."""
    record: dict[str, Any] = {"next": run(folder, made, kill_at=None)}
    said = Path(os.environ["KILL_WALK_SAID"])
    record["said"] = said.read_text() if record["next"] == 2 else None
    record["then"] = state(folder)
    if record["next"] == 2:
        entry = Ledger.of_dataset(folder / "data", "toy").entry_of("first")
        assert entry is not None
        Ledger.of_dataset(folder / "data", "toy").abandon_entry(entry.number, "killed by the walk")
        record["after abandon"] = run(folder, made, kill_at=None)
        record["in the end"] = state(folder)
    return record


def walk(folder: Path, made: Study, prepare: Callable[[], None]) -> list[dict[str, Any]]:
    """Kills at every kind of step of a release; returns a record of each step."""
    prepare()
    steps = folder.with_name("steps")
    assert run(folder, made, kill_at=None, steps=steps) == 0
    records, seen = [], set()
    for index, line in enumerate(steps.read_text().splitlines()):
        name, before, left = json.loads(line)
        record: dict[str, Any] = {"step": index, "before": name, "left": before}
        if (kind := kind_of(name, before, left)) not in seen:
            seen.add(kind)
            prepare()
            record["killed"] = run(folder, made, kill_at=index)
            record["left"] = state(folder)
            assert list(files(folder)) == left, f"a killed run left something else at {name}"
            record |= run_again(folder, made)
        record["unbooked draw"] = (folder / "UNBOOKED").exists()
        records.append(record)
    return records


def kind_of(name: str, before: dict[str, Any], left: list[str]) -> tuple[str, ...]:
    """Returns a key of what a kill at a step leaves to the next run."""
    if before["entries"] == ["open"] and any(one in name for one in BUNDLE_FILES):
        return name.split()[0], *before["heads"]
    return name if before["entries"] == ["open"] else "", *before["heads"], *left


def priced_once(price: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Makes a function that answers as `price` did the first time: one release is all there is."""
    answers: list[dict[str, Any]] = []

    def answer(*arguments: Any, **rest: Any) -> dict[str, Any]:
        if not answers:
            answers.append(price(*arguments, **rest))
        return answers[0]

    return answer


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    method = sys.argv[2] if len(sys.argv) > 2 else "covariance"
    folder = root / "release"
    os.environ["KILL_WALK_SAID"] = str(root / "said.txt")
    made = study(folder, method=method, evaluate={"epsilon": 1})
    calibration = Path(tempfile.mkdtemp(dir=root))
    template = root / "template"
    write_features(template)

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(calibration, folder / "results/calibration")

    # Plans are found and priced, and templates compiled, once, in the process that all others are
    # forked from.
    keep_templates(pytest.MonkeyPatch())
    choice.choice_block = priced_once(choice.choice_block)
    prepare()
    release(folder, made)
    shutil.rmtree(calibration)
    shutil.copytree(folder / "results/calibration", calibration)
    gc.freeze()  # else a collection in each child copies all that they share
    for record in walk(folder, made, prepare):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
