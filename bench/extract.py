"""Compares the speed of feature extraction with its limits: forward pass and decoding.

A case is a model and its resolution. The script makes the images: JPEGs of 256 to 500 pixels per
side with the spectrum of photographs.

Each round measures, by wall time, on the same number of rows:

- `extract_shard` as a job runs it, all but loading the model: reading, decoding, the forward pass,
  writing;
- the forward pass alone on random images on the device, in batches on all threads; on a CPU also in
  pieces on one thread each, as extraction runs the forward pass;
- decoding alone: independent processes, each of which reads and decodes its part of the rows;
- a plain loop: timm's transform, a DataLoader with a worker per thread, `model(x)`, `torch.save`.
"""

from __future__ import annotations

import argparse
import io
import logging
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from clock import Engine, Ratio
from copies import find_checkpoint
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import dataset_preparation
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable
from dpprobe.features.extraction import extract_shard
from dpprobe.features.extraction_pipeline import AHEAD, PIECE_ROWS, Decoder, in_order
from dpprobe.files import atomic_writes
from report import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "extract.md"
# The wanted share of the forward pass's speed; on a GPU, of the decoding speed if lower.
WANTED = {"cpu": 0.9, "cuda": 0.85}
WANTED_DECODING = 0.9
EXTRACT, FORWARD, PIECES = "extraction", "forward", "forward in pieces"
DECODE, LOOP = "decoding", "timm loop"
PHOTOGRAPHS = 64


class Case(NamedTuple):
    """A model at a resolution, and the number of images."""

    model: str
    size: int
    rows: int

    def __str__(self) -> str:
        return f"{self.model}, {self.size} px"


CASES = {
    "cpu": (
        Case("mobilenetv2_100", 128, 2048),
        Case("mobilenetv2_100", 224, 768),
        Case("vit_base_patch16_224", 224, 96),
    ),
    "cuda": (
        Case("vit_base_patch16_224", 224, 40_000),
        Case("vit_base_patch32_clip_224", 224, 40_000),
        Case("mobilenetv2_100", 224, 40_000),
    ),
}


def main() -> None:
    """Prints the tables and writes them to bench/results/extract.md."""
    options = arguments()
    torch.set_num_threads(options.threads)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    cases = list(CASES[options.device])
    if options.model:
        cases = [Case(options.model, options.size, options.rows)]
    elif options.quick:
        cases = [case._replace(rows=case.rows // 8) for case in cases]
    with tempfile.TemporaryDirectory(prefix="dpprobe-bench-") as folder:
        datasets = {rows: dataset(rows, Path(folder)) for rows in {case.rows for case in cases}}
        print(f"{len(datasets)} datasets made", flush=True)
        measured = [Measured(case, datasets[case.rows], options) for case in cases]
        for number in range(options.rounds):
            for case in measured:
                case.measure(number, options.rounds)
        lines = speeds(measured, options)
    text = "\n".join(lines)
    print(text)
    if not (options.quick or options.model):
        atomic_writes.write_text(RESULTS, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="measure only this model; print results, write none")
    parser.add_argument("--size", type=int, default=224, help="pixels per side for --model")
    parser.add_argument("--rows", type=int, default=512, help="number of images for --model")
    parser.add_argument("--quick", action="store_true", help="few rows, one round; write nothing")
    options = parser.parse_args()
    options.rounds = 1 if options.quick else options.rounds
    return options


class Measured:
    """One case: its data, its backbone, and its engines, each a whole pass over the rows."""

    def __init__(self, case: Case, dataset: Path, options: argparse.Namespace) -> None:
        self.case, self.dataset, self.options = case, dataset, options
        self.blocks = case_backbone(case)
        runtime = Runtime(device=options.device, precision=options.precision)
        self.backbone = loading.load_backbone(self.blocks, runtime=runtime)
        shape = (min(options.batch_size, case.rows), *self.backbone.preprocessing["input_size"])
        self.batch = torch.randint(0, 256, shape, dtype=torch.uint8, device=options.device)
        self.table = SplitTable(dataset / "train.parquet")
        runs = {EXTRACT: self.extract, FORWARD: self.forward, DECODE: self.decode, LOOP: self.loop}
        if options.device == "cpu":
            runs[PIECES] = self.pieces
        self.engines = {name: Engine(wall_time(run)) for name, run in runs.items()}
        self.forward()
        self.extract("test")  # warms up on two rows
        print(f"{case}: warm", flush=True)

    def measure(self, number: int, rounds: int) -> None:
        for name, engine in self.engines.items():
            engine.measure(number, rounds)
            print(f"{number + 1} {self.case}: {name} {engine.times[-1]:.2f} s", flush=True)

    def extract(self, split: str = "train") -> None:
        with patch.object(loading, "load_backbone", lambda *_, **__: self.backbone):
            extract_shard(
                table=self.dataset / f"{split}.parquet",
                info=self.dataset / "dataset.json",
                backbone=self.blocks,
                backbone_name="bench",
                split=split,
                shard=0,
                shards=1,
                output=self.dataset / "out" / split / "shard-00000-of-00001.h5",
                batch_size=self.options.batch_size,
                dtype="float16",
                threads=self.options.threads,
                device=self.options.device,
                precision=self.options.precision,
            )

    def forward(self) -> None:
        for start in range(0, self.case.rows, len(self.batch)):
            self.backbone.forward(self.batch[: self.case.rows - start])
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def pieces(self) -> None:
        threads, whole = self.options.threads, range(self.case.rows)
        rows = [len(whole[start : start + PIECE_ROWS]) for start in whole[::PIECE_ROWS]]
        work = in_order(
            lambda count: self.backbone.forward(self.batch[:count]),
            rows,
            threads=threads,
            ahead=AHEAD * threads,
        )
        list(work)

    def decode(self) -> None:
        edges = np.linspace(0, self.case.rows, self.options.threads + 1).astype(int).tolist()
        fork = multiprocessing.get_context("fork")
        parts = [range(*pair) for pair in pairwise(edges)]
        processes = [fork.Process(target=self.decode_part, args=(part,)) for part in parts]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0

    def decode_part(self, rows: range) -> None:
        torch.set_num_threads(1)
        decoder = Decoder(self.backbone, "train")
        for image in self.table.read_ranges([rows]):
            decoder.decode_one(image)

    def loop(self) -> None:
        """Extracts features with a plain loop, as users of timm would write it."""
        device = self.options.device
        images, model = TimmImages(self.table, self.backbone), plain_model(self.case).to(device)
        loader = DataLoader(
            images,
            self.options.batch_size if device == "cuda" else 32,
            num_workers=self.options.threads,
            pin_memory=device == "cuda",
        )
        parts = []
        with torch.inference_mode(), torch.autocast(device, enabled=device == "cuda"):
            for batch in loader:
                parts.append(model(batch.to(device, non_blocking=True)).cpu())
        torch.save(torch.cat(parts), self.dataset / "loop.pt")


def wall_time(work: Callable[[], None]) -> Callable[[int], float]:
    def run(steps: int) -> float:
        assert steps == 1
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return run


class TimmImages(Dataset[torch.Tensor]):
    """Images prepared by timm's own transform with the backbone's settings."""

    def __init__(self, table: SplitTable, backbone: Backbone) -> None:
        from timm.data.transforms_factory import create_transform

        self._images = list(table.read_images(0, table.rows))
        keys = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
        resolved = {key: backbone.preprocessing[key] for key in keys}
        self._transform: Any = create_transform(**resolved, is_training=False)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = self._images[index]
        source = io.BytesIO(image.data) if image.data is not None else str(image.path)
        tensor: torch.Tensor = self._transform(Image.open(source).convert("RGB"))
        return tensor


# models and images


def case_backbone(case: Case) -> BackboneOptions:
    values: dict[str, Any] = {"family": "timm", "model": case.model, "pretrained": False}
    if case.model == "mobilenetv2_100" and (checkpoint := find_checkpoint()):
        del values["pretrained"]
        values |= {"checkpoint": str(checkpoint), "model_args": {"pad_type": "same"}}
    preprocessing = {"size": case.size, "crop_pct": 1.0, "mean": 0.5, "std": 0.5}
    return backbone_options(values | {"preprocessing": preprocessing})


def plain_model(case: Case) -> torch.nn.Module:
    import timm

    given = case_backbone(case).model_dump(mode="json")["model_args"]
    model: torch.nn.Module = timm.create_model(case.model, num_classes=0, **given)
    return model.eval()


def dataset(rows: int, folder: Path) -> Path:
    """Writes split tables of `rows` training and two test images, which repeat a few pictures."""
    directory = folder / f"photos-{rows}"
    pictures = photographs(min(rows + 2, PHOTOGRAPHS))
    for number in range(rows + 2):
        split = "test" if number < 2 else "train"
        path = directory / "images" / split / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes appended to a JPEG make files with equal pictures differ.
        path.write_bytes(pictures[number % len(pictures)] + number.to_bytes(4, "big"))
    values = {"source": "imagefolder", "path": str(directory / "images"), "verify": "hash"}
    dataset_preparation.prepare_dataset(dataset_options(values), directory)
    return directory


def photographs(count: int) -> list[bytes]:
    """Makes JPEGs of 256 to 500 pixels per side whose spectrum falls as in photographs."""
    generator = np.random.default_rng(0)
    encoded = []
    for _ in range(count):
        height, width = (int(side) for side in generator.integers(256, 501, 2))
        rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
        falling = 1 / np.maximum(np.hypot(rows, columns), 1 / 500)
        shape = (*falling.shape, 3)
        noise = generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
        pixels = np.fft.irfft2(noise * falling[..., None], (height, width), axes=(0, 1))
        pixels = 128 + 50 * pixels / pixels.std()
        stream = io.BytesIO()
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(stream, format="JPEG", quality=90)
        encoded.append(stream.getvalue())
    return encoded


# tables


def speeds(cases: list[Measured], options: argparse.Namespace) -> list[str]:
    machine = torch.cuda.get_device_name() if options.device == "cuda" else processor()
    names = list(cases[0].engines)
    titles = ["case", "images", *(f"{name} (images/s)" for name in names), "of its limit", "wanted"]
    lines = [
        "# Extraction",
        "",
        f"{machine}; {options.threads} threads; precision {options.precision}. Medians of "
        f"{options.rounds} interleaved rounds. The limit is the forward pass, the faster of two on "
        "a CPU; on a GPU decoding, where it is slower. In brackets the lowest and the highest "
        "round. The docstring of `bench/extract.py` says how each is run.",
        "",
        "| " + " | ".join(titles) + " |",
        "|---" * len(titles) + "|",
    ]
    for measured in cases:
        engines, rows = measured.engines, measured.case.rows
        ways = [engines[name] for name in (FORWARD, PIECES) if name in engines]
        limit, wanted = min(ways, key=lambda engine: engine.median), WANTED[options.device]
        if options.device == "cuda" and engines[DECODE].median > limit.median:
            limit, wanted = engines[DECODE], WANTED_DECODING
        ratio = Ratio.of(limit, engines[EXTRACT])
        rates = [f"{rows / engines[name].median:,.0f}" for name in names]
        verdict = f"{wanted:g}" if ratio.value >= wanted else f"{wanted:g}: below"
        cells = [str(measured.case), f"{rows:,}", *rates, str(ratio), verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
