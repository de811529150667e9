"""Where prototypes chosen from public images win on long-tailed data, and where they lose.

    .venv/bin/python bench/rare_classes.py --features results/features/cifar10/mobilenetv2

A fifth of the training rows stands for a public dataset. The others become the private one: class c
keeps ratio^(-c / (K - 1)) of its rows, so the last class has 1 / ratio of the first one's (Cui et
al. 2019). Test rows are balanced: accuracy on them is the mean recall of the classes. With
`--foreign` the public rows hold none of the classes with few private rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpprobe.artifacts import write_text
from dpprobe.features.header import ShardHeader
from dpprobe.features.manifest import write_manifest
from dpprobe.features.shard_writer import write_shard
from dpprobe.features.store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.limits import epsilon_value
from dpprobe.privacy.randomness import cell_seed

Rows = tuple[np.ndarray, np.ndarray]
# What stands for the manifest of public rows, the counts of the classes, and weights by the inverse
# roots of these: numbers that a study would have to know beforehand.
PUBLIC, COUNTS, ROOTS = "{public}", "{counts}", "{roots}"
METHODS: dict[str, dict[str, Any]] = {
    "public_prototypes": {"head": "public_prototypes", "public_features": PUBLIC},
    "public_prototypes_1": {"head": "public_prototypes", "public_features": PUBLIC, "top": 1},
    "public_prototypes_20": {"head": "public_prototypes", "public_features": PUBLIC, "top": 20},
    "prototypes": {"head": "prototypes"},
    "feature_covariance": {"head": "feature_covariance"},
    "feature_covariance_priors": {"head": "feature_covariance", "class_priors": COUNTS},
    "feature_covariance_weights": {"head": "feature_covariance", "class_weights": ROOTS},
    "sgd": {"head": "sgd"},
    "sgd_priors": {"head": "sgd", "class_priors": COUNTS},
    "sgd_weights": {"head": "sgd", "class_weights": ROOTS},
    "nonprivate": {"head": "nonprivate", "normalize": "l2"},
}
EPSILONS = ("0.1", "0.5", "1", "2", "4", "8", "inf")
RARE = 3


def main() -> None:
    """Prints a line a method and epsilon, and writes them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, required=True, help="folder of train/ and test/")
    parser.add_argument("--ratio", type=float, default=100.0)
    parser.add_argument("--foreign", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", nargs="+", default=EPSILONS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    train, test = (read(args.features / split) for split in ("train", "test"))
    classes = int(train[1].max()) + 1
    public, private = divided(train, classes, args.ratio)
    if args.foreign:
        kept = public[1] < classes - RARE
        public = public[0][kept], public[1][kept]
    counts = np.bincount(private[1], minlength=classes)
    print(f"{len(public[1])} public rows; private ones by class: {counts.tolist()}", flush=True)
    lines = [["method", "epsilon", "accuracy", "std", "rare_recall", "rare_std"]]
    with tempfile.TemporaryDirectory() as folder:
        manifest = written(public, classes, Path(folder))
        data = TrainingSet(torch.from_numpy(private[0]), torch.from_numpy(private[1]), classes)
        for name in args.methods:
            method = method_options(located(METHODS[name], manifest, counts))
            for epsilon in args.epsilons if method.private else ("inf",):
                recalls = measured(method, name, epsilon, data, test, args.seeds, Path(folder))
                each = [*spread(recalls.mean(1)), *spread(recalls[:, -RARE:].mean(1))]
                lines.append([name, epsilon, *(f"{100 * value:.2f}" for value in each)])
                print(f"{name:22}{epsilon:>5}" + "".join(f"{v:>9}" for v in lines[-1][2:]),
                      flush=True)  # fmt: skip
    if args.output is not None:
        write_text(args.output, "".join(f"{','.join(line)}\n" for line in lines))


def read(folder: Path) -> Rows:
    store = FeatureStore(folder / "manifest.json")
    return store.read(), np.asarray(store.labels).astype(np.int64)


def divided(rows: Rows, classes: int, ratio: float) -> tuple[Rows, Rows]:
    """Returns the public fifth, and the long-tailed rest."""
    features, labels = rows
    order = np.random.default_rng(0).permutation(len(labels))
    public, rest = np.split(order, [len(order) // 5])
    most = int(np.bincount(labels[rest], minlength=classes).min())
    kept = []
    for label in range(classes):
        count = max(1, round(most * ratio ** (-label / max(classes - 1, 1))))
        kept.append(rest[labels[rest] == label][:count])
    private = np.sort(np.concatenate(kept))
    return (features[public], labels[public]), (features[private], labels[private])


def written(rows: Rows, classes: int, folder: Path) -> Path:
    """Writes rows as a dataset's features; returns the manifest."""
    features, labels = rows
    header = ShardHeader(
        split="train", rows=len(labels), shard=0, shards=1,
        class_names=tuple(map(str, range(classes))), multi_label=False, dtype="float32",
        dataset_fingerprint="public", backbone="none", backbone_options={},
        backbone_fingerprint="none", weights_sha256=None, preprocessing={},
    )  # fmt: skip
    path, manifest = folder / "shard-00000-of-00001.h5", folder / "manifest.json"
    ids = [str(row) for row in range(len(labels))]
    write_shard(path, header, features=features, labels=labels, ids=ids)
    write_manifest([path], manifest, rows=len(labels), dataset_fingerprint="public")
    return manifest


def located(values: Mapping[str, Any], manifest: Path, counts: np.ndarray) -> dict[str, Any]:
    roots = np.sqrt(counts.min() / counts)
    given = {PUBLIC: str(manifest), COUNTS: counts.tolist(), ROOTS: roots.tolist()}
    return {name: given.get(value, value) for name, value in values.items()}


def measured(
    method: MethodOptions,
    name: str,
    epsilon: str,
    data: TrainingSet,
    test: Rows,
    seeds: int,
    cache: Path,
) -> np.ndarray:
    """Returns the recall of each class, [seeds, classes]."""
    plan = calibrate(
        method.mechanisms(data.n),
        n=data.n,
        epsilon=epsilon_value(epsilon),
        delta=1e-5,
        accountant="pld",
        cache=cache,
        selection=method.selection(data.n),
    )
    identity = {"bench": "rare_classes", "method": name, "epsilon": epsilon}
    heads = fit_heads(method, data, plan, [cell_seed(identity, seed) for seed in range(seeds)])
    right = score_rows(heads, test[0]).argmax(2) == test[1]
    return np.stack([right[:, test[1] == label].mean(1) for label in range(data.num_classes)], 1)


def spread(values: np.ndarray) -> Iterator[float]:
    yield float(values.mean())
    yield float(values.std(ddof=1)) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
