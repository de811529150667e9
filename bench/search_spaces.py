"""Measures what a search of each head's default space brings, on public features.

Features are those of bench/defaults.py and `pixels`, scikit-learn's digits as they are; no private
dataset is looked at. For each (features, head, epsilon): the head as it is, and `tuned` of it with
the space of heads/default_search_spaces.py, for several numbers of trials.

A search's result varies with the number of its trials. So every combination of options is fitted
with the noise that a trial of this search has, several times over; from these fits searches are
drawn as `tuned` draws them, a random number of trials of random options, each with its noisy score,
and the best one's test accuracy is what counts. Normalisations are released once a repetition, for
all its trials, as in a fit.

`sgd` stands there with 40 full-batch steps on centred rows: with its default, small batches, a
search's calibration takes a minute.

With `--fits` and `--minutes` the work can be done in parts; the table has what was measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

from defaults import DELTA, accuracy, all_features
from dpprobe import artifacts
from dpprobe.heads.balance import fit_balanced
from dpprobe.heads.default_search_spaces import SPACES
from dpprobe.heads.normalised_rows import normalise
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import products
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.tuned import SCORE, Options, score, trial_plan
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.random_run_count import draw_runs
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from pairs_rows import CHECKPOINT, Features

BASES: dict[str, dict[str, Any]] = {head: {"head": head} for head in SPACES} | {
    "sgd": {"head": "sgd", "batch_size": "full", "steps": 40, "normalize": "centred"}
}
RESULTS = Path(__file__).resolve().parent / "results" / "search_spaces.md"
EPSILONS = (1.0, 3.0, 10.0)
SETS = ("pixels", "gauss10", "gauss100", "digits", "crops")
SEARCHES: dict[str, dict[str, Any]] = {
    "geometric, 5": {"trials": 5},
    "geometric, 10": {"trials": 10},
    "logarithmic, 10": {"trials": 10, "distribution": "logarithmic"},
    "poisson, 5": {"trials": 5, "distribution": "poisson"},
    "geometric, 5, score 15 %": {"trials": 5, "score_share": 0.15},
}
REPEATS = 2
DRAWN = 4000


class Cell(NamedTuple):
    """A place of the table; `search` is empty for the head as it is."""

    features: str
    head: str
    epsilon: float
    search: str


def main() -> None:
    """Fits what is not there yet, for so long, and writes the table of what is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default=CHECKPOINT, help="MobileNetV2 safetensors")
    parser.add_argument("--features", type=Path, help="a folder that keeps the features")
    parser.add_argument("--fits", type=Path, help="a file that keeps what was measured")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no fit after these")
    parser.add_argument("--heads", nargs="*", default=list(BASES))
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = read(arguments.fits)
    sets: dict[str, Features] = {"pixels": pixels()}
    with tempfile.TemporaryDirectory() as cache:
        for cell in cells(arguments.sets, arguments.heads, arguments.searches):
            if cell in measured or time.process_time() > 60 * arguments.minutes:
                continue
            if cell.features != "pixels" and "digits" not in sets:
                sets |= kept(arguments.features, arguments.checkpoint)
            measured[cell] = measure(cell, sets[cell.features], Path(cache))
            if arguments.fits is not None:
                with arguments.fits.open("a") as file:
                    file.write(json.dumps([*cell, measured[cell]]) + "\n")
            print(cell, f"{measured[cell]['mean']:.1f}", flush=True)
    artifacts.write_text(RESULTS, "\n".join(report(measured)))


def read(path: Path | None) -> dict[Cell, dict[str, float]]:
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {Cell(*line[:-1]): line[-1] for line in lines}


def cells(sets: list[str], heads: list[str], searches: list[str]) -> Iterator[Cell]:
    for features, search, head in itertools.product(sets, ("", *searches), heads):
        for epsilon in EPSILONS:
            yield Cell(features, head, epsilon, search)


def kept(folder: Path | None, checkpoint: str) -> dict[str, Features]:
    """Returns all features, from a folder where they are there; makes and keeps them where not."""
    paths = {} if folder is None else {path.stem: path for path in folder.glob("*.safetensors")}
    if paths:
        return {name: Features(**load_file(path)) for name, path in paths.items()}
    sets = all_features(checkpoint)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in sets.items():
            tensors = {key: value.contiguous() for key, value in data._asdict().items()}
            save_file(tensors, folder / f"{name}.safetensors")
    return sets


def pixels() -> Features:
    """Returns the digits' 8 x 8 pixels, the last quarter to test on."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    rows = torch.from_numpy(images[order] / 16).float()
    marks = torch.from_numpy(labels[order])
    held = len(rows) // 4
    return Features(rows[:-held], marks[:-held], rows[-held:], marks[-held:])


def measure(cell: Cell, data: Features, cache: Path) -> dict[str, float]:
    """Test accuracy in per cent: mean, and for a search the spread of single searches."""
    base = BASES[cell.head]
    if not cell.search:
        changes = {name: value for name, value in base.items() if name != "head"}
        return {"mean": accuracy(cell.head, data, cell.epsilon, changes, 2 * REPEATS, cache)}
    options = method_options({"head": "tuned", "base": base, **SEARCHES[cell.search]})
    assert isinstance(options, Options)
    hits = drawn(options, data, cell.epsilon, cache)
    return {"mean": float(hits.mean()), "deviation": float(hits.std())}


def drawn(options: Options, data: Features, epsilon: float, cache: Path) -> np.ndarray[Any, Any]:
    """Draws searches, and returns the test accuracy of each."""
    n = len(data.train)
    selection = options.selection(n)
    plan = calibrate(
        options.mechanisms(n),
        n=n,
        epsilon=epsilon,
        delta=DELTA,
        accountant="pld",
        cache=cache,
        selection=selection,
    )
    noise = plan.mechanism(SCORE).noise_multiplier
    generator = np.random.Generator(np.random.SFC64(0))
    results: list[float] = []
    for repeat in range(REPEATS):
        counts, accuracies = fits(options, data, plan, cell_seed("search spaces", repeat))
        for _ in range(DRAWN // REPEATS):
            runs = draw_runs(selection, generator)
            if not runs:
                results.append(100 / data.classes)  # a head of zeros
                continue
            picked = generator.integers(0, len(counts), runs)
            noisy = counts[picked] + noise * generator.standard_normal(runs)
            results.append(float(accuracies[picked[noisy.argmax()]]))
    return np.array(results)


def fits(
    options: Options, data: Features, plan: Plan, seed: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Fits each combination of options once: rows that it gets right, and its test accuracy."""
    training = TrainingSet(data.train, data.train_labels, data.classes)
    selection = options.selection(plan.n)
    releases = Releases(plan, (seed,), training.device)
    rows = normalise(training, options.normalize, releases)
    test = rows.transform(data.test)
    counts, accuracies = [], []
    names = list(options.search)
    for index, values in enumerate(itertools.product(*options.search.values())):
        method = options.trial(dict(zip(names, values, strict=True)))
        trial = releases.part(trial_plan(plan, method, selection), [seed + index + 1])
        weights = torch.from_numpy(fit_balanced(method, rows, trial).weights)
        counts.append(float(score(method, rows, weights).values[0, 0]))
        right = products(weights, test)[0].argmax(1) == data.test_labels
        accuracies.append(100 * float(right.double().mean()))
    return np.array(counts), np.array(accuracies)


def report(measured: dict[Cell, dict[str, float]]) -> list[str]:
    """Returns the lines of the table."""
    searches = [each for each in SEARCHES if any(cell.search == each for cell in measured)]
    lines = [
        "# What a search of a head's default space brings",
        "",
        NOTES,
        "",
        f"| features | head | epsilon | as it is | {' | '.join(searches)} |",
        f"|---|---|---|---|{'---|' * len(searches)}",
    ]
    for cell, one in sorted(measured.items()):
        if cell.search:
            continue
        shown = []
        for search in searches:
            other = measured.get(cell._replace(search=search))
            shown.append("" if other is None else f"{other['mean']:.1f} ({other['deviation']:.1f})")
        if any(shown):
            lines.append(
                f"| {cell.features} | `{cell.head}` | {cell.epsilon:g} | {one['mean']:.1f} | "
                f"{' | '.join(shown)} |"
            )
    return [*lines, ""]


NOTES = """\
Written by bench/search_spaces.py. Test accuracy in per cent at delta 1e-5: of the head as it is the
mean of four seeds; of searches the mean over 4,000 drawn from two fits of every combination of
options, in brackets the standard deviation of single searches, their number of trials included.
Empty places were not measured. `sgd` has 40 full-batch steps on centred rows; the learning rates of
`momentum`, `adam` and `lamb` go by rules, so that clipping alone is searched."""


if __name__ == "__main__":
    main()
