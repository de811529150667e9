"""Figures and tables on the page."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe.exhibits.tables import Column, Table, make_row
from dpprobe.reporting.report.shown_tables import ReportTable
from tests.support.report_page import Made


def test_one_dataset_has_its_table_once_and_two_have_one_of_both(tmp_path: Path) -> None:
    one = Made(tmp_path / "one")
    titles = [t.get("aria-label") for t in one.page().all("div") if t.get("role") == "region"]
    assert titles.count("Results against epsilon, digits") == 1
    assert "Results against epsilon" not in titles
    two = Made(tmp_path / "two", ("digits", "letters"))
    page = two.page()
    titles = [t.get("aria-label") for t in page.all("div") if t.get("role") == "region"]
    for title in ("Results against epsilon, digits", "Results against epsilon, letters"):
        assert titles.count(title) == 1
    assert titles.count("Results against epsilon") == 1
    assert page.text.count('class="verdict"') == 2, "one card per dataset"
    assert page.text.count('class="curve-figure"') == 2


def test_tables_of_the_papers_fold_away(made: Made) -> None:
    table = Table(
        name="table_2", title="Table 2: accuracy of CLIP",
        columns=(Column(title="a", align="left"), Column(title="b")), rows=[make_row("c | d", "1")],
    )  # fmt: skip
    paper = ReportTable(table=table, files=[made.results / "tables/papers/table_2.md"])
    page = made.page(tables=[*made.sources.tables, paper])
    assert "Tables of the papers" in page.words
    assert "<caption>Table 2: accuracy of CLIP</caption>" in page.text
    assert re.findall("<summary>(Table 2.*?)</summary>", page.text) == ["Table 2: accuracy of CLIP"]
    assert '<td class="">c | d</td>' in page.text
