"""The report's section on long tails."""

from __future__ import annotations

from tests.support.long_tail_records import write_long_tail
from tests.support.report_page import Made


def test_long_tails_stand_in_a_section_that_says_they_are_not_private(made: Made) -> None:
    paths = [
        write_long_tail(made.results),
        write_long_tail(
            made.results,
            backbone="scattering",
            memorisation=None,
            notes=["no memorisation: 8 units; 20 are needed"],
        ),
    ]
    page = made.page(records={"long_tail": paths})
    assert "long-tail" in {part.get("id") for part in page.all("section")}
    for words in (
        "Not private",
        "None of these numbers bounds ε for a data set",
        "no proved bound for this data set",
        "Digits, scattering: no memorisation: 8 units; 20 are needed",
        "0.82 (0.75 to 0.90)",
    ):
        assert words in page.words, words


def test_a_study_without_long_tails_has_no_such_section(made: Made) -> None:
    assert "long-tail" not in {part.get("id") for part in made.page().all("section")}
