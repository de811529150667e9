"""The report: nothing loaded from outside, nothing injected, and a limited size."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from dpprobe.exhibits.tables import Column, Table, TableCell, make_row
from dpprobe.files.json_files import read_json, write_json
from dpprobe.reporting.report.shown_tables import ReportTable, study_tables
from dpprobe.results.cautions import never_remedy
from dpprobe.results.summary import summarise_cells
from tests.support.report_page import ReportedStudy, write_summaries


def test_the_report_refers_to_no_external_resources(made: ReportedStudy) -> None:
    page = made.page()
    assert page.all("script") == [{}]
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    for image in page.all("img"):
        assert (image["src"] or "").startswith("data:image/")
    for link in page.all("a"):
        assert "://" not in (link["href"] or "")
    assert "url(" not in page.text
    assert "@import" not in page.text
    (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy


def test_a_reader_without_pictures_or_a_mouse_finds_everything(made: ReportedStudy) -> None:
    page = made.page()
    assert all((image.get("alt") or "").strip() for image in page.all("img"))
    assert page.text.count("<table") == page.text.count("<caption")
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert max(Counter(ids).values()) == 1
    targets = {(link["href"] or "")[1:] for link in page.all("a") if link["href"][0] == "#"}  # type: ignore[index]
    assert targets <= set(ids)
    assert all(box.get("tabindex") == "0" for box in page.all("div") if box.get("role") == "region")


def test_links_lead_to_files(made: ReportedStudy) -> None:
    page = made.page()
    files = [link["href"] for link in page.all("a") if not (link["href"] or "#").startswith("#")]
    assert files
    for name in files:
        assert (made.results / str(name)).is_file(), name


def test_addresses_lose_what_may_be_secret(made: ReportedStudy) -> None:
    files = [{"url": "https://host/ward.zip?X-Amz-Signature=SECRET", "sha256": "0" * 64}]
    made.study["datasets"]["digits"] = {
        "source": "url",
        "files": files,
        "accepted_labels": {"url": "https://host/l?token=SECRET"},
    }
    page = made.page()
    assert "SECRET" not in page.text
    assert "https://host/ward.zip?..." in page.words


def test_text_from_files_is_never_markup(made: ReportedStudy) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    made.study["datasets"]["digits"]["name"] = evil
    content = Table(
        name="evil",
        columns=(Column(title="a"), Column(title=evil)),
        rows=[make_row(evil, TableCell(text=evil, bold=True))],
        notes=[evil],
    )
    path = made.results / "tables/digits_evil.md"
    table = ReportTable(table=content, files=[path], dataset="digits")
    for path in made.sources.statements:
        write_json(path, read_json(path) | {"promise": evil})
    page = made.page(tables=[*made.sources.tables, table])
    assert page.all("script") == [{}]
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert "&lt;script&gt;" in page.text


def test_a_study_of_many_cells_stays_small(tmp_path: Path) -> None:
    made = ReportedStudy(tmp_path)
    cells, source = [], made.results / "cells/digits/pixels/sgd/eps-1/metrics.json"
    record, statement = read_json(source), read_json(source.with_name("privacy.json"))
    for b in range(4):
        for m in range(10):
            for epsilon in ("0.5", "1", "2", "4", "8"):
                cell = {"dataset": "digits", "backbone": f"b{b}", "method": f"m{m}"}
                changed = record | {"cell": cell | {"epsilon": epsilon}}
                folder = tmp_path / f"many/digits/b{b}/m{m}/eps-{epsilon}"
                write_json(folder / "metrics.json", changed)
                promise = {"method": f"m{m}", "promise": f"m{m} {epsilon}"}
                write_json(folder / "privacy.json", statement | promise)
                cells.append(folder / "metrics.json")
    summarise_cells(cells, tmp_path / "many.parquet", study="small")
    page = made.page(
        summaries=[tmp_path / "many.parquet"],
        statements=[path.with_name("privacy.json") for path in cells],
    )
    assert page.text.count("metrics.json --cores") == 200
    assert len([d for d in page.all("details") if d.get("class") == "statement"]) == 50, (
        "one for all backbones"
    )
    assert len(page.text) < 6e5


def test_options_are_written_for_people_without_folders_of_this_machine(
    made: ReportedStudy,
) -> None:
    source = {
        "source": "csv",
        "root": "/home/jane/scans",
        "class_names": {"0": "normal", "1": "ill"},
        "group_columns": ["sex"],
        "joins": [{"file": "a.csv", "first": True}],
        "split_seed": 0,
        "extract": {"patient": {"pattern": "/p([0-9]+)/"}},
    }
    path = made.sources.datasets["digits"]
    write_json(path, read_json(path) | {"source": source})
    made.study["datasets"]["digits"] = source
    page = made.page()
    assert (
        "csv: root …/scans, class_names (0 normal, 1 ill), group_columns [sex], "
        "joins [(file a.csv, first yes)], split_seed 0, extract (patient (pattern /p([0-9]+)/))"
    ) in page.words
    assert "/home/jane" not in page.text
    assert "In paths, …/ stands for the folders above." in page.words


def test_rare_classes_and_such_as_are_never_predicted_are_warned_of(made: ReportedStudy) -> None:
    path = made.root / "data/digits/dataset.json"
    values = read_json(path)
    values["splits"]["train"]["per_class"][0], values["splits"]["test"]["per_class"][0] = 2, 1
    write_json(path, values)
    for cell in made.results.glob("cells/digits/*/*/*/metrics.json"):
        record = read_json(cell)
        for seed in record["seeds"]:
            seed["never_predicted"] = [0]
        write_json(cell, record)
    write_summaries(made.results)
    page = made.page(tables=study_tables(made.table_files, made.sources.summaries, None))
    words = page.words
    assert "Class zero: 2 training images, 1 test image: numbers about it are" in words
    remedy = never_remedy(balanced=False).replace("`", "")
    assert "Never predicted: zero in all 3 seeds by sgd_full on scattering" in words
    assert f"{remedy}." in words
    caveats = page.text.partition("<h3>Caveats</h3>")[2].partition("</ul>")[0]
    assert "<code>balanced: true</code>" in caveats
