"""A study with a release, and small stored features for it, as a `ReleaseTask` needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.release.make import ReleaseTask
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from tests.support.feature_stores import write_split

ROWS = {"train": 300, "test": 120}
CLASSES, DIMENSION = ("a", "b", "c"), 6
PROBE = {"sha256": "0" * 64, "norm": 1.0, "sample": [0.5]}

OF_IMAGES = {"source": "sklearn", "name": "digits", "split_by": "id"}
OF_PATIENTS = {
    "source": "csv",
    "root": ".",
    "train": "rows.csv",
    "label_column": "kind",
    "class_names": CLASSES,
    "unit_column": "who",
    "split_by": "id",
}
METHODS: dict[str, Any] = {
    "auto": {"head": "auto"},
    "balanced": {"head": "auto", "balanced": True},
    "covariance": {"head": "feature_covariance", "normalize": "l2", "steps": 2},
    "sums": {"head": "prototypes", "normalize": "l2"},
    "steps": {"head": "sgd", "engine": "exact", "batch_size": 30, "steps": 5},
    "search": {
        "head": "tuned",
        "base": {"head": "prototypes", "normalize": "l2"},
        "search": {"max_row_norm": [0.5, 1.0]},
        "trials": 3,
    },
}


def study(folder: Path, **release: Any) -> Study:
    """Returns a study with the release `first` of the method `covariance`, changed by `release`.

    `of_patients` makes patients the units. `called` is the dataset's name, `more` its further
    options.
    """
    called, more = release.pop("called", "toy"), release.pop("more", {})
    named = release.pop("name", "first")
    limits = {name: release.pop(name, None) for name in ("max_epsilon", "max_risk")}
    of_patients = release.pop("of_patients", False)
    return load_study(
        {
            "study": "unit",
            "datasets": {called: {**(OF_PATIENTS if of_patients else OF_IMAGES), **more}},
            "backbones": {"pixels": {"family": "pixels"}},
            "methods": METHODS,
            "epsilons": [1],
            "seeds": 1,
            "delta": 1e-4,
            "privacy": limits,
            "releases": {
                named: {
                    "dataset": called,
                    "backbone": "pixels",
                    "method": "covariance",
                    "epsilon": 2,
                    **release,
                }
            },
            "data_dir": str(folder / "data"),
            "results_dir": str(folder / "results"),
        }
    )


def write_features(
    folder: Path,
    *,
    shift: float = 0.0,
    copies: dict[str, dict[str, Any]] | None = None,
    test_copies: dict[str, dict[str, Any]] | None = None,
    across: int | None = None,
    images_per_patient: int | None = None,
    fingerprint: str = "secret-fingerprint",
    shares: tuple[int, ...] = (1, 1, 1),
    shared_ids: int = 0,
) -> None:
    """Writes two small splits of three separable classes.

    Args:
      images_per_patient: None for rows without patients.
      shares: number of consecutive rows of each class.
      copies, test_copies: counts of copies within a split, as in manifests.
      across: number of images that are in both splits; None if the splits were not compared.
      shared_ids: number of ids that are in both splits.
    """
    for number, (split, rows) in enumerate(ROWS.items()):
        generator = np.random.default_rng(number)
        turn = np.repeat(np.arange(len(CLASSES)), shares)
        labels = turn[np.arange(rows) % len(turn)].astype(np.int64)
        features = generator.normal(size=(rows, DIMENSION)) + shift
        features[np.arange(rows), labels] += 4.0
        sides = ["train" if row < shared_ids else split for row in range(rows)]
        ids, units = [f"secret-id-{side}-{row}" for row, side in enumerate(sides)], None
        if images_per_patient is not None:
            units = [f"{split} {row // images_per_patient}" for row in range(rows)]
        write_split(
            folder / split,
            features,
            labels,
            ids=ids,
            units=units,
            probe=PROBE,
            copies=copies if split == "train" else test_copies,
            promise=PromiseFacts(copies_across=across),
            class_names=CLASSES,
            dataset_fingerprint=fingerprint,
            backbone="pixels",
            backbone_options={
                "family": "pixels",
                "color": "gray",
                "size": None,
                "mean": 0.0,
                "std": 1.0,
            },
            preprocessing={"color": "gray"},
            precision="float32",
        )


def release(
    folder: Path,
    made: Study,
    name: str = "first",
    *,
    benchmark: Path | None = None,
    audit: Path | None = None,
    cache: Path | None = None,
) -> Path:
    """Makes a release of the study from the features in the folder; returns the bundle's folder."""
    output = folder / "results/releases" / name
    ReleaseTask(
        study=made,
        name=name,
        output=output,
        audit=audit,
        benchmark=benchmark,
        train=folder / "train/manifest.json",
        test=folder / "test/manifest.json",
        cache=cache or folder / "results/calibration",
    ).run()
    return output
