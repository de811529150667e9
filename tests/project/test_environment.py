"""The conda file, the lock and the list of requirements say the same."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import yaml

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
