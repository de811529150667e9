"""A rule file imports what it uses, and a search for a rule's name finds its analysis."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from dpprobe.analysis_registry import load_analyses
from tests.conftest import REPOSITORY

FILES = [REPOSITORY / "Snakefile", *sorted((REPOSITORY / "workflow").rglob("*.smk"))]
IMPORT = re.compile(r"^ *(?:from [\w.]+ import (?:\([^)]*\)|.+)|import .+)\n", re.MULTILINE)


def list_imported(text: str) -> list[str]:
    """Returns the names that a rule file's imports bind."""
    return [
        alias.asname or alias.name.partition(".")[0]
        for found in IMPORT.findall(text)
        for node in ast.walk(ast.parse(found.strip()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]


def find_used(text: str) -> set[str]:
    """Returns the names that a rule file uses, also within f-strings; attributes do not count."""
    before, used = "", set()
    for token in tokenize.generate_tokens(io.StringIO(IMPORT.sub("", text)).readline):
        if token.type == tokenize.NAME and before != ".":
            used.add(token.string)
        if token.type == tokenize.STRING and token.string[0] == "f":
            holes = re.findall(r"\{([^{}]+)\}", token.string)
            used.update(name for hole in holes for name in re.findall(r"(?<!\.)\b\w+", hole))
        before = token.string
    return used


IMPORTED = {path: list_imported(path.read_text()) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_rule_files_import_all_names_that_they_use(path: Path) -> None:
    used, anywhere = find_used(path.read_text()), {n for all_ in IMPORTED.values() for n in all_}
    assert sorted(IMPORTED[path]) == sorted(used & anywhere)


def test_an_analysis_computes_in_a_function_of_its_rules_name() -> None:
    for analysis in load_analyses():
        if job := analysis.measurement:
            assert job.job.partition(":")[2] == job.rule, analysis.name


@pytest.mark.parametrize(
    ("file", "rule"),
    [
        ("audit/measure.py", "audit_cells"),
        ("imbalance/measure.py", "compare_rare_classes"),
        ("representation_law/law_networks.py", "measure_law"),
    ],
)
def test_so_does_an_analysis_whose_rule_is_written_by_hand(file: str, rule: str) -> None:
    assert sum(f"\nrule {rule}:" in path.read_text() for path in FILES) == 1
    path = REPOSITORY / "src/dpprobe/analyses" / file
    nodes = ast.walk(ast.parse(path.read_text()))
    assert rule in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
