"""The papers' tables: published numbers as printed, measured cells in their places, else blank."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.reporting import published
from dpprobe.reporting import tables as sheets
from dpprobe.reporting.figures import curves, style
from dpprobe.reporting.paper_tables import FILES, Run, paper_tables, write_paper_tables
from dpprobe.reporting.published import TABLES
from dpprobe.reporting.tables import Sheet
from dpprobe.results.best_private import best_private
from dpprobe.results.cell_results import difference, read_measured
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.study.ablations import best_base, changes, families, varied
from tests.support.cell_files import write_cell

LAMB = {"head": "lamb", "batch_size": "full", "learning_rate": 0.001, "init": "zero", "steps": 1}


def _cell(
    root: Path, *, head: str = "sgd", options: dict[str, Any] | None = None, **where: Any
) -> Path:
    """A made-up cell of another head or with other options."""
    path = write_cell(root, **where)
    record = read_json(path)
    record["head"] = head
    record["options"] = options or {"head": head}
    write_json(path, record)
    return path


def _run(paths: list[Path], **changes: Any) -> Run:
    facts: dict[str, Any] = {
        "study": "mine",
        "cells": read_measured(paths),
        "names": {},
        "backbones": {"pixels": {"family": "pixels"}, "clip": {"family": "open_clip"}},
    }
    return Run(**facts | changes)


def _sheet(run: Run, name: str) -> Sheet:
    return next(sheet for sheet in paper_tables(run, published.read()) if sheet.name == name)


def _rows(sheet: Sheet) -> list[dict[str, str]]:
    """Rows by the columns' titles, as text."""
    titles = [column.title for column in sheet.columns]
    return [dict(zip(titles, (entry.text for entry in row), strict=True)) for row in sheet.rows]


def test_measured_cells_stand_in_the_published_row_of_their_epsilon(tmp_path: Path) -> None:
    cells = [
        _cell(tmp_path, dataset="cifar10", backbone="clip", epsilon=epsilon)
        for epsilon in ("0.5", "1", "inf")
    ]
    sheet = _sheet(_run(cells), "foundation_features_table2")
    rows = [row for row in _rows(sheet) if row["Data"] == "CIFAR-10"]
    assert [row["ε"] for row in rows] == ["0.5", "3", "6.78", "7.53", "8", "1"]
    record = read_json(cells[0])["summary"]["accuracy"]
    half = 50 * (record["high"] - record["low"])
    assert rows[0]["clip + sgd"] == f"{100 * record['mean']:.1f} ± {half:.1f}"
    assert (rows[0]["CNN"], rows[0]["ViT+LC"]) == ("73.3", "94.0")
    assert [row["clip + sgd"] for row in rows[1:5]] == [""] * 4
    assert (rows[5]["Source"], rows[5]["CNN"]) == ("dpprobe, mine", "")
    assert rows[5]["clip + sgd"]


def test_the_note_names_what_is_blank_and_the_command(tmp_path: Path) -> None:
    cells = [_cell(tmp_path, dataset="cifar10", epsilon="0.5")]
    sheet = _sheet(_run(cells), "foundation_features_table2")
    assert "CIFAR-10 at ε 3, 6.78, 7.53, 8;" in sheet.notes[1]
    assert "MNIST at ε 1.2, 2, 2.32, 2.5, 2.93, 3.2, 6.78;" in sheet.notes[1]
    assert "all paper_tables --configfile config/foundation_features.yaml`" in sheet.notes[1]


def test_a_study_says_which_dataset_stands_for_a_published_one(tmp_path: Path) -> None:
    cells = [
        _cell(tmp_path, dataset=dataset, epsilon="0.5") for dataset in ("cifar10_local", "digits")
    ]
    run = _run(cells, names={"cifar10_local": "cifar10"})
    rows = _rows(_sheet(run, "foundation_features_table2"))
    (row,) = [row for row in rows if row["Data"] == "CIFAR-10" and row["pixels + sgd"]]
    assert (row["ε"], row["CNN"]) == ("0.5", "73.3")
    assert [row["Data"] for row in rows if row["Source"] == "dpprobe, mine"] == ["digits"]


def test_only_the_chosen_methods_stand_beside_published_results(tmp_path: Path) -> None:
    cells = [_cell(tmp_path, method=method) for method in ("sgd", "sgd_full")]
    sheet = _sheet(_run(cells, methods=("sgd_full",)), "foundation_features_table2")
    assert [c.title for c in sheet.columns][-1] == "pixels + sgd_full"
    assert "pixels + sgd" not in [c.title for c in sheet.columns]


def test_an_auc_is_a_fraction_as_the_paper_prints_it(tmp_path: Path) -> None:
    path = _cell(
        tmp_path, dataset="chest_xray", epsilon="0.5", class_names=("ill", "well"), headline="auc",
        options={"head": "sgd"},
    )  # fmt: skip
    (row,) = [
        row
        for row in _rows(_sheet(_run([path]), "foundation_features_table2"))
        if row["Data"] == "Chest X-Ray" and row["pixels + sgd"]
    ]
    assert (row["Metric"], row["ViT+LC"]) == ("AUC", "0.94")
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", row["pixels + sgd"])


def test_without_any_measured_cell_the_tables_hold_published_numbers_alone(tmp_path: Path) -> None:
    run = _run([_cell(tmp_path, method="nonprivate", epsilon="inf", head="nonprivate")])
    tables = paper_tables(run, published.read())
    assert tuple(sheet.name for sheet in tables) == TABLES
    numbers = {n.text for n in published.read().select(table="3", paper="mehta_2022")}
    texts = {entry.text for row in tables[4].rows for entry in row}
    assert numbers <= texts
    for sheet in tables:
        assert not any("dpprobe" in entry.text for row in sheet.rows for entry in row), sheet.name
        assert any("snakemake" in note for note in sheet.notes), sheet.name


def _batches(tmp_path: Path) -> list[Path]:
    return [
        _cell(
            tmp_path, method=f"lamb_{size}", epsilon=epsilon, head="lamb",
            options=LAMB | {"batch_size": size, "learning_rate": 0.1 / (1 + index)},
        )
        for index, size in enumerate((64, 256, "full"))
        for epsilon in ("8", "inf")
    ] + [_cell(tmp_path, method="nonprivate", epsilon="inf", head="nonprivate")]  # fmt: skip


def test_batch_sizes_share_a_row_with_and_without_privacy(tmp_path: Path) -> None:
    sheet = _sheet(_run(_batches(tmp_path)), "large_scale_transfer_table2")
    assert [c.title for c in sheet.columns][5:9] == ["Best", "2^6", "2^8", "1,000"]
    free, private = (row for row in _rows(sheet) if row["Data"] == "digits")
    assert (free["ε"], private["ε"]) == ("∞", "8")
    assert all(private[title] for title in ("2^6", "2^8", "1,000"))
    assert free["Best"]
    assert private["Best"] == private["2^20"] == ""
    printed = next(row for row in _rows(sheet) if row["Model"].startswith("ResNet50x4"))
    assert (printed["Best"], printed["2^20"], printed["2^6"]) == ("85.3", "72.6", "")


def test_a_change_of_something_else_has_no_row_among_batch_sizes(tmp_path: Path) -> None:
    options = LAMB | {"init": "lecun_normal", "batch_size": 64}
    lecun = _cell(tmp_path, method="lecun", head="lamb", options=options)
    sheet = _sheet(_run([*_batches(tmp_path), lecun]), "large_scale_transfer_table2")
    assert {row["Source"] for row in _rows(sheet) if row["Data"] == "digits"} == {
        "dpprobe, lamb_64 … lamb_full"
    }
    alone = _sheet(_run([lecun]), "large_scale_transfer_table2")
    assert _rows(alone)[-1]["Source"] == "dpprobe, lecun"


def test_the_model_sizes_take_the_largest_batch(tmp_path: Path) -> None:
    sheet = _sheet(_run(_batches(tmp_path)), "large_scale_transfer_table3")
    (row,) = [row for row in _rows(sheet) if row["Data"] == "digits"]
    assert (row["Batch"], row["ε"], row["Features"]) == ("1,000", "8", "64")
    full = read_json(tmp_path / "cells/digits/pixels/lamb_full/eps-8/metrics.json")
    assert row["Private"].startswith(f"{100 * full['summary']['accuracy']['mean']:.1f} ")


def test_table_nine_has_small_batches_of_momentum_alone(tmp_path: Path) -> None:
    options = {"head": "momentum", "learning_rate": 1.0, "batch_size": 64}
    paths = [*_batches(tmp_path), _cell(tmp_path, method="m", head="momentum", options=options)]
    sheet = _sheet(_run(paths), "large_scale_transfer_table9")
    assert [c.title for c in sheet.columns][5:] == ["2^6", "2^15", "2^16"]
    assert [row["Source"] for row in _rows(sheet)] == ["Mehta et al. 2022", "dpprobe, m"]


def _ablation(tmp_path: Path) -> list[Path]:
    clip = LAMB | {"max_grad_norm": 10.0}
    momentum = {**LAMB, "head": "momentum", "learning_rate": 1.0, "beta": 0.5}
    return [
        _cell(tmp_path, method="base", head="lamb", options=LAMB, quality=2.0),
        _cell(tmp_path, method="clip", head="lamb", options=clip, quality=1.0),
        _cell(tmp_path, method="other", head="momentum", options=momentum, quality=2.0),
        _cell(tmp_path, method="two", head="lamb", options=LAMB | {"steps": 9, "init": "torch"}),
        _cell(tmp_path, method="base", head="lamb", options=LAMB, backbone="clip", quality=3.0),
    ]  # fmt: skip


def test_the_ablation_has_one_change_a_row_and_its_difference(tmp_path: Path) -> None:
    backbones = {
        "pixels": {"family": "timm", "preprocessing": {"size": 224, "crop": "centre"}},
        "clip": {"family": "timm", "preprocessing": {"size": 256, "crop": "centre"}},
    }
    paths = _ablation(tmp_path)
    sheet = _sheet(_run(paths, backbones=backbones), "large_scale_transfer_table4")
    ours = [row for row in _rows(sheet) if row["Source"].startswith("dpprobe")]
    found = {row["Change"]: row["Difference"] for row in ours if row["Model"] == "pixels"}
    assert list(found) == [
        "no change", "max grad norm default → 10", "LAMB → momentum",
        "preprocessing size 224 → 256",
    ]  # fmt: skip
    assert found["no change"] == ""
    base, clip = (cell.values for cell in read_measured(paths[:2]))
    gap, half = difference(base, clip)
    assert half is not None
    assert found["max grad norm default → 10"] == f"{100 * gap:.1f} ± {100 * half:.1f}"
    assert found["preprocessing size 224 → 256"].startswith("+")
    assert "dpprobe, two" not in {row["Source"] for row in ours}


def test_the_rate_is_rows_by_the_recorded_seconds(tmp_path: Path) -> None:
    options = {"head": "sgd", "batch_size": 50, "steps": 40}
    path = _cell(tmp_path, options=options)
    sheet = _sheet(_run([path]), "large_scale_transfer_table8")
    (row,) = [row for row in _rows(sheet) if row["Method"] == "sgd"]
    assert row["Last layer, rows/s of a job"] == f"{3 * 40 * 50 / 1.5:,.0f}"  # 3 seeds, 1.5 s
    assert row["Full, images/s/core"] == row["Speed-up"] == ""
    assert any("Extraction is not in them" in note for note in sheet.notes)


def test_the_note_names_columns_that_are_blank_in_a_row_of_others(tmp_path: Path) -> None:
    cells = [
        _cell(tmp_path, dataset="cifar10", method=method, epsilon=epsilon)
        for method, epsilon in (("a", "0.5"), ("b", "3"))
    ]
    sheet = _sheet(_run(cells), "foundation_features_table2")
    blank = "CIFAR-10 at ε 0.5 (pixels + b), 3 (pixels + a), 6.78, 7.53, 8"
    assert any(blank in note for note in sheet.notes)


def test_of_two_datasets_for_a_published_row_the_one_that_ran_it_stands_there(
    tmp_path: Path,
) -> None:
    cells = [
        _cell(tmp_path, dataset="cifar10", epsilon="3"),
        _cell(tmp_path, dataset="mine", epsilon="0.5"),
    ]
    run = _run(cells, names={"cifar10": "cifar10", "mine": "cifar10"})
    sheet = _sheet(run, "foundation_features_table2")
    rows = [row for row in _rows(sheet) if row["Data"] in ("CIFAR-10", "CIFAR-10 (mine)")]
    assert [row["ε"] for row in rows if row["pixels + sgd"]] == ["0.5", "3"]
    assert len(rows) == 5, "no row of its own for what stands in a published one"
    (note,) = [note for note in sheet.notes if note.startswith("Not run")]
    assert "CIFAR-10 at ε 6.78, 7.53, 8;" in note


@pytest.mark.parametrize("few", [True, False])
def test_blank_columns_of_shots_say_how_to_run_them(tmp_path: Path, few: bool) -> None:
    cells = [_cell(tmp_path, dataset="cifar10", backbone="clip", epsilon="0.5")]
    where = {"dataset": "cifar10", "backbone": "clip", "headline": "accuracy"}
    zero = where | {"summary": _probe(None, 0.625)["summary"]}
    probes = [where | {"results": [_probe(1, 0.5), _probe(None, 0.9)]}] if few else []
    sheet = _sheet(_run(cells, few_shot=probes, zero_shot=[zero]), "foundation_features_table3")
    asked = [note for note in sheet.notes if "few_shot:" in note]
    assert len(asked) == (0 if few else 1)
    assert all("--configfile config/foundation_features.yaml" in note for note in asked)


def test_a_sweep_that_lacks_a_batch_size_says_how_to_run_one(tmp_path: Path) -> None:
    sheet = _sheet(_run(_batches(tmp_path)), "large_scale_transfer_table1")
    assert any("--configfile config/large_scale_transfer.yaml" in note for note in sheet.notes)


def _probe(count: int | None, mean: float) -> dict[str, Any]:
    return {"shots": count, "summary": {"accuracy": {"mean": mean, "low": mean, "high": mean}}}


def test_shots_stand_beside_zero_shot_and_private_heads(tmp_path: Path) -> None:
    cells = [
        _cell(tmp_path, dataset="cifar10", backbone="clip", epsilon=epsilon, method=method)
        for epsilon in ("0.5", "2", "8")
        for method in ("sgd", "sgd_full")
    ]
    where = {"dataset": "cifar10", "backbone": "clip", "headline": "accuracy"}
    few = where | {"results": [_probe(None, 0.9), _probe(4, 0.5), _probe(16, 0.75)]}
    zero = where | {"summary": _probe(None, 0.625)["summary"]}
    run = _run(cells, few_shot=[few], zero_shot=[zero])
    sheet = _sheet(run, "foundation_features_table3")
    (row,) = _rows(sheet)
    titles = list(row)
    assert titles[3:9] == ["Zero-shot", "4-shot", "16-shot", "Full", "DP, ε 0.5", "DP, ε 8"]
    assert [row[title] for title in titles[3:7]] == [
        "62.5 ± 0.0", "50.0 ± 0.0", "75.0 ± 0.0", "90.0 ± 0.0",
    ]  # fmt: skip
    means = [
        cell.mean for cell in read_measured(cells) if cell.epsilon == 8 and cell.backbone == "clip"
    ]
    assert row["DP, ε 8"].startswith(f"{100 * max(means):.1f} ")
    assert row["DP, published (ε)"] == "92.7 (0.5)"
    assert "not private" in sheet.notes[0]


def test_second_order_heads_stand_beside_the_published_headline(tmp_path: Path) -> None:
    options = {"head": "feature_covariance"}
    path = _cell(tmp_path, method="dpfc", head="feature_covariance", options=options)
    first, second, ours = _rows(_sheet(_run([path]), "features_second_order_headline"))
    assert (first["ε"], first["feature_covariance"]) == ("8", "88.0")
    assert (second["ε"], second["feature_covariance"]) == ("0.1", "84.3")
    assert ours["feature_covariance"]
    assert ours["newton"] == ""
    notes = _sheet(_run([path]), "features_second_order_headline").notes
    assert any("--configfile config/features_second_order.yaml" in note for note in notes)


def test_every_file_is_written_and_is_the_same_twice(tmp_path: Path) -> None:
    run = _run([_cell(tmp_path, dataset="cifar10", epsilon="0.5")])
    for folder in ("a", "b"):
        write_paper_tables(run, published.read(), tmp_path / folder)
    assert {path.name for path in (tmp_path / "a").iterdir()} == set(FILES)
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_csv_holds_numbers_with_their_intervals(tmp_path: Path) -> None:
    run = _run([_cell(tmp_path, dataset="cifar10", epsilon="0.5")])
    text = sheets.comma_separated(_sheet(run, "foundation_features_table2"))
    rows = list(csv.DictReader(io.StringIO(text)))
    (row,) = [row for row in rows if row["pixels + sgd"]]
    assert float(row["CNN"]) == 73.3
    assert 0 < float(row["pixels + sgd ±"]) < float(row["pixels + sgd"]) < 100
    assert [row["ε"] for row in rows if row["Data"] == "EuroSAT"] == ["0.5", "[0.5, 1.5]"]


def test_latex_is_well_formed(tmp_path: Path) -> None:
    paths = [*_ablation(tmp_path), *_batches(tmp_path)]
    cited = set()
    for sheet in paper_tables(_run(paths), published.read()):
        text = sheets.latex(sheet)
        body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().splitlines()
        for line in body:
            assert line.endswith(r" \\")
            assert len(re.findall(r"(?<!\\)&", line)) == len(sheet.columns) - 1, line
            assert not line.startswith(("[", "*"))
        plain = re.sub(r"\\.", "", text)
        assert plain.count("{") == plain.count("}")
        for line in text.splitlines()[1:]:
            assert not re.search(r"(?<!\\)[%#_]", re.sub(r"\\cite\{[^}]*\}", "", line)), line
        assert plain.count("$") % 2 == 0
        assert all(ord(character) < 0x250 for character in text), sheet.name
        cited |= set(re.findall(r"\\cite\{([^}]*)\}", text))
    assert cited <= set(published.read().citations)
    assert "nasr_2020" in cited


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    found = paper_tables(_run([*_ablation(tmp_path), *_batches(tmp_path)]), published.read())
    for sheet in found:
        sheets.write_sheet(sheet, tmp_path / "tables")
    inputs = "".join(rf"\input{{tables/{sheet.name}}}\clearpage" for sheet in found)
    (tmp_path / "main.tex").write_text(
        r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}"
        rf"\begin{{document}}{inputs}\end{{document}}"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    for _ in range(2):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "main.pdf").stat().st_size > 10_000


def test_latex_prints_a_command_as_it_is_typed() -> None:
    column = sheets.Column(title="x")
    note = "Run `snakemake --cores all --configfile 'a b.yaml'`, or not -- as you like."
    sheet = sheets.Sheet(name="one", title="One", columns=(column,), rows=[], notes=[note])
    quoted = r"\textquotesingle{}a b.yaml\textquotesingle{}"
    expected = rf"\texttt{{snakemake -{{}}-cores all -{{}}-configfile {quoted}}}, or not -- as you"
    assert expected in sheets.latex(sheet)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & c", r"a\_b \& c"),
        ("5 % ± 1 of 2^17", r"5 \% $\pm$ 1 of $2^{17}$"),
        (r"C:\x {y} ~ ^", r"C:\textbackslash{}x \{y\} \textasciitilde{} \textasciicircum{}"),
        ("Tramèr → ε ∞", r"Tramèr $\to$ $\varepsilon$ $\infty$"),
    ],
)
def test_latex_escapes(text: str, expected: str) -> None:
    assert sheets.escape(text) == expected


def test_a_sheet_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="2 entries, 1 columns"):
        Sheet(
            name="n", title="t", columns=(sheets.Column(title="a"),),
            rows=[(sheets.BLANK, sheets.BLANK)],
        )  # fmt: skip


def test_families_differ_in_what_varies_alone() -> None:
    options = {
        "a": {"head": "sgd", "batch_size": 32, "x": 1},
        "b": {"head": "sgd", "batch_size": 64, "x": 1},
        "c": {"head": "sgd", "batch_size": 64, "x": 2},
        "d": {"head": "lamb", "batch_size": 32, "x": 1},
    }
    assert families(options, ("batch_size",)) == [("a", "b"), ("c",), ("d",)]
    assert families(options, ("batch_size", "x"))[0] == ("a", "b", "c")


def test_methods_that_vary_in_batch_size_or_scale_are_found() -> None:
    base: dict[str, Any] = {"head": "sgd", "batch_size": 32, "init": "zero", "init_scale": None}
    options = {
        "a": base,
        "b": base | {"batch_size": "full"},
        "c": base | {"init": "scaled", "init_scale": 0.1},
        "d": base | {"init": "scaled", "init_scale": 1.0},
        "e": base | {"init": "torch"},
        "f": {"head": "least_squares"},
    }
    assert varied(options, "batch_size") == [("a", "b")]
    assert varied(options, "init_scale") == [("a", "c", "d")]
    assert varied({"f": options["f"]}, "batch_size") == []


def test_another_head_is_one_change_whatever_only_it_knows() -> None:
    base = {"head": "lamb", "learning_rate": 0.1, "beta": 0.9, "steps": 1}
    other = {"head": "momentum", "learning_rate": 3.0, "momentum": 0.9, "steps": 1}
    assert changes(base, other) == {"head": ("lamb", "momentum")}
    assert list(changes(base, other | {"steps": 2})) == ["head", "steps"]
    assert changes(base, base | {"learning_rate": 1.0}) == {"learning_rate": (0.1, 1.0)}
    named = {"a": base, "b": base | {"steps": 2}, "c": base | {"beta": 0.5}}
    assert best_base({"b": named["b"], "c": named["c"], "a": base}) == "a"
    assert best_base({"a": base}) is None


def test_a_difference_has_welch_s_interval() -> None:
    from scipy import stats

    base, other = (0.5, 0.6, 0.7), (0.8, 0.85, 0.95, 0.9)
    gap, half = difference(base, other)
    reference = stats.ttest_ind(other, base, equal_var=False).confidence_interval()
    assert half is not None
    assert (gap - half, gap + half) == pytest.approx((reference.low, reference.high))
    assert difference((0.5,), (0.75,)) == (0.25, None)
    assert difference((0.5, 0.5), (0.75, 0.75)) == (0.25, None)


def test_an_accuracy_is_in_no_published_row_of_an_auc(tmp_path: Path) -> None:
    cell = _cell(tmp_path, dataset="chest_xray", epsilon="0.5", class_names=("ill", "well"))
    sheet = _sheet(_run([cell]), "foundation_features_table2")
    (row,) = [row for row in _rows(sheet) if row["pixels + sgd"]]
    assert (row["Metric"], row["Source"], row["ViT+LC"]) == ("accuracy", "dpprobe, mine", "")
    assert "Chest X-Ray at ε 0.5" in sheet.notes[1], "the published AUC was not measured"


def test_a_sweep_of_learning_rates_shows_its_best_and_says_so(tmp_path: Path) -> None:
    cells = [
        _cell(
            tmp_path, method=f"lamb_{rate}", epsilon="8", head="lamb", quality=quality,
            options=LAMB | {"batch_size": 64, "learning_rate": rate},
        )
        for rate, quality in ((0.1, 1.0), (0.2, 4.0), (0.3, 0.5))
    ]  # fmt: skip
    best = 100 * max(cell.mean for cell in read_measured(cells))
    for name, column in (("table2", "2^6"), ("table3", "Private")):
        sheet = _sheet(_run(cells), f"large_scale_transfer_{name}")
        (row,) = [row for row in _rows(sheet) if row["Data"] == "digits"]
        assert row[column].startswith(f"{best:.1f} ")
        assert any("the best of several by its test result" in note for note in sheet.notes)
        alone = _sheet(_run(cells[:1]), f"large_scale_transfer_{name}")
        assert not any("best of several" in note for note in alone.notes)


@pytest.mark.parametrize("qualities", [(0.5, 4.0, 1.0), (4.0, 0.5, 1.0), (0.5, 1.0, 4.0)])
def test_of_several_ceilings_every_reader_takes_the_best(
    qualities: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        _cell(tmp_path, method=f"free_{i}", epsilon="inf", head="nonprivate", quality=quality)
        for i, quality in enumerate(qualities)
    ]
    options = LAMB | {"batch_size": 64}
    cells += [
        _cell(tmp_path, method="lamb", epsilon=epsilon, head="lamb", options=options)
        for epsilon in ("8", "inf")
    ]
    best = 100 * max(cell.mean for cell in read_measured(cells) if cell.ceiling)
    rows = _rows(_sheet(_run(cells), "large_scale_transfer_table2"))
    (row,) = [row for row in rows if row["Data"] == "digits" and row["ε"] == "∞"]
    assert row["Best"].startswith(f"{best:.1f} ")
    summarise_cells(cells, tmp_path / "s.parquet", study="mine")
    (found,) = best_private(read_grid([tmp_path / "s.parquet"]), {})
    assert found.ceiling is not None
    assert found.ceiling.mean == pytest.approx(best)
    saved: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(style, "save", lambda figure, *_: saved.append(figure))
        curves.method_comparison(
            tmp_path / "s.parquet", svg=tmp_path / "a.svg", png=tmp_path / "a.png"
        )
    lines = [line.get_ydata() for axes in saved[0].get_axes() for line in axes.get_lines()]
    assert [best, best] in [pytest.approx(list(line)) for line in lines if len(line) == 2]
    drawn: list[Any] = []
    monkeypatch.setattr(
        curves, "_draw_panels", lambda _grid, _dataset, gaps, **_: drawn.append(gaps)
    )
    curves.ceiling_gap(tmp_path / "s.parquet", svg=tmp_path / "a.svg", png=tmp_path / "a.png")
    assert drawn[0]["pixels", "lamb"][8.0].mean == pytest.approx(best - found.entry.mean)


def test_zero_shot_has_its_own_metric_among_shots(tmp_path: Path) -> None:
    entry = {"mean": 0.5, "low": None, "high": None}
    zero = {"dataset": "d", "backbone": "clip", "headline": "auc", "summary": {"auc": entry}}
    probe = {"shots": 1, "summary": {"accuracy": entry, "auc": entry | {"mean": 0.9}}}
    few = {"dataset": "d", "backbone": "clip", "headline": "accuracy", "results": [probe]}
    cells = [_cell(tmp_path)]
    run = _run(cells, zero_shot=[zero], few_shot=[few])
    (row,) = _rows(_sheet(run, "foundation_features_table3"))
    assert (row["Metric"], row["Zero-shot"]) == ("accuracy or AUC", "0.500")
    assert row["1-shot"] == "50.0"
