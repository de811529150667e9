"""Writes envs/dpprobe.yaml, the conda environment of `snakemake --sdm conda`, from the lock."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON = "3.12"
ROOT = Path(__file__).resolve().parents[1]
HEADER = """\
# For `snakemake --sdm conda`. Made by envs/from_lock.py from requirements/: do not edit.
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python ={python}
  - pip
  - pip:
"""


def locked_versions(lock: str, python: str) -> dict[str, str]:
    """The version a lock gives each package on Linux, x86-64, CPython `python`."""
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    versions = {}
    for line in lock.splitlines():
        if line.startswith((" ", "#")) or not line.strip():
            continue
        requirement = Requirement(line.removesuffix("\\").strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            versions[canonicalize_name(requirement.name)] = str(requirement.specifier)[2:]
    return versions


def direct_requirements(text: str) -> list[str]:
    """The names in requirements/environment.in."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [canonicalize_name(Requirement(line).name) for line in lines if line]


def environment_file() -> str:
    versions = locked_versions((ROOT / "requirements/environment.lock").read_text(), PYTHON)
    names = direct_requirements((ROOT / "requirements/environment.in").read_text())
    pins = "".join(f"      - {name}=={versions[name]}\n" for name in names)
    return HEADER.format(python=PYTHON) + pins


if __name__ == "__main__":
    (ROOT / "envs/dpprobe.yaml").write_text(environment_file(), encoding="utf-8")
