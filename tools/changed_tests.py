"""Lists the tests to run for a change: `make test-quick`.

    python tools/changed_tests.py [REVISION]

Changed files differ from the common ancestor with REVISION (default: `main`), committed or not.
Listed are changed tests, tests in tests/unit that are named after a changed module, and tests that
import a changed module or name a changed file of the tests. If more than MOST tests import or name
one file, these tests are not listed. A few fast tests of the whole repository (ALWAYS) are always
listed. The script needs only the standard library.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("rooms", "keys", "neighbours", "printed_commands", "rule_files", "asserted_sentences")
MOST = 12


def list_changes(root: Path, revision: str) -> list[str]:
    """Returns the paths of files that were added or changed since the common ancestor."""

    def ask(*words: str) -> list[str]:
        return subprocess.check_output(["git", *words], cwd=root, text=True).splitlines()

    (ancestor,) = ask("merge-base", revision, "HEAD")
    changed = ask("diff", "--name-only", "--diff-filter=d", ancestor)
    return [*changed, *ask("ls-files", "--others", "--exclude-standard")]


def select_tests(root: Path, changes: Sequence[str]) -> list[str]:
    """Returns the paths of the tests to run, sorted."""
    tests = sorted((root / "tests").rglob("test_*.py"))
    unit = [path for path in tests if path.is_relative_to(root / "tests/unit")]
    found = {root / f"tests/project/test_{name}.py" for name in ALWAYS}
    for change in map(Path, changes):
        if change.parts[0] == "tests" and change.match("test_*.py"):
            found.add(root / change)
        elif change.parts[0] == "tests":
            name = change.stem if change.suffix == ".py" else change.name
            found |= set(_search(tests, re.compile(rf"\b{re.escape(name)}\b")))
        elif change.is_relative_to("src/dpprobe") and change.suffix == ".py":
            found |= set(_find_tests(root, change.relative_to("src"), unit))
    return sorted(path.relative_to(root).as_posix() for path in found)


def _find_tests(root: Path, module: Path, unit: Sequence[Path]) -> Iterator[Path]:
    """Yields the unit tests that are named after a module, and the tests that import it."""
    *rooms, _ = module.parts[1:]
    own = (root / "tests/unit").joinpath(*rooms)
    yield from own.glob(f"test_{module.stem}*.py")
    package, name = re.escape(".".join(module.parts[:-1])), re.escape(module.stem)
    imports = re.compile(
        rf"^\s*(from {package} import (\(\n)?[^()]*\b{name}\b|(from|import) {package}\.{name}\b)",
        re.MULTILINE,
    )
    yield from _search(unit, imports)


def _search(tests: Sequence[Path], pattern: re.Pattern[str]) -> list[Path]:
    """Returns the tests whose text matches a pattern; none if more than MOST tests match."""
    found = [path for path in tests if pattern.search(path.read_text(encoding="utf-8"))]
    return found if len(found) <= MOST else []


if __name__ == "__main__":
    print(*select_tests(ROOT, list_changes(ROOT, *sys.argv[1:] or ["main"])), sep="\n")
