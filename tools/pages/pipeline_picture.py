"""Draws the pipeline from Snakemake's graph of rules: docs/images/pipeline.svg.

The study has a download, an audit, a t-SNE and a release. The graph's rules are grouped in stages:
the trunk from the download to MLflow, analyses, exhibits and releases. An
arrow between two stages is drawn unless a longer path connects them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from dpprobe.files.atomic_writes import write_text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/images/pipeline.svg"
COMMAND = (
    "all",
    "releases",
    "--rulegraph",
    "--snakefile",
    ROOT / "Snakefile",
    "--configfile",
    ROOT / "config/scatternet_mnist.yaml",
    "--config",
    "audit={membership: {shadows: 64, rows: 500}}",
    "methods={prototypes: {head: prototypes}}",
    "releases={mnist: {dataset: mnist, backbone: scatternet, method: prototypes, epsilon: 1}}",
)
TARGETS = {"all", "releases"}
WIDTH, HEIGHT, LEFT, TOP = 132, 58, 44, 36  # size of a box, and the space left of and above a box


class Stage(NamedTuple):
    """A box of the picture.

    Attributes:
      rules: a regular expression that matches the names of the stage's rules.
      makes: the outputs of the rules, in words.
      line: the row of the box in the picture, from above.
    """

    rules: str
    makes: str
    line: int
    colour: str


TRUNK, BESIDE = "#dbe8f6", "#e9f2df"
STAGES: Mapping[str, Stage] = {
    "download_data": Stage("download_data", "downloads", 1, TRUNK),
    "prepare_data": Stage("prepare_data", "split tables", 1, TRUNK),
    "extract_features": Stage("extract_features|write_manifest", "feature shards", 1, TRUNK),
    "calibrate": Stage("calibrate", "noise of each ε", 0, TRUNK),
    "train_heads": Stage("train_heads.*", "cells: heads, scores", 1, TRUNK),
    "summarise": Stage("summarise", "one row per cell", 1, TRUNK),
    "analyses": Stage("audit_.*|embed_tsne", "audits, t-SNE, ...", 2, BESIDE),
    "exhibits": Stage("plot_.*|write_.*tables?", "plot_*, write_*_tables", 1, BESIDE),
    "write_report": Stage("write_report", "report.html", 1, TRUNK),
    "track": Stage("track|write_study_run", "runs in MLflow", 1, TRUNK),
    "make_release": Stage("make_release|track_release", "a head to publish", 3, BESIDE),
}
Edges = set[tuple[str, str]]


def main() -> None:
    write_text(PICTURE, draw_stages(condense_graph(read_graph())))


def read_graph() -> str:
    """Returns Snakemake's graph of rules in Graphviz's language."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "snakemake", *map(str, COMMAND)]
        return subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        ).stdout


def condense_graph(graph: str) -> Edges:
    """Returns the arrows between stages, without arrows that a longer path replaces.

    Raises:
      ValueError: if a rule has no stage, or a stage has no rule.
    """
    stages = {
        number: find_stage(rule)
        for number, rule in re.findall(r'(\d+)\[label = "(\w+)"', graph)
        if rule not in TARGETS
    }
    if unused := set(STAGES) - set(stages.values()):
        raise ValueError(f"stages without a rule: {sorted(unused)}")
    arrows = re.findall(r"(\d+) -> (\d+)", graph)
    named = {(stages[a], stages[b]) for a, b in arrows if {a, b} <= stages.keys()}
    edges = {(a, b) for a, b in named if a != b}
    return {(a, b) for a, b in edges if longest_way(edges, a, b) == 1}


def find_stage(rule: str) -> str:
    for name, stage in STAGES.items():
        if re.fullmatch(stage.rules, rule):
            return name
    raise ValueError(f"rule {rule} has no stage in {Path(__file__).name}")


def longest_way(edges: Edges, start: str, end: str | None = None) -> int:
    """Returns the length of the longest path from a stage to `end`, or to any stage.

    The length is negative without a path.
    """
    ways = [1 + longest_way(edges, b, end) for a, b in edges if a == start != end]
    return max(ways, default=0 if end in (None, start) else -len(edges))


def draw_stages(edges: Edges) -> str:
    """Draws boxes in columns; a stage's column is the length of the longest path to the stage."""
    back = {(b, a) for a, b in edges}
    places = {
        name: (
            LEFT + longest_way(back, name) * (WIDTH + LEFT),
            TOP / 2 + stage.line * (HEIGHT + TOP),
        )
        for name, stage in STAGES.items()
    }
    width = max(x for x, _ in places.values()) + WIDTH + LEFT
    height = max(y for _, y in places.values()) + HEIGHT + TOP / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" '
        'font-family="sans-serif" text-anchor="middle">',
        "<title>The pipeline, drawn from Snakemake's graph of rules</title>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#555"/></marker>',
        f'<rect width="{width}" height="{height:g}" fill="white"/>',
    ]
    for start, end in sorted(edges):
        (x, y), (to_x, to_y) = places[start], places[end]
        y, to_y, bend = y + HEIGHT / 2, to_y + HEIGHT / 2, to_x - LEFT / 2
        parts.append(
            f'<path d="M{x + WIDTH} {y:g}H{to_x - LEFT}C{bend:g} {y:g} {bend:g} {to_y:g} '
            f'{to_x} {to_y:g}" fill="none" stroke="#555" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )
    for name, (x, y) in places.items():
        stage, centre = STAGES[name], x + WIDTH / 2
        parts += [
            f'<rect x="{x}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="8" '
            f'fill="{stage.colour}" stroke="#333"/>',
            f'<text x="{centre:g}" y="{y + 25:g}" font-size="13" font-weight="bold">{name}</text>',
            f'<text x="{centre:g}" y="{y + 44:g}" font-size="11.5">{escape(stage.makes)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
