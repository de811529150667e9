"""Features of bench/peer_accuracy.py: digits, CIFAR-10, chest X-rays and speech, one .npz each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from sklearn.datasets import load_digits
from sklearn.model_selection import GroupShuffleSplit

import pairs_rows
from dpprobe.data.image_files import open_image
from pairs_images import Labelled, cifar10

Arrays = dict[str, Any]
CIFAR10_ROWS = {"train": 5_000, "test": 2_000}
X_RAYS = "chest_xray/images.parquet"
TESTED = 0.25  # of the groups


def split_groups(X: Any, y: Any, groups: Any) -> Arrays:
    """Puts each group on one side, by a fixed seed."""
    splitter = GroupShuffleSplit(1, test_size=TESTED, random_state=0)
    train, test = next(splitter.split(X, y, groups))
    return {
        "X": X[train].astype(np.float32), "y": y[train].astype(np.int64), "groups": groups[train],
        "X_test": X[test].astype(np.float32), "y_test": y[test].astype(np.int64),
    }  # fmt: skip


def make_digits() -> Arrays:
    X, y = load_digits(return_X_y=True)
    return split_groups(X, y, np.arange(len(y)))


def extract(files: pairs_rows.Files, name: str, images: Callable[[], Labelled], size: int) -> Any:
    made = pairs_rows.rows(files, name, images, pairs_rows.mobilenet(files, size))
    return made["features"].numpy(), made["labels"].numpy()


def read_cifar10(folder: Path, side: str, count: int) -> Labelled:
    return islice(cifar10(folder, side), count)


def make_cifar10(files: pairs_rows.Files) -> Arrays:
    sides = {}
    for side, count in CIFAR10_ROWS.items():
        images = partial(read_cifar10, files.cifar10, side, count)
        sides[side] = extract(files, f"peers_cifar10_{side}", images, 128)
    (X, y), (X_test, y_test) = sides["train"], sides["test"]
    return {"X": X, "y": y, "X_test": X_test, "y_test": y_test, "groups": np.arange(len(y))}


def make_x_rays(files: pairs_rows.Files, path: Path) -> Arrays:
    table = pq.read_table(path, columns=["image", "label", "patient"])

    def read_images() -> Labelled:
        for row in range(len(table)):
            image, label = table["image"][row]["bytes"].as_py(), table["label"][row].as_py()
            yield open_image(image).convert("RGB"), label

    X, y = extract(files, "peers_chest_xray", read_images, 224)
    return split_groups(X, y, np.asarray(table["patient"].to_pylist()))


def make_speech(path: Path) -> Arrays:
    with np.load(path) as made:
        _, y = np.unique(made["word"], return_inverse=True)
        return split_groups(made["X"], y, made["voice"])


def make_features(folder: Path, *, data: Path, speech: Path) -> dict[str, Path]:
    """Writes what is not there yet; returns the file of each set whose data are there."""
    files = pairs_rows.Files(
        cache=folder, cifar10=data / "cifar10",
        checkpoint=str(data / "weights/mobilenetv2_100_imagenet.safetensors"),
    )  # fmt: skip
    x_rays = data / X_RAYS
    makers: dict[str, tuple[Path | None, Callable[[], Arrays]]] = {
        "digits": (None, make_digits),
        "CIFAR-10": (data / "cifar10/train.parquet", partial(make_cifar10, files)),
        "chest X-rays": (x_rays, partial(make_x_rays, files, x_rays)),
        "speech": (speech, partial(make_speech, speech)),
    }
    paths = {}
    for name, (needed, make) in makers.items():
        path = folder / f"{name}.npz"
        if needed is not None and not needed.exists():
            print(f"{name}: left out, because {needed} is missing")
            continue
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.savez(path, **make())
        paths[name] = path
    return paths
