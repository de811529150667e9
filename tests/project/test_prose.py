"""The style of prose and names that a reader meets in every module and page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dpprobe"
MODULES = sorted(SOURCE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUESTION_WORDS = ("What", "Whether", "Which", "How", "Where")
# Neither says what the thing is.
EMPTY_NAMES = {"own", "found"}
LONGEST_LINE = 120


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_docstrings_say_what_a_thing_does(module: Path) -> None:
    questions = [
        f"line {node.body[0].lineno}: {docstring.splitlines()[0]}"
        for node in ast.walk(_parsed(module))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
        and docstring.split(maxsplit=1)[0].rstrip(",:;") in QUESTION_WORDS
    ]
    assert not questions


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_names_say_what_they_hold(module: Path) -> None:
    empty = [
        f"line {line}: {name}" for line, name in _bound(_parsed(module)) if name in EMPTY_NAMES
    ]
    assert not empty


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_of_pages_are_short(page: Path) -> None:
    """Rows of tables and printed output, indented, cannot be broken; all else can."""
    long = [
        f"line {number}: {len(line)} characters"
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST_LINE and not line.startswith(("|", "    "))
    ]
    assert not long


def _parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def _bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each binding: assigned, imported, defined, a parameter."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(name=imported, asname=name):
                yield node.lineno, name or imported
            case ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
