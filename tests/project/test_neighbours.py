"""Only `.ci/run` reads files outside the repository's folder."""

from __future__ import annotations

import re
from pathlib import Path

# Patterns that name a folder above the root, in code, studies and pages.
ABOVE = re.compile(r"""\b(?:REPOSITORY|ROOT|repository)\.parent\b|\.\./shared\b""")
# The folders of a fresh clone; a used one also contains results, an environment and caches.
PLACES = (
    ".ci",
    ".github",
    "bench",
    "config",
    "docs",
    "envs",
    "integrations",
    "profiles",
    "requirements",
    "resources",
    "scripts",
    "src",
    "tests",
    "tools",
    "workflow",
)


def test_only_continuous_integration_names_a_neighbouring_folder(repository: Path) -> None:
    inside = (path for place in PLACES for path in (repository / place).rglob("*"))
    files = [path for path in (*repository.iterdir(), *inside) if path.is_file()]
    assert len(files) > 1000
    found = {str(path.relative_to(repository)) for path in files if names_a_neighbour(path)}
    assert found - {"tests/project/test_neighbours.py"} == {".ci/run"}


def names_a_neighbour(path: Path) -> bool:
    try:
        return ABOVE.search(path.read_text()) is not None
    except UnicodeDecodeError:
        return False  # binary, such as a picture


def test_a_path_above_the_root_is_noticed(tmp_path: Path) -> None:
    for line in ("train: ../shared/data/x.parquet", 'open(ROOT.parent / "x")'):
        (tmp_path / "file").write_text(line)
        assert names_a_neighbour(tmp_path / "file")
