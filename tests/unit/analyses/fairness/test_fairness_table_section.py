"""The report's section on subgroups."""

from __future__ import annotations

from pathlib import Path

from dpprobe.analyses.fairness.fairness_table import make_fairness_table
from dpprobe.exhibits.tables import save_table
from tests.support.fairness_records import APART, gap_of, write_fairness
from tests.support.report_page import Made, Page


def section(made: Made, paths: list[Path], **changes: object) -> tuple[Page, str]:
    """The page with the section, and the section's text."""
    table = make_fairness_table(paths)
    for ending in ("csv", "md"):
        save_table(table, made.results / f"tables/digits_fairness.{ending}")
    page = made.page(records={"fairness": paths}, **changes)
    start = page.text.index('<section id="subgroups"')
    return page, page.text[start : page.text.index("</section>", start)]


def test_gaps_stand_beside_chance_and_the_gap_without_privacy(made: Made) -> None:
    page, text = section(made, [write_fairness(made.results, gap=APART)])
    assert {"gaps-digits", "all-gaps-digits"} <= {table.get("id") for table in page.all("table")}
    ink = gap_of("sgd", "0.5", "ink")
    worst, best = (f"{100 * value:.1f}" for value in (ink.worst, ink.best))
    assert f"<td>{ink.worst_group} ({worst})</td><td>{ink.best_group} ({best})</td>" in text
    assert '<strong>6.0</strong></td><td class="num">2.5 to 9.0</td><td class="num">3.0' in text
    assert '<strong>+3.0</strong></td><td class="num">1.0 to 5.0</td><td>nonprivate at ∞' in text
    assert "side: unknown (3 rows, 30 needed)" in page.words
    assert "results of groups are computed from them" in page.words, "as not covered"


def test_names_of_groups_cannot_write_into_the_page(made: Made) -> None:
    names = {"ink": "<i>", "bold": "<b>x", "thin": "</script>"}
    path = write_fairness(made.results, names=names)
    page, text = section(made, [path])
    assert "<b>x" not in text
    assert "&lt;b&gt;x" in text
    assert page.all("script") == [{}]
