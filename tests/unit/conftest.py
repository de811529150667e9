"""Fixtures shared by the tests of several packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.compiled_templates import _compiled_templates  # noqa: F401
from tests.support.misbehaving_server import Server, serve

if TYPE_CHECKING:
    from tests.support.report_page import ReportedStudy


@pytest.fixture
def made(tmp_path: Path) -> ReportedStudy:
    """Returns a small study with its report."""
    from tests.support.report_page import ReportedStudy  # slow import, only for tests that use it

    return ReportedStudy(tmp_path)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running
