"""AUC of each kind of pneumonia against all normal radiographs, of config/chest_xray_local.yaml.

    python bench/chest_xray.py results/chest_xray_local

A kind has no normal images of its own, so `fairness` compares recalls of kinds and no AUC. Here the
normal images of the test patients stand against each kind in turn. An image counts 1 / m of its
patient's m; intervals are percentiles of 2,000 resamples of patients, over the mean of all seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

RESAMPLES, SEED = 2000, 0
NORMAL, KINDS = "none", ("bacteria", "virus")
Array = npt.NDArray[np.float64]


def main() -> None:
    """Prints a row per method and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, metavar="RESULTS_DIR")
    folder = parser.parse_args().folder / "cells/chest_xray/mobilenetv2"
    print("| method | epsilon | " + " | ".join(KINDS) + " | bacteria less virus |")
    print("|---|---:|---:|---:|---:|")
    for method in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        for cell in sorted((folder / method).glob("eps-*"), key=_epsilon):
            print(f"| `{method}` | {cell.name[4:]} | {' | '.join(measure(cell))} |", flush=True)


def _epsilon(cell: Path) -> float:
    return float(cell.name.removeprefix("eps-"))


def measure(cell: Path) -> list[str]:
    """Returns the AUC of each kind and their difference, with intervals."""
    rows = pq.read_table(cell / "predictions.parquet").to_pandas()
    first = rows[rows["seed_index"] == 0]
    scores = np.array(rows["scores"].tolist()).reshape(-1, len(first), 2)
    margins = scores[..., 1] - scores[..., 0]
    units, kinds = first["unit"].to_numpy(), first["group_kind"].to_numpy()
    weights = draw_weights(units)
    normal = kinds == NORMAL
    bacteria, virus = (
        compute_areas(margins[:, kinds == kind], margins[:, normal], weights, kinds == kind, normal)
        for kind in KINDS
    )
    return [_text(bacteria), _text(virus), _text(bacteria - virus)]


def draw_weights(units: npt.NDArray[np.int64]) -> Array:
    """Returns each row's weight: of the test rows as they are, then of each resample."""
    generator = np.random.default_rng(SEED)
    sizes = np.bincount(units)
    draws = [
        np.bincount(generator.integers(len(sizes), size=len(sizes)), minlength=len(sizes))
        for _ in range(RESAMPLES)
    ]
    counts = np.stack([np.ones(len(sizes)), *draws])
    return np.asarray((counts / sizes)[:, units])


def compute_areas(
    positives: Array,
    negatives: Array,
    weights: Array,
    positive: npt.NDArray[np.bool_],
    negative: npt.NDArray[np.bool_],
) -> Array:
    """Computes the AUC, mean over seeds, for each row of weights: the share of ordered pairs."""
    pairs = np.mean(
        [
            (high[:, None] > low) + 0.5 * (high[:, None] == low)
            for high, low in zip(positives, negatives, strict=True)
        ],
        axis=0,
    )
    above, below = weights[:, positive], weights[:, negative]
    return np.asarray(
        np.einsum("dp,pn,dn->d", above, pairs, below, optimize=True) / (above.sum(1) * below.sum(1))
    )


def _text(values: Array) -> str:
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return f"{values[0]:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
