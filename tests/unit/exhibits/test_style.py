"""Saved figures: equal inputs give equal files."""

from __future__ import annotations

from pathlib import Path

from dpprobe.exhibits import published
from dpprobe.reporting.figures.curves import ceiling_gap, epsilon_accuracy, method_comparison
from dpprobe.reporting.figures.options import option_figure
from dpprobe.reporting.figures.tsne import tsne_grid
from tests.support.figures import (
    varied_cells,
    write_embedding,
    write_summary,
)


def test_equal_summaries_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    for name in ("a", "b"):
        epsilon_accuracy(summary, svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png")
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text()


def test_every_new_figure_is_the_same_bytes_twice(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    cells = varied_cells(tmp_path / "v", "batch_size", [64, 256])
    grid = {("digits", "clip"): write_embedding(tmp_path / "e", classes=4, seed=0)}
    results = published.read()
    for name in ("a", "b"):
        for kind, draw in {
            "points": lambda f: epsilon_accuracy(summary, published=results, name="mnist", **f),
            "methods": lambda f: method_comparison(summary, **f),
            "gap": lambda f: ceiling_gap(summary, **f),
            "option": lambda f: option_figure(cells, "batch_size", dataset="digits", **f),
            "grid": lambda f: tsne_grid(grid, split="test", **f),
        }.items():
            folder = tmp_path / kind
            draw({"svg": folder / f"{name}.svg", "png": folder / f"{name}.png"})
    for kind in ("points", "methods", "gap", "option", "grid"):
        for extension in ("svg", "png"):
            first, second = (tmp_path / kind / f"{name}.{extension}" for name in ("a", "b"))
            assert first.read_bytes() == second.read_bytes(), kind
