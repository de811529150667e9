"""The report's section on subgroups."""

from __future__ import annotations

from pathlib import Path

from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.analyses.fairness.fairness_section import make_section
from dpprobe.analyses.fairness.fairness_table import write_fairness_table
from dpprobe.analyses.fairness.show import gap_figure, quality_figure
from tests.support.fairness_records import write_fairness
from tests.support.report_page import Made, Page, section_page

EMPTY = dict.fromkeys(("gap", "low", "high", "chance_gap", "difference"))


def section(made: Made, paths: list[Path], **changes: object) -> tuple[Page, str]:
    """The page with the section, and the section's text."""
    folder = made.results / "tables"
    write_fairness_table(
        paths, csv=folder / "digits_fairness.csv", markdown=folder / "digits_fairness.md"
    )
    page = made.page(records={"fairness": paths}, **changes)
    start = page.text.index('<section id="subgroups"')
    return page, page.text[start : page.text.index("</section>", start)]


def test_a_study_without_subgroups_has_no_section(made: Made) -> None:
    page = made.page()
    assert "subgroups" not in {part.get("id") for part in page.all("section")}
    assert "#subgroups" not in {link.get("href") for link in page.all("a")}
    assert "labels and subgroups of test rows" not in page.words


def test_gaps_stand_beside_chance_and_the_gap_without_privacy(made: Made) -> None:
    page, text = section(made, [write_fairness(made.results)])
    assert {"gaps-digits", "all-gaps-digits", "parity-digits"} <= {
        table.get("id") for table in page.all("table")
    }
    assert "<td>male (79.0)</td><td>female (85.0)</td>" in text
    assert '<strong>6.0</strong></td><td class="num">2.5 to 9.0</td><td class="num">3.0' in text
    assert '<strong>+3.0</strong></td><td class="num">1.0 to 5.0</td><td>nonprivate at ∞' in text
    assert "age: unknown (fewer than 10 units)" in page.words
    assert "labels and subgroups of test rows" in page.words, "as not covered by any statement"


def test_what_stands_out_is_counted_beside_what_chance_would_show(tmp_path: Path) -> None:
    (part,) = make_section([write_fairness(tmp_path)], section_page("digits"))
    sex = part["summary"][0]
    # two private methods at three epsilons; at 0.5 alone the difference exceeds its interval
    assert (sex["wide"], sex["private"], sex["larger"], sex["smaller"]) == (6, 6, 2, 0)
    assert sex["by_chance"] == f"{0.025 * 6:.1f}"
    assert sex["widest"] == "6.0"


def test_two_classes_have_the_parity_of_the_second(tmp_path: Path) -> None:
    path = write_fairness(tmp_path, headline="accuracy", class_names=("benign", "effusion"))
    record = FairnessRecord.read(path)
    attributes = [
        item.model_copy(
            update={"parity": tuple(each for each in item.parity if each.label == "effusion")}
        )
        for item in record.cells[0].attributes
    ]
    compared = {"auc": {"labels": ("effusion",), "left_out": {}}}
    cell = record.cells[0].model_copy(update={"attributes": tuple(attributes)})
    values = record.model_copy(update={"cells": (cell,)}).model_dump()
    for item in values["attributes"]:
        item["compared"] |= compared
    FairnessRecord.model_validate(values).write(path)
    (part,) = make_section([path], section_page("digits"))
    assert part["parity_label"] == "effusion"
    assert part["parity"]
    rows = [row["values"] for row in part["parity"]]
    assert rows[:2] == [["11.0", "7.0", ""], ["11.0", "7.0", "8.0"]]
    assert not [line for line in part["left_out"] if "alone" in line], "nothing is left out"


def test_narrower_gaps_are_counted_too(tmp_path: Path) -> None:
    narrower = {"difference": -0.03, "difference_low": -0.05, "difference_high": -0.01}
    path = write_fairness(tmp_path, gap=narrower)
    (part,) = make_section([path], section_page("digits"))
    assert [(row["larger"], row["smaller"]) for row in part["summary"]] == [(0, 6)] * 2
    assert all(row["apart"] for row in part["gaps"])


def test_without_a_reference_nothing_is_said_of_differences(made: Made) -> None:
    _, text = section(made, [write_fairness(made.results, reference=None)])
    assert "nonprivate at" not in text
    (part,) = make_section([write_fairness(made.results, reference=None)], section_page("digits"))
    assert all(row["compared"] == 0 for row in part["summary"])


def test_groups_that_are_all_too_small_are_said_to_be(made: Made) -> None:
    path = write_fairness(made.results, groups={"sex": {"f": 3}}, gap=EMPTY)
    page, _ = section(made, [path])
    assert "sex, pixels: no two groups are large enough to compare." in page.words
    assert "gaps-digits" not in {table.get("id") for table in page.all("table")}


def test_names_of_groups_cannot_write_into_the_page(made: Made) -> None:
    path = write_fairness(made.results, groups={"<i>": {"<b>x": 300, "</script>": 200}})
    page, text = section(made, [path])
    assert "<b>x" not in text
    assert "&lt;b&gt;x" in text
    assert page.all("script") == [{}]


def test_figures_of_subgroups_stand_in_their_section_alone(made: Made) -> None:
    paths = [write_fairness(made.results, backbone=name) for name in ("pixels", "scattering")]
    figures = [*made.sources.figures]
    for name, draw in (("auc", quality_figure), ("gap", gap_figure)):
        svg = made.results / f"figures/digits/fairness_{name}.svg"
        draw([FairnessRecord.read(path) for path in paths], svg=svg, png=svg.with_suffix(".png"))
        figures += [svg, svg.with_suffix(".png")]
    page, text = section(made, paths, figures=figures)
    titles = [f"<strong>Gaps between groups against {x}, digits." for x in ("epsilon", "quality")]
    assert text.index(titles[0]) < text.index(titles[1])
    assert all(page.text.count(title) == 1 for title in titles)


def test_links_lead_to_the_tables_and_records(made: Made) -> None:
    page, _ = section(made, [write_fairness(made.results)])
    links = [str(link["href"]) for link in page.all("a") if "fairness" in str(link["href"])]
    assert len(links) == 4
    assert all((made.results / link).is_file() for link in links)
