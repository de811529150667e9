"""Holds momentum's, adam's and lamb's defaults against other settings, on public features alone.

Features are those of bench/defaults.py, and `scattered`: the crops through colour scattering,
15,552 numbers a row, where no matrix of d x d can be released. No private dataset is looked at.

For each (features, epsilon) every option is varied by itself around the default; the best of all
these, by test accuracy, is the oracle's. It is chosen by the accuracy that is reported, of few
seeds, so its lead is overstated by the spread over seeds. `before` is what the head had before its
options followed rules: rows as they are, a constant of 1, a fixed rate. `feature_covariance` stands
beside, where it can be fitted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from defaults import CHECKPOINT, EPSILONS, Features, accuracy, all_features, crops
from dpprobe import artifacts
from dpprobe.backbones import loading, scattering
from dpprobe.backbones.backbone import Runtime

RESULTS = Path(__file__).resolve().parent / "results" / "first_order_defaults.md"
PLAIN: dict[str, Any] = {"normalize": "none", "intercept": 1, "max_grad_norm": 1}
BEFORE: dict[str, dict[str, Any]] = {
    "momentum": {**PLAIN, "learning_rate": 1.0, "epochs": 20},
    "adam": {**PLAIN, "learning_rate": 0.01, "epochs": 40},
    "lamb": {**PLAIN, "learning_rate": 0.001, "epochs": 1},
}
COMMON: tuple[dict[str, Any], ...] = (
    {"normalize": "l2"},
    {"intercept": 1},
    {"max_grad_norm": 0.4},
    {"max_grad_norm": 1},
    {"steps": 20},
    {"steps": 80},
    {"average": "mean"},
)
VARIED: dict[str, tuple[dict[str, Any], ...]] = {
    "momentum": (*COMMON, {"beta": 0.8}),
    "adam": (*COMMON, {"noise_correction": 0.1}),
    "lamb": (*COMMON, {"noise_correction": 0.1}),
}
BESIDE = "feature_covariance"
MOST_FEATURES = 4096


def main() -> None:
    """Prints the tables and writes those of the heads into bench/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default=CHECKPOINT, help="MobileNetV2 safetensors")
    parser.add_argument("--features", type=Path, help="a folder that keeps the features")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--heads", nargs="*", default=[BESIDE, *VARIED])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets = kept(arguments.features, arguments.checkpoint)
    with tempfile.TemporaryDirectory() as cache:
        for head in arguments.heads:
            write(head, table(head, sets, arguments.seeds, Path(cache)))


def kept(folder: Path | None, checkpoint: str) -> dict[str, Features]:
    """Returns all features, from a folder where they are there; makes and keeps them where not."""
    paths = {} if folder is None else {path.stem: path for path in folder.glob("*.safetensors")}
    if paths:
        return {name: Features(**load_file(paths[name])) for name in sorted(paths)}
    sets = {**all_features(checkpoint), "scattered": scattered()}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in sets.items():
            tensors = {key: value.contiguous() for key, value in data._asdict().items()}
            save_file(tensors, folder / f"{name}.safetensors")
    return sets


def scattered(count: int = 5000) -> Features:
    """Crops through colour scattering, as config/scatternet_cifar10.yaml has it."""
    backbone = loading.load(scattering.Options(color="rgb"), runtime=Runtime(device="cpu"))
    images, labels = zip(*crops(count), strict=True)
    parts = []
    for start in range(0, count, 100):
        pixels = np.stack([np.asarray(image) for image in images[start : start + 100]])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
        with torch.inference_mode():
            parts.append(torch.as_tensor(backbone.forward(batch)).float())
    features, held = torch.cat(parts), count // 5
    classes = torch.tensor(labels)
    return Features(features[:-held], classes[:-held], features[-held:], classes[-held:])


def table(head: str, sets: dict[str, Features], seeds: int, cache: Path) -> list[str]:
    beside = head == BESIDE
    columns = ["accuracy"] if beside else ["before", "default", "best", "regret", "the best has"]
    lines = [
        f"## {head}",
        "",
        f"| features | n | d | K | epsilon | {' | '.join(columns)} |",
        "|---" * (5 + len(columns)) + "|",
    ]
    regrets = []
    for name, data in sets.items():
        rows, dimension = data.train.shape
        if beside and dimension > MOST_FEATURES:
            continue
        for epsilon in EPSILONS:
            default = accuracy(head, data, epsilon, {}, seeds, cache)
            values = [f"{default:.1f}"]
            if not beside:
                before = accuracy(head, data, epsilon, BEFORE[head], seeds, cache)
                others = [
                    (accuracy(head, data, epsilon, changes, seeds, cache), changes)
                    for changes in VARIED[head]
                ]
                best, changes = max(others, key=lambda other: other[0])
                regrets.append(max(0.0, best - default))
                what = ", ".join(f"{key} {value}" for key, value in changes.items())
                values = [
                    f"{before:.1f}",
                    f"{default:.1f}",
                    f"{max(best, default):.1f}",
                    f"{regrets[-1]:.1f}",
                    what if regrets[-1] else "nothing else",
                ]
                everything = [f"{value:.1f} {changes}" for value, changes in others]
                print("; ".join(everything))
            lines.append(
                f"| {name} | {rows:,} | {dimension:,} | {data.classes} | {epsilon:g} | "
                f"{' | '.join(values)} |"
            )
            print(head, lines[-1], flush=True)
    if regrets:
        mean, largest = statistics.mean(regrets), max(regrets)
        lines += ["", f"Regret: mean {mean:.1f}, largest {largest:.1f}."]
    return [*lines, ""]


def write(head: str, lines: list[str]) -> None:
    """Replaces a head's section of the results, which holds those of earlier runs."""
    title = "# Defaults of momentum, adam and lamb against other settings"
    sections = {}
    if RESULTS.exists():
        for part in RESULTS.read_text().split("\n## ")[1:]:
            sections[part.split("\n", 1)[0]] = "## " + part.strip("\n").split("\n## ")[0] + "\n"
    sections[head] = "\n".join(lines)
    order = [name for name in (BESIDE, *VARIED) if name in sections]
    text = "\n".join([title, "", NOTES, "", *(sections[name] for name in order)])
    artifacts.write_text(RESULTS, text)


NOTES = """\
Written by bench/first_order_defaults.py. Test accuracy in per cent at delta 1e-5, of two seeds."""


if __name__ == "__main__":
    main()
