"""A small study and its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.report_page import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)
