"""Figures and tables of the report: large files are linked, other files are embedded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.analysis import Section
from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.html_page import embed_picture, relative_path
from dpprobe.exhibits.tables import TABLE_BYTES, write_html, write_markdown
from dpprobe.reporting.report.sources import Sources
from dpprobe.results.best_private import Best

FIGURES_BYTES = 16 << 20  # most bytes of embedded figures; further figures are linked
SVG_BYTES = 400_000  # the PNG of a figure replaces a larger SVG
FIGURE_TITLES = {
    "by_backbone": "Results by backbone",
    "by_resolution": "Results by size of images",
    "real_labels": "Results against ReaL's labels",
    "datasets": "Datasets against epsilon",
    "deltas": "Deltas",
    "distribution_shift": "What privacy costs by distribution shift",
    "loss_by_backbone": "What privacy costs by backbone",
    "time_cost": "Results by the seconds they take",
    "accuracy": "Results against epsilon",
    "tsne": "t-SNE",
}


class Exhibits:
    """Figures and tables as the report shows them; each is shown only once.

    Attributes:
      linked: titles of the figures that are too large for the page.
    """

    def __init__(self, sources: Sources, folder: Path) -> None:
        self.linked: list[str] = []
        self.sources = sources
        self.folder = folder
        self.bytes_left = FIGURES_BYTES
        self.seen: set[str] = set()
        self.names = set(sources.datasets)

    def list_figures(
        self, dataset: str | None, facts: Mapping[str, str], *, section: Section | None = None
    ) -> list[dict[str, Any]]:
        """Returns a section's figures, or figures outside sections; `dataset` is None for all."""
        groups: dict[str, dict[str, Path]] = {}
        for path in self.sources.figures:
            if find_section(path.stem) is not section:
                continue
            if self._figure_owner(path) == dataset:
                groups.setdefault(path.stem, {})[path.suffix] = path
        if section is None and "tsne" in groups:  # the figure tsne has the planes of all backbones
            groups = {name: files for name, files in groups.items() if name[:5] != "tsne_"}
        order = section.figures if section else ("accuracy",)
        first = {name: place for place, name in enumerate(order)}
        ordered = sorted(
            groups, key=lambda name: (name.startswith("tsne"), first.get(name, len(first)), name)
        )
        return [self._embed_figure(name, groups[name], dataset, facts) for name in ordered]

    def has_room(self, size: int) -> bool:
        """Reserves bytes for an embedded figure; returns False if too few bytes are left."""
        fits = size <= self.bytes_left
        self.bytes_left -= size if fits else 0
        return fits

    def _embed_figure(
        self, name: str, files: Mapping[str, Path], dataset: str | None, facts: Mapping[str, str]
    ) -> dict[str, Any]:
        """Returns one figure, embedded if the page has room."""
        svg, png = files.get(".svg"), files.get(".png")
        path = svg if svg is not None and svg.stat().st_size <= SVG_BYTES else png or svg
        assert path is not None
        title = title_of(name, dataset)
        caption = _find_caption(name, self.sources.captions)
        data = None
        if self.has_room(path.stat().st_size):
            kind = "svg+xml" if path.suffix == ".svg" else "png"
            data = embed_picture(path.read_bytes(), kind)
        else:
            self.linked.append(title)
        return {
            "title": title,
            "main": not name.startswith(("tsne", "membership_")),
            "data": data,
            "alt": f"{title}. {facts.get(name.partition('_')[0], '')}".strip(),
            "caption": caption,
            "links": self._link_files(files.values()),
        }

    def list_tables(self, dataset: str | None) -> list[dict[str, Any]]:
        shown = []
        for item in self.sources.tables:
            if item.dataset != dataset:
                continue
            text = write_markdown(item.table)
            if text in self.seen:
                continue  # with one dataset, two files have equal tables
            self.seen.add(text)
            title = item.table.title or title_of(item.table.name, dataset)
            whole = len(text.encode()) <= TABLE_BYTES
            shown.append(
                {
                    "title": title,
                    "folder": item.folder,
                    "html": write_html(item.table, caption=title) if whole else None,
                    "links": self._link_files(item.files),
                }
            )
        return shown

    def _link_files(self, files: Iterable[Path]) -> list[tuple[str, str]]:
        return [(file.suffix[1:].upper(), relative_path(file, self.folder)) for file in files]

    def _figure_owner(self, path: Path) -> str | None:
        folders = Path(relative_path(path, self.folder)).parts[1:-1]
        return folders[0] if folders and folders[0] in self.names else None


def find_section(name: str) -> Section | None:
    """Returns the section of a figure; None if the figure is shown with its dataset."""
    sections = (analysis.section for analysis in load_analyses() if analysis.section)
    return next((each for each in sections if each.title_figure(name) is not None), None)


def title_of(name: str, dataset: str | None) -> str:
    if name in FIGURE_TITLES:
        text = FIGURE_TITLES[name]
    elif section := find_section(name):
        text = section.title_figure(name) or ""
    elif name.startswith("tsne_"):
        text = f"t-SNE of {name.removeprefix('tsne_')} features"
    else:
        text = name.replace("_", " ").capitalize()
    return text if dataset is None else f"{text}, {dataset}"


def _find_caption(name: str, captions: Sequence[Path]) -> str:
    """Returns the caption whose file name is the longest prefix of the figure's name."""
    matches = [path for path in captions if name.startswith(path.stem)]
    if not matches:
        return ""
    chosen = max(matches, key=lambda path: len(path.stem))
    return " ".join(chosen.read_text(encoding="utf-8").split())


def figure_facts(bests: Sequence[Best], dataset: str) -> dict[str, str]:
    """Describes each kind of figure in words, for readers who cannot see figures."""
    results = [best for best in bests if best.dataset == dataset]
    if not results:
        return {}
    points = "; ".join(
        f"epsilon {best.budget}: {best.entry.mean:.1f}% by {best.method} on {best.backbone}"
        for best in results
    )
    return {"accuracy": f"Best private results: {points}.", "tsne": "A scatter plot by class."}
