"""Writes the conda environments of `snakemake --sdm conda`, one per stage, from the lock.

    python tools/from_lock.py

STAGES lists what the scripts of a stage import; the resolver adds what these packages need, in the
versions of requirements/runtime.lock. A conda file cannot name the lock's hashes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON = "3.12"
ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements/runtime.lock"
# Maps each stage to sections of requirements/runtime.in, and packages of other sections.
STAGES = {
    "extraction": (("core", "images", "dicom"), ("h5py", "pandas", "tenacity", "urllib3")),
    "training": (
        ("core", "images", "dicom", "onnx"),
        ("filelock", "h5py", "opentsne", "optuna", "pandas", "tenacity", "urllib3"),
    ),
    "report": (
        ("core", "tracking", "postgres"),
        ("h5py", "matplotlib", "optuna", "pandas", "pillow", "pyarrow"),
    ),
}
INSTALLATION = "installation of dpprobe"
HEADER = """\
# For `snakemake --sdm conda`: {stage}. Made by tools/from_lock.py from requirements/: do not edit.
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python ={python}
  - pip
  - pip:
"""


def locked_versions(lock: str, python: str) -> dict[str, str]:
    """Maps each package to its version in a lock, for Linux, x86-64 and CPython `python`."""
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


def read_sections(text: str) -> dict[str, list[str]]:
    """Returns the names of packages in each section of requirements/runtime.in."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# "):
            names = sections.setdefault(line[2:], [])
        elif line:
            names.append(canonicalize_name(Requirement(line).name))
    return sections


def list_direct(stage: str) -> list[str]:
    """Returns the packages that a stage requests, and the packages that install dpprobe itself."""
    sections = read_sections((ROOT / "requirements/runtime.in").read_text(encoding="utf-8"))
    whole, single = STAGES[stage]
    return [
        *(name for section in whole for name in sections[section]),
        *single,
        *sections[INSTALLATION],
    ]


def resolve_stage(stage: str) -> str:
    """Returns the conda file of a stage, with all dependencies of the stage's packages."""
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "-",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--no-emit-index-url",
            "--python-version",
            PYTHON,
            "--python-platform",
            "x86_64-unknown-linux-gnu",
            "--constraint",
            str(LOCK),
        ],
        input="\n".join(list_direct(stage)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    pins = "".join(f"      - {line}\n" for line in answer.stdout.splitlines())
    return HEADER.format(stage=stage, python=PYTHON) + pins


if __name__ == "__main__":
    for name in STAGES:
        (ROOT / f"envs/{name}.yaml").write_text(resolve_stage(name), encoding="utf-8")
