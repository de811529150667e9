"""Few parts of Snakemake are replaced, each with a link to its upstream thread and a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

MOST = 9  # includes settings and blocks of a run
MOST_METHODS = 4
# Finds attributes of Snakemake's classes and objects that are assigned or changed from outside.
REPLACED = re.compile(
    r"^\s*((?:[A-Z]\w+|workflow|logger)(?:\.\w+)+)(?: = |\.add\(|\.addFilter\()", re.MULTILINE
)
PLACES = ("Snakefile", "workflow/**/*.smk", "profiles/**/*.py", "src/**/*.py", "scripts/*.py")
TEST = re.compile(r"(tests/[\w/]+\.py)(?:::(\w+))?")


def find_patches(repository: Path) -> dict[str, str]:
    """Maps each replaced part to the comments before the function, or line, that replaces it."""
    patches = {}
    for path in [path for place in PLACES for path in repository.glob(place)]:
        text = path.read_text()
        if "snakemake" not in text and path.suffix == ".py":
            continue
        for match in REPLACED.finditer(text):
            before = text[: match.start()]
            blocks = re.findall(r"(?:^# .*\n)+", before, re.MULTILINE)
            patches[match[1]] = blocks[-1] if blocks else ""
    return patches


@pytest.fixture(scope="module")
def patches(repository: Path) -> dict[str, str]:
    return find_patches(repository)


def test_few_parts_of_snakemake_are_replaced(patches: dict[str, str]) -> None:
    methods = {name for name in patches if not name.startswith(("workflow.", "MODIFIER."))}
    assert {"Job.restart_times", "DAG.update_needrun"} <= methods
    assert len(methods) <= MOST_METHODS, sorted(methods)
    assert len(patches) <= MOST, sorted(patches)


def test_classes_of_snakemake_are_replaced_in_one_rule_file(repository: Path) -> None:
    files = (repository / "workflow").rglob("*.smk")
    replacing = {
        path.name
        for path in files
        if re.search(r"^ *[A-Z]\w*[a-z]\w*\.\w+ = ", path.read_text(), re.MULTILINE)
    }
    assert replacing == {"snakemake_fixes.smk"}


def test_each_patch_names_its_upstream_thread_and_an_existing_test(
    repository: Path, patches: dict[str, str]
) -> None:
    for replaced, comment in patches.items():
        joined = " ".join(line.removeprefix("# ") for line in comment.splitlines())
        assert "Upstream: " in joined, replaced
        tests = TEST.findall(joined.partition("Test")[2])
        assert tests, replaced
        for file, name in tests:
            tree = ast.parse((repository / file).read_text())
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert not name or name in functions, f"{replaced}: {file} has no {name}"
