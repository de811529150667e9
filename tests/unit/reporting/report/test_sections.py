"""Numbers in the headline, in the description of runs and in the table of all cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe import analyses
from dpprobe.analysis_registry import load_analyses
from dpprobe.data.table import DatasetInfo
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.reporting.report import sections, statements
from dpprobe.reporting.report.sources import Origin
from dpprobe.results.best_private import Best, best_private
from dpprobe.results.cell_record import read_cell
from dpprobe.results.summary import Choice, Entry, read_summaries, summarise_cells
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import write_cell
from tests.support.made_grids import made_entry, made_grid
from tests.support.report_page import ReportedStudy


def test_the_report_of_heads_at_infinite_epsilon_says_that_none_is_private(tmp_path: Path) -> None:
    made = ReportedStudy(tmp_path)
    cells = [write_cell(tmp_path / "r", method=m, epsilon="inf") for m in ("sgd", "nonprivate")]
    summary = tmp_path / "only.parquet"
    summarise_cells(cells, summary, study="small")
    statements = sorted((tmp_path / "r").rglob("privacy.json"))
    page = made.page(summaries=[summary], statements=statements, tables=[], figures=[])
    assert "No head of this study is private" in page.words


def test_a_study_without_analyses_has_no_sections_of_them(made: ReportedStudy) -> None:
    packages = Path(analyses.__file__).parent
    templates = [
        packages / analysis.name / analysis.section.template
        for analysis in load_analyses()
        if analysis.section
    ]
    names = {
        name for path in templates for name in re.findall('<section id="([^"]+)"', path.read_text())
    }
    assert len(names) == len(templates) == 7
    page = made.page()
    assert not names & {part.get("id") for part in page.all("section")}
    assert not {f"#{name}" for name in names} & {link.get("href") for link in page.all("a")}
    assert "results of groups are computed from them" not in page.words, "as not covered"


def test_the_report_shows_the_best_zero_shot_result_next_to_the_private_one(
    made: ReportedStudy,
) -> None:
    assert "zero-shot" not in made.page().text.partition('id="run"')[0]
    files = [
        write_zero_shot(made.results, backbone=name, accuracy=value)
        for name, value in (("clip_a", 0.61), ("clip_b", 0.72))
    ]
    assert "clip_b reaches 72.0%" in made.page(zero_shot=files).words
    write_json(files[0], {"dataset": "digits"})
    with pytest.raises(DataError, match="clip_a"):
        made.page(zero_shot=files)


def test_classes_without_test_rows_are_named_next_to_the_headline(made: ReportedStudy) -> None:
    path = made.sources.datasets["digits"]
    record = read_json(path)
    assert "have no test image" not in made.page().words
    record["splits"]["test"]["per_class"][2] = 0
    write_json(path, record)
    words = made.page().words
    told = "1 of 4 classes have no test image: two."
    assert words.count(told) >= 2, "among the caveats and beside the dataset"


def test_an_auc_is_in_no_column_called_accuracy(tmp_path: Path) -> None:
    made = ReportedStudy(
        tmp_path, headline="auc", class_names=("benign", "malignant"), shares=(0.9, 0.1)
    )
    first = made.page().text.partition("</section>")[0]
    assert "Best private head: AUC (%) with 95% CI" in first
    assert "% AUC (95% CI" in first
    assert "majority-class baseline (50.0%)" in first
    titles = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", first)
    assert titles == ["ε", "best private", "points vs non-private", "worst class", "head"]
    assert "Its accuracy is" in first
    assert first.count("accuracy") == 1, "in the verdict's second sentence alone"


def test_every_cell_has_a_command_and_a_statement(made: ReportedStudy) -> None:
    page = made.page()
    for path in made.sources.statements:
        target = Path("results") / path.relative_to(made.results).with_name("metrics.json")
        assert f"snakemake {target} --cores all" in page.words
    statements = [d for d in page.all("details") if d.get("class") == "statement"]
    # two backbones share the statement of a method and epsilon
    assert len(statements) == len(made.sources.statements) / 2 == 9
    assert "(0.5, 1e-5)-differentially private" in page.words
    assert "Not for release" in page.words


def test_statements_and_cells_show_the_highest_accuracy_of_an_attacker(
    made: ReportedStudy,
) -> None:
    page = made.page()
    assert "guesses right at most 59.4% of the time." in (" ".join(page.words.split()))
    table = page.text.partition('id="cells-digits"')[2]
    assert "attacker right at most (%)" in table
    assert {"56.7", "100"} <= set(re.findall(r"<td[^>]*>(.*?)</td>", table))


def test_a_cell_s_row_has_its_own_numbers_and_its_own_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 3)
    names = ("dataset", "backbone", "method", "epsilon")
    keys = [tuple(key.split()) for key in ("z x m 2", "z y m 2", "z x m 8", "z x b 2", "a x m 2")]
    made: dict[Any, Any] = {key: dict(zip(names, key, strict=True)) for key in keys}
    paths = [write_cell(tmp_path, **place) for place in made.values()]
    files = [path.with_name("privacy.json") for path in paths]
    for number, file in enumerate(files):
        statement = read_json(file)
        statement["allows"]["balanced_accuracy"] = 0.51 + number / 100
        write_json(file, statement)
    summarise_cells(paths, tmp_path / "s.parquet", study="s")
    shown = statements.read_statements(files, order=["z", "a"])
    summary = read_summaries([tmp_path / "s.parquet"]).to_pandas()
    cells = sections.list_cells(summary, shown, Origin(study={}, results=Path("r")))
    by_key = {tuple(cell[name] for name in names): cell for cell in cells}
    anchors = ["statement-1", "statement-2", None, "statement-0", None]  # three are shown
    ends = ("low", "high", "rows_low", "rows_high", "both_low", "both_high")
    for number, (key, path) in enumerate(zip(keys, paths, strict=True)):
        cell, entry = by_key[key], read_cell(path).summary["accuracy"]
        assert (cell["allows"], cell["anchor"]) == (f"{51 + number}", anchors[number]), key
        assert "/".join((*key[:3], f"eps-{key[3]}")) in cell["command"]
        for end in ends:
            assert cell[end] == pytest.approx(100 * getattr(entry, end)), end
        assert (cell["value"], cell["seeds"]) == (pytest.approx(100 * entry.mean), 3)


def test_patients_are_counted_and_named_next_to_their_interval(tmp_path: Path) -> None:
    made = ReportedStudy(tmp_path)
    told = "95% CI over seeds and test"
    assert f"{told} examples" in made.page().words
    cells = [write_cell(tmp_path / "r", patients=40)]
    summarise_cells(cells, tmp_path / "patients.parquet", study="small")
    path = made.sources.datasets["digits"]
    write_json(path, read_json(path) | {"units": {"train": 200, "test": 40}})
    words = made.page(summaries=[tmp_path / "patients.parquet"]).words
    assert f"{told} patients" in words
    assert "1,000 of 200 patients" in words
    assert "200 of 40 patients" in words


def _info(*test: int, train: int = 9, groups: tuple[str, ...] = ()) -> DatasetInfo:
    counts = {"train": [train] * len(test), "test": list(test)}
    facts = {"fingerprint": "f", "sha256": "s"}
    return DatasetInfo.model_validate(
        {
            "class_names": [f"c{number}" for number in range(len(test))],
            "multi_label": False,
            "groups": groups,
            "fingerprint": "f",
            "source": {"source": "sklearn"},
            "splits": {
                name: facts | {"rows": sum(each), "per_class": each}
                for name, each in counts.items()
            },
        }
    )


INFO = _info(50, 50, 50, 50, train=250)


def _bests(*best: Entry, choice: Choice | None = None, zero: bool = False) -> list[Best]:
    """Returns the best results at epsilon 0.5, and at 2 if there are two."""
    entries = {("d", at, "x", "m"): entry for at, entry in zip((0.5, 2.0), best, strict=False)}
    grid = made_grid(entries)
    if choice is not None:
        grid = made_grid(entries, choices=dict.fromkeys(grid.rows, choice))
    return best_private(grid, {("d", "x"): ("auc", 95.0)} if zero else {})


def _card(bests: list[Best], info: DatasetInfo = INFO, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "cautions": [],
        "plan": None,
        "unplanned": "not predicted",
        "subgroups": False,
    }
    return sections.make_card(bests[-1], bests, info, **given | options)


def test_a_card_has_the_verdict_its_facts_and_a_curve_in_words() -> None:
    entry = made_entry(60.0, least=8.0, least_class="ill", least_title="worst-class recall")
    card = _card(_bests(entry, made_entry(70.04)))
    assert (card["dataset"], card["anchor"], card["backbone"]) == ("d", "dataset-d", "x")
    assert card["verdict"].startswith("At ε = 2 the best private head reaches 70.0%")
    assert card["alt"] == (
        "Best private test accuracy by privacy budget. ε = 0.5: 60.0%; ε = 2: 70.0%"
    )
    assert card["facts"] == [
        ("Head", "m on x; 95% CI over test examples", None),
        ("More images or budget", "not predicted", None),
    ]
    assert card["caveats"] == []
    facts = _card(_bests(entry, zero=True))["facts"]
    assert facts[1:3] == [
        ("Worst-class recall", "8.0% (class ill)", None),
        ("Zero-shot", "x reaches 95.0% AUC", None),
    ]


def test_caveats_end_with_a_point_and_link_to_what_they_speak_of() -> None:
    entry = made_entry(60.0, both_low=55.0, both_high=65.0, constant=60.0)
    bests = _bests(entry, choice=Choice(candidates=3, epsilon=4.12341))
    card = _card(bests, _info(0, 50, train=250), cautions=["never predicted: ill"])
    assert card["caveats"] == [
        ("Its interval includes the majority-class baseline.", None),
        ("Never predicted: ill.", None),
        (
            "Selected from 3 private heads by test results, so 60.0% tends to be too high "
            "(selection bias). Publishing this selection costs at most ε = 4.124.",
            "selection",
        ),
        ("1 of 2 classes have no test image: c0.", "run"),
    ]
    rare = _card(_bests(entry), _info(3, 50, train=3))["caveats"]
    assert rare[-1][1] == "run"
    assert rare[-1][0].startswith("Class")
