"""Accuracy with few patients: `auto` today, with public images, and what each of its parts brings.

    python bench/small_n.py RESULTS DATASET BACKBONE --public films --own 300

RESULTS is the results folder of a study that extracted the features of DATASET and of its public
datasets. `--own N` adds unlabelled images of N other patients of DATASET as public images. `--more`
adds one column of `auto` for each further backbone, such as a joined one. For each number of
patients and epsilon, heads are trained in benchmark mode on patients drawn by each seed, and scored
on 400 other patients. The tables replace the text between the two marks of
bench/results/few_patients.md that name the backbone; intervals are t intervals over seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.training.plan_file import plan_method
from dpprobe.training.public_file_check import SYNTHETIC_ROWS

PAGE = Path(__file__).resolve().parent / "results" / "few_patients.md"
PATIENTS, EPSILONS, DELTA, TESTED = (100, 300, 1000, 2000), (0.5, 1.0, 2.0), 1e-5, 400
MOMENTUM: dict[str, Any] = {"head": "momentum", "class_priors": "released"}


class Images(NamedTuple):
    """Features [n, d] of images, with the class and the patient of each."""

    features: np.ndarray
    labels: np.ndarray
    patients: np.ndarray

    def select(self, names: np.ndarray) -> Images:
        kept = np.isin(self.patients, names)
        return Images(self.features[kept], self.labels[kept], self.patients[kept])


Sets = dict[str, Images]  # by backbone; all have the same rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("backbone")
    parser.add_argument("--public", nargs="*", default=[], help="names of public datasets")
    parser.add_argument("--more", nargs="*", default=[], help="other backbones, a column each")
    parser.add_argument("--own", type=int, default=300, help="other patients as public images")
    parser.add_argument("--seeds", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    features = asked.results / "features"
    names = (asked.backbone, *asked.more)
    images = {name: read_images(features / asked.dataset / name) for name in names}
    public = {
        name: features / name / asked.backbone / "train/manifest.json" for name in asked.public
    }
    lines = list(write_tables(images, public, asked.own, asked.seeds))
    begin = f"<!-- begin: {asked.backbone}, written by bench/small_n.py -->"
    marks = begin, f"<!-- end: {asked.backbone} -->"
    before, _, rest = PAGE.read_text().partition(marks[0])
    after = rest.partition(marks[1])[2]
    text = "\n".join([marks[0], "", *lines, "", marks[1]])
    PAGE.write_text(before + text + after if rest else f"{before.rstrip()}\n\n{text}\n")


def read_images(folder: Path) -> Images:
    """Reads both splits, because each seed draws its own patients."""
    stores = [FeatureStore(folder / split / "manifest.json") for split in ("train", "test")]
    return Images(
        np.concatenate([store.read() for store in stores]),
        np.concatenate([store.labels for store in stores]),
        np.concatenate([store.units or () for store in stores]),
    )


def list_methods(public: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Returns methods by the title of their column; the first is `auto` before rule 3."""
    balanced = {"head": "auto", "balanced": True}
    return {
        "rule 2": MOMENTUM | {"normalize": "centred"},
        "larger share": MOMENTUM | {"normalize": {"kind": "centred", "share": 0.2}},
        "mean scores": MOMENTUM | {"normalize": "centred", "offset_share": 0.1},
        "`auto`": balanced,
        **{f"`auto`, {name}": balanced | {"public": str(path)} for name, path in public.items()},
    }


def write_tables(images: Sets, public: dict[str, Path], own: int, seeds: int) -> Iterator[str]:
    titles = [*list_methods(public | {"same hospital": Path()})]
    titles += [f"`auto`, {name}" for name in [*images][1:]]
    yield f"| patients | ε | {' | '.join(titles)} |"
    yield "|---:|---:|" + "---:|" * len(titles)
    for patients in PATIENTS:
        for epsilon in EPSILONS:
            scores: dict[str, list[tuple[float, float]]] = {title: [] for title in titles}
            for seed in range(seeds):
                for title, pair in score_methods(images, public, own, patients, epsilon, seed):
                    scores[title].append(pair)
            cells = [describe(np.asarray(pairs)) for pairs in scores.values()]
            print(patients, epsilon, *cells, flush=True)
            yield f"| {patients:,} | {epsilon:g} | {' | '.join(cells)} |"


def describe(pairs: np.ndarray) -> str:
    """Writes balanced accuracy with its interval over seeds, and the mean AUC."""
    accuracy, area = 100 * pairs.mean(0)
    half = stats.t.ppf(0.975, len(pairs) - 1) * 100 * stats.sem(pairs[:, 0])
    return f"{accuracy:.1f} ± {half:.1f} ({area:.1f})"


def score_methods(
    images: Sets, public: dict[str, Path], own: int, patients: int, epsilon: float, seed: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yields balanced accuracy and AUC of each method's head, for the patients of one seed."""
    first, *others = images
    names = np.unique(images[first].patients)
    np.random.default_rng(seed).shuffle(names)
    with tempfile.TemporaryDirectory() as folder:
        same = Path(folder) / "same_hospital.npy"
        np.save(same, images[first].select(names[patients:-TESTED][:own]).features)
        methods = list_methods(public | {"same hospital": same})
        columns = [(title, first, values) for title, values in methods.items()]
        columns += [(f"`auto`, {name}", name, methods["`auto`"]) for name in others]
        for title, name, values in columns:
            training, tested = (
                images[name].select(of) for of in (names[:patients], names[-TESTED:])
            )
            scores = fit_and_score(values, training, tested.features, epsilon, seed)
            margin = scores[:, 1] - scores[:, 0]
            accuracy = balanced_accuracy_score(tested.labels, margin > 0)
            yield title, (accuracy, roc_auc_score(tested.labels, margin))


def fit_and_score(
    values: dict[str, Any], training: Images, tested: np.ndarray, epsilon: float, seed: int
) -> np.ndarray:
    data = TrainingSet(
        torch.from_numpy(training.features.astype(np.float32)),
        torch.from_numpy(training.labels.astype(np.int64)),
        2,
        units=Units.number_units(list(training.patients)),
        public=SYNTHETIC_ROWS,  # this script's own features: nothing is released
    )
    heads, _ = fit(values, data, "patient", epsilon, seed)
    return np.asarray(score_rows(heads, tested.astype(np.float32)))[0]


def fit(
    values: dict[str, Any], data: TrainingSet, unit: str, epsilon: float, seed: int
) -> tuple[Heads, Plan]:
    """Fits a method, with `auto` resolved, in benchmark mode at δ = 1e-5."""
    target = Target(n=data.n, unit=unit, epsilon=epsilon, delta=DELTA)
    facts = DataFacts.of_target(
        target, dimension=data.dimension, classes=data.num_classes, multi_label=False
    )
    method = method_options(values).resolve_choice(facts)
    plan = plan_method(method, target, cache=Path(tempfile.gettempdir()) / "dpprobe-small-n")
    return fit_heads(method, data, plan, [seed]), plan


if __name__ == "__main__":
    main()
