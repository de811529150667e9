"""The figures and the report's section of representation laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.representation_law.law_record import MEASURES, law_path
from dpprobe.analyses.representation_law.show import law_figure
from dpprobe.exhibits.style import use_settings
from tests.support.law_records import LAYERS, law_record
from tests.support.report_page import PNG, Made


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Titles are on the left, as in the job that draws."""
    with use_settings():
        yield


def _titles(figure: Any) -> list[str]:
    return [axes.get_title(loc="left").partition("\n")[0] for axes in figure.axes]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_column_is_an_epsilon_and_rows_are_options_and_splits(measure: Any) -> None:
    figure: Any = law_figure(law_record(), measure)
    assert _titles(figure)[:3] == [
        "ε = 1, constant, training rows",
        "ε = 8, constant, training rows",
        "ε = 1, constant, test rows",
    ]
    assert len(figure.axes) == 8
    assert all(axes.get_yscale() == "log" for axes in figure.axes)
    assert "not private" in " ".join(figure.get_suptitle().split())


def test_a_curve_is_a_number_of_tuned_blocks() -> None:
    figure: Any = law_figure(law_record(), "fuzziness")
    lines = figure.axes[0].get_lines()
    assert len(lines) == 5, "shuffled, head, one and two blocks, frozen"
    two_blocks = np.asarray(lines[3].get_ydata(), dtype=float)
    assert two_blocks == pytest.approx([0.9 * 0.74**layer for layer in range(LAYERS + 1)])
    assert len({line.get_color() for line in lines}) == 5
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["frozen", "head", "last 1 block", "last 2 blocks", "frozen, shuffled labels"]
    assert figure.axes[0].get_title(loc="left").endswith("ρ: frozen 0.80, tuned 0.74 to 0.80")


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
