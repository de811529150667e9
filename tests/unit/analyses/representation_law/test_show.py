"""The figures and the report's section of representation laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dpprobe.analyses.representation_law.law_record import law_path
from dpprobe.exhibits.style import use_settings
from tests.support.law_records import law_record
from tests.support.report_page import PNG, Made


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Titles are on the left, as in the job that draws."""
    with use_settings():
        yield


def test_laws_stand_in_a_section_that_says_they_are_not_private(made: Made) -> None:
    record = law_record()
    path = law_path(made.results / "layers", "digits", "pixels")
    record.write(path)
    figure: Any = made.results / "figures" / "digits" / "law_fuzziness_pixels.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    figure.write_bytes(PNG)
    page = made.page(records={"representation_law": [path]}, figures=[figure])
    assert "laws" in {part.get("id") for part in page.all("section")}
    assert "0.690 ± 0.014" in page.words
