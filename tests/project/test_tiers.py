"""Young parts can be removed: no other code imports them, except a few lines with a reason.

docs/versions.md lists the young parts, docs/architecture.md their code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.test_rooms import imports_of, modules

# Allowed imports of young code, by importing module, each with the young part and the reason.
EXCEPTIONS = {
    ("__main__", "sites"): "the line that adds the command `dpprobe site`",
    ("release.commands", "monitor"): "the line behind `dpprobe predict --monitor`",
    ("data.sources.embeddings", "item files"): "a folder stands where a file of vectors may stand",
    ("release.vector_sources", "item files"): "`dpprobe predict` takes such a folder as well",
    ("draft.init_command", "item files"): "`dpprobe init` looks at each kind of folder",
    ("draft.vector_guesses", "item files"): "`dpprobe init` drafts a study of such a folder",
}


def young_code(repository: Path) -> dict[str, str]:
    """Maps each young module or package, by its dotted name below `dpprobe`, to its part."""
    page = (repository / "docs/architecture.md").read_text()
    table = page.partition("| young part |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return {
        path.removesuffix(".py").replace("/", "."): part.strip()
        for part, paths in rows
        for path in re.findall(r"`([^`]+)`", paths)
    }


def find_part(module: str, young: dict[str, str]) -> str | None:
    name = module.removeprefix("dpprobe.")
    parts = (part for code, part in young.items() if f"{name}.".startswith(f"{code}."))
    return next(parts, None)


@pytest.fixture(scope="module")
def young(repository: Path) -> dict[str, str]:
    return young_code(repository)


def test_both_pages_name_the_same_young_parts(repository: Path, young: dict[str, str]) -> None:
    page = (repository / "docs/versions.md").read_text()
    rows = page.partition("| **young** |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \|", rows, flags=re.MULTILINE)) == {*young.values()}
    for code in young:
        path = repository / "src/dpprobe" / code.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), code


def test_no_other_code_imports_a_young_part(repository: Path, young: dict[str, str]) -> None:
    known, found = modules(repository), set()
    for module, path in known.items():
        own = find_part(module, young)
        for item in imports_of(module, path, known):
            part = find_part(item.imported, young)
            if part not in (None, own):
                found.add((module.removeprefix("dpprobe."), part))
    assert found == EXCEPTIONS.keys()
