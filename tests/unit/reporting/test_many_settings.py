"""The words of tables, headlines, the terminal and the report, over many studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits.tables import Column, Table, make_row
from dpprobe.reporting.report import statements, write
from dpprobe.reporting.report.shown_tables import ReportTable, study_tables
from tests.support.baseline_records import write_zero_shot
from tests.support.cell_files import write_cell
from tests.support.report_page import Made, write_summaries
from tests.support.stored_records import check_values

LABELS: dict[str, Any] = {"multi_label": True, "class_names": ("round", "even", "absent")}
EVERY = [[*range(11)]] * 3
SHARES = (0.7, 0.1, 0.1, 0.1)
LESIONS: dict[str, Any] = {"class_names": ("benign", "malignant"), "shares": (0.9, 0.1)}
SEARCH = {"search": {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}}


def _cells(root: Path, number: int, **options: Any) -> list[Path]:
    return [
        write_cell(root, method=f"m{k:02}", epsilon=e, quality=0.1 * k, **options)
        for k in range(number)
        for e in ("1", "inf")
    ]


def _change(paths: list[Path], **changes: Any) -> list[Path]:
    for path in paths:
        write_json(path, read_json(path) | changes)
    return paths


def _never(paths: list[Path], *seeds: list[int]) -> list[Path]:
    for path in paths:
        record = read_json(path)
        for seed, classes in zip(record["seeds"], seeds, strict=True):
            seed["never_predicted"] = classes
        write_json(path, record)
    return paths


SOURCE = {
    "source": "csv",
    "root": "/home/jane/scans",
    "class_names": {"0": "normal", "1": "ill"},
    "group_columns": ["sex"],
    "joins": [{"file": "a.csv", "first": True}],
    "split_seed": 0,
    "extract": {"patient": {"pattern": "/p([0-9]+)/"}},
}


def _page_words(page: Any) -> list[str]:
    """Returns the words and links of a page before the versions of libraries."""
    text = page.text.partition('<section id="provenance"')[0]
    kept = type(page)(
        text.partition("<main")[2].partition(">")[2].rpartition("</section>")[0] + "</section>"
    )
    links = [str(each["href"]) for each in kept.all("a")]
    words = kept.words.split()
    lines = [" ".join(words[start : start + 40]) for start in range(0, len(words), 40)]
    return [*lines, *links]


def test_the_report_has_the_stored_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Made(tmp_path / "one")
    info = made.sources.datasets["digits"]
    record = read_json(info)
    record["splits"]["test"]["per_class"][1:3] = 3, 0
    write_json(info, record | {"groups": ["sex"]})
    _never(sorted(made.results.glob("cells/digits/*/sgd*/*/metrics.json")), [0], [0, 2], [0])
    write_summaries(made.results)
    files = [write_zero_shot(made.results, backbone="a", auc=0.95)]
    files.append(write_zero_shot(made.results, backbone="b", accuracy=0.72))
    lesions = Made(tmp_path / "two", ("digits", "letters"), headline="auc", **LESIONS)
    lesions.study["datasets"]["digits"] = SOURCE
    info = lesions.sources.datasets["digits"]
    write_json(info, read_json(info) | {"source": SOURCE})
    clinic = Made(tmp_path / "three", patients=40)
    units = read_json(clinic.sources.datasets["digits"]) | {"units": {"train": 200, "test": 40}}
    write_json(clinic.sources.datasets["digits"], units)
    paper = Table(
        name="table_2",
        title="Table 2: accuracy of CLIP",
        columns=(Column(title="a", align="left"), Column(title="b")),
        rows=[make_row("c | d", "1")],
    )
    tables = study_tables(made.table_files, made.sources.summaries, None)
    tables.append(ReportTable(table=paper, files=[made.results / "tables/papers/table_2.md"]))
    pages = [made.page(zero_shot=files, tables=tables), lesions.page()]
    for path in sorted(clinic.results.glob("cells/*/*/*/eps-1/metrics.json")):
        record = read_json(path)
        record["cell"]["epsilon"] = "advantage-0.1"
        write_json(path, record | {"dimension": 32})
        path.parent.rename(path.parents[1] / "eps-advantage-0.1")
    write_summaries(clinic.results)
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 3)
    monkeypatch.setattr(write, "CELLS_SHOWN", 4)
    pages.append(clinic.page(statements=sorted(clinic.results.glob("cells/**/privacy.json"))))
    assert "/home/jane" not in pages[1].text
    check_values("words_of_reports", [_page_words(page) for page in pages])
