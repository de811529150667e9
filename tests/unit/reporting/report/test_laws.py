"""The report's section on representation laws."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.analyses.representation_law.law_record import law_path
from dpprobe.reporting.report.exhibits import title_of
from tests.support.law_records import law_record
from tests.support.report_page import PNG, Made


def test_laws_stand_in_a_section_that_says_they_are_not_private(made: Made) -> None:
    record = law_record()
    path = law_path(made.results / "layers", "digits", "pixels", ".json")
    record.write(path)
    figure = made.results / "figures" / "digits" / "law_fuzziness_pixels.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    figure.write_bytes(PNG)
    page = made.page(laws=[path], figures=[figure])
    assert "laws" in {part.get("id") for part in page.all("section")}
    for words in (
        "not private",
        "A law near that of shuffled labels says nothing of the classes",
        "Representation laws of digits, not private",
        "Test results of digits by tuned blocks",
        "Fuzziness by block, pixels, digits",
        "0.690 ± 0.014",
    ):
        assert words in page.words, words


def test_a_study_without_laws_has_no_such_section(made: Made) -> None:
    assert "laws" not in {part.get("id") for part in made.page().all("section")}


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("law_accuracy_pixels", "Test results by tuned blocks, pixels, digits"),
        ("law_residual_pixels", "Prediction residual by block, pixels, digits"),
        ("law_residual_one_hot_pixels", "One-hot prediction residual by block, pixels, digits"),
        ("law_separability_pixels", "Separability by block, as printed, pixels, digits"),
    ],
)
def test_figures_have_titles(name: str, title: str) -> None:
    assert title_of(Path(name).name, "digits") == title
