"""Measures calibrated releases on real images: `bench/results/calibration.md`.

    python bench/calibration.py [--repeats 100] [--chest TRAIN_MANIFEST TEST_MANIFEST] [--cifar ...]

A private head of MNIST pixels at epsilon 1 is calibrated many times, each time on other test units
with other noise. The test units that are left measure coverage and calibration without noise.
Beside it stands split conformal prediction and temperature scaling without privacy, on the same
units. With `--chest` the same is done for two classes with patients as units, with `--cifar` for
CIFAR-10: stored features of config/chest_xray_fine_tuning_local.yaml and fine_tuning_local.yaml.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from PIL import Image
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from dpprobe.errors import PrivacyError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.release.parts.calibration.measure import (
    calibrate_head,
    calibration_mechanisms,
    check_calibration_size,
)
from dpprobe.release.probabilities import Calibration, SetRule
from dpprobe.results.unit_counts import row_weights
from dpprobe.training.job_features import JobFeatures

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/calibration.md"
DATA = ROOT.parent / "shared/data"
STORED = {
    "cifar": "CIFAR-10 through MobileNetV2, 10 classes",
    "chest": "chest X-rays, 2 classes, patients",
}
EPSILONS, SIZES, COVERAGE, DELTA = (0.5, 1.0, 2.0), (200, 1000, 5000), 0.9, 1e-5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A head's scores of all test rows, their labels, and the number of each row's unit."""

    name: str
    scores: Floats
    labels: npt.NDArray[np.int64]
    units: npt.NDArray[np.int64]


def train_head(features: npt.NDArray[Any], labels: npt.NDArray[Any], classes: int) -> Heads:
    """Trains a private head at epsilon 1 with rows as units: here only its scores matter."""
    options = method_options({"head": "least_squares", "normalize": "l2"})
    rows = TrainingSet(
        torch.from_numpy(features), torch.from_numpy(labels), num_classes=classes, device="cpu",
        units=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as cache:
        plan = calibrate(
            options.list_mechanisms(len(labels)), n=len(labels), epsilon=1.0, delta=DELTA,
            accountant="pld", cache=Path(cache),
        )  # fmt: skip
    return fit_heads(options, rows, plan, [0])


def read_mnist_rows(split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns pixels float32 [n, 784] from 0 to 1, and labels."""
    table = pd.read_parquet(DATA / f"mnist/{split}.parquet")
    pixels = [np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in table["image"]]
    rows = np.stack(pixels).reshape(len(pixels), -1).astype(np.float32) / 255
    return rows, table["label"].to_numpy(np.int64, copy=True)


def read_mnist() -> Scored:
    head = train_head(*read_mnist_rows("train"), 10)
    rows, labels = read_mnist_rows("test")
    scores = score_rows(head, rows)[0].astype(np.float64)
    return Scored(
        name="MNIST pixels, 10 classes", scores=scores, labels=labels, units=np.arange(len(labels))
    )


def read_stored(name: str, train: Path, test: Path) -> Scored:
    """Trains on stored features; patients are units where the store names them."""
    stores = FeatureStore(train), FeatureStore(test)
    rows = [store.read() for store in stores]
    head = train_head(rows[0], np.array(stores[0].labels), stores[0].num_classes)
    units = np.arange(len(rows[1]))
    if stores[1].units is not None:
        _, units = np.unique(np.asarray(stores[1].units), return_inverse=True)
    return Scored(
        name=name,
        scores=score_rows(head, rows[1])[0].astype(np.float64),
        labels=np.array(stores[1].labels),
        units=units.astype(np.int64),
    )


def show_rows(scored: Scored, kept: npt.NDArray[np.bool_]) -> JobFeatures:
    """Returns test rows whose features are the head's scores."""
    rows, labels = torch.from_numpy(scored.scores[kept].astype(np.float32)), scored.labels[kept]
    classes = rows.shape[1]
    _, units = np.unique(scored.units[kept], return_inverse=True)
    return JobFeatures(
        train=TrainingSet(
            rows, torch.from_numpy(labels), num_classes=classes, device="cpu", units=None
        ),
        test=rows,
        test_labels=labels,
        test_ids=[str(index) for index in range(len(rows))],
        test_groups={},
        test_accepted=None,
        test_units=units,
        class_names=tuple(map(str, range(classes))),
    )


def identity_head(classes: int) -> Heads:
    weights = np.eye(classes, classes + 1, dtype=np.float32)[None]
    return Heads(
        weights=weights, seeds=(1,), transforms=(Transform(NoNormalisation()),), steps=0
    )  # fmt: skip


@dataclass(frozen=True)
class Quality:
    """On test units that were not used: coverage, mean set size, calibration error, answers."""

    coverage: float
    size: float
    error: float
    single: float


def measure(values: Floats, held: npt.NDArray[np.bool_], labels: Any, weights: Floats) -> Quality:
    """Weighs each unit equally; the calibration error is over ten bins of equal weight."""
    weights = weights / weights.sum()
    hit = held[np.arange(len(labels)), labels]
    sizes = held.sum(axis=1)
    top, right = values.max(axis=1), values.argmax(axis=1) == labels
    order = np.argsort(top)
    bins = np.minimum((10 * np.cumsum(weights[order])).astype(int), 9)
    error = sum(
        abs(float((weights[order] * (top[order] - right[order]))[bins == each].sum()))
        for each in range(10)
    )
    return Quality(
        float(weights @ hit), float(weights @ sizes), error, float(weights @ (sizes == 1))
    )


def hold_sets(values: Floats, threshold: float | None) -> npt.NDArray[np.bool_]:
    rule = SetRule(threshold=threshold, abstain_below=None)
    held = np.zeros(values.shape, bool)
    for row, each in enumerate(values):
        held[row, rule.apply_to(each)[0]] = True
    return held


def without_privacy(
    scored: Scored, kept: npt.NDArray[np.bool_], weights: Floats
) -> tuple[float, float]:
    """Returns the temperature by maximum likelihood and the threshold of conformal prediction."""
    scores, labels, share = scored.scores[kept], scored.labels[kept], weights[kept]
    rows = np.arange(len(labels))

    def loss(logarithm: float) -> float:
        return -float(share @ log_softmax(scores * 2.0**-logarithm, axis=1)[rows, labels])

    temperature = 2.0 ** minimize_scalar(loss, bounds=(-8, 8), method="bounded").x
    own = softmax(scores / temperature, axis=1)[rows, labels]
    order = np.argsort(own)
    n = share.sum()
    allowed = (1 - COVERAGE) * (n + 1) - 1
    below = np.cumsum(share[order]) - share[order]
    place = int(np.searchsorted(below, allowed, side="right")) - 1
    return temperature, float(own[order[max(place, 0)]])


def repeat_releases(scored: Scored, epsilon: float, n: int, repeats: int) -> Iterator[list[str]]:
    """Yields a line of the table, or says why the release is refused."""
    classes, every = scored.scores.shape[1], np.unique(scored.units)
    shares = row_weights(scored.units)
    weights = np.ones(len(scored.labels)) if shares is None else shares
    with tempfile.TemporaryDirectory() as cache:
        plan = calibrate(
            calibration_mechanisms(classes=classes, multi_label=False), n=n, epsilon=epsilon,
            delta=DELTA, accountant="pld", cache=Path(cache), unit="patient",
        )  # fmt: skip
    start = [f"{epsilon:g}", f"{n:,}"]
    try:
        check_calibration_size(plan)
    except PrivacyError as error:
        yield [*start, str(error).partition(": ")[2].partition(";")[0], *[""] * 5]
        return
    generator, found = np.random.default_rng(n), []
    for _ in range(repeats):
        kept = np.isin(scored.units, generator.choice(every, n, replace=False))
        block = calibrate_head(
            identity_head(classes), show_rows(scored, kept), plan, SystemEntropy(), composition=""
        )
        read = Calibration.from_block(block)
        rest, labels, share = scored.scores[~kept], scored.labels[~kept], weights[~kept]
        raw = softmax(rest, axis=1)
        ours = softmax(read.rescale(rest), axis=1)
        temperature, threshold = without_privacy(scored, kept, weights)
        plain = softmax(rest / temperature, axis=1)
        found.append(
            (
                measure(raw, hold_sets(raw, None), labels, share),
                measure(ours, hold_sets(ours, read.thresholds.get(COVERAGE)), labels, share),
                measure(plain, hold_sets(plain, threshold), labels, share),
            )
        )

    def mean(which: int, name: str) -> float:
        return float(np.mean([getattr(each[which], name) for each in found]))

    yield [
        *start,
        f"{100 * mean(0, 'error'):.1f}",
        f"**{100 * mean(1, 'error'):.1f}** ({100 * mean(2, 'error'):.1f})",
        f"**{100 * mean(1, 'coverage'):.1f}** ({100 * mean(2, 'coverage'):.1f})",
        f"{min(100 * each[1].coverage for each in found):.1f}",
        f"{mean(1, 'size'):.2f} ({mean(2, 'size'):.2f})",
        f"{100 * mean(1, 'single'):.0f}% ({100 * mean(2, 'single'):.0f}%)",
    ]


def write_page(tables: dict[str, list[list[str]]], repeats: int) -> None:
    lines = [
        "# Calibrated releases",
        "",
        f"`bench/calibration.py`: a private head at ε = 1, calibrated {repeats} times for each "
        "line on other test units with other noise. The other test units measure it, exactly. In "
        "brackets: temperature scaling and split conformal prediction without privacy, on the same "
        "units. Calibration error: mean distance of probability and frequency over ten bins, in "
        f"points. Sets are to contain the true class in {100 * COVERAGE:g}% of cases.",
    ]
    head = [
        "ε of the calibration", "test units", "error before", "error after", "coverage (%)",
        "lowest coverage (%)", "classes per set", "sets of one class",
    ]  # fmt: skip
    for name, rows in tables.items():
        lines += ["", f"## {name[0].upper()}{name[1:]}", "", f"| {' | '.join(head)} |"]
        lines += ["|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    RESULTS.write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=100)
    for option in STORED:
        parser.add_argument(f"--{option}", type=Path, nargs=2, metavar="MANIFEST")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = [read_mnist()]
    for option, name in STORED.items():
        if manifests := getattr(arguments, option):
            sets.append(read_stored(name, *manifests))
    tables: dict[str, list[list[str]]] = {}
    for scored in sets:
        units = len(np.unique(scored.units))
        sizes = sorted({*(size for size in SIZES if 2 * size <= units), units // 2})
        sizes = sizes[: len(SIZES)] if units > 1000 else [units // 2]
        tables[scored.name] = []
        for epsilon in EPSILONS:
            for n in sizes:
                for row in repeat_releases(scored, epsilon, n, arguments.repeats):
                    print(scored.name, row, flush=True)
                    tables[scored.name].append(row)
    write_page(tables, arguments.repeats)


if __name__ == "__main__":
    main()
