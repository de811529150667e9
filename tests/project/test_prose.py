"""The style of prose and names that a reader meets in every module and page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.script_modules import load_script

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dpprobe"
# Neither says what the thing is.
EMPTY_NAMES = {"own", "found"}


@pytest.fixture(scope="module")
def linter() -> ModuleType:
    linter = load_script(ROOT / "bench/prose.py")
    linter.CheckRegistry().register_many(tuple(linter.make_checks()))
    return linter


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("Returns one row per cell. Of `what is code` nothing is read?", set()),
        ("Returns a row a cell.", {"per"}),
        ("Trains anew.", {"terms"}),
        ("Reads one. Such rows stay.", {"starts"}),
        ("Where files lie.", {"starts"}),
        ("Where files lie, nothing changes. What else is there?", set()),
        ("Reads " + "one " * 25, {"long"}),
        ("Reads one.\n\n- Reads " + "one " * 24, set()),
    ],
)
@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("page.md", "# Title\n\n{}"),
        ("docstring.py", 'def read():\n    """{}"""'),
        ("comment.py", "x = 1\n\n# {}\n"),
        ("comment.yaml", "x: 1\n\n# {}\n"),
        ("rules.smk", 'rule all:\n    """{}"""'),
        ("option.py", "x = Field(1, description={!r})"),
        ("error.py", "raise ConfigError({!r})"),
    ],
)
def test_the_linter_finds_faults_of_prose(
    text: str,
    rules: set[str],
    name: str,
    source: str,
    linter: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linter, "ROOT", tmp_path)
    page = tmp_path / name
    page.write_text(source.format(text.replace("\n", "\n# ") if "comment" in name else text))
    config = linter.Config(max_errors=100, checks={"dpprobe": True})
    faults = [*linter.find_faults(page, config)]
    assert {rule.removeprefix("dpprobe.") for rule, _ in faults} == rules
    last_line = len(source.format("x").splitlines())
    assert all(fault.startswith(f"{name}:{last_line}: ") for _, fault in faults)


def test_names_say_what_they_hold() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    empty = {path: EMPTY_NAMES & {*_names(tree)} for path, tree in trees.items()}
    assert {path: names for path, names in empty.items() if names} == {}


def _names(tree: ast.Module) -> Iterator[str]:
    """Yields the names of all that is assigned, imported, defined or passed."""
    for node in ast.walk(tree):
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            for field in ("id", "arg", "name", "attr", "asname"):
                if isinstance(name := getattr(node, field, None), str):
                    yield name
