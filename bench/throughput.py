"""Measures images per second and core in private steps, for table 8 of Mehta et al. 2022.

    .venv/bin/python bench/throughput.py --no-write          # two small networks, minutes
    .venv/bin/python bench/throughput.py published --rows 2  # published networks, an hour of a core
    .venv/bin/python bench/throughput.py published --device cuda --precision bfloat16 --rows 64

A step of DP-LAMB is the clipped sum of a batch's gradients, Gaussian noise and an update. *Full*
trains the whole network. *Last layer* passes every image through the frozen network again, as with
augmentation, and trains the head. The sum over a few images is timed separately from the update,
which counts once per batch. Table 8 states no batch size, so the default comes from the paper's
other tables. Weights and images are random, because rates do not depend on them. A measurement that
needs more memory than is free is skipped with a message.

Rates are per second of processor time on a CPU, and per second of wall time on a GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fine_tune
import report
from clock import Clock
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.exhibits.published import read_published
from dpprobe.files.json_files import read_json, write_json
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
from dpprobe.finetune.network_optimisers import OPTIMISERS
from dpprobe.study import catalog

RESULTS = Path(__file__).resolve().parent / "results" / "throughput.json"
WAYS = {
    "full": fine_tune.OURS,
    "last": "last layer, with forward pass",
}
CLASSES = 1000  # the number of ImageNet's classes
# Copies of the parameters in memory at a step's peak: in the network and in the loaded backbone,
# gradients, sum of gradients, two moments of LAMB and LAMB's direction.
FULL_COPIES, LAST_COPIES, FREE_PART = 7, 3, 0.8


class Network(NamedTuple):
    """A network that is measured.

    Attributes:
      options: the backbone's options, without family and weights.
      row: the row of table 8 with the published network; None for small networks.
      unlike: differences from the published network.
    """

    options: Mapping[str, Any]
    row: str | None = None
    unlike: tuple[str, ...] = ()


def _catalog(name: str, size: int) -> dict[str, Any]:
    """Returns the options of a backbone of the catalog, for images of `size` pixels."""
    values = dict(catalog.backbone_entries()[name]["options"])
    # the name of the weights, after the point, is removed, because no weights are fetched
    architecture = str(values["model"]).partition(".")[0]
    return values | {"model": architecture, "preprocessing": {"size": size}}


NETWORKS: Mapping[str, Network] = {
    "mobilenetv2": Network({"model": "mobilenetv2_100", "preprocessing": {"size": 128}}),
    "vit_tiny": Network({"model": "vit_tiny_patch16_224"}),
    "vit_b16": Network(_catalog("vit_b16", 384), "ViT-B/16"),
    "vit_l16": Network(_catalog("vit_l16", 384), "ViT-L/16"),
    "vit_h14": Network(_catalog("vit_h14", 378), "ViT-H/14", ("378 px, not 384",)),
    "bit_resnet50x3": Network(
        _catalog("bit_resnet50x3", 384), "ResNet50x4 (BiT)", ("ResNet50x3, not ResNet50x4",)
    ),
    "bit_resnet152x4": Network(_catalog("bit_resnet152x4", 384), "ResNet152x4 (BiT)"),
}


class Case(NamedTuple):
    """A measurement by one process."""

    network: str
    way: str
    rows: int
    rounds: int
    device: str
    precision: str
    threads: int
    optimiser: str


class Timing(NamedTuple):
    """Results of a process's measurement.

    Attributes:
      sums: seconds of the clipped sum of a case's rows, the median over rounds.
      update: seconds of noise and optimiser, the median over rounds.
      side: pixels per side of the images.
    """

    sums: float
    update: float
    side: int


def main(words: Sequence[str] | None = None) -> None:
    """Measures networks, prints their rates, and writes them to bench/results/throughput.json."""
    arguments = _arguments(words)
    measured: dict[str, Any] = {}
    for name in arguments.networks:
        measured[name] = measure_network(name, arguments)
        print(describe_network(name, measured[name]), flush=True)
    if arguments.write:
        before = read_json(arguments.output) if arguments.output.exists() else {}
        write_json(arguments.output, dict(sorted({**before, **measured}.items())))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK",
        help=f"some of {', '.join(NETWORKS)}; `published`: the networks of table 8; default: small",
    )
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--rows", type=int, default=4, help="images at once; %(default)s")
    parser.add_argument("--batch", type=int, default=2**20, help="images of a step; %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="steps, after one that is not timed")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimiser", default="lamb", choices=list(OPTIMISERS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--no-write", dest="write", action="store_false")
    arguments = parser.parse_args(words)
    published = [name for name, network in NETWORKS.items() if network.row]
    named = arguments.networks or [name for name in NETWORKS if name not in published]
    arguments.networks = [
        each for name in named for each in (published if name == "published" else [name])
    ]
    if unknown := [name for name in arguments.networks if name not in NETWORKS]:
        parser.error(f"no network {unknown[0]!r}; choose of {', '.join(NETWORKS)} or published")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU; leave it out to measure the processor")
    return arguments


def measure_network(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures a network in each way that memory allows, each in a separate process."""
    network = NETWORKS[name]
    entry: dict[str, Any] = {
        "model": network.options["model"],
        "row": network.row,
        "unlike": list(network.unlike),
        "machine": describe_machine(arguments.device, arguments.threads),
        "settings": f"DP-{arguments.optimiser.upper()}, {arguments.precision}, "
        f"{arguments.rows} images at once, {arguments.batch:,} a step, medians of "
        f"{arguments.rounds} rounds",
        "rates": {},
    }
    for way in arguments.ways:
        asked = {field: getattr(arguments, field) for field in Case._fields[2:]}
        case = Case(name, way, **asked)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                timing = pool.submit(time_steps, case).result()
            except (RuntimeError, MemoryError, BrokenProcessPool) as error:
                print(f"{name}, {way}: not measured: {str(error)[:200]}", file=sys.stderr)
                continue
        entry["side"] = timing.side
        an_image = timing.sums / arguments.rows + timing.update / arguments.batch
        entry["rates"][way] = float(f"{1 / an_image:.3g}")
    return entry


def describe_machine(device: str, threads: int) -> str:
    """Names the measured device: a GPU, or the processor with its cores."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{threads} of {os.cpu_count()} cores of {report.cpu_model()}"


def describe_network(name: str, entry: Mapping[str, Any]) -> str:
    rates = entry["rates"]
    parts = [f"{way} {rate:g}" for way, rate in rates.items()]
    if {"full", "last"} <= rates.keys():
        parts.append(f"last layer over full {rates['last'] / rates['full']:.1f}x")
    text = f"{name} ({entry['model']}), images a second on {entry['machine']}: {', '.join(parts)}"
    if entry["row"]:
        numbers = read_published().select_numbers(paper="mehta_2022", table="8", row=entry["row"])
        text += f" (published: {', '.join(f'{n.column_title} {n.text}' for n in numbers)})"
    return text


def time_steps(case: Case) -> Timing:
    """Times a case's steps, after a warm-up step.

    Raises:
      RuntimeError: if the step needs more memory than is free.
    """
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    clock = Clock(case.device)
    updates: list[float] = []
    step, side = make_step(case, clock, updates)
    step()
    updates.clear()
    steps = [clock.seconds(step) for _ in range(case.rounds)]
    sums = [whole - update for whole, update in zip(steps, updates, strict=True)]
    return Timing(statistics.median(sums), statistics.median(updates), side)


def make_step(case: Case, clock: Clock, updates: list[float]) -> tuple[Callable[[], object], int]:
    """Returns the function that takes a case's step, and the pixels per side of its images.

    Args:
      updates: gets the seconds of each step's noise and optimiser.
    """
    options = {"family": "timm", **NETWORKS[case.network].options, "pretrained": False}
    backbone = loading.load_backbone(backbone_options(options), runtime=Runtime(device="cpu"))

    def build(tune: str) -> FineTunedNetwork:
        return fine_tune.build(backbone, tune, case.device, classes=CLASSES)

    whole = build("all")
    numbers = sum(parameter.numel() for parameter in whole.module.parameters())
    check_memory(4 * numbers * (FULL_COPIES if case.way == "full" else LAST_COPIES), case)
    labels = (torch.arange(case.rows) % CLASSES).to(case.device)
    made = fine_tune.Case(
        case.network, "all", case.rows, WAYS[case.way], case.device, case.precision, case.threads
    )
    side = whole.shape[-1]
    if case.way == "full":
        inputs = fine_tune.make_inputs(whole, made)
        update = make_update(whole, case.optimiser, clock, updates)
        return fine_tune.ours_step(whole, inputs, labels, case.precision, update), side
    head = build("head")
    update = make_update(head, case.optimiser, clock, updates)
    return fine_tune.last_layer_step(made, head, whole, labels, update), side


def check_memory(needed: int, case: Case) -> None:
    """Raises RuntimeError, with the bytes needed and free, if work would fill the free memory."""
    if case.device == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    if needed > FREE_PART * free:
        raise RuntimeError(
            f"takes about {needed / 1e9:.0f} GB beside activations, {free / 1e9:.0f} GB are free"
        )


def make_update(
    network: FineTunedNetwork, optimiser: str, clock: Clock, updates: list[float]
) -> fine_tune.Update:
    """Makes the end of a step: noise, then the optimiser on each parameter tensor."""
    optimisers = [OPTIMISERS[optimiser]() for _ in network.trained]
    parameters = list(network.trained.values())

    @torch.no_grad()
    def work(total: torch.Tensor, rows: int) -> None:
        total.add_(torch.randn_like(total), alpha=fine_tune.NOISE * fine_tune.CLIP).div_(rows)
        parts = total.split([parameter.numel() for parameter in parameters])
        for each, parameter, part in zip(optimisers, parameters, parts, strict=True):
            each.step(parameter, part.view_as(parameter), fine_tune.RATE)

    return lambda total, rows: updates.append(clock.seconds(lambda: work(total, rows)))


if __name__ == "__main__":
    main()
