"""A browser fixture, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .chromium import launch


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = launch(tmp_path_factory.mktemp("profile"))
    try:
        yield driver
    finally:
        driver.quit()
