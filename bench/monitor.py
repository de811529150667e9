"""Measures `dpprobe predict --monitor` on chest X-rays: `bench/results/monitor.md`.

    python bench/monitor.py TRAIN_MANIFEST TEST_MANIFEST [--repeats 40] [--images 200]

The manifests are stored features of config/chest_xray_fine_tuning_local.yaml. Patients are the
units. A private head is trained on 1,200 patients of the training split at epsilon 1, and the other
patients of that split are the reference. New images are those of the test split, changed in some
way, or other pictures. Each repetition draws the noise and the new patients again.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.metrics import roc_auc_score

from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import TYPICAL, Heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import compute_probabilities
from dpprobe.heads.second_order import estimate_spectrum
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.monitor import compare_images as monitor
from dpprobe.release.parts.monitor.compare_images import (
    UNUSUAL,
    Watch,
    find_directions,
    measure_unusualness,
)
from dpprobe.release.parts.monitor.measure import monitor_head, monitor_mechanisms
from dpprobe.training.job_features import JobFeatures

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DATA = ROOT / "bench/results/monitor.md", ROOT.parent / "shared/data"
DELTA, TRAINED, EPSILONS, SIZES = 1e-5, 1200, (0.5, 1.0, 2.0), (50, 200)
NORM = 37.23  # of the backbone's probe
Rows = npt.NDArray[np.float32]

CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "contrast × 0.7": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "contrast × 1.5": lambda image: ImageEnhance.Contrast(image).enhance(1.5),
    "black frame of 12%": lambda image: ImageOps.expand(
        image, (image.width // 8, image.height // 8), fill=0
    ),
    "blurred by 2 pixels": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "inverted": ImageOps.invert,
    "turned by 90°": lambda image: image.rotate(90, expand=True),
}


def load_network() -> Backbone:
    options = {
        "family": "timm", "model": "mobilenetv2_100", "model_args": {"pad_type": "same"},
        "checkpoint": str(DATA / "weights/mobilenetv2_100_imagenet.safetensors"),
        "preprocessing": {"crop": "centre", "crop_pct": 1.0, "interpolation": "bicubic",
                          "mean": [0.5] * 3, "std": [0.5] * 3, "size": 128},
    }  # fmt: skip
    runtime = Runtime(device="cpu", precision="float32")
    return loading.load_backbone(backbone_options(options), runtime=runtime)


@torch.inference_mode()
def compute_features(network: Backbone, images: list[Image.Image]) -> Rows:
    """Returns features as the store has them, rounded to float16."""
    parts = []
    for first in range(0, len(images), 32):
        block = [network.transform(image.convert("RGB")) for image in images[first : first + 32]]
        parts.append(network.forward(torch.stack(block)).float().numpy())
    return np.concatenate(parts).astype(np.float16).astype(np.float32)


def read_images(name: str, kept: Callable[[Mapping[str, Any]], bool], count: int) -> Any:
    """Returns the first rows of a table that are kept, with their images."""
    found = []
    for batch in pq.ParquetFile(DATA / name).iter_batches(200):
        for row in filter(kept, batch.to_pylist()):
            found.append((row, Image.open(io.BytesIO(row["image"]["bytes"]))))
            if len(found) == count:
                return found
    return found


def read_shifts(test: FeatureStore, count: int) -> dict[str, tuple[Rows, list[str]]]:
    """Returns the features of changed test images and of other pictures, with their patients."""
    network, patients = load_network(), set(test.units or ())
    rows = read_images("chest_xray/images.parquet", lambda row: row["patient"] in patients, count)
    owners = [str(row["patient"]) for row, _ in rows]
    shifts = {}
    for name, change in CHANGES.items():
        images = [change(image.convert("L")) for _, image in rows]
        shifts[name] = (compute_features(network, images), owners)
    for name, title in {"cifar10": "photos (CIFAR-10)", "mnist": "digits (MNIST)"}.items():
        others = [image for _, image in read_images(f"{name}/test.parquet", bool, count)]
        shifts[title] = (compute_features(network, others), list(map(str, range(count))))
    return shifts


def plan_for(mechanisms: Any, n: int, epsilon: float, cache: Path) -> Plan:
    return calibrate(
        mechanisms, n=n, epsilon=epsilon, delta=DELTA, accountant="pld", cache=cache,
        unit="patient",
    )  # fmt: skip


def train_head(
    rows: Rows, labels: npt.NDArray[Any], owners: list[str], cache: Path, normalize: str
) -> tuple[Heads, torch.Tensor, float]:
    """Returns a private head, its released second moment, and the deviation of that's noise."""
    options = method_options({"head": "feature_covariance", "normalize": normalize})
    units = Units.number_units(owners)
    data = TrainingSet(
        torch.from_numpy(rows), torch.from_numpy(labels), num_classes=2, device="cpu", units=units
    )
    plan = plan_for(options.list_mechanisms(units.count), units.count, 1.0, cache)
    kept: dict[str, torch.Tensor] = {}
    heads = fit_heads(options, data, plan, [0], kept=kept, entropy=SystemEntropy())
    item = plan.find_mechanism("covariance")
    return heads, kept["covariance"], item.noise_multiplier * item.sensitivity


def compare_scores(
    heads: Mapping[str, tuple[Heads, torch.Tensor, float]], rows: Rows, usual: Rows,
    shifts: Mapping[str, tuple[Rows, list[str]]],
) -> list[list[str]]:  # fmt: skip
    """Returns a line per score: its area under the ROC curve of test images and others."""
    plain, moment, deviation = heads["l2"]
    centred = heads["centred"][0]
    centre = centred.transforms[0].arrays["centre"].numpy()
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    exact = torch.from_numpy(units.T.astype(np.float64) @ units)
    spectrum = estimate_spectrum(moment[:-1, :-1], deviation)
    ridge = deviation * np.sqrt(len(spectrum.values))
    weights = np.sqrt((spectrum.values / (spectrum.values + ridge)).numpy())
    soft = (spectrum.vectors.numpy() * weights).T.astype(np.float32)
    bases = {
        "second moment, 64 eigenvectors": (plain, find_directions(None, moment, dimension=1280)),
        "second moment, ridge Mahalanobis": (plain, soft),
        "centre": (centred, find_directions(centre, None, dimension=1280)),
        "centre and second moment": (
            centred, find_directions(centre, heads["centred"][1], dimension=1280)
        ),
        "without noise, 64 eigenvectors": (plain, find_directions(None, exact, dimension=1280)),
    }  # fmt: skip
    lines = []
    for name, (head, basis) in bases.items():
        assert basis is not None
        transform = head.transforms[0]
        first = measure_unusualness(usual, transform, basis)
        areas = [
            roc_auc_score(
                np.repeat([0, 1], [len(first), len(each)]),
                np.concatenate([first, measure_unusualness(each, transform, basis)]),
            )
            for each, _ in shifts.values()
        ]
        lines.append([name, *(f"{area:.2f}" for area in areas)])
    return lines


def show_rows(rows: Rows, labels: npt.NDArray[Any], owners: list[str]) -> JobFeatures:
    _, units = np.unique(owners, return_inverse=True)
    tensor = torch.from_numpy(rows)
    data = TrainingSet(tensor, torch.from_numpy(labels), num_classes=2, device="cpu", units=None)
    return JobFeatures(
        train=data, test=tensor, test_labels=labels, test_ids=owners, test_groups={},
        test_accepted=None, test_units=units.astype(np.int64), class_names=("normal", "pneumonia"),
    )  # fmt: skip


def make_bundle(head: Heads, reference: JobFeatures, plan: Plan) -> Any:
    """Returns what `Watch` reads of a bundle."""
    block = monitor_head(
        head, reference, plan, SystemEntropy(), probe_norm=NORM, calibration=None, link="softmax",
        composition="",
    )  # fmt: skip
    assert head.typical is not None
    facts = SimpleNamespace(name="chest", class_names=reference.class_names)
    return SimpleNamespace(
        statement={"monitor": block}, facts=facts, arrays={TYPICAL: head.typical[0]}
    )


def watch_once(bundle: Any, head: Heads, rows: Rows, owners: list[str]) -> monitor.Report:
    names = list(map(str, range(len(rows))))
    watch = Watch(bundle, head.transforms[0], dict(zip(names, owners, strict=True)))
    watch.add_rows(names, compute_probabilities(head, rows, "softmax"), rows)
    return watch.compare()


def draw_patients(
    generator: np.random.Generator, owners: npt.NDArray[Any], allowed: npt.NDArray[Any], size: int
) -> npt.NDArray[np.intp]:
    """Returns the rows of some patients, drawn among those that are allowed."""
    chosen = generator.choice(allowed, min(size, len(allowed)), replace=False)
    return np.flatnonzero(np.isin(owners, chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("manifests", type=Path, nargs=2)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--images", type=int, default=200)
    arguments = parser.parse_args()
    train, test = (FeatureStore(path) for path in arguments.manifests)
    shifts = read_shifts(test, arguments.images)
    rows, labels, owners = train.read(), np.array(train.labels), np.array(train.units)
    generator = np.random.default_rng(0)
    # names tell the class, so they must not decide who is trained on
    trained = np.isin(owners, generator.choice(np.unique(owners), TRAINED, replace=False))
    usual, kinds, patients = test.read(), np.array(test.labels), np.array(test.units)
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        heads = {
            normalize: train_head(
                rows[trained], labels[trained], owners[trained].tolist(), cache, normalize
            )
            for normalize in ("l2", "centred")
        }
        scores = compare_scores(heads, rows[trained], usual, shifts)
        head, moment, _ = heads["l2"]
        typical = find_directions(None, moment, dimension=rows.shape[1])
        assert typical is not None
        head = replace(head, typical=typical[None])
        reference = show_rows(rows[~trained], labels[~trained], owners[~trained].tolist())
        n = len(np.unique(owners[~trained]))
        whole = {"nothing": (usual, patients.tolist()), **shifts}
        sick = np.unique(patients[kinds == 1])
        whole["nothing but pneumonia"] = (
            usual[np.isin(patients, sick)], patients[np.isin(patients, sick)].tolist()
        )  # fmt: skip
        plans = {
            epsilon: plan_for(monitor_mechanisms(unusual=True), n, epsilon, cache)
            for epsilon in EPSILONS
        }
        for name, (features, of) in whole.items():
            whose = np.array(of)
            for size in SIZES:
                if size > len(np.unique(whose)):
                    continue
                line = [name, str(size)]
                for plan in plans.values():
                    alarms: list[str] = []
                    for _ in range(arguments.repeats):
                        bundle = make_bundle(head, reference, plan)
                        drawn = draw_patients(generator, whose, np.unique(whose), size)
                        report = watch_once(bundle, head, features[drawn], whose[drawn].tolist())
                        differ = [
                            key for key, one in report.tables.items()
                            if one.verdict == monitor.DIFFERENT
                        ]  # fmt: skip
                        alarms += ["any"] * bool(differ) + [UNUSUAL] * (UNUSUAL in differ)
                    share = [
                        100 * alarms.count(key) / arguments.repeats for key in ("any", UNUSUAL)
                    ]
                    line.append(f"{share[0]:.0f} ({share[1]:.0f})")
                print(line, flush=True)
                lines.append(line)
    write_page(lines, scores, list(shifts), n, arguments.repeats)


def write_page(
    lines: list[list[str]], scores: list[list[str]], names: list[str], n: int, repeats: int
) -> None:
    def make_table(head: list[str], rows: list[list[str]]) -> str:
        parts = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(part)} |" for part in parts)

    heading = ["what changed", "new patients", *(f"ε = {epsilon:g} (%)" for epsilon in EPSILONS)]
    parts = [
        "# Monitored releases",
        "`bench/monitor.py`: chest X-rays through MobileNetV2 at 128 pixels, patients as units. "
        f"A private head at ε = 1 of {TRAINED:,} patients; {n:,} other patients are the test "
        "units. New images are of a third group of patients.",
        "## How often `--monitor` warns",
        f"Percent of {repeats} repetitions, each with new noise and other new patients. In "
        'brackets: warnings by the table of unusualness. The line "nothing" has the rate of '
        "false alarms, at most 1% by design.",
        make_table(heading, lines),
        "## Which score of unusualness",
        "AUC of telling one changed image from one test image. All but the last line are "
        "functions of what a head released at ε = 1.",
        make_table(["score", *names], scores),
    ]
    RESULTS.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
