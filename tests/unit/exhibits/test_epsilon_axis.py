"""The axis of epsilons: room at infinity, labels that do not overlap."""

from __future__ import annotations

from pathlib import Path

from tests.support.figures import curve_axes, write_summary


def test_labels_that_would_overlap_are_left_out(tmp_path: Path) -> None:
    epsilons = ("0.01", "1", "1.1", "1.2", "10")
    axes = curve_axes(
        write_summary(tmp_path, backbones=["pixels"], methods=["sgd"], epsilons=epsilons)
    )
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0.01", "1", "", "", "10"]
