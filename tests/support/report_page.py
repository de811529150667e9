"""Writes the files of a small study and its report, and parses the page."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses import analysis
from dpprobe.exhibits.tables import save_table
from dpprobe.files.atomic_writes import write_text
from dpprobe.reporting.accuracy_table import make_accuracy_table
from dpprobe.reporting.figures import planner
from dpprobe.reporting.figures.planner import plan_svg
from dpprobe.reporting.report.shown_tables import study_tables
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.reporting.report.write import write_report
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import Grid, summarise_cells
from dpprobe.study.study import Study
from tests.conftest import REPOSITORY
from tests.support.cell_files import write_dataset_info, write_study

_PLANS: dict[str, bytes] = {}
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 1000
VOID = {"meta", "link", "img", "input", "br", "wbr"}


class Page(HTMLParser):
    """Parses a page into its elements; fails if a tag is not closed or is closed twice."""

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
        return " ".join(re.sub(r"<[^>]+>", "", self.text).split())  # includes no-break spaces


def section_page(*datasets: str) -> analysis.Page:
    """Returns the page of a study of these datasets, without results, for an analysis's section."""
    grid = Grid(
        rows=(),
        columns=(),
        entries={},
        deltas={},
        above=frozenset(),
        measures={name: Measure(headline="accuracy") for name in datasets},
        choices={},
        reasons={},
    )
    return analysis.Page(grid=grid, names={}, folder=Path("results"))


def draw_plan_once(*words: Any, **options: Any) -> bytes:
    """Draws each plan only once per process."""
    key = repr((words, options))
    if key not in _PLANS:
        _PLANS[key] = plan_svg(*words, **options)
    return _PLANS[key]


@contextmanager
def sharing_plans() -> Iterator[None]:
    """Lets reports share drawn plans, as most reports have the same plans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "plan_svg", draw_plan_once)
        yield


class ReportedStudy:
    """A small study's files, and its report."""

    def __init__(self, root: Path, datasets: tuple[str, ...] = ("digits",), **options: Any) -> None:
        """Writes the study's files; further options are passed to `write_cell`."""
        self.root = root
        self.results = root / "results"
        shutil.copytree(_write_files(datasets, **options), root, dirs_exist_ok=True)
        self.study: dict[str, Any] = Study.model_validate(
            {
                "study": "small",
                "epsilons": [0.5, 1, 2, "inf"],
                "datasets": {name: {"source": "sklearn", "name": "digits"} for name in datasets},
                "backbones": {name: {"family": "pixels"} for name in ("pixels", "scattering")},
                "methods": {"sgd": {"head": "sgd"}, "nonprivate": {"head": "nonprivate"}},
            }
        ).model_dump(mode="json")
        self.origin = Origin(study=self.study, results=Path("results"), commit="abc123")
        summaries = [self.results / f"summary/{name}.parquet" for name in datasets]
        tables = ["accuracy", *(f"{name}_accuracy" for name in datasets)]
        self.table_files = [
            self.results / f"tables/{name}.{kind}" for name in tables for kind in ("csv", "md")
        ]
        self.sources = Sources(
            summaries=summaries,
            statements=sorted(self.results.glob("cells/*/*/*/*/privacy.json")),
            datasets={name: self.root / f"data/{name}/dataset.json" for name in datasets},
            tables=study_tables(self.table_files, summaries, None),
            figures=[
                self.results / f"figures/{name}/{stem}.{kind}"
                for name in datasets
                for stem in ("accuracy", "tsne_pixels")
                for kind in ("svg", "png")
            ],
            captions=sorted((REPOSITORY / "resources/captions").glob("*.rst")),
        )

    def page(self, **changes: Any) -> Page:
        output = self.results / "report.html"
        with sharing_plans():
            write_report(output, replace(self.sources, **changes), self.origin)
        return Page(output.read_text(encoding="utf-8"))


@cache
def _write_files(datasets: tuple[str, ...], **options: Any) -> Path:
    """Writes the files of a study, once per process; returns their folder."""
    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name in datasets:
        write_study(root / "results", dataset=name, **options)
        write_dataset_info(root / "data" / name / "dataset.json")
    write_summaries(root / "results", datasets)
    for name in datasets:
        for stem in ("accuracy", "tsne_pixels"):
            svg = root / f"results/figures/{name}/{stem}.svg"
            write_text(svg, f"<svg xmlns='http://www.w3.org/2000/svg'>{name} {stem}</svg>")
            svg.with_suffix(".png").write_bytes(PNG)
    return root


def write_summaries(results: Path, datasets: tuple[str, ...] = ("digits",)) -> None:
    """Writes the summaries of all cells, and the accuracy tables."""
    summaries = [results / f"summary/{name}.parquet" for name in datasets]
    for name, summary in zip(datasets, summaries, strict=True):
        cells = sorted(results.glob(f"cells/{name}/*/*/*/metrics.json"))
        summarise_cells(cells, summary, study="small")
    shown = {"accuracy": summaries}
    shown |= {f"{name}_accuracy": [s] for name, s in zip(datasets, summaries, strict=True)}
    for stem, files in shown.items():
        for kind in ("csv", "md"):
            save_table(make_accuracy_table(files), results / f"tables/{stem}.{kind}")
