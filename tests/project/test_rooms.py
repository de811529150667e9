"""The package's rooms (its top-level folders) are in a fixed order, and imports follow the order.

docs/architecture.md has the table of this order. Imports within functions and imports for type
checkers count like all others: they create import cycles too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = "dpprobe"
# The command line and the public names may import every room; their files are at the root.
ENTRY_POINTS = {"dpprobe.__main__", "dpprobe"}
HALL = "dpprobe.release."


@dataclass(frozen=True)
class Import:
    """An import of one dpprobe module by another."""

    importer: str
    imported: str
    line: int
    within_function: bool
    for_types: bool = False


def rooms(repository: Path) -> list[str]:
    """Returns the rooms in the order of the page's table."""
    page = (repository / "docs/architecture.md").read_text()
    table = page.partition("## The rooms")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)


def room_of(module: str) -> str:
    """Returns the room of a module; the root's modules are in the room `dpprobe`."""
    parts = module.split(".")
    package = Path(__file__).resolve().parents[2] / "src" / parts[0] / (parts[1:2] or [""])[0]
    return parts[1] if len(parts) > 1 and package.is_dir() else ROOT


def modules(repository: Path) -> dict[str, Path]:
    """Returns every module of the package by its dotted name."""
    source = repository / "src"
    named = {}
    for path in sorted((source / ROOT).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports_of(module: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Yields the dpprobe modules that a file imports, at the top level or anywhere below."""
    tree = ast.parse(path.read_text())
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _names_types(node)]
    typed = {id(node) for block in blocks for part in block.body for node in ast.walk(part)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno}: write the import in full"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else str(node.module) for name in whole]
        for name in names:
            if name in known:
                line, within = getattr(node, "lineno", 0), id(node) in inside
                yield Import(module, name, line, within, for_types=id(node) in typed)


def _names_types(block: ast.If) -> bool:
    return isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"


@pytest.fixture(scope="module")
def imports(repository: Path) -> list[Import]:
    known = modules(repository)
    return [item for module, path in known.items() for item in imports_of(module, path, known)]


def test_the_page_lists_every_room(repository: Path) -> None:
    folders = {path.parent.name for path in (repository / "src" / ROOT).glob("*/__init__.py")}
    listed = rooms(repository)
    assert listed[0] == ROOT
    assert set(listed[1:]) == folders
    assert len(set(listed)) == len(listed)


def test_no_room_imports_from_below(repository: Path, imports: list[Import]) -> None:
    order = {room: place for place, room in enumerate(rooms(repository))}
    against = [
        f"{item.importer}, line {item.line}: {item.imported}"
        for item in imports
        if item.importer not in ENTRY_POINTS
        and order[room_of(item.importer)] < order[room_of(item.imported)]
    ]
    assert against == []


def test_modules_do_not_import_each_other_in_a_cycle(imports: list[Import]) -> None:
    edges: dict[str, set[str]] = {}
    for item in imports:
        if item.importer != item.imported:
            edges.setdefault(item.importer, set()).add(item.imported)
    TopologicalSorter(edges).prepare()  # its CycleError names the modules of a cycle


def test_files_and_folders_of_release_import_in_one_direction(imports: list[Import]) -> None:
    """A folder counts as one: code that writes documents is not called by code that it calls."""
    edges: dict[str, set[str]] = {}
    for item in imports:
        if item.importer.startswith(HALL) and item.imported.startswith(HALL):
            above, below = (
                name.removeprefix(HALL).partition(".")[0] for name in (item.importer, item.imported)
            )
            if above != below:
                edges.setdefault(above, set()).add(below)
    assert {"make", "verification", "documents", "parts"} <= edges.keys()
    TopologicalSorter(edges).prepare()


def test_a_release_part_imports_no_other_part(imports: list[Import]) -> None:
    parts = f"{HALL}parts."
    pairs = {
        (item.importer.split(".")[3], item.imported.split(".")[3])
        for item in imports
        if item.importer.startswith(parts) and item.imported.startswith(parts)
    }
    assert ("monitor", "part") in pairs
    assert {(one, other) for one, other in pairs if other not in (one, "part")} == set()


def test_an_import_within_a_function_has_a_reason(repository: Path, imports: list[Import]) -> None:
    """Only heavy libraries justify it; a comment says why, on it or above several such imports."""
    known = modules(repository)
    silent = []
    for item in imports:
        if not item.within_function or item.importer in ENTRY_POINTS:
            continue
        lines = known[item.importer].read_text().splitlines()
        first = item.line - 1
        while re.match(r"\s*(from |import |$)", lines[first - 1]):
            first -= 1
        if not any("#" in line for line in lines[first - 1 : item.line]):
            silent.append(f"{item.importer}, line {item.line}: {item.imported}")
    assert silent == []


def test_no_module_of_results_imports_torch() -> None:
    """Code that only reads results must not wait for torch."""
    program = """
import importlib, pkgutil, sys
from dpprobe import results
for module in pkgutil.iter_modules(results.__path__):
    importlib.import_module(f"dpprobe.results.{module.name}")
print("torch" in sys.modules)
"""
    finished = run_program([sys.executable, "-c", program])
    assert finished.stdout == "False\n"


def test_the_page_names_files_that_exist(repository: Path) -> None:
    page = (repository / "docs/architecture.md").read_text()
    named = re.findall(
        r"`((?:src|workflow|tests|scripts|profiles|docs|config|bench)/[\w./-]+)`", page
    )
    assert len(named) > 10
    assert [name for name in named if not (repository / name).exists()] == []


def test_every_unit_test_is_named_after_its_module(repository: Path) -> None:
    """A unit test's path is tests/unit/<room>/test_<module>[_<aspect>].py."""
    unit, source = repository / "tests/unit", repository / "src" / ROOT
    strays = []
    for path in sorted(unit.rglob("test_*.py")):
        folder = source / path.parent.relative_to(unit)
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        if not any((folder / f"{name}.py").is_file() for name in names):
            strays.append(path.relative_to(unit).as_posix())
    assert strays == []


# Code to read before trusting an entry point: the most lines of the modules that it imports at run
# time, also within functions. Examples in docstrings do not count. To add an import that exceeds a
# limit, raise the limit and give a reason.
EXAMPLE = re.compile(r'\n *Example:\n.*?(?=\n *""")', re.DOTALL)
DOORS = {
    "release.ledger.ledger": 7_700,  # it compares single vectors, and shows progress
    "release.verification.verify": 13_500,
    "release.predict": 12_700,
    "release.bundle": 4_300,  # a plan explains each refusal in full sentences
    "features.feature_store": 2_500,
    "heads.fit": 8_400,
    "training.head_job": 23_200,
    "estimator.private_classifier": 24_000,
    "estimator.budget": 9_400,  # it compares units as a release does
    "privacy.releases": 4_100,
    "privacy.statement": 3_200,
}


@pytest.mark.parametrize("door", DOORS)
def test_entry_points_import_at_most_their_limit_of_lines(
    repository: Path, imports: list[Import], door: str
) -> None:
    known = modules(repository)
    needs: dict[str, set[str]] = {}
    for item in imports:
        if not item.for_types:
            needs.setdefault(item.importer, set()).add(item.imported)
    found, left = set(), [f"{ROOT}.{door}"]
    while left:
        module = left.pop()
        if module in known and module not in found:
            found.add(module)
            left += [*needs.get(module, ()), module.rpartition(".")[0]]
    texts = (EXAMPLE.sub("", known[module].read_text()) for module in found)
    lines = sum(len(text.splitlines()) for text in texts)
    assert lines <= DOORS[door], f"{door}: {len(found)} files"
    assert lines > 0.9 * DOORS[door], "lower the limit"
