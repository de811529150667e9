"""What public knowledge brings to DP-FC on CIFAR-10: second moments, start weights, projections.

    python bench/public_priors.py FEATURES PUBLIC CHECKPOINT

FEATURES and PUBLIC are folders of features (with `train` and `test`) through one MobileNetV2: of
CIFAR-10, and of a public dataset. CHECKPOINT is its file of weights, with the ImageNet classifier.
Prints test accuracies in per cent, the mean of three seeds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate

EPSILONS = (0.1, 0.5, 1.0, 2.0)
DELTA = 1e-5
# The ImageNet classes that CIFAR-10's names stand for, by index.
NAMES = {
    "airplane": [404, 895],
    "automobile": [436, 468, 511, 609, 627, 656, 661, 751, 817],
    "bird": [*range(7, 25), *range(80, 101), *range(127, 147)],
    "cat": [*range(281, 286)],
    "deer": [351, 352, 353],
    "dog": [*range(151, 269)],
    "frog": [30, 31, 32],
    "horse": [339],
    "ship": [403, 510, 554, 625, 628, 724, 780, 814, 833, 871, 914],
    "truck": [555, 569, 675, 717, 864, 867],
}


def read_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads float32 rows and labels."""
    store = FeatureStore(folder / split / "manifest.json")
    return store.read().astype(np.float32), np.asarray(store.labels).astype(np.int64)


def measure(method: dict[str, Any], rows: Any, labels: Any, test: Any, answers: Any) -> list[float]:
    """Trains three seeds at each epsilon; returns mean accuracies in per cent."""
    data = TrainingSet(torch.from_numpy(rows), torch.from_numpy(labels), len(NAMES))
    n, dimension = rows.shape
    accuracies = []
    for epsilon in EPSILONS:
        facts = DataFacts(
            n=n, dimension=dimension, classes=len(NAMES), multi_label=False, epsilon=epsilon,
            delta=DELTA, unit="image",
        )  # fmt: skip
        options = method_options(method).resolve_choice(facts)
        plan = calibrate(
            options.list_mechanisms(n), n=n, epsilon=epsilon, delta=DELTA, accountant="pld",
            cache=Path(tempfile.gettempdir()) / "prices",
        )  # fmt: skip
        scores = score_rows(fit_heads(options, data, plan, [1, 2, 3]), test)
        accuracies.append(100 * float((scores.argmax(2) == answers).mean()))
    return accuracies


def main() -> None:
    """Prints one row per use of public knowledge."""
    folder, public, checkpoint = map(Path, sys.argv[1:])
    (rows, labels), (test, answers) = (read_split(folder, split) for split in ("train", "test"))
    others, _ = read_split(public, "train")
    classifier = load_file(checkpoint)
    weights, biases = classifier["classifier.weight"], classifier["classifier.bias"]
    start = np.stack([weights[named].mean(0) for named in NAMES.values()])
    at = np.array([biases[named].mean() for named in NAMES.values()])
    file = Path(tempfile.mkdtemp()) / "names.safetensors"
    both = np.concatenate([start - start.mean(0), (at - at.mean())[:, None]], axis=1)
    save_file({"weights": both.astype(np.float32)}, file)
    own = {"head": "feature_covariance"}
    named = {"init": "file", "init_file": str(file)}
    moment = {"public_covariance": str(public / "train/manifest.json")}
    print("zero-shot:", 100 * float(((test @ both[:, :-1].T).argmax(1) == answers).mean()))
    for what, method in {
        "auto": {"head": "auto"}, "feature_covariance": own, "public second moment": own | moment,
        "start from class names": own | named,
        "from names, 10 times longer": own | named | {"init_scale": 10.0},
    }.items():  # fmt: skip
        print(what, measure(method, rows, labels, test, answers), flush=True)
    spread = {"classifier": weights - weights.mean(0), "public rows": others - others.mean(0)}
    random = np.random.default_rng(0).normal(size=(1280, 256))
    bases = {name: np.linalg.svd(each, full_matrices=False)[2] for name, each in spread.items()}
    bases["random"] = np.linalg.qr(random)[0].T
    for name, size in (
        ("classifier", 512), ("classifier", 256), ("classifier", 128), ("public rows", 256),
        ("random", 256),
    ):  # fmt: skip
        basis = bases[name][:size].T.astype(np.float32)
        accuracies = measure(own, rows @ basis, labels, test @ basis, answers)
        print(f"projected on {size} directions of {name}", accuracies, flush=True)


if __name__ == "__main__":
    main()
