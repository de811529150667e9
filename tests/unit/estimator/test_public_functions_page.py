"""docs/python.md: its code runs as printed, and every printed value and error is what comes out."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.script_modules import load_script

# What a fit with secret noise gives differs from run to run by less than this share.
NOISE = 0.06


def check_statement(statement: ast.stmt, source: str, names: dict[str, Any]) -> str | None:
    """Runs a statement; returns what its comment promises that did not come out."""
    last = source.splitlines()[(statement.end_lineno or 0) - 1]
    _, marked, comment = last.partition("  # ")
    text = ast.unparse(statement)
    if marked and re.match(r"\w+(Error|Warning): ", comment):
        kind, _, said = comment.partition(": ")
        return check_failure(text, names, kind, said)
    if not marked or not isinstance(statement, ast.Expr):
        exec(text, names)
        return None
    value = eval(text, names)
    if comment == "a text":
        right = isinstance(value, str) and len(value) > 20
    elif comment.startswith("about "):
        right = value == pytest.approx(float(comment.removeprefix("about ")), rel=NOISE)
    else:
        right = repr(value) == comment
    return None if right else f"{text}: {value!r}, and the page says {comment}"


def check_failure(text: str, names: dict[str, Any], kind: str, said: str) -> str | None:
    message, raised = "", "nothing"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(text, names)
        except Exception as error:
            message, raised = str(error), type(error).__name__
    if kind.endswith("Warning"):
        ours = [each for each in caught if each.category.__name__ == kind]
        message, raised = (str(ours[0].message), kind) if ours else ("", raised)
    parts = [part.strip() for part in said.split("...")]
    right = raised == kind and all(part in message for part in parts)
    return None if right else f"{text}: {raised}: {message}; the page says {kind}: {said}"


def test_the_page_runs_as_printed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 10
    names: dict[str, Any] = {}
    statements = [(each, block) for block in blocks for each in ast.parse(block).body]
    faults = [check_statement(*each, names) for each in statements]
    assert [fault for fault in faults if fault is not None] == []


def test_the_page_is_that_of_the_docstrings(repository: Path) -> None:
    page = load_script(repository / "bench/reference_page.py").reference_page()
    assert (repository / "docs/python-reference.md").read_text() == page, "run `make schema`"


def test_every_documented_argument_is_one(repository: Path) -> None:
    """The sections come from docstrings, the signatures from the code: each name is in both."""
    page = (repository / "docs/python-reference.md").read_text()
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        signature = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
        listed = re.search(r"\*\*Arguments\*\*\n\n(.*?)(\n\n|$)", section, flags=re.DOTALL)
        for name in re.findall(r"^- `(\w+)`", listed[1] if listed else "", flags=re.MULTILINE):
            assert signature is not None
            assert re.search(rf"\b{name}\b", signature[1]), (section.splitlines()[0], name)
