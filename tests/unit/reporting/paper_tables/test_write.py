"""The papers' tables are written if a study measures a row, well formed and reproducibly."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.exhibits import published, tables
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES, SMALL_BATCH, list_paper_tables
from dpprobe.reporting.paper_tables.write import write_study_tables
from dpprobe.reporting.registry import find_exhibit
from dpprobe.study.study_file import load_study
from tests.conftest import REPOSITORY
from tests.support.paper_tables import (
    LAMB,
    ablation_cells,
    batch_cells,
    every_table,
    paper_cell,
    paper_run,
    rows_as_text,
    table_of,
)

PETS = {"source": "imagefolder", "path": "pets"}
SMALL: dict[str, Any] = {
    "datasets": {"pets": PETS | {"metric": "accuracy"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {"ceiling": {"head": "nonprivate"}},
    "epsilons": [0.5],
}
SGD = {"head": "sgd", "batch_size": 8, "epochs": 2}
METHODS: dict[str, dict[str, Any]] = {
    "lamb_64": LAMB | {"batch_size": 64},
    "lamb_full": LAMB,
    "newton": {"head": "newton"},
    "lamb_clip": LAMB | {"max_grad_norm": 10.0},
    "momentum": SGD | {"head": "momentum"},
    "nonprivate": {"head": "nonprivate"},
}
TABLE_2 = "foundation_features_table2"
HEADS = "features_second_order_headline"
PRIVATE = {TABLE_2}
STEPS = {"large_scale_transfer_figure1b"}
MEHTA = "large_scale_transfer_table{}"


CLIP = {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}
NEWTON, PROTOTYPES = {"head": "newton"}, {"head": "prototypes"}
SMALL_BATCHES = {MEHTA.format(1), MEHTA.format(9)}


def of_head(head: str, **options: Any) -> dict[str, Any]:
    """Returns changes for a study with one method of this head in batches."""
    return {"methods": {"one": SGD | {"head": head} | options}}


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, set()),
        (of_head("sgd"), PRIVATE | STEPS | {HEADS}),
        (of_head("sgd") | {"epsilons": ["inf"]}, set()),
        ({"methods": {"auto": {"head": "auto"}}}, PRIVATE | STEPS),
        ({"methods": {"newton": NEWTON}}, PRIVATE | {HEADS}),
        ({"methods": {"a": PROTOTYPES}}, PRIVATE),
        ({"methods": {"a": PROTOTYPES}, "papers": {"methods": ["ceiling"]}}, set()),
        (
            {"methods": {"a": PROTOTYPES, "newton": NEWTON}, "papers": {"methods": ["newton"]}},
            PRIVATE | {HEADS},
        ),
        ({"few_shot": {"backbones": ["pixels"]}}, {"foundation_features_table3"}),
        (of_head("lamb"), PRIVATE | STEPS | {HEADS, MEHTA.format(2), MEHTA.format(3)}),
        (of_head("lamb") | {"epsilons": ["inf"]}, {MEHTA.format(2)}),
        (of_head("momentum"), PRIVATE | STEPS | {HEADS} | SMALL_BATCHES),
        (
            {"methods": {"all": {"head": "momentum", "batch_size": "full", "steps": 2}}},
            PRIVATE | STEPS | {HEADS, MEHTA.format(1)},
        ),
        (of_head("momentum", batch_size=SMALL_BATCH), PRIVATE | STEPS | {HEADS, MEHTA.format(1)}),
        (
            of_head("momentum", batch_size=SMALL_BATCH - 1),
            PRIVATE | STEPS | {HEADS} | SMALL_BATCHES,
        ),
        (
            {"methods": {"sgd": SGD, "clip": SGD | {"max_grad_norm": 9.0}}},
            PRIVATE | STEPS | {HEADS, MEHTA.format(4)},
        ),
        (  # the only changes from a named base may be backbones
            {"methods": {"sgd": SGD}, "papers": {"base": "sgd"}},
            PRIVATE | STEPS | {HEADS, MEHTA.format(4)},
        ),
        ({"datasets": {"pets": PETS | {"metric": "auc"}}}, {"medical_fine_tuning_auc"}),
        ({"datasets": {"pets": PETS}}, set()),
        ({"backbones": {"clip": CLIP}}, {"foundation_features_table3"}),
    ],
)
def test_a_table_is_written_where_the_study_measures_a_row(
    changes: dict[str, Any], written: set[str]
) -> None:
    values = SMALL | changes
    values["methods"] = values["methods"] | SMALL["methods"]
    study = load_study(values)
    assert set(list_paper_tables(study)) == written
    outputs = find_exhibit("write_paper_tables").list_outputs(study)
    named = {Path(path).name for output in outputs for path in output.paths}
    endings = [f"{name}.{ending}" for name in written for ending in ("md", "csv", "tex")]
    assert named == {*endings, "references.bib"}


def test_every_paper_s_study_measures_its_tables() -> None:
    """For each table, the project has a study that fills it."""
    written = {
        name
        for path in (REPOSITORY / "config").glob("*.yaml")
        for name in list_paper_tables(load_study(yaml.safe_load(path.read_text())))
    }
    assert written == set(PAPER_TABLES)


def test_every_file_is_written_and_is_the_same_twice(tmp_path: Path) -> None:
    values = SMALL | {"methods": {"sgd": SGD}}
    study, papers = load_study(values), {"base": "sgd", "methods": ["sgd"]}
    paper_cell(tmp_path, dataset="pets", epsilon="0.5", options=SGD)
    run = Run.of_study(load_study(values | {"papers": papers}), tmp_path)
    assert (run.base, run.methods, len(run.cells)) == ("sgd", ("sgd",), 1)
    for folder in ("a", "b"):
        write_study_tables(
            study=study,
            results=tmp_path,
            published=published.read_published(),
            folder=tmp_path / folder,
        )
    outputs = find_exhibit("write_paper_tables").list_outputs(study)
    names = {Path(path).name for output in outputs for path in output.paths}
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    for name in names:
        text = (tmp_path / "a" / name).read_text()
        assert text == (tmp_path / "b" / name).read_text()
        assert "pixels" in text or name == "references.bib", "a measured row"


def test_a_row_is_the_same_whatever_else_was_measured(tmp_path: Path) -> None:
    """A row ignores other datasets and other backbones, which are better here."""
    shots = [{"shots": 4, "summary": {"accuracy": dict.fromkeys(("mean", "low", "high"), 0.5)}}]
    places: list[tuple[list[Path], dict[str, Any]]] = []
    for dataset in ("digits", "cifar10"):
        for backbone in ("pixels", "clip"):
            where: dict[str, Any] = {"dataset": dataset, "backbone": backbone}
            cells = [
                paper_cell(
                    tmp_path,
                    method=method,
                    head=options["head"],
                    options=options,
                    epsilon=epsilon,
                    quality=1.0 + len(places),
                    **where,
                )
                for method, options in METHODS.items()
                for epsilon in ("0.5", "8", "inf")
                if epsilon == "inf" or method != "nonprivate"
            ]
            places.append((cells, where | {"headline": "accuracy", "results": shots}))
    paths = [path for cells, _ in places for path in cells]
    tables = every_table(paper_run(paths, few_shot=[probe for _, probe in places]))
    for cells, probe in places:
        alone = every_table(paper_run(cells, few_shot=[probe]))
        for one, table in zip(alone, tables, strict=True):
            rows = rows_as_text(table)
            if one.name.endswith("table4") and probe["backbone"] != "pixels":
                continue  # its base is on the study's first backbone
            for row in rows_as_text(one):
                shown = {title: text for title, text in row.items() if text}
                assert any(shown.items() <= other.items() for other in rows), (table.name, shown)


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
    for table in every_table(paper_run(paths)):
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
    made = every_table(paper_run([*ablation_cells(tmp_path), *batch_cells(tmp_path)]))
    for table in made:
        tables.save_table(table, tmp_path / f"tables/{table.name}.tex")
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
