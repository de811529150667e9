"""Figures and tables on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.exhibits.tables import Column, Table, make_row, write_markdown
from dpprobe.reporting.report import exhibits
from dpprobe.reporting.report.exhibits import Exhibits
from dpprobe.reporting.report.shown_tables import ReportTable
from dpprobe.reporting.report.sources import Sources
from tests.support.report_page import ReportedStudy


def test_one_dataset_has_its_table_once_and_two_have_one_of_both(tmp_path: Path) -> None:
    one = ReportedStudy(tmp_path / "one")
    titles = [t.get("aria-label") for t in one.page().all("div") if t.get("role") == "region"]
    assert titles.count("Results against epsilon, digits") == 1
    assert "Results against epsilon" not in titles
    two = ReportedStudy(tmp_path / "two", ("digits", "letters"))
    page = two.page()
    titles = [t.get("aria-label") for t in page.all("div") if t.get("role") == "region"]
    for title in ("Results against epsilon, digits", "Results against epsilon, letters"):
        assert titles.count(title) == 1
    assert titles.count("Results against epsilon") == 1
    assert page.text.count('class="verdict"') == 2, "one card per dataset"
    assert page.text.count('class="curve-figure"') == 2


def test_tables_of_the_papers_fold_away(made: ReportedStudy) -> None:
    table = Table(
        name="table_2",
        title="Table 2: accuracy of CLIP",
        columns=(Column(title="a", align="left"), Column(title="b")),
        rows=[make_row("c | d", "1")],
    )
    paper = ReportTable(table=table, files=[made.results / "tables/papers/table_2.md"])
    page = made.page(tables=[*made.sources.tables, paper])
    assert "Tables of the papers" in page.words
    assert "<caption>Table 2: accuracy of CLIP</caption>" in page.text
    assert re.findall("<summary>(Table 2.*?)</summary>", page.text) == ["Table 2: accuracy of CLIP"]
    assert '<td class="">c | d</td>' in page.text


def _shown(tmp_path: Path, **sizes: int) -> Exhibits:
    """Writes figures of the dataset `d` with these sizes in bytes; a name is `stem_ending`."""
    paths = []
    for name, size in sizes.items():
        stem, _, ending = name.rpartition("_")
        paths.append(tmp_path / f"figures/d/{stem}.{ending}")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_bytes(b"x" * size)
    sources = Sources(
        summaries=[], statements=[], datasets={"d": tmp_path}, figures=paths, captions=[]
    )
    return Exhibits(sources, tmp_path)


def _kind(item: dict[str, Any]) -> str:
    return "" if item["data"] is None else item["data"].partition(";")[0].removeprefix("data:")


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ({"a_svg": 10, "a_png": 7}, "image/svg+xml"),
        ({"a_svg": 11, "a_png": 7}, "image/png"),
        ({"a_svg": 11}, "image/svg+xml"),
        ({"a_png": 7}, "image/png"),
        ({"a_svg": 11, "a_png": 51}, ""),
        ({"a_svg": 11, "a_png": 50}, "image/png"),
    ],
)
def test_a_large_drawing_is_a_picture_and_a_large_picture_a_link(
    sizes: dict[str, int], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exhibits, "SVG_BYTES", 10)
    monkeypatch.setattr(exhibits, "FIGURES_BYTES", 50)
    shown = _shown(tmp_path, **sizes)
    (item,) = shown.list_figures("d", {})
    assert _kind(item) == kind
    assert shown.linked == ([] if kind else ["A, d"])
    links = {(name.rpartition("_")[2].upper(), f"figures/d/a.{name[-3:]}") for name in sizes}
    assert set(item["links"]) == links, "the files are linked in any case"


def test_the_report_lists_results_first_and_t_sne_last_as_one_figure_if_available(
    tmp_path: Path,
) -> None:
    sizes = dict.fromkeys(("zeta_svg", "tsne_b_svg", "accuracy_svg", "alpha_svg", "tsne_a_svg"), 1)
    facts = {"accuracy": "Best.", "tsne": "Points."}
    items = _shown(tmp_path / "a", **sizes).list_figures("d", facts)
    assert [(item["title"], item["main"]) for item in items] == [
        ("Results against epsilon, d", True),
        ("Alpha, d", True),
        ("Zeta, d", True),
        ("t-SNE of a features, d", False),
        ("t-SNE of b features, d", False),
    ]
    assert items[0]["alt"] == "Results against epsilon, d. Best."
    assert items[1]["alt"] == "Alpha, d."
    assert items[3]["alt"] == "t-SNE of a features, d. Points."
    whole = _shown(tmp_path / "b", **sizes | {"tsne_svg": 1}).list_figures("d", {})
    assert [item["title"] for item in whole[-2:]] == ["Zeta, d", "t-SNE, d"]


def test_figures_of_a_section_are_only_with_the_section(tmp_path: Path) -> None:
    section = exhibits.find_section("fairness_gap")
    shown = _shown(tmp_path, fairness_gap_svg=1, accuracy_svg=1)
    assert [item["title"] for item in shown.list_figures("d", {})] == ["Results against epsilon, d"]
    (item,) = shown.list_figures("d", {}, section=section)
    assert item["links"] == [("SVG", "figures/d/fairness_gap.svg")]
    assert shown.list_figures(None, {}, section=section) == []


def test_a_long_table_is_a_link_and_equal_tables_are_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(name: str, *cells: str, dataset: str | None = "d") -> ReportTable:
        rows = [make_row(cell) for cell in cells]
        made = Table(name=name, columns=(Column(title="a"),), rows=rows)
        files = [tmp_path / f"tables/{name}.{ending}" for ending in ("md", "csv")]
        return ReportTable(table=made, files=files, dataset=dataset)

    tables = [table("short", "1"), table("again", "1"), table("long", "12"), table("all", "3")]
    monkeypatch.setattr(exhibits, "TABLE_BYTES", len(write_markdown(tables[0].table)))
    other = table("accuracy", "4", dataset=None)
    sources = Sources(summaries=[], statements=[], datasets={}, tables=[*tables, other])
    shown = Exhibits(sources, tmp_path)
    items = shown.list_tables("d")
    assert [(item["title"], item["html"] is None) for item in items] == [
        ("Short, d", False),
        ("Long, d", True),
        ("All, d", False),
    ]
    assert items[0]["links"] == [("MD", "tables/short.md"), ("CSV", "tables/short.csv")]
    assert "<caption>Short, d</caption>" in items[0]["html"]
    assert [item["title"] for item in shown.list_tables(None)] == ["Results against epsilon"]
    assert shown.list_tables("d") == []
