"""The report: right numbers, nothing from outside, nothing injected, a sane size."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import git_commit, read_json, write_json, write_text
from dpprobe.errors import DataError
from dpprobe.reporting import report
from dpprobe.reporting.accuracy_table import write_accuracy_table
from dpprobe.reporting.report import Origin, Sources, cell_command, write_report
from dpprobe.results.best_private import best_private
from dpprobe.results.summary import read_grid, summarise_cells
from dpprobe.study.study import Study
from tests.conftest import REPOSITORY
from tests.support.cell_files import write_cell, write_dataset_info, write_study

TEMPLATE = REPOSITORY / "resources/report"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 1000
VOID = {"meta", "link", "img", "input", "br", "wbr"}


class Page(HTMLParser):
    """What a test asks of a page; fails where a tag is left open or closed twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        return " ".join(re.sub(r"<[^>]+>", "", self.text).split())  # also no-break spaces


class Made:
    """A small study's files, and its report."""

    def __init__(self, root: Path, datasets: tuple[str, ...] = ("digits",)) -> None:
        self.root = root
        self.results = root / "results"
        for name in datasets:
            write_study(self.results, dataset=name)
            write_dataset_info(root / "data" / name / "dataset.json")
        self.study: dict[str, Any] = Study.model_validate(
            {
                "study": "small",
                "datasets": {name: {"source": "sklearn", "name": "digits"} for name in datasets},
                "backbones": {name: {"family": "pixels"} for name in ("pixels", "scattering")},
                "methods": {"sgd": {"head": "sgd"}, "nonprivate": {"head": "nonprivate"}},
                "epsilons": [0.5, 1, 2, "inf"],
            }
        ).model_dump(mode="json")
        self.origin = Origin(study=self.study, results=Path("results"), commit="abc123")
        self.summarise(datasets)

    def summarise(self, datasets: tuple[str, ...]) -> None:
        summaries, tables, figures = [], [], []
        for name in datasets:
            summary = self.results / f"summary/{name}.parquet"
            cells = sorted(self.results.glob(f"cells/{name}/*/*/*/metrics.json"))
            summarise_cells(cells, summary, study="small")
            summaries.append(summary)
            for stem in ("accuracy", "tsne_pixels"):
                svg = self.results / f"figures/{name}/{stem}.svg"
                write_text(svg, f"<svg xmlns='http://www.w3.org/2000/svg'>{name} {stem}</svg>")
                svg.with_suffix(".png").write_bytes(PNG)
                figures += [svg, svg.with_suffix(".png")]
        for stem, own in [("accuracy", summaries), *zip(
            [f"{name}_accuracy" for name in datasets], [[s] for s in summaries], strict=True
        )]:  # fmt: skip
            csv, markdown = (self.results / f"tables/{stem}.{kind}" for kind in ("csv", "md"))
            write_accuracy_table(own, csv=csv, markdown=markdown)
            tables += [csv, markdown]
        self.sources = Sources(
            summaries=summaries,
            statements=sorted(self.results.glob("cells/*/*/*/*/privacy.json")),
            datasets={name: self.root / f"data/{name}/dataset.json" for name in datasets},
            tables=tables,
            figures=figures,
            captions=sorted((REPOSITORY / "resources/captions").glob("*.rst")),
        )

    def page(self, **changes: Any) -> Page:
        output = self.results / "report.html"
        write_report(output, replace(self.sources, **changes), self.origin, template=TEMPLATE)
        return Page(output.read_text(encoding="utf-8"))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_the_headline_is_the_best_private_result_and_its_gap(made: Made) -> None:
    grid = read_grid(made.sources.summaries)
    bests = best_private(grid, {})
    assert [best.epsilon for best in bests] == ["0.5", "1", "2"]
    for best in bests:
        row = (best.dataset, float(best.epsilon))
        others = [entry for c in grid.columns if (entry := grid.get(row, c)) and entry.private]
        assert best.entry.mean == max(entry.mean for entry in others)
        ceiling = grid.get(("digits", float("inf")), (best.backbone, "nonprivate"))
        assert ceiling is not None
        assert best.gap == pytest.approx(ceiling.mean - best.entry.mean)
    words = made.page().words
    for best in bests:
        assert f"{best.entry.mean:.1f} %" in words
        assert f"best private test accuracy at ε = {best.epsilon}" in words


def test_results_at_infinity_are_no_private_headline(tmp_path: Path) -> None:
    made = Made(tmp_path)
    cells = [write_cell(tmp_path / "r", method=m, epsilon="inf") for m in ("sgd", "nonprivate")]
    summary = tmp_path / "only.parquet"
    summarise_cells(cells, summary, study="small")
    statements = sorted((tmp_path / "r").rglob("privacy.json"))
    page = made.page(summaries=[summary], statements=statements, tables=[], figures=[])
    assert "No cell of this study is private" in page.words


def test_a_method_without_a_ceiling_has_a_blank_gap(tmp_path: Path) -> None:
    cell = write_cell(tmp_path, epsilon="1")
    summarise_cells([cell], tmp_path / "s.parquet", study="small")
    (best,) = best_private(read_grid([tmp_path / "s.parquet"]), {})
    assert best.ceiling is None
    assert best.gap is None


def test_the_best_zero_shot_result_stands_beside_the_private_one(made: Made) -> None:
    assert "zero-shot" not in made.page().text.partition('id="run"')[0]
    files = []
    for backbone, value in (("clip_a", 0.61), ("clip_b", 0.72)):
        files.append(made.results / f"zero_shot/digits/{backbone}.json")
        write_json(
            files[-1],
            {"dataset": "digits", "backbone": backbone, "headline": "accuracy",
             "metrics": {"accuracy": value}},
        )  # fmt: skip
    assert "Zero-shot clip_b reaches 72.0 %" in made.page(zero_shot=files).words
    write_json(files[0], {"dataset": "digits"})
    with pytest.raises(DataError, match="clip_a"):
        made.page(zero_shot=files)


def test_zero_shot_of_another_metric_says_which(made: Made) -> None:
    files = []
    for backbone, metric, value in (("clip_a", "auc", 0.95), ("clip_b", "accuracy", 0.72)):
        files.append(made.results / f"zero_shot/digits/{backbone}.json")
        write_json(
            files[-1],
            {"dataset": "digits", "backbone": backbone, "headline": metric,
             "metrics": {metric: value}},
        )  # fmt: skip
    assert "Zero-shot clip_a reaches 95.0 % AUC" in made.page(zero_shot=files[:1]).words
    assert "Zero-shot clip_b reaches 72.0 %" in made.page(zero_shot=files).words


def test_a_check_is_of_one_dataset_and_backbone(tmp_path: Path) -> None:
    made = Made(tmp_path, ("digits", "letters"))
    for path in made.results.glob("cells/letters/pixels/*/*/privacy.json"):
        record = read_json(path)
        record["public_data"]["near_duplicate_check"] = {"near": 12, "private_rows": 345}
        write_json(path, record)
    words = re.sub(r"<[^>]+>", " ", made.page().text)
    _, _, shown = " ".join(words.split()).partition("not covered by any guarantee")
    found = "letters pixels The weights are fixed. 12 of 345 private rows look like public ones"
    assert found in shown
    for pair in ("digits pixels", "digits scattering", "letters scattering"):
        assert f"{pair} The weights are fixed. not run" in shown


def test_nothing_is_asked_for_from_outside(made: Made) -> None:
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


def test_a_reader_without_pictures_or_a_mouse_finds_everything(made: Made) -> None:
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


def test_links_lead_to_files(made: Made) -> None:
    page = made.page()
    files = [link["href"] for link in page.all("a") if not (link["href"] or "#").startswith("#")]
    assert files
    for name in files:
        assert (made.results / str(name)).is_file(), name


def test_every_cell_has_a_command_and_a_statement(made: Made) -> None:
    page = made.page()
    for path in made.sources.statements:
        target = Path("results") / path.relative_to(made.results).with_name("metrics.json")
        assert f"snakemake {target} --cores all" in page.words
    statements = [d for d in page.all("details") if d.get("class") == "statement"]
    # two backbones share the statement of a method and epsilon
    assert len(statements) == len(made.sources.statements) / 2 == 9
    assert "(0.5, 1e-05)-differentially private" in page.words
    assert "Not for release" in page.words


def test_statements_that_differ_are_not_merged(made: Made) -> None:
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    record = read_json(path)
    write_json(path, record | {"not_covered": ["the features", "what pixels show"]})
    page = made.page()
    assert len([d for d in page.all("details") if d.get("class") == "statement"]) == 10
    common, _, own = page.text.partition('class="statement"')
    assert "what pixels show" not in common
    assert own.count("what pixels show") == 1
    assert own.count("training losses") == 9, "no longer common to all: each says it itself"


def test_the_command_names_the_study_that_was_run(made: Made) -> None:
    cell = ("digits", "pixels", "sgd", "0.5")
    origin = replace(made.origin, call=["--configfile", "config/my study.yaml"])
    assert cell_command(origin, *cell) == (
        "snakemake results/cells/digits/pixels/sgd/eps-0.5/metrics.json --cores all "
        "--configfile 'config/my study.yaml'"
    )


def test_addresses_lose_what_may_be_secret(made: Made) -> None:
    files = [{"url": "https://host/ward.zip?X-Amz-Signature=SECRET", "sha256": "0" * 64}]
    made.study["datasets"]["digits"] = {
        "source": "url", "files": files, "accepted_labels": {"url": "https://host/l?token=SECRET"},
    }  # fmt: skip
    page = made.page()
    assert "SECRET" not in page.text
    assert "https://host/ward.zip?..." in page.words


def test_links_lead_to_statements_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datasets stand in the order of the study, not of the alphabet."""
    monkeypatch.setattr(report, "STATEMENTS_SHOWN", 9)
    page = Made(tmp_path, ("zebra", "apple")).page()
    links = {(a.get("href") or "")[1:] for a in page.all("a")}
    links = {link for link in links if link.startswith("statement")}
    shown = {d["id"] for d in page.all("details") if d.get("class") == "statement"}
    assert len(shown) == 9
    assert links == shown


def test_classes_without_test_rows_are_named_beside_the_headline(made: Made) -> None:
    path = made.sources.datasets["digits"]
    record = read_json(path)
    assert "Not tested" not in made.page().words
    record["splits"]["test"]["per_class"][2] = 0
    write_json(path, record)
    words = made.page().words
    told = "ot tested, for no test image is of it: 1 of 4 classes (two)."
    assert words.count(told) >= 2, "in the headline and beside the dataset"


def test_a_commit_with_local_changes_is_no_bare_checkout(made: Made) -> None:
    made.origin = replace(made.origin, commit="abc123 with local changes")
    assert "git checkout abc123 # with local changes, which the commit does not have" in " ".join(
        made.page().words.split()
    )


def test_a_table_that_is_a_heading_alone_is_shown(made: Made) -> None:
    path = made.results / "tables/digits_empty.md"
    write_text(path, "# Nothing was run\n")
    assert "Nothing was run" in made.page(tables=[*made.sources.tables, path]).words


def test_text_from_files_is_never_markup(made: Made) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    made.study["datasets"]["digits"]["name"] = evil
    table = made.results / "tables/digits_evil.md"
    write_text(table, f"| a | {evil} |\n| --- | --- |\n| {evil} | **{evil}** |\n\n{evil}\n")
    for path in made.sources.statements:
        write_json(path, read_json(path) | {"promise": evil})
    page = made.page(tables=[*made.sources.tables, table])
    assert page.all("script") == [{}]
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert "&lt;script&gt;" in page.text


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
    assert page.text.count('class="value"') == 2, "one card a dataset"


def test_large_figures_become_links(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SVG_BYTES", 10)
    page = made.page()
    assert all((image["src"] or "").startswith("data:image/png") for image in page.all("img"))
    monkeypatch.setattr(report, "FIGURES_BYTES", 1500)
    page = made.page()
    assert len(page.all("img")) == 1
    assert "Left out to keep this page small" in page.words
    assert "Figures left out of this page" in page.words
    assert 'href="figures/digits/tsne_pixels.png"' in page.text


def test_a_study_of_a_thousand_cells_stays_small(tmp_path: Path) -> None:
    made = Made(tmp_path)
    cells, source = [], made.results / "cells/digits/pixels/sgd/eps-1/metrics.json"
    record, statement = read_json(source), read_json(source.with_name("privacy.json"))
    for b in range(10):
        for m in range(20):
            for epsilon in ("0.5", "1", "2", "4", "8"):
                cell = {"dataset": "digits", "backbone": f"b{b}", "method": f"m{m}"}
                own = record | {"cell": cell | {"epsilon": epsilon}}
                folder = tmp_path / f"many/digits/b{b}/m{m}/eps-{epsilon}"
                write_json(folder / "metrics.json", own)
                promise = {"method": f"m{m}", "promise": f"m{m} {epsilon}"}
                write_json(folder / "privacy.json", statement | promise)
                cells.append(folder / "metrics.json")
    summarise_cells(cells, tmp_path / "many.parquet", study="small")
    page = made.page(
        summaries=[tmp_path / "many.parquet"],
        statements=[path.with_name("privacy.json") for path in cells],
    )
    assert page.text.count("metrics.json --cores") == 1000
    assert len([d for d in page.all("details") if d.get("class") == "statement"]) == 100
    assert len(page.text) < 3e6


def test_the_commit_says_when_files_differ(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "nowhere") is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "file").write_text("1")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit} with local changes"


def test_tables_of_the_papers_fold_away(made: Made) -> None:
    paper = made.results / "tables/papers/table_2.md"
    write_text(paper, "# Table 2: accuracy of CLIP\n\n| a | b |\n| --- | ---: |\n| c \\| d | 1 |\n")
    page = made.page(tables=[*made.sources.tables, paper])
    assert "Tables of the papers" in page.words
    assert "<caption>Table 2: accuracy of CLIP</caption>" in page.text
    assert re.findall("<summary>(Table 2.*?)</summary>", page.text) == ["Table 2: accuracy of CLIP"]
    assert '<td class="">c | d</td>' in page.text


def test_private_photographs_are_not_on_the_page(made: Made) -> None:
    figures = []
    for suffix, content in ((".svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"), (".png", PNG)):
        figures.append(made.results / f"figures/digits/overlap_x{suffix}")
        figures[-1].write_bytes(content)
    before = len(made.page().all("img"))
    page = made.page(figures=[*made.sources.figures, *figures])
    assert len(page.all("img")) == before
    assert "overlap_x" not in page.text


def test_a_dataset_may_be_called_like_a_folder_or_a_table(tmp_path: Path) -> None:
    made = Made(tmp_path, ("figures", "large"))
    overview = made.results / "figures/tsne.svg"
    write_text(overview, "<svg xmlns='http://www.w3.org/2000/svg'>all</svg>")
    paper = made.results / "tables/papers/large_scale_transfer_table1.md"
    write_text(paper, "# Table 1: batches\n\n| a |\n| --- |\n| 1 |\n")
    sources = replace(
        made.sources,
        figures=[*made.sources.figures, overview],
        tables=[*made.sources.tables, paper],
    )
    shown = report._Shown(sources, made.results, report.Budget(left=report.FIGURES_BYTES))
    assert [item["title"] for item in shown.figures(None, {})] == ["t-SNE"]
    for name in ("figures", "large"):
        titles = [item["title"] for item in shown.figures(name, {})]
        assert titles == [f"Results against epsilon, {name}", f"t-SNE of pixels features, {name}"]
        assert [item["folder"] for item in shown.tables(name)] == ["tables"]
    assert {item["folder"] for item in shown.tables(None)} == {"tables", "papers"}
