"""Fixtures of several rooms' tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.compiled_templates import _compiled_templates  # noqa: F401

if TYPE_CHECKING:
    from tests.support.report_page import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A small study and its report."""
    from tests.support.report_page import Made  # its libraries are for those who ask alone

    return Made(tmp_path)
