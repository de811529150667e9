"""Compares heads on all features of colour scattering with heads on public projections of them.

Images are the public ones of bench/defaults.py, digits and crops, through scattering in colour:
15,552 features. Test accuracy at delta 1e-5 of `momentum` on all of them, the better of two
normalisations and rates, against `feature_covariance` as it is on `project: k`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from defaults import accuracy
from dpprobe import artifacts
from dpprobe.backbones import loading, scattering
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.projection import signs
from pairs_images import crops, digits
from pairs_rows import Features

RESULTS = Path(__file__).resolve().parent / "results" / "projection.md"
DIMENSION = 15_552
EPSILONS = (0.5, 1.0, 3.0, 10.0)
ROWS = {"crops": (1000, 3000, 8000), "digits": (1000, 5000)}
HELD = {"crops": 2000, "digits": 1797}
WIDTHS = (256, 512, 1024)
MOMENTUM: tuple[dict[str, Any], ...] = (
    {"normalize": "l2", "learning_rate": 16},
    {"normalize": "centred", "learning_rate": 4},
    {"normalize": "centred", "learning_rate": 16},
)


def main() -> None:
    """Measures what is not kept yet; with all of it, writes bench/results/projection.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--kept", type=Path, help="a folder: goes on from what is kept there")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then stop, keeping that")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.kept or Path(scratch)
        numbers = folder / "numbers.json"
        kept = json.loads(numbers.read_text()) if numbers.is_file() else {}
        for name in ROWS:
            wanted = [key for key in cells(name) if key not in kept]
            if not wanted:
                continue
            data = scattered(name, folder)
            for key in wanted:
                if time.monotonic() - started > arguments.seconds:
                    return
                kept[key] = measure(key, data, arguments.seeds, folder)
                print(key, f"{kept[key]:.1f}", flush=True)
                numbers.write_text(json.dumps(kept))
    text = report(kept, arguments.seeds)
    print(text)
    artifacts.write_text(RESULTS, text)


def cells(name: str) -> list[str]:
    """The numbers that are wanted of one set of images, projections first."""
    contenders = [*(str(width) for width in WIDTHS), *(f"m{at}" for at in range(len(MOMENTUM)))]
    return [
        f"{name} {n} {epsilon} {contender}"
        for contender in contenders
        for n in ROWS[name]
        for epsilon in EPSILONS
    ]


@cache
def matrix_of(width: int) -> torch.Tensor:
    return signs(DIMENSION, width)


def measure(key: str, data: Features, seeds: int, folder: Path) -> float:
    """Test accuracy of one contender."""
    _, rows, epsilon, contender = key.split()
    n = int(rows)
    first = data._replace(train=data.train[:n], train_labels=data.train_labels[:n])
    if contender.startswith("m"):
        changes = MOMENTUM[int(contender[1:])]
        return accuracy("momentum", first, float(epsilon), changes, seeds, folder)
    matrix = matrix_of(int(contender))
    short = first._replace(train=first.train @ matrix, test=first.test @ matrix)
    return accuracy("feature_covariance", short, float(epsilon), {}, seeds, folder)


def report(kept: dict[str, float], seeds: int) -> str:
    names = ["momentum", *(f"project: {width}" for width in WIDTHS)]
    lines = [
        "# Heads on all features of colour scattering, and on public projections of them",
        "",
        f"Written by bench/projection.py. Test accuracy in per cent at delta 1e-5, {seeds} seeds:",
        "`momentum` on all 15,552 features, the best of three settings by the accuracy that is",
        "shown, and `feature_covariance` with its defaults on `project: k`.",
        "",
        f"| images | n | epsilon | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    gains: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for name, rows in ROWS.items():
        for n in rows:
            for epsilon in EPSILONS:
                start = f"{name} {n} {epsilon}"
                whole = max(kept[f"{start} m{at}"] for at in range(len(MOMENTUM)))
                short = [kept[f"{start} {width}"] for width in WIDTHS]
                for width, number in zip(WIDTHS, short, strict=True):
                    gains[width].append(number - whole)
                numbers = " | ".join(f"{number:.1f}" for number in (whole, *short))
                lines.append(f"| {name} | {n:,} | {epsilon:g} | {numbers} |")
    lines += [""]
    lines += [
        f"- `project: {width}`: {statistics.mean(lead):+.1f} points over momentum in the mean, "
        f"{min(lead):+.1f} to {max(lead):+.1f}."
        for width, lead in gains.items()
    ]
    return "\n".join(lines) + "\n"


def scattered(name: str, folder: Path) -> Features:
    """Images through scattering in colour at 32 px, in half precision as on disk."""
    path = folder / f"{name}.pt"
    if not path.is_file():
        started = time.process_time()
        backbone = loading.load(scattering.Options(color="rgb"), runtime=Runtime(device="cpu"))
        images = list(digits() if name == "digits" else crops())
        parts = []
        for start in range(0, len(images), 100):
            batch = torch.stack([backbone.transform(one) for one, _ in images[start : start + 100]])
            parts.append(backbone.forward(batch).half())
        torch.save((torch.cat(parts), torch.tensor([int(label) for _, label in images])), path)
        print(f"{name}: {len(images)} images in {time.process_time() - started:.0f} s", flush=True)
    features, labels = torch.load(path)
    features, held = features.float(), HELD[name]
    return Features(features[:-held], labels[:-held], features[-held:], labels[-held:])


if __name__ == "__main__":
    main()
