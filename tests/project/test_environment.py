"""The conda files, the locks and the lists of requirements agree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from dpprobe.extras import BRINGS, EXTRAS
from tests.support.script_modules import load_script


def from_lock(repository: Path) -> ModuleType:
    return load_script(repository / "tools/from_lock.py")


def listed(repository: Path) -> str:
    return (repository / "requirements/runtime.in").read_text()


def pins_of(path: Path) -> dict[str, str]:
    lines = yaml.safe_load(path.read_text())["dependencies"][-1]["pip"]
    return {
        canonicalize_name(name): version for name, _, version in (x.partition("==") for x in lines)
    }


STAGES = ("extraction", "report", "training")


def test_each_stage_has_one_conda_file(repository: Path) -> None:
    assert sorted(path.stem for path in (repository / "envs").glob("*.yaml")) == list(STAGES)
    assert set(from_lock(repository).STAGES) == set(STAGES)
    # Snakemake looks for each conda file's script next to the file
    scripts = {path.name: path.read_text() for path in (repository / "envs").glob("*.sh")}
    assert sorted(scripts) == [f"{stage}.post-deploy.sh" for stage in STAGES]
    assert len(set(scripts.values())) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_environment_pins_all_requirements_at_locked_versions(
    repository: Path, stage: str
) -> None:
    """Requirements come from the metadata of installed packages; development tools are excluded."""
    module = from_lock(repository)
    pins = pins_of(repository / f"envs/{stage}.yaml")
    locked = module.locked_versions((repository / "requirements/runtime.lock").read_text(), "3.12")
    assert pins == {name: locked[name] for name in pins}
    wanted = set(module.list_direct(stage))
    assert wanted <= pins.keys()
    linux = {
        "python_version": "3.12",
        "python_full_version": "3.12.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "extra": "",
    }
    missing = {
        f"{name} needs {requirement.name}"
        for name in pins
        for requirement in map(Requirement, requires(name) or ())
        if requirement.marker is None or requirement.marker.evaluate(linux)
        if canonicalize_name(requirement.name) not in pins
    }
    assert not missing
    tools = (repository / "requirements/environment.in").read_text().splitlines()[2:]
    kept = {"packaging", "psutil"}  # required by libraries of the stages too
    assert not pins.keys() & ({canonicalize_name(tool) for tool in tools} - kept)


# Packages that a stage's code may import but its scripts never do, with the part that needs them.
UNUSED = {
    "report": {
        "PIL": "images",
        "httpx2": "hub",
        "huggingface_hub": "hub",
        "pillow_heif": "images",
        "pydicom": "images",
        "torchvision": "images",
    },
    "training": {"matplotlib": "figures, which `make_exhibit` and `write_report` draw"},
}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_environment_pins_what_its_scripts_import(repository: Path, stage: str) -> None:
    """Late imports, within functions, count too."""
    rules = "\n".join(path.read_text() for path in (repository / "workflow/rules").glob("*.smk"))
    uses = re.findall(r"envs/(\w+)\.yaml\".*?scripts/(\w+\.py)\"", rules, re.DOTALL)
    scripts = {repository / "scripts" / script for of, script in uses if of == stage}
    assert scripts
    assert {script for _, script in uses} == {p.name for p in (repository / "scripts").glob("*.py")}
    pins = pins_of(repository / f"envs/{stage}.yaml").keys()
    provided = packages_distributions()
    lacking = {
        name
        for script in scripts
        for name in outside_imports(script, repository / "src")
        if not {canonicalize_name(each) for each in provided[name]} & pins
    }
    assert lacking <= UNUSED.get(stage, {}).keys()
    eager = {name for s in scripts for name in outside_imports(s, repository / "src", late=False)}
    assert not eager & lacking


def outside_imports(start: Path, source: Path, *, late: bool = True) -> set[str]:
    """Returns third-party packages that a file imports, directly or through modules of `source`."""
    found, seen, todo = set(), {start}, [start]
    while todo:
        for name in names_of(todo.pop(), late=late):
            top, *parts = name.split(".")
            if (source / top).is_dir():
                paths = [source.joinpath(top, *parts[:depth]) for depth in range(len(parts) + 1)]
                files = {each / "__init__.py" for each in paths} | {
                    p.with_suffix(".py") for p in paths
                }
                new = {file for file in files if file.is_file()} - seen
                seen |= new
                todo += new
            elif top not in sys.stdlib_module_names:
                found.add(top)
    return found


@cache  # each stage imports most of the same files
def names_of(path: Path, *, late: bool) -> set[str]:
    return set(imported_names(ast.parse(path.read_text()), late=late))


def imported_names(node: ast.AST, *, late: bool) -> Iterator[str]:
    """Yields the modules that code imports at the top level; with `late`, also within functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from imported_names(ast.Module([other], []), late=late)
            continue
        if isinstance(child, ast.FunctionDef | ast.Lambda) and not late:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif late and isinstance(child, ast.Call) and "OptionalModule" in ast.dump(child.func):
            yield from (str(ast.literal_eval(each)) for each in child.args)
        yield from imported_names(child, late=late)


def test_every_locked_package_has_a_hash_and_no_address(repository: Path) -> None:
    for name in ("bootstrap", "docs", "environment", "runtime"):
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
    names = {each for of in module.read_sections(listed(repository)).values() for each in of}
    assert {name: version(name) for name in names} == {name: versions[name] for name in names}


# Locked pre-releases, and the package that requires the pre-release.
PRE_RELEASES = {"opentelemetry-semantic-conventions": "opentelemetry-sdk"}


def test_no_lock_has_a_pre_release_if_there_is_another(repository: Path) -> None:
    """Each exception is required by exact version in the metadata of another package."""
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
    """The table of error messages lists every package that an extra adds to the core."""
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
    """The package is required directly, or is part of a required library (values of `parts`)."""
    parts = {
        "absl": "dp-accounting",
        "httpx2": "huggingface-hub",
        "llvmlite": "numba",
        "markupsafe": "jinja2",
        "pydantic_core": "pydantic",
        "snakemake_interface_logger_plugins": "snakemake",
        "threadpoolctl": "scikit-learn",
    }
    sections = from_lock(repository).read_sections(listed(repository))
    names = {each for of in sections.values() for each in of}
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
