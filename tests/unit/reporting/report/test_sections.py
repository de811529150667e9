"""The headline, what was run and all cells: right numbers."""

from __future__ import annotations

import re
from pathlib import Path

from dpprobe import analyses
from dpprobe.analysis_registry import load_analyses
from dpprobe.results.summary import summarise_cells
from tests.support.cell_files import write_cell
from tests.support.report_page import Made


def test_results_at_infinity_are_no_private_headline(tmp_path: Path) -> None:
    made = Made(tmp_path)
    cells = [write_cell(tmp_path / "r", method=m, epsilon="inf") for m in ("sgd", "nonprivate")]
    summary = tmp_path / "only.parquet"
    summarise_cells(cells, summary, study="small")
    statements = sorted((tmp_path / "r").rglob("privacy.json"))
    page = made.page(summaries=[summary], statements=statements, tables=[], figures=[])
    assert "No head of this study is private" in page.words


def test_a_study_without_analyses_has_no_sections_of_them(made: Made) -> None:
    packages = Path(analyses.__file__).parent
    templates = [
        packages / analysis.name / analysis.section.template
        for analysis in load_analyses()
        if analysis.section
    ]
    names = {
        name for path in templates for name in re.findall('<section id="([^"]+)"', path.read_text())
    }
    assert len(names) == len(templates) == 6
    page = made.page()
    assert not names & {part.get("id") for part in page.all("section")}
    assert not {f"#{name}" for name in names} & {link.get("href") for link in page.all("a")}
    assert "results of groups are computed from them" not in page.words, "as not covered"
