"""Prints the option `copies` for public data in a folder, to be merged into studies of config/.

    export DPPROBE_TEST_DATA=FOLDER
    python bench/copies.py > copies.yaml
    snakemake --cores all --configfile config/cifar10_sgd.yaml copies.yaml

The folder has cifar10/ and mnist/ with train.parquet and test.parquet, chest_xray/images.parquet,
and weights/mobilenetv2_100_imagenet.safetensors. Missing files are left out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

VARIABLE = "DPPROBE_TEST_DATA"
CHECKPOINT = Path("weights", "mobilenetv2_100_imagenet.safetensors")
# Weights of TF-slim in timm's names, with folded batch norm. The catalog's entry has other weights.
MOBILENETV2 = {
    "model": "mobilenetv2_100",
    "checkpoint_sha256": "5d82b74ce8cb049b3ce48bfb4f6acf3735c08a34e18712622fc53716c1a9f69f",
    "model_args": {"pad_type": "same"},
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"},
}


def find_data() -> Path | None:
    """Returns the folder that DPPROBE_TEST_DATA names; None if the variable is not set."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else None


def require_file(*parts: str) -> Path:
    """Returns the path of a file in the data folder; exits with a message if it is missing."""
    folder, place = find_data(), Path(*parts)
    if folder is None:
        sys.exit(f"{VARIABLE}: not set; name the folder that has {place}")
    if not (folder / place).is_file():
        sys.exit(f"{VARIABLE}: {folder} has no {place}; put the file there")
    return folder / place


def find_checkpoint() -> Path | None:
    """Returns the file of MobileNetV2's weights; if missing, prints a message and returns None."""
    folder = find_data()
    if folder is None or not (folder / CHECKPOINT).is_file():
        print(f"{VARIABLE}: no {CHECKPOINT}, so weights are random", file=sys.stderr)
        return None
    return folder / CHECKPOINT


def list_copies(folder: Path) -> dict[str, Mapping[str, Mapping[str, Any]]]:
    """Returns the block `copies` for the files that a folder has."""
    splits = {
        name: {split: str(folder / name / f"{split}.parquet") for split in ("train", "test")}
        for name in ("cifar10", "mnist")
    }
    datasets: dict[str, Any] = {
        name: {"source": "parquet", **files}
        for name, files in splits.items()
        if all(Path(file).is_file() for file in files.values())
    }
    if (images := folder / "chest_xray/images.parquet").is_file():
        people = {"unit_column": "patient", "split_by": "id", "group_columns": ["kind"]}
        datasets["chest_xray_patients"] = {"source": "parquet", "train": str(images), **people}
    weights = folder / CHECKPOINT
    backbones = {"mobilenetv2": {"checkpoint": str(weights), **MOBILENETV2}}
    return {"datasets": datasets, "backbones": backbones if weights.is_file() else {}}


if __name__ == "__main__":
    data = require_file("cifar10", "train.parquet").parents[1]
    print(yaml.safe_dump({"copies": list_copies(data)}, sort_keys=False), end="")
