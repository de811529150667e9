"""The conda file, the lock and the list of requirements say the same."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from types import ModuleType

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dpprobe.extras import BRINGS, EXTRAS
from tests.support.git import git
from tests.support.script_modules import load_script


def from_lock(repository: Path) -> ModuleType:
    return load_script(repository / "envs/from_lock.py")


def test_the_conda_file_is_the_lock_s(repository: Path) -> None:
    written = (repository / "envs/dpprobe.yaml").read_text()
    assert written == from_lock(repository).environment_file(), "run envs/from_lock.py"
    pip = yaml.safe_load(written)["dependencies"][-1]["pip"]
    assert {"torch", "opacus", "snakemake", "mlflow"} <= {line.partition("==")[0] for line in pip}


def test_every_locked_package_has_a_hash_and_no_address(repository: Path) -> None:
    for name in ("bootstrap", "docs", "environment"):
        lock = (repository / f"requirements/{name}.lock").read_text()
        blocks = lock.replace("\\\n", " ").splitlines()
        assert blocks
        assert all("==" in block and "--hash=sha256:" in block for block in blocks)
        assert "://" not in lock


def test_this_environment_is_the_locked_one(repository: Path) -> None:
    import platform
    from importlib.metadata import version

    python = ".".join(platform.python_version_tuple()[:2])
    module = from_lock(repository)
    lock = (repository / "requirements/environment.lock").read_text()
    versions = module.locked_versions(lock, python)
    names = module.direct_requirements((repository / "requirements/environment.in").read_text())
    assert {name: version(name) for name in names} == {name: versions[name] for name in names}


# Locked pre-releases, with the package that accepts no final version.
PRE_RELEASES = {"opentelemetry-semantic-conventions": "opentelemetry-sdk"}


def test_no_lock_has_a_pre_release_if_there_is_another(repository: Path) -> None:
    """Each exception is asked for by the exact version in the metadata of another package."""
    found = {}
    for path in sorted((repository / "requirements").glob("*.lock")):
        lines = [line for line in path.read_text().splitlines() if re.match(r"[a-zA-Z0-9]", line)]
        assert lines
        for line in lines:
            (pinned,) = Requirement(line.removesuffix("\\").strip()).specifier
            if Version(pinned.version).is_prerelease:
                found[re.split(r"[=\[ ]", line, maxsplit=1)[0]] = pinned.version
    assert found.keys() == PRE_RELEASES.keys()
    for name, asking in PRE_RELEASES.items():
        asked = [Requirement(one) for one in requires(asking) or ()]
        assert f"=={found[name]}" in [str(one.specifier) for one in asked if one.name == name]


def test_an_extra_is_named_by_what_is_imported(repository: Path) -> None:
    """The table of messages lists every package of an extra that the core does not bring."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() | {"all"} == project["optional-dependencies"].keys()
    provided = packages_distributions()
    core = {"filelock"}  # torch requires it
    for extra, lines in project["optional-dependencies"].items():
        asked = [Requirement(line) for line in lines]
        brought = {each for one in asked for each in one.extras if one.name == "dpprobe"}
        if extra != "all":
            assert brought == set(BRINGS.get(extra, ()))
            names = {canonicalize_name(one.name) for one in asked if one.name != "dpprobe"}
            of_table = [
                {canonicalize_name(each) for each in provided[name]} for name in EXTRAS[extra]
            ]
            assert all(names & each for each in of_table)
            assert names - core <= set.union(*of_table)
    (line,) = project["optional-dependencies"]["all"]
    named = Requirement(line).extras
    assert named | {each for name in named for each in BRINGS.get(name, ())} == EXTRAS.keys()


def test_every_import_is_of_a_package_that_is_asked_for(repository: Path) -> None:
    """Directly, or as a part of a library that is: the right side names the library."""
    parts = {
        "absl": "dp-accounting", "httpx2": "huggingface-hub", "llvmlite": "numba",
        "markupsafe": "jinja2", "pydantic_core": "pydantic", "setuptools_scm": "hatch-vcs",
        "snakemake_interface_logger_plugins": "snakemake", "threadpoolctl": "scikit-learn",
    }  # fmt: skip
    text = (repository / "requirements/environment.in").read_text()
    names = set(from_lock(repository).direct_requirements(text))
    provided = packages_distributions()
    source = repository / "src"
    own = {path.name for path in source.iterdir()} | sys.stdlib_module_names
    unknown = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for top in {name.partition(".")[0] for name in imported} - own:
                brought_by = {canonicalize_name(each) for each in provided.get(top, ())}
                if not names & (brought_by | {parts.get(top, "")}):
                    unknown.add(f"{path.relative_to(source)}: {top}")
    assert sorted(unknown) == []


def test_the_citation_names_the_version_of_the_changelog(repository: Path) -> None:
    """The newest heading has the next version before its tag, and the tag's from then on."""
    citation = yaml.safe_load((repository / "CITATION.cff").read_text())
    changes = (repository / "CHANGELOG.md").read_text()
    found = re.search(r"^## \[(Unreleased\]: )?(\d+\.\d+\.\d+)(.*)$", changes, re.MULTILINE)
    assert found is not None
    assert citation["version"] == found[2]
    assert found[1] or citation["date-released"].isoformat() in found[3]
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert citation["keywords"] == project["keywords"]
    if (repository / ".git").exists():
        tags = git(repository, "tag", "--points-at", "HEAD", "--list", "v[0-9]*.[0-9]*").split()
        assert set(tags) <= {f"v{citation['version']}"}
