"""All tables of the papers: their files, well formed and the same twice."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dpprobe.exhibits import published, tables
from dpprobe.exhibits.published import PAPER_TABLES
from dpprobe.reporting.paper_tables.write import FILES, paper_tables, write_paper_tables
from tests.support.paper_tables import (
    ablation_cells,
    batch_cells,
    paper_cell,
    paper_run,
    table_of,
)


def test_without_any_measured_cell_the_tables_hold_published_numbers_alone(tmp_path: Path) -> None:
    run = paper_run([paper_cell(tmp_path, method="nonprivate", epsilon="inf", head="nonprivate")])
    made = paper_tables(run, published.read_published())
    assert tuple(table.name for table in made) == PAPER_TABLES
    numbers = {
        n.text for n in published.read_published().select_numbers(table="3", paper="mehta_2022")
    }
    sizes = next(table for table in made if table.name == "large_scale_transfer_table3")
    texts = {cell.text for row in sizes.rows for cell in row}
    assert numbers <= texts
    dimensions, *others = made
    assert [row[0].text for row in dimensions.rows[3:]] == ["pixels"], "of any cell"
    for table in others:
        assert not any("dpprobe" in cell.text for row in table.rows for cell in row), table.name
        assert any("snakemake" in note for note in table.notes), table.name


def test_every_file_is_written_and_is_the_same_twice(tmp_path: Path) -> None:
    run = paper_run([paper_cell(tmp_path, dataset="cifar10", epsilon="0.5")])
    for folder in ("a", "b"):
        write_paper_tables(run, published.read_published(), tmp_path / folder)
    assert {path.name for path in (tmp_path / "a").iterdir()} == set(FILES)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_csv_holds_numbers_with_their_intervals(tmp_path: Path) -> None:
    run = paper_run([paper_cell(tmp_path, dataset="cifar10", epsilon="0.5")])
    text = tables.comma_separated(table_of(run, "foundation_features_table2"))
    rows = list(csv.DictReader(io.StringIO(text)))
    (row,) = [row for row in rows if row["pixels + sgd"]]
    assert float(row["CNN"]) == 73.3
    ends = [float(row[f"pixels + sgd {end}"]) for end in ("low", "high")]
    assert 0 <= ends[0] < float(row["pixels + sgd"]) < ends[1] <= 100
    assert [row["ε"] for row in rows if row["Data"] == "EuroSAT"] == ["0.5", "[0.5, 1.5]"]


def test_latex_is_well_formed(tmp_path: Path) -> None:
    paths = [*ablation_cells(tmp_path), *batch_cells(tmp_path)]
    cited = set()
    for table in paper_tables(paper_run(paths), published.read_published()):
        text = tables.write_latex(table)
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
        for line in body:
            assert line.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", line)) == len(table.columns) - 1, line
            assert not line.startswith(("[", "*"))
        plain = re.sub(r"\\.", "", text)
        assert plain.count("{") == plain.count("}")
        for line in text.splitlines()[1:]:
            assert not re.search(r"(?<!\\)[%#_]", re.sub(r"\\cite\{[^}]*\}", "", line)), line
        assert plain.count("$") % 2 == 0
        assert all(ord(character) < 0x250 for character in text), table.name
        cited |= set(re.findall(r"\\cite\{([^}]*)\}", text))
    assert cited <= set(published.read_published().citations)
    assert "nasr_2020" in cited


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    made = paper_tables(
        paper_run([*ablation_cells(tmp_path), *batch_cells(tmp_path)]), published.read_published()
    )
    for table in made:
        tables.write_files(table, tmp_path / "tables")
    inputs = "".join(rf"\input{{tables/{table.name}}}\clearpage" for table in made)
    (tmp_path / "main.tex").write_text(
        r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}"
        rf"\begin{{document}}{inputs}\end{{document}}"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    for _ in range(2):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "main.pdf").stat().st_size > 10_000
