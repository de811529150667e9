"""Figures and tables on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpprobe.artifacts import write_text
from dpprobe.exhibits.tables import Column, Table, make_row
from dpprobe.reporting.report import exhibits
from dpprobe.reporting.report.exhibits import Exhibits
from dpprobe.reporting.report.shown_tables import ReportTable, study_tables
from tests.support.paper_tables import paper_run
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


def test_large_figures_become_links(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhibits, "SVG_BYTES", 10)
    page = made.page()
    drawn = ("Predicted", "Best private test")  # by the page itself
    files = [image for image in page.all("img") if not str(image["alt"]).startswith(drawn)]
    assert files
    assert all((image["src"] or "").startswith("data:image/png") for image in files)
    monkeypatch.setattr(exhibits, "FIGURES_BYTES", 1500)
    page = made.page()
    assert len(page.all("img")) == 2
    assert "Left out to keep this page small" in page.words
    assert "Figures left out to keep this page" in page.words
    assert 'href="figures/digits/tsne_pixels.png"' in page.text


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


def test_a_dataset_may_be_called_like_a_folder_or_a_table(tmp_path: Path) -> None:
    made = Made(tmp_path, ("figures", "large"))
    overview = made.results / "figures/tsne.svg"
    write_text(overview, "<svg xmlns='http://www.w3.org/2000/svg'>all</svg>")
    paper = made.results / "tables/papers/large_scale_transfer_table1.md"
    files = [*made.table_files, paper]
    sources = replace(
        made.sources,
        figures=[*made.sources.figures, overview],
        tables=study_tables(files, made.sources.summaries, paper_run([])),
    )
    shown = Exhibits(sources, made.results)
    assert [item["title"] for item in shown.list_figures(None, {})] == ["t-SNE"]
    for name in ("figures", "large"):
        titles = [item["title"] for item in shown.list_figures(name, {})]
        assert titles == [f"Results against epsilon, {name}", f"t-SNE of pixels features, {name}"]
        assert [item["folder"] for item in shown.list_tables(name)] == ["tables"]
    assert {item["folder"] for item in shown.list_tables(None)} == {"tables", "papers"}


def test_no_two_figures_show_the_same_points(made: Made) -> None:
    folder = made.results / "figures/digits"
    names = ("tsne.svg", "tsne_pixels.svg")
    for name in names:
        write_text(folder / name, "<svg xmlns='http://www.w3.org/2000/svg'/>")
    figures = [*made.sources.figures, *(folder / name for name in names)]
    shown = Exhibits(replace(made.sources, figures=figures), made.results)
    titles = [item["title"] for item in shown.list_figures("digits", {})]
    assert titles == ["Results against epsilon, digits", "t-SNE, digits"]
