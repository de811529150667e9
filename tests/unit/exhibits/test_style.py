"""Saved figures: equal inputs give equal files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from dpprobe.analyses.audit.show import membership_roc
from dpprobe.analyses.fairness.show import gap_figure
from dpprobe.analyses.long_tail.show import plot_long_tail
from dpprobe.analyses.representation_law.show import law_figure
from dpprobe.analyses.tsne.show import plot_tsne, plot_tsne_grid
from dpprobe.exhibits import published
from dpprobe.reporting.figures.backbones import backbone_figure
from dpprobe.reporting.figures.curves import epsilon_accuracy
from dpprobe.reporting.figures.datasets import datasets_figure
from dpprobe.reporting.figures.options import option_figure
from tests.support.audit_records import membership_record
from tests.support.comparison_cells import compared_cells
from tests.support.fairness_records import RECORD
from tests.support.figures import save_bytes, varied_cells, write_embedding, write_summary
from tests.support.law_records import law_record
from tests.support.long_tail_records import write_long_tail


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    cells = varied_cells(tmp_path / "v", "batch_size", [64, 256])
    embedding = write_embedding(tmp_path / "digits/clip/tsne.parquet", classes=4, seed=0)
    names = {"dataset": "digits", "backbone": "clip", "split": "test"}
    long_tail = write_long_tail(tmp_path)
    results = published.read_published()
    compared = compared_cells(tmp_path / "c", datasets=("a", "b"))
    draws: list[Callable[[], Figure]] = [
        lambda: epsilon_accuracy(summary, published=results, name="mnist"),
        lambda: option_figure(cells, "batch_size", dataset="digits"),
        lambda: plot_tsne_grid(embeddings=[embedding], split="test"),
        lambda: plot_tsne(embedding=embedding, **names),
        lambda: membership_roc(membership_record(), title="digits"),
        lambda: law_figure(law_record(), "residual"),
        lambda: gap_figure([RECORD]),
        lambda: plot_long_tail([long_tail]),
        lambda: backbone_figure(compared, dataset="a"),
        lambda: datasets_figure(compared),
    ]
    for draw in draws:
        first, second = (save_bytes(draw(), tmp_path / "figure") for _ in range(2))
        assert first == second
        assert b"<dc:date>" not in first[0]
