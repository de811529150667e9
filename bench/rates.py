"""Images a second of one CPU core through networks: the reproduction page estimates hours by it.

Random weights, random numbers in place of images at the size that the catalog extracts at, one
thread, processor time: the forward pass alone, as extraction takes it. Weights change no rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from dpprobe.artifacts import write_json
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.study import catalog

RESULTS = Path(__file__).resolve().parent / "results" / "rates.json"
SIDE = 32  # of the images that are scattered
SCATTERING = {"family": "scattering", "J": 2, "L": 8, "size": SIDE, "color": "rgb"}
WITHOUT_WEIGHTS = {"pretrained": False}
BACKBONES = ("resnet50", "vit_b16", "clip_vit_b32", "vit_l16", "nfnet_f0", "scatternet")


def main() -> None:
    """Prints the rates and writes them to bench/results/rates.json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", default=BACKBONES)
    parser.add_argument("--images", type=int, default=8, help="in a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates = {}
    for name in arguments.names:
        seconds = measure(name, arguments.images, arguments.rounds)
        rates[name] = {"images": arguments.images, "core_seconds": round(seconds, 4)}
        print(f"{name}: {arguments.images / seconds:.1f} images a second and core", flush=True)
    if not arguments.no_write:
        write_json(RESULTS, rates)


def measure(name: str, images: int, rounds: int) -> float:
    """Returns the median processor time of a batch, after one that is not counted."""
    backbone = loading.load_backbone(backbone_options(options(name)), runtime=Runtime(device="cpu"))
    resolved = backbone.preprocessing
    side = [SIDE, SIDE] if name == "scatternet" else resolved.get("size", [])
    shape = (images, *(resolved.get("input_size") or [3, *side]))
    batch = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(rounds + 1):
        started = time.process_time()
        backbone.forward(batch)
        times.append(time.process_time() - started)
    return statistics.median(times[1:])


def options(name: str) -> dict[str, object]:
    """Returns the options of a backbone of the catalog without its weights."""
    if name == "scatternet":
        return SCATTERING
    values = dict(catalog.backbone_entries()[name]["options"])
    architecture = str(values["model"]).split(".", maxsplit=1)[0]
    return values | {"model": architecture} | WITHOUT_WEIGHTS


if __name__ == "__main__":
    main()
