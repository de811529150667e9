"""Tables, figure and the section of long tails."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.results.summary import summarise_cells
from tests.support.cell_files import write_cell
from tests.support.long_tail_records import (
    write_long_tail,
)
from tests.support.report_page import Made


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backbones with a ceiling and private cells, and one without a ceiling."""
    root = tmp_path_factory.mktemp("cells")
    cells = [
        write_cell(root, backbone=backbone, method=method, epsilon=epsilon)
        for backbone in ("pixels", "scattering", "other")
        for method, epsilon in (("sgd", "1"), ("sgd", "8"), ("newton", "1"), ("nonprivate", "inf"))
        if (backbone, method) != ("other", "nonprivate")
    ]
    summarise_cells(cells, root / "digits.parquet", study="study")
    return root / "digits.parquet"


def test_long_tails_stand_in_a_section_that_says_they_are_not_private(made: Made) -> None:
    paths = [
        write_long_tail(made.results),
        write_long_tail(
            made.results,
            backbone="scattering",
            memorisation=None,
            notes=["no memorisation: 8 units, but at least 20 are needed"],
        ),
    ]
    page = made.page(records={"long_tail": paths})
    assert "long-tail" in {part.get("id") for part in page.all("section")}
    assert "0.82 (0.75 to 0.90)" in page.words
