"""A small study's files, its report, and what tests ask of a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from dpprobe.analyses import analysis
from dpprobe.artifacts import write_text
from dpprobe.reporting.accuracy_table import write_accuracy_table
from dpprobe.reporting.report.shown_tables import study_tables
from dpprobe.reporting.report.sources import Origin, Sources
from dpprobe.reporting.report.write import write_report
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import Grid, summarise_cells
from dpprobe.study.study import Study
from tests.conftest import REPOSITORY
from tests.support.cell_files import write_dataset_info, write_study

TEMPLATE = REPOSITORY / "resources/report"


PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 1000


VOID = {"meta", "link", "img", "input", "br", "wbr"}


class Page(HTMLParser):
    """A page that tests ask for its parts; fails where a tag is left open or closed twice."""

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


def section_page(*datasets: str) -> analysis.Page:
    """The page of a study of these datasets, without results, for a section of an analysis."""
    grid = Grid(
        rows=(), columns=(), entries={}, deltas={}, above=frozenset(),
        measures={name: Measure(headline="accuracy") for name in datasets},
        choices={}, reasons={},
    )  # fmt: skip
    return analysis.Page(grid=grid, names={}, folder=Path("results"))


class Made:
    """A small study's files, and its report."""

    def __init__(self, root: Path, datasets: tuple[str, ...] = ("digits",), **options: Any) -> None:
        """Writes them; further options are those of `write_cell`."""
        self.root = root
        self.results = root / "results"
        for name in datasets:
            write_study(self.results, dataset=name, **options)
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
        summaries, figures = [], []
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
        self.table_files: list[Path] = []
        for stem, shown in [("accuracy", summaries), *zip(
            [f"{name}_accuracy" for name in datasets], [[s] for s in summaries], strict=True
        )]:  # fmt: skip
            csv, markdown = (self.results / f"tables/{stem}.{kind}" for kind in ("csv", "md"))
            write_accuracy_table(shown, csv=csv, markdown=markdown)
            self.table_files += [csv, markdown]
        self.sources = Sources(
            summaries=summaries,
            statements=sorted(self.results.glob("cells/*/*/*/*/privacy.json")),
            datasets={name: self.root / f"data/{name}/dataset.json" for name in datasets},
            tables=study_tables(self.table_files, summaries, None),
            figures=figures,
            captions=sorted((REPOSITORY / "resources/captions").glob("*.rst")),
        )

    def page(self, **changes: Any) -> Page:
        output = self.results / "report.html"
        write_report(output, replace(self.sources, **changes), self.origin, template=TEMPLATE)
        return Page(output.read_text(encoding="utf-8"))
