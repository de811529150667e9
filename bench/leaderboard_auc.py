"""Prints the AUC of cells as the Private ML leaderboard measures it, from their predictions.

    python bench/leaderboard_auc.py results/leaderboard_heads

The authors' code (mshubhankar/DP-Benchmarks) ranks test images per class by softmax probabilities,
and per label by scores, and weights the AUCs of classes by their test images (scikit-learn's
`roc_auc_score` with `average="weighted"` and `multi_class="ovr"`). dpprobe itself weights labels
equally, and has no AUC of more than two classes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from dpprobe.results.cell_files import PREDICTIONS_FILE


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="RESULTS_DIR", help="results of a study")
    cells = parser.parse_args(words).folder / "cells"
    files = sorted(cells.rglob(PREDICTIONS_FILE))
    if not files:
        sys.exit(f"{cells}: no {PREDICTIONS_FILE}; run the study first")
    print("| dataset | backbone | method | epsilon | AUC (%), mean over seeds | seeds |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for file in files:
        place = " | ".join(file.parent.relative_to(cells).parts).replace("eps-", "")
        areas = areas_by_seed(file)
        print(f"| {place} | {100 * np.mean(areas):.2f} | {len(areas)} |")


def areas_by_seed(file: Path) -> list[float]:
    """Computes the leaderboard's AUC of each seed of one cell."""
    table = pq.read_table(file, columns=["seed_index", "label", "scores"])
    seeds = table["seed_index"].to_numpy()
    labels = np.array(table["label"].to_pylist())
    scores = np.array(table["scores"].to_pylist(), dtype=np.float64)
    return [
        weighted_area(scores[seeds == seed], labels[seeds == seed]) for seed in np.unique(seeds)
    ]


def weighted_area(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of each class's AUC against the rest, weighted by the class's test images.

    Args:
      scores: [n, K].
      labels: [n] classes, or [n, K] of 0 and 1; each class needs test images with and without it.
    """
    one_label = labels.ndim == 1
    ranked = softmax(scores, axis=1) if one_label else scores
    present = labels[:, None] == np.arange(scores.shape[1]) if one_label else labels != 0
    return float(roc_auc_score(present, ranked, average="weighted"))


if __name__ == "__main__":
    main()
