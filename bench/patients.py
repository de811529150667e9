"""One CSV of patients with 1 to 20 images each, under both units of privacy, run by Snakemake.

Each patient is one real CIFAR-10 picture of a class and further views of it: crops, turned, lighter
or darker. The two datasets of the study differ in `unit` alone. What is measured: bench/README.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from PIL import Image, ImageEnhance, ImageOps

from dpprobe import artifacts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/patients.md"
SHARED = ROOT.parent / "shared/data"
MOST = 20
EPSILONS = ["0.5", "1", "8", "inf"]
METHODS: dict[str, dict[str, Any]] = {
    "feature_covariance": {"head": "feature_covariance"},
    "least_squares": {"head": "least_squares"},
    "prototypes": {"head": "prototypes"},
    "momentum": {"head": "momentum"},
    "sgd": {"head": "sgd"},
    "nonprivate": {"head": "nonprivate"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=800, help="to train on")
    parser.add_argument("--tested", type=int, default=300, help="patients to test on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/patients")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    folder = options.folder.resolve()
    classes, images = write_images(folder, {"train": options.patients, "test": options.tested})
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump(study_of(folder, classes, options.seeds)))
    subprocess.run(
        [
            Path(sys.executable).with_name("snakemake"), "--cores", "all", "--quiet", "all",
            "--configfile", study, "--directory", folder, "summaries",
        ],
        cwd=ROOT, check=True,
    )  # fmt: skip
    text = markdown(folder, images)
    print(text)
    if not options.no_write:
        artifacts.write_text(RESULTS, text)


def write_images(folder: Path, patients: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """Writes the pictures and the CSV that lists them; returns the classes, and images a split."""
    rows: list[dict[str, Any]] = []
    for seed, (split, count) in enumerate(patients.items()):
        generator = np.random.default_rng(seed)
        table = pq.read_table(SHARED / f"cifar10/{split}.parquet").slice(0, count)
        ours = json.loads((table.schema.metadata or {})[b"huggingface"])
        classes = ours["info"]["features"]["label"]["names"]
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(table.select(["image", "label"]).to_pylist()):
            picture = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
            for view, seen in enumerate(views(picture, generator)):
                name = f"{split}/{number:05d}-{view:02d}.png"
                seen.save(folder / "images" / name)
                rows.append(
                    {
                        "file": name,
                        "split": split,
                        "kind": classes[row["label"]],
                        "patient": f"{split}-{number:05d}",
                    }
                )
    with (folder / "images/patients.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return classes, {split: sum(row["split"] == split for row in rows) for split in patients}


def views(picture: Image.Image, generator: np.random.Generator) -> Iterator[Image.Image]:
    """Yields a picture and up to 19 more views of it."""
    yield picture
    for _ in range(int(generator.integers(0, MOST))):
        left, top = generator.integers(0, 7, size=2)
        view = picture.crop((left, top, left + 26, top + 26)).resize(picture.size)
        view = ImageOps.mirror(view) if generator.random() < 0.5 else view
        view = view.rotate(float(generator.uniform(-15, 15)), resample=Image.Resampling.BILINEAR)
        yield ImageEnhance.Brightness(view).enhance(float(generator.uniform(0.7, 1.3)))


def study_of(folder: Path, classes: list[str], seeds: int) -> dict[str, Any]:
    dataset = {
        "source": "csv", "root": str(folder / "images"), "train": "patients.csv",
        "split_column": "split", "path_column": "file", "label_column": "kind",
        "class_names": classes, "unit_column": "patient", "missing_classes": "warn",
    }  # fmt: skip
    backbones = yaml.safe_load((ROOT / "config/cifar10_local.yaml").read_text())["backbones"]
    weights = SHARED / "weights/mobilenetv2_100_imagenet.safetensors"
    backbones["mobilenetv2"]["checkpoint"] = str(weights)
    return {
        "study": "patients",
        "datasets": {
            "patient": dataset,
            "image": dataset | {"unit": "image", "max_images_per_patient": MOST},
        },
        "backbones": backbones,
        "methods": METHODS,
        "epsilons": EPSILONS,
        "seeds": seeds,
    }


def markdown(folder: Path, images: Mapping[str, int]) -> str:
    summaries = [
        pd.read_parquet(folder / f"results/summary/{name}.parquet") for name in ("patient", "image")
    ]
    table = pd.concat(summaries).groupby(["method", "epsilon_token", "dataset"])["accuracy"]
    means, deviations = 100 * table.mean(), 100 * table.std()
    n = {name: statement(folder, name, "sgd", "1")["n"] for name in ("patient", "image")}
    lines = [
        "# Patients and images as units of privacy\n",
        f"{n['patient']} patients with {images['train']:,} training images, 1 to {MOST} each, and "
        f"{images['test']:,} test images of other patients: CIFAR-10 pictures and further views of "
        "them, through MobileNetV2. One CSV; the two datasets differ in `unit`. Accuracy in "
        "percent, each test patient counted once, mean and standard deviation over seeds; delta "
        f"1e-5 for either unit. How it is measured: [bench/README.md](../README.md).\n",
        f"| method | epsilon | `unit: patient` | `unit: image` | worth to a patient of {MOST} |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        for epsilon in EPSILONS:
            if (method, epsilon, "image") not in means:
                continue
            cells = [
                f"{means[method, epsilon, name]:.1f} ± {deviations[method, epsilon, name]:.1f}"
                for name in ("patient", "image")
            ]
            patients = statement(folder, "image", method, epsilon)["patients"]
            worth = patients["epsilon"]
            shown = "none" if worth is None else f"{float(worth):,.4g}"
            lines.append(f"| {method} | {epsilon} | {cells[0]} | {cells[1]} | {shown} |")
    lines += ["\n## The statements of sgd at epsilon 1\n", "| | `unit: patient` | `unit: image` |"]
    lines += ["|---|---|---|"]
    sides = [statement(folder, name, "sgd", "1") for name in ("patient", "image")]
    for key in ("unit_of_privacy", "n", "patients", "promise"):
        lines.append(f"| {key} | {sides[0][key]} | {sides[1][key]} |")
    (of_patients,), (of_images,) = (side["mechanisms"] for side in sides)
    for key in ("sensitivity", "sensitivity_of", "sampling", "sample_rate", "noise_multiplier"):
        lines.append(f"| {key} | {of_patients[key]} | {of_images[key]} |")
    return "\n".join(lines) + "\n"


def statement(folder: Path, dataset: str, method: str, epsilon: str) -> dict[str, Any]:
    path = folder / f"results/cells/{dataset}/mobilenetv2/{method}/eps-{epsilon}/privacy.json"
    values: dict[str, Any] = json.loads(path.read_text())
    return values


if __name__ == "__main__":
    main()
