"""Saved figures: equal inputs give equal files."""

from __future__ import annotations

from pathlib import Path

from dpprobe.analyses.fairness.show import gap_figure
from dpprobe.analyses.tsne.show import plot_tsne
from dpprobe.exhibits import published
from dpprobe.reporting.figures.curves import epsilon_accuracy
from tests.support.fairness_records import RECORD
from tests.support.figures import save_bytes, write_embedding, write_summary


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    summary = write_summary(tmp_path)
    embedding = write_embedding(tmp_path / "digits/clip/tsne.parquet", classes=4, seed=0)
    names = {"dataset": "digits", "backbone": "clip", "split": "test"}
    results = published.read_published()
    for draw in (
        lambda: epsilon_accuracy(summary, published=results, name="mnist"),
        lambda: plot_tsne(embedding=embedding, **names),
        lambda: gap_figure([RECORD]),
    ):
        first, second = (save_bytes(draw(), tmp_path / "figure") for _ in range(2))
        assert first == second
        assert b"<dc:date>" not in first[0]
