"""docs/guarantee.md lists all code that affects a release's epsilon, and tests of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dpprobe.analyses.audit.controls import CONTROLS
from dpprobe.heads.registry import HEADS
from tests.project.test_rooms import imports_of, modules

# Code in these packages determines a release's epsilon; releases never contain `nonprivate` heads.
ROOMS = re.compile(
    r"dpprobe\.(privacy|heads|data\.people|release\.ledger)\.\w|dpprobe\.release\.(make|counted_units)$"
)
ROOTS = {
    "dpprobe.release.make",
    "dpprobe.release.counted_units",
    "dpprobe.release.ledger.ledger",
    *(module for head, module in HEADS.items() if head != "nonprivate"),
}


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/guarantee.md").read_text()


@pytest.fixture(scope="module")
def rows(page: str) -> list[list[str]]:
    """Returns each row's cells: code, argument, oracle, fault, controls."""
    table = [line for line in page.splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]
    assert len(cells) > 10
    assert {len(row) for row in cells} == {5}
    assert all(cell for row in cells for cell in row)
    return cells


@pytest.fixture(scope="module")
def named(page: str) -> list[str]:
    """Returns the modules that the page names, as in "heads/kernels: `exact_step`, `vectors`"."""
    groups = re.findall(r"([a-z]+(?:/[a-z]+)*):\s+((?:`\w+`(?:, )?)+)", page)
    return [
        f"dpprobe.{folder.replace('/', '.')}.{name}"
        for folder, names in groups
        for name in re.findall(r"`(\w+)`", names)
    ]


def test_every_named_module_is_there_and_named_once(repository: Path, named: list[str]) -> None:
    assert [name for name in named if name not in modules(repository)] == []
    assert [name for name in named if named.count(name) > 1] == []


def test_no_module_enters_unnamed(repository: Path, named: list[str]) -> None:
    """Counts imports within functions and for types too: types also affect what epsilon means."""
    known = modules(repository)
    assert ROOTS - {*named} == set()
    entered = {
        f"{name} imports {item.imported}"
        for name in named
        for item in imports_of(name, known[name], known)
        if ROOMS.match(item.imported) and item.imported not in named
    }
    assert entered == set()


def test_every_row_names_tests_a_known_fault_and_known_controls(
    repository: Path, rows: list[list[str]], named: list[str]
) -> None:
    """`tests/mutants.yaml` has a fault in one of the named modules."""
    code = "".join(modules(repository)[name].read_text() for name in named)
    faults = {
        each["fault"]
        for each in yaml.safe_load((repository / "tests/mutants.yaml").read_text())
        if any(edit["old"] in code for edit in each.get("edits", [each]))
    }
    for part, _, oracle, fault, controls in rows:
        tests = re.findall(r"`([\w/]+\.py)`", oracle)
        assert tests, part
        assert [name for name in tests if not (repository / "tests/unit" / name).is_file()] == []
        assert fault in faults, part
        listed = re.findall(r"`(\w+)`", controls)
        assert {*listed} <= CONTROLS.keys(), part
        assert bool(listed) != (controls == "—"), part
