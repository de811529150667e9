"""Measures the learning curves that `dpprobe plan` reads: resources/learning_curves.json.

A curve is a public set through a layer of a backbone with some of its classes: test accuracy of
the private head at several n and epsilon, each seed on other rows, and of the non-private head
on rows of the same number. Through the real code: calibration, `fit_heads`, `score_rows`.

    .venv/bin/python bench/learning_curves.py             # curves that are missing, then the law
    .venv/bin/python bench/learning_curves.py --law       # the law alone, from what is there

The law joins them: the share of the non-private head's lead over chance that a private head keeps,
as a rising function of one signal, log n + a log mu - b log d - c log K, with the range that a set
left out of its making falls into.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from dpprobe import artifacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.planner.learning_curves import FILE, FORMAT, VERSION
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.target import Target
from dpprobe.versions import VERSIONS
from learning_law import law_of
from pairs import gaussians
from pairs_rows import Features

CACHE = Path("data/bench_pairs")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
DELTA = 1e-5
SEEDS = 3
STEPS = {True: 8, False: 5}  # numbers of rows, by whether features are few
FEW_FEATURES = 300
# Pairs of bench/pairs.py's group `chosen_on`, and Gaussians. Held-out pairs are not among them: the
# range is judged by those. The first part of a name is the set of images.
PAIRS = (
    "glyphs_stage",
    "crops_mobilenet",
    "gauss10",
    "digits_mobilenet",
    "glyphs_mobilenet",
    "gauss100",
    "digits_pixels",
    "digits_scattering",
)
SMALLEST = 100
CEILING = {"head": "nonprivate", "penalties": [1e-2], "tolerance": 1e-3}
# The better of these stands for `head: auto` if that is not known.
STAND_INS = ("prototypes", "feature_covariance")


@dataclass(frozen=True, kw_only=True)
class Set:
    """A public set through a layer; `source` names the images, of which several layers are made."""

    name: str
    source: str
    data: Features


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Rows of some classes of a set, labelled 0, 1, ..."""

    rows: torch.Tensor
    labels: torch.Tensor


def main() -> None:
    """Measures missing curves one by one, each written as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help="of bench/pairs.py")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no curve after")
    parser.add_argument("--law", action="store_true", help="fit the law again, measure nothing")
    parser.add_argument("--only", nargs="*", choices=PAIRS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves = artifacts.read_json(FILE)["curves"] if FILE.exists() else []
    if not arguments.law:
        present = {(curve["set"], curve["classes"]) for curve in curves}
        started = time.monotonic()
        for name, turn in order(arguments.only or PAIRS):
            begun = time.monotonic()
            if begun - started > arguments.seconds:
                break
            data = public_set(arguments.cache, name)
            if data is None:
                continue
            counts = class_counts(data.data.classes)
            classes = counts[turn % len(counts)]
            if (name, classes) in present:
                continue
            curves.append(measure(data, classes))
            write(curves, law=None)
            print(name, classes, f"{time.monotonic() - begun:.0f} s", flush=True)
    several = len({curve["source"] for curve in curves}) > 2
    write(curves, law=law_of(curves, DELTA) if several else None)


def order(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields each pair three times, with other classes: a run cut short has some of each."""
    for turn in range(3):
        for place, name in enumerate(names):
            yield name, turn + place


def public_set(folder: Path, name: str) -> Set | None:
    """Returns a pair's features; None where they are not there."""
    path = folder / f"{name}.safetensors"
    if name == "gauss10":
        data = gaussians(10_000, 512, 10, 0.3)
    elif path.exists():
        parts = load_file(path)
        data = Features(**{key: parts[key] for key in Features._fields})
    else:
        print(f"{path}: not there; write it by bench/pairs.py", flush=True)
        return None
    return Set(name=name, source=name.partition("_")[0], data=data)


def class_counts(classes: int) -> list[int]:
    """Returns 2, 4 and all; of many classes 10 in place of 2."""
    return sorted({10 if classes > 50 else 2, min(4, classes), classes})


def measure(item: Set, classes: int) -> dict[str, Any]:
    """Measures one curve: at each n accuracies by epsilon, a number per seed."""
    generator = np.random.default_rng(cell_seed(f"learning curves of {item.source}", classes))
    names = np.sort(generator.permutation(item.data.classes)[:classes])
    train = chosen(item.data.train, item.data.train_labels, names)
    test = chosen(item.data.test, item.data.test_labels, names)
    steps = STEPS[item.data.train.shape[1] < FEW_FEATURES]
    sizes = np.geomspace(SMALLEST, len(train.rows), steps).round().astype(int)
    points = []
    with tempfile.TemporaryDirectory() as cache:
        for n in sizes.tolist():
            orders = [generator.permutation(len(train.rows))[:n] for _ in range(SEEDS)]
            draws = [Draw(rows=train.rows[order], labels=train.labels[order]) for order in orders]
            head = method_options(CEILING)
            ceiling = accuracy(head, draws[0], test, classes, math.inf, 0, Path(cache))
            measured = {
                f"{epsilon:g}": best(draws, test, classes, epsilon, Path(cache))
                for epsilon in EPSILONS
            }
            points.append({"n": n, "ceiling": round(ceiling, 4), "accuracy": measured})
    return {
        "set": item.name,
        "source": item.source,
        "dimension": item.data.train.shape[1],
        "classes": classes,
        "chance": round(1 / classes, 4),
        "points": points,
    }


def chosen(rows: torch.Tensor, labels: torch.Tensor, names: npt.NDArray[np.int64]) -> Draw:
    """Returns the rows of some classes, these numbered again."""
    kept = torch.isin(labels, torch.from_numpy(names))
    return Draw(rows=rows[kept], labels=torch.from_numpy(np.searchsorted(names, labels[kept])))


def best(draws: list[Draw], test: Draw, classes: int, epsilon: float, cache: Path) -> list[float]:
    """Returns accuracies, a number per seed, of `auto`, or of the stand-in with the best mean."""
    n, dimension = draws[0].rows.shape
    results = [
        [
            accuracy(head, draw, test, classes, epsilon, seed, cache)
            for seed, draw in enumerate(draws)
        ]
        for head in heads(n, dimension, classes, epsilon)
    ]
    return [round(value, 4) for value in max(results, key=sum)]


def heads(n: int, dimension: int, classes: int, epsilon: float) -> list[MethodOptions]:
    """Returns what a person would train: `auto`, decided from the facts."""
    if "auto" not in HEADS:
        return [method_options({"head": name}) for name in STAND_INS]
    from dpprobe.heads.facts import DataFacts

    facts = DataFacts(
        n=n,
        dimension=dimension,
        classes=classes,
        multi_label=False,
        epsilon=epsilon,
        delta=DELTA,
        unit="image",
    )
    auto: Any = method_options({"head": "auto"})
    return [auto.resolve_choice(facts)]


def accuracy(
    method: MethodOptions,
    draw: Draw,
    test: Draw,
    classes: int,
    epsilon: float,
    seed: int,
    cache: Path,
) -> float:
    """Trains one head and returns its test accuracy."""
    n = len(draw.rows)
    plan = calibrate(
        method.list_mechanisms(n), Target(n=n, epsilon=epsilon, delta=DELTA), cache=cache
    )
    data = TrainingSet(draw.rows, draw.labels, classes)
    fitted = fit_heads(method, data, plan, [cell_seed(["learning curve", n, str(epsilon)], seed)])
    scores = torch.from_numpy(score_rows(fitted, test.rows))
    return float((scores.argmax(2) == test.labels).float().mean())


def write(curves: list[dict[str, Any]], *, law: dict[str, Any] | None) -> None:
    """Writes the curves, one line per point, and the law where there is one."""
    ordered = sorted(curves, key=lambda curve: (curve["set"], curve["classes"]))
    head = {
        "format": FORMAT,
        "format_version": VERSION,
        "delta": DELTA,
        "heads": ["auto"] if "auto" in HEADS else list(STAND_INS),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "training": VERSIONS["training"],
        "law": law,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    blocks = []
    for curve in ordered:
        start = json.dumps({key: value for key, value in curve.items() if key != "points"})
        points = ",\n   ".join(json.dumps(point) for point in curve["points"])
        blocks.append(f'  {start[:-1]}, "points": [\n   {points}]}}')
    text = "\n".join(["{", *lines, ' "curves": [', ",\n".join(blocks), " ]", "}", ""])
    artifacts.write_text(FILE, text)


if __name__ == "__main__":
    main()
