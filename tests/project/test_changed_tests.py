"""`make test-quick` selects the tests of changed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.git import git
from tests.support.script_modules import load_script

SCRIPT = load_script(REPOSITORY / "tools/changed_tests.py")
ALWAYS = {f"tests/project/test_{name}.py" for name in SCRIPT.ALWAYS}


def write(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "tests"),
    [
        ("src/dpprobe/a/one.py", {"unit/a/test_one.py", "unit/a/test_one_more.py"}),
        ("src/dpprobe/a/two.py", {"unit/a/test_other.py", "unit/b/test_third.py"}),
        ("tests/unit/b/test_third.py", {"unit/b/test_third.py"}),
        ("tests/workflow/test_runs.py", {"workflow/test_runs.py"}),
        ("tests/unit/b/rows.yaml", {"unit/b/test_third.py"}),
        ("tests/support/rows.py", {"unit/b/test_third.py"}),
        ("docs/page.md", set()),
    ],
)
def test_a_changed_module_has_its_tests_and_those_that_import_it(
    change: str, tests: set[str], tmp_path: Path
) -> None:
    write(tmp_path, "tests/unit/a/test_one.py")
    write(tmp_path, "tests/unit/a/test_one_more.py")
    write(tmp_path, "tests/unit/a/test_other.py", "from dpprobe.a import three, two\n")
    write(
        tmp_path, "tests/unit/b/test_third.py", "from dpprobe.a.two import x\nROWS = 'rows.yaml'\n"
    )
    found = SCRIPT.select_tests(tmp_path, [change])
    assert set(found) == ALWAYS | {f"tests/{name}" for name in tests}


def test_changes_are_committed_or_not(tmp_path: Path) -> None:
    for name in ("same.py", "edited.py", "deleted.py"):
        write(tmp_path, name)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    git(tmp_path, "switch", "-qc", "branch")
    write(tmp_path, "committed.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "more")
    write(tmp_path, "edited.py", "1")
    write(tmp_path, "new.py")
    (tmp_path / "deleted.py").unlink()
    assert SCRIPT.list_changes(tmp_path, "main") == ["committed.py", "edited.py", "new.py"]


def test_every_test_that_is_always_run_is_there() -> None:
    assert {name for name in ALWAYS if not (REPOSITORY / name).is_file()} == set()
