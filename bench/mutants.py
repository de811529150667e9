"""Puts each fault of `tests/mutants.yaml` into a copy of the code, and checks that a test fails.

    python bench/mutants.py                          # every fault, about half an hour
    python bench/mutants.py --only "rounded down"    # those whose sentence has these words

A temporary folder gets a copy of the working tree's files that git knows. A fault's tests run with
the fault until a test fails; in the end the tests run without a fault, and must pass. Prints a line
per fault. Exits with 1 if a fault survives. Also exits with 1 if a fault's text does not occur
exactly once in the code; update the entry of this fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "mutants.yaml"
# pytest's exit statuses.
PASSED, FAILED = 0, 1
LIMIT_SECONDS = 900


class MutantError(Exception):
    """A fault that cannot be tried."""


@dataclass(frozen=True)
class Edit:
    """A text of the code, and the text that replaces it."""

    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A fault: its edits, and the tests that notice it, `FILE` or `FILE::TEST`."""

    fault: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    room: str = ""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Mutant:
        edits = values.get("edits") or [{"old": values["old"], "new": values["new"]}]
        return cls(
            fault=values["fault"],
            edits=tuple(Edit(**edit) for edit in edits),
            tests=tuple(values["tests"]),
            room=values.get("in", ""),
        )


def read_mutants(path: Path = FAULTS) -> list[Mutant]:
    """Reads the faults; raises MutantError if one is listed twice."""
    mutants = [Mutant.of(values) for values in yaml.safe_load(path.read_text(encoding="utf-8"))]
    faults = [mutant.fault for mutant in mutants]
    if twice := {each for each in faults if faults.count(each) > 1}:
        raise MutantError(f"{path}: {'; '.join(sorted(twice))}: this fault is listed twice")
    return mutants


def read_modules(root: Path) -> dict[Path, str]:
    paths = sorted((root / "src" / "dpprobe").rglob("*.py"))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def find_place(mutant: Mutant, edit: Edit, modules: Mapping[Path, str]) -> Path:
    """Returns the module whose text an edit replaces.

    Raises:
      MutantError: unless the text occurs exactly once in the package, or in the fault's room.
    """
    places = [
        path
        for path, text in modules.items()
        if not mutant.room or mutant.room in path.parts
        for _ in range(text.count(edit.old))
    ]
    if len(places) != 1:
        names = ", ".join(path.name for path in places) or "no module"
        raise MutantError(
            f"{mutant.fault}: text does not occur exactly once, but in {names}: {edit.old!r}"
        )
    return places[0]


def find_tests(mutant: Mutant, root: Path) -> list[str]:
    """Returns a fault's tests in pytest's notation; raises MutantError if a test is not found."""
    files = sorted((root / "tests").rglob("test_*.py"))
    found = []
    for test in mutant.tests:
        end, mark, name = test.partition("::")
        ends = [
            path
            for path in files
            if str(path).endswith(f"/{end}") and (not name or f"def {name}(" in path.read_text())
        ]
        if not ends:
            raise MutantError(f"{mutant.fault}: no test {test}")
        found += [f"{path.relative_to(root)}{mark}{name}" for path in ends]
    return found


@contextmanager
def copied_tree() -> Iterator[Path]:
    """Makes a copy of the working tree."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        for name in filter(None, listed):
            source = ROOT / name
            if source.is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, root / name, follow_symlinks=False)
        yield root


@contextmanager
def mutated(mutant: Mutant, root: Path) -> Iterator[None]:
    """Puts a fault into a tree, and removes the fault after the `with` block."""
    modules = read_modules(root)
    changed: dict[Path, str] = {}
    for edit in mutant.edits:
        path = find_place(mutant, edit, modules)
        changed[path] = changed.get(path, modules[path]).replace(edit.old, edit.new)
    try:
        for path, text in changed.items():
            _write(path, text)
        yield
    finally:
        for path in changed:
            _write(path, modules[path])


def _write(path: Path, text: str) -> None:
    """Writes a module, and removes its bytecode, which Python may take for up to date."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(tests: Sequence[str], root: Path, *words: str) -> tuple[int, list[str], str]:
    """Runs tests; returns pytest's exit status, the failed tests, and the end of the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, *tests]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    run = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    begun = ("FAILED ", "ERROR ")
    failed = [line for line in run.stdout.splitlines() if line.startswith(begun)]
    tests = [line.split(" ", 1)[1].split(" - ")[0] for line in failed]
    return run.returncode, tests, run.stdout[-2000:]


@dataclass(frozen=True)
class Verdict:
    """The result for a fault: "killed" by a test, "SURVIVED", or an "error" with the reason."""

    word: str
    detail: str


def try_mutant(mutant: Mutant, root: Path) -> Verdict:
    """Runs a fault's tests on a tree that has the fault."""
    try:
        tests = find_tests(mutant, root)
        with mutated(mutant, root):
            status, failed, output = run_tests(tests, root, "-x")
    except MutantError as error:
        return Verdict("error", str(error))
    except subprocess.TimeoutExpired:
        return Verdict("error", f"its tests take more than {LIMIT_SECONDS} s")
    if status == FAILED and failed:
        return Verdict("killed", failed[0])
    return Verdict("SURVIVED", "") if status == PASSED else Verdict("error", output)


def find_false(verdicts: Mapping[str, Verdict], root: Path) -> list[str]:
    """Lists the faults whose test fails also without the fault."""
    killers = {verdict.detail for verdict in verdicts.values() if verdict.word == "killed"}
    if not killers:
        return []
    status, failed, output = run_tests(sorted(killers), root)
    if status not in (PASSED, FAILED):
        raise SystemExit(f"the tests do not run without a fault: {output}")
    return [each for each, verdict in verdicts.items() if verdict.detail in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="words of the faults to try")
    parser.add_argument("--list", action="store_true", help="list the faults, run nothing")
    asked = parser.parse_args()
    wanted = asked.only or [""]
    mutants = [each for each in read_mutants() if any(words in each.fault for words in wanted)]
    for words in wanted:
        if not any(words in each.fault for each in mutants):
            raise SystemExit(f"{words}: no such fault in {FAULTS}")
    if asked.list:
        print(*(mutant.fault for mutant in mutants), sep="\n")
        return 0
    verdicts: dict[str, Verdict] = {}
    with copied_tree() as root:
        for mutant in mutants:
            started = time.monotonic()
            verdict = verdicts[mutant.fault] = try_mutant(mutant, root)
            shown = (
                verdict.detail.split("::", 1)[-1] if verdict.word == "killed" else verdict.detail
            )
            seconds = time.monotonic() - started
            print(f"{verdict.word:9} {seconds:5.0f} s  {mutant.fault}: {shown}", flush=True)
        false = find_false(verdicts, root)
    if false:
        print(f"no kills, for their tests fail without them: {'; '.join(false)}")
    killed = sum(verdict.word == "killed" for verdict in verdicts.values()) - len(false)
    print(f"{killed} of {len(mutants)} killed")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
