"""Kills a release with SIGKILL before each kind of step, and reports what the next runs do.

    python -m tests.support.kill_walk FOLDER [METHOD]

A step changes the disk (opens a file for writing, renames, makes or removes a folder), takes a
lock, or draws random words. Prints one line of JSON per step, with its name and the files before
it. Kills the run at a step unless an earlier kill left the same files; the line then has the
outcomes of the next run, and of a run after a person's `abandon`. The next run deletes an
incomplete bundle, so all steps that write the bundle's files count as one kind.
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
# Number of draws that count as steps: the number of further draws is random.
DRAWS = 4
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def step_name(event: str, arguments: tuple[Any, ...], folder: Path) -> str | None:
    """Returns a step's name; None for an event that changes nothing in the folder."""
    if event == "fcntl.lockf":
        return "lock"
    if event not in EVENTS or (event == "open" and not arguments[2] & WRITES):
        return None
    place = str(arguments[0])
    return f"{event} {without_token(Path(place).name)}" if place.startswith(str(folder)) else None


def without_token(name: str) -> str:
    """Returns a file name without the machine, process, token or key's hash in it."""
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
    """Runs `work` in a forked process; returns its exit status, negative for a signal."""
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
    """Returns True if the disk has no open entry of the release."""
    entry = Ledger.of_dataset(folder / "data", "toy").entry_of("first")
    return entry is None or entry.state != "open"


def run_until(
    folder: Path, work: Callable[[], object], kill_at: int | None, note: Callable[[str], None]
) -> int:
    """Runs `work` in a process that dies before step `kill_at` (from 0); notes each step before."""

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
    """Makes the release until a step; appends each step's name and the files before to `steps`."""

    def note(name: str) -> None:
        if name.startswith("draw") and unbooked(folder):
            (folder / "UNBOOKED").touch()
        if steps is not None:
            with steps.open("a") as stream:
                stream.write(json.dumps([name, state(folder), files(folder)]) + "\n")

    return run_until(folder, lambda: release(folder, made), kill_at, note)


def heads(folder: Path) -> dict[str, str]:
    """Maps the folder of every complete head file on the disk to its digest."""
    places = folder.glob("results/releases/**/head.safetensors")  # includes hidden folders
    return {
        str(path.parent.name): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(places)
    }


def state(folder: Path) -> dict[str, Any]:
    """Returns the ledger's entries and the heads on the disk."""
    entries = Ledger.of_dataset(folder / "data", "toy").read_entries()
    return {"entries": [entry.state for entry in entries], "heads": heads(folder)}


def files(folder: Path) -> tuple[str, ...]:
    """Returns all files, folders and ledger entries of a killed run, without random tokens."""
    places = (path.relative_to(folder) for path in folder.rglob("*"))
    names = (str(place.with_name(without_token(place.name))) for place in places)
    entries = Ledger.of_dataset(folder / "data", "toy").read_entries()
    return *sorted(names), *(entry.state for entry in entries)


def run_again(folder: Path, made: Study) -> dict[str, Any]:
    """Repeats a killed release; if its entry must be abandoned, abandons it and repeats again."""
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
    """Kills a release at every kind of step; returns a record for each step."""
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
    """Returns a key for the state that a kill at a step leaves for the next run."""
    if before["entries"] == ["open"] and any(one in name for one in BUNDLE_FILES):
        return name.split()[0], *before["heads"]
    return name if before["entries"] == ["open"] else "", *before["heads"], *left


def priced_once(price: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Returns a function that caches the first answer of `price`, as there is only one release."""
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

    # Finds and prices plans, and compiles templates, once in the process from which all others are
    # forked.
    keep_templates(pytest.MonkeyPatch())
    choice.choice_block = priced_once(choice.choice_block)
    prepare()
    release(folder, made)
    shutil.rmtree(calibration)
    shutil.copytree(folder / "results/calibration", calibration)
    gc.freeze()  # otherwise a collection in each child copies all shared memory
    for record in walk(folder, made, prepare):
        print(json.dumps(record))


if __name__ == "__main__":
    main()
