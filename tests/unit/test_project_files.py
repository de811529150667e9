"""Files come from the clone or the package, and a run knows the versions of its start."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest

from dpprobe import code_version, project_files, versions
from dpprobe.errors import ConfigError, DpprobeError
from dpprobe.version_number import UNKNOWN


def test_clones_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other, bare = (tmp_path / name for name in ("whole", "other", "bare"))
    for root in (whole, other, bare):
        (root / "src/dpprobe").mkdir(parents=True)
    for path in (whole / "Snakefile", whole / "src/dpprobe/__init__.py", other / "Snakefile"):
        path.touch()
    packages = {
        whole / "src/dpprobe": whole,
        whole / "lib/dpprobe": None,
        other / "src/dpprobe": None,
        bare / "src/dpprobe": None,
    }
    for package, clone in packages.items():
        monkeypatch.setattr(project_files, "PACKAGE", package)
        assert project_files.clone_root.__wrapped__() == clone
        monkeypatch.setattr(project_files, "clone_root", lambda found=clone: found)
        assert project_files.project_root.__wrapped__() == (clone or package / "shipped")
        monkeypatch.undo()
    monkeypatch.setattr(project_files, "project_root", lambda: tmp_path)
    with pytest.raises(ConfigError, match=r"resources/a/b.yaml: cannot be read \(No such file"):
        project_files.read_yaml("a", "b.yaml")
    now = versions.VERSIONS["data"]
    edited = versions.VERSIONS | {"data": 0}
    fault = f"versions.data: 0 when this run began, {now} now"
    for began, told in ((None, None), (versions.VERSIONS, None), ({}, None), (edited, fault)):
        if began is not None:
            monkeypatch.setenv(versions.RUN_VERSIONS, json.dumps(began))
        if told is None:
            versions.check_versions()
            continue
        with pytest.raises(DpprobeError) as caught:
            versions.check_versions()
        assert str(caught.value).startswith(told)
    monkeypatch.setattr(code_version, "clone_root", lambda: None)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"5 of {name}")
    assert code_version.code_version.__wrapped__() == "5 of dpprobe"
    assert code_version.clone_commit() is None
    for name in ("version", "distribution"):
        monkeypatch.setattr(f"importlib.metadata.{name}", Mock(side_effect=PackageNotFoundError))
    assert code_version.code_version.__wrapped__() == UNKNOWN
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"5 of {name}")
    monkeypatch.setattr(code_version, "clone_root", lambda: tmp_path)
    assert code_version.code_version.__wrapped__() == UNKNOWN, "not installed from this folder"
