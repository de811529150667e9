"""A small study whose cells are written to MLflow; each test has a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.tracked_study import Study, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def study(tmp_path: Path, template: Path) -> Study:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Study(tmp_path)
