"""Accuracy with few images: a student behind its private count, or a public head.

    python bench/few_images.py FEATURES.npz --public PUBLIC.npz
    python bench/few_images.py FEATURES.npz --head HEAD.safetensors

FEATURES.npz has features `x` [rows, d] and class numbers `label` [rows]; each image is a unit, and
the last 2,000 rows are the test set. PUBLIC.npz has features `x` of public images; without this
file, 1,000 other rows of FEATURES.npz are public. Each seed draws other training images. Prints
macro accuracy in percent without and with the option, and their difference with a 95% t interval
over seeds. For students, also prints the mean count in standard deviations of its noise, and the
share of seeds whose student replaced the head. bench/results/few_patients.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import balanced_accuracy_score

from dpprobe.heads.fitted import STUDENT_GAIN
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.training.public_file_check import SYNTHETIC_ROWS
from small_n import fit

TESTED, OTHERS = 2000, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", type=Path)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--public", type=Path, help="public images for the student")
    asked.add_argument("--head", type=Path, help="a public head, in place of a student")
    parser.add_argument("--images", type=int, nargs="*", default=[300, 1000, 4000])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| images | ε | without | with | change | z | used |\n|---:|---:|---:|---:|---:|---:|---:|"
    )
    for images in options.images:
        for epsilon in options.epsilons:
            rows = [measure(options, images, epsilon, seed) for seed in range(options.seeds)]
            print(describe(images, epsilon, np.asarray(rows)), flush=True)


def describe(images: int, epsilon: float, rows: np.ndarray) -> str:
    change = rows[:, 1] - rows[:, 0]
    half = stats.t.ppf(0.975, len(rows) - 1) * stats.sem(change)
    before, after, z, used = rows.mean(0)
    told = f"{before:.1f} | {after:.1f} | {change.mean():+.1f} ± {half:.1f} | {z:.1f} | {used:.2f}"
    return f"| {images:,} | {epsilon:g} | {told} |"


def measure(
    options: argparse.Namespace, images: int, epsilon: float, seed: int
) -> tuple[float, float, float, float]:
    """Returns both accuracies, z of the noisy count, and whether the student replaced the head."""
    with np.load(options.features) as stored:
        features, labels = stored["x"].astype(np.float32), stored["label"].astype(np.int64)
    drawn = np.random.default_rng(seed).permutation(len(labels) - TESTED)
    train, others, tested = drawn[:images], drawn[images:][:OTHERS], slice(-TESTED, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "public.npy")
        public = features[others] if options.public is None else np.load(options.public)["x"]
        np.save(path, public.astype(np.float32))
        without: dict[str, Any] = {"head": "auto"}
        more: dict[str, Any] = {"public_head": str(options.head)}
        if options.head is None:
            without |= {"head": "momentum", "normalize": {"kind": "centred", "public": str(path)}}
            more = {"student_share": 0.04}
        found = []
        for values in (without, without | more):
            data = TrainingSet(
                torch.from_numpy(features[train].copy()),
                torch.from_numpy(labels[train]),
                int(labels.max()) + 1,
                public=SYNTHETIC_ROWS,  # this script's own features: nothing is released
                warn=lambda _: None,
            )
            heads, plan = fit(values, data, "image", epsilon, seed)
            scores = np.asarray(score_rows(heads, features[tested]))[0]
            found.append(100 * balanced_accuracy_score(labels[tested], scores.argmax(1)))
    if heads.gains is None:
        return found[0], found[1], np.nan, np.nan
    gain, least = heads.gains[0].tolist()
    return found[0], found[1], gain / plan.find_mechanism(STUDENT_GAIN).noise_scale, gain > least


if __name__ == "__main__":
    main()
