"""bench/leaderboard_auc.py computes the leaderboard's AUC from the predictions of cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leaderboard_auc import main, weighted_area


def plain_area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Computes the AUC of one class with a plain loop over pairs of images: ties count one half."""
    areas, weights = [], []
    for k in range(scores.shape[1]):
        having = labels == k if labels.ndim == 1 else labels[:, k] == 1
        chance = scores[:, k]
        if labels.ndim == 1:
            chance = np.exp(scores[:, k]) / np.exp(scores).sum(axis=1)
        pairs = [(p > q) + 0.5 * (p == q) for p in chance[having] for q in chance[~having]]
        areas.append(sum(pairs) / len(pairs))
        weights.append(having.sum())
    return float(np.average(areas, weights=weights))


@pytest.mark.parametrize("several", [False, True])
def test_the_auc_equals_the_share_of_ordered_pairs(several: bool) -> None:
    random = np.random.default_rng(5)
    scores = random.normal(size=(60, 4)).round(1)
    shape, top = ((60, 4), 2) if several else (60, 4)
    labels = random.integers(0, top, shape)
    assert weighted_area(scores, labels) == pytest.approx(plain_area(scores, labels), abs=1e-12)


def test_seeds_of_a_cell_are_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One seed ranks all images correctly, the other all wrongly."""
    cell = tmp_path / "cells/eyepacs/clip/auto/eps-1"
    cell.mkdir(parents=True)
    right = [[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]
    columns = {
        "seed_index": [0, 0, 0, 1, 1, 1],
        "label": [0, 0, 1, 0, 0, 1],
        "scores": [*right, *([b, a] for a, b in right)],
    }
    pq.write_table(pa.table(columns), cell / "predictions.parquet")
    main([str(tmp_path)])
    assert "| eyepacs | clip | auto | 1 | 50.00 | 2 |" in capsys.readouterr().out


def test_a_folder_without_predictions_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no predictions.parquet; run the study first"):
        main([str(tmp_path)])
