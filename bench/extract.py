"""Extraction against the model's own forward pass and a plain timm loop.

A case is a model and its resolution. The images are made here: JPEGs of 256 to 500 pixels per side
with the spectrum of photographs.

Each round measures, by wall time, on the same number of rows:

- `extract_shard` as a job runs it, all but loading the model: reading, decoding, the forward pass,
  writing, reading back;
- the forward pass alone on random numbers of the same shape: in batches on all threads, and on a
  CPU also as extraction runs it, in pieces on one thread each;
- a plain loop: timm's transform, a DataLoader, `model(x)` on batches of the faster of two sizes,
  `torch.save` at the end.
"""

from __future__ import annotations

import argparse
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from clock import Engine, Fastest, Ratio
from dpprobe import artifacts
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import dataset_preparation
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable
from dpprobe.features.extraction import extract_shard
from dpprobe.features.extraction_pipeline import AHEAD, PIECE_ROWS, in_order
from report import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "extract.md"
SHARED = ROOT.parent / "shared" / "data"
CHECKPOINT = SHARED / "weights" / "mobilenetv2_100_imagenet.safetensors"
WANTED = {"cpu": 0.9, "cuda": 0.85}
EXTRACT, FORWARD, PIECES, LOOP = "extraction", "forward", "forward in pieces", "timm loop"


class Case(NamedTuple):
    """A model at a resolution, on so many images."""

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
        Case("vit_base_patch16_224", 224, 20_000),
        Case("mobilenetv2_100", 224, 20_000),
    ),
}


def main() -> None:
    """Prints the tables and writes them to bench/results/extract.md."""
    options = arguments()
    torch.set_num_threads(options.threads)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory(prefix="dpprobe-bench-") as folder:
        cases = [Measured(case, Path(folder), options) for case in chosen(options)]
        for number in range(options.rounds):
            for case in cases:
                case.measure(number, options.rounds)
        lines = speeds(cases, options)
    text = "\n".join(lines)
    print(text)
    if not (options.quick or options.model):
        artifacts.write_text(RESULTS, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="one case alone: printed, not written")
    parser.add_argument("--size", type=int, default=224, help="with --model")
    parser.add_argument("--rows", type=int, default=512, help="with --model")
    parser.add_argument("--quick", action="store_true", help="few rows, one round: printed only")
    options = parser.parse_args()
    options.rounds = 1 if options.quick else options.rounds
    return options


def chosen(options: argparse.Namespace) -> list[Case]:
    if options.model:
        return [Case(options.model, options.size, options.rows)]
    cases = CASES[options.device]
    return [case._replace(rows=case.rows // 8) for case in cases] if options.quick else list(cases)


# what is measured


class Measured:
    """One case: its data, its backbone, and its engines, each a whole pass over the rows."""

    def __init__(self, case: Case, folder: Path, options: argparse.Namespace) -> None:
        self.case, self.options, self.folder = case, options, folder
        self.dataset = dataset(case, folder)
        self.blocks = case_backbone(case)
        runtime = Runtime(device=options.device, precision=options.precision)
        self.backbone = loading.load_backbone(self.blocks, runtime=runtime)
        self.plain = plain_model(case).to(options.device)
        rows = min(options.batch_size, case.rows)
        self.batch = self.random(rows).to(options.device)
        runs: dict[str, Callable[[], None]] = {EXTRACT: self.extract, FORWARD: self.forward}
        if options.device == "cpu":
            runs[PIECES] = self.pieces
        self.engines = {name: Engine(once(run), most=1) for name, run in runs.items()}
        loops = [once(partial(self.loop, size)) for size in (32, options.batch_size)]
        self.engines[LOOP] = Engine(Fastest(loops), most=1)
        for name, engine in self.engines.items():
            engine.run(1)
            print(f"warm-up {case}: {name}", flush=True)

    def measure(self, number: int, rounds: int) -> None:
        for name, engine in self.engines.items():
            engine.measure(number, rounds)
            print(f"{number + 1} {self.case}: {name} {engine.times[-1]:.2f} s", flush=True)

    def extract(self) -> None:
        with patch.object(loading, "load_backbone", lambda *_, **__: self.backbone):
            extract(self.dataset, self.folder, self.blocks, "train", options=self.options)

    def random(self, rows: int) -> torch.Tensor:
        """Numbers that a transform might have given: already normalised."""
        shape = (rows, *self.backbone.preprocessing["input_size"])
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def forward(self) -> None:
        for start in range(0, self.case.rows, len(self.batch)):
            self.backbone.forward(self.batch[: self.case.rows - start])
        if self.options.device == "cuda":
            torch.cuda.synchronize()

    def pieces(self) -> None:
        threads = self.options.threads
        rows = [
            min(PIECE_ROWS, self.case.rows - start)
            for start in range(0, self.case.rows, PIECE_ROWS)
        ]
        for _ in in_order(
            lambda count: self.backbone.forward(self.batch[:count]),
            rows,
            threads=threads,
            ahead=AHEAD * threads,
        ):
            pass

    def loop(self, batch_size: int) -> None:
        """Extracts as one writes it with timm in a quarter of an hour."""
        device = self.options.device
        images = TimmImages(self.dataset / "train.parquet", self.backbone)
        loader = DataLoader(
            images, batch_size, num_workers=self.options.threads, pin_memory=device == "cuda"
        )
        parts = []
        with torch.inference_mode(), torch.autocast(device, enabled=device == "cuda"):
            for batch in loader:
                parts.append(self.plain(batch.to(device, non_blocking=True)).cpu())
        torch.save(torch.cat(parts), self.folder / "loop.pt")


def once(work: Callable[[], None]) -> Callable[[int], float]:
    """Wall time: what runs in parallel, in threads and processes, is compared."""

    def run(steps: int) -> float:
        assert steps == 1
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return run


def extract(
    dataset: Path,
    folder: Path,
    blocks: BackboneOptions,
    split: str,
    *,
    options: argparse.Namespace,
) -> Path:
    """One shard and its path."""
    output = folder / "out" / split / "shard-00000-of-00001.h5"
    extract_shard(
        table=dataset / f"{split}.parquet",
        info=dataset / "dataset.json",
        backbone=blocks,
        backbone_name="bench",
        split=split,
        shard=0,
        shards=1,
        output=output,
        batch_size=options.batch_size,
        dtype="float16",
        threads=options.threads,
        device=options.device,
        precision=options.precision,
    )
    return output


class TimmImages(Dataset[torch.Tensor]):
    """Encoded images through timm's own transform, of the backbone's settings."""

    def __init__(self, table: Path, backbone: Backbone) -> None:
        from timm.data.transforms_factory import create_transform

        split = SplitTable(table)
        self._images = list(split.read_images(0, split.rows))
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
    if case.model == "mobilenetv2_100" and CHECKPOINT.is_file():
        del values["pretrained"]
        values |= {"checkpoint": str(CHECKPOINT), "model_args": {"pad_type": "same"}}
    preprocessing = {"size": case.size, "crop_pct": 1.0, "mean": 0.5, "std": 0.5}
    return backbone_options(values | {"preprocessing": preprocessing})


def plain_model(case: Case) -> torch.nn.Module:
    import timm

    given = case_backbone(case).model_dump(mode="json")["model_args"]
    model: torch.nn.Module = timm.create_model(case.model, num_classes=0, **given)
    return model.eval()


def dataset(case: Case, folder: Path) -> Path:
    """Split tables of so many training examples."""
    directory = folder / f"photos-{case.rows}"
    photos = directory / "images"
    for number, photograph in enumerate(photographs(case.rows + 2)):
        path = photos / ("test" if number < 2 else "train") / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph)
    values = {"source": "imagefolder", "path": str(photos), "verify": "hash"}
    dataset_preparation.prepare_dataset(dataset_options(values), directory)
    return directory


def photographs(count: int) -> Iterator[bytes]:
    """JPEGs of 256 to 500 pixels per side whose spectrum falls as that of photographs does."""
    generator = np.random.default_rng(0)
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
        yield stream.getvalue()


# tables


def speeds(cases: list[Measured], options: argparse.Namespace) -> list[str]:
    wanted = WANTED[options.device]
    on_gpu = options.device == "cuda"
    machine = torch.cuda.get_device_name() if on_gpu else processor()
    titles = ["case", "rows", "forward", *([] if on_gpu else [PIECES]), LOOP, "images/s"]
    lines = [
        "# Extraction",
        "",
        f"{machine}; {options.threads} threads; precision {options.precision}. "
        f"Images a second of `extract_shard` over those of each other, medians of {options.rounds} "
        "interleaved rounds, in brackets the lowest and the highest round. How each is run: "
        "[bench/README.md](../README.md).",
        "",
        "| " + " | ".join(titles) + " |",
        "|---" * len(titles) + "|",
    ]
    for measured in cases:
        ours = measured.engines[EXTRACT]
        others = [engine for name, engine in measured.engines.items() if name != EXTRACT]
        cells = [str(Ratio.of(engine, ours)) for engine in others]
        rate = measured.case.rows / ours.median
        row = [str(measured.case), f"{measured.case.rows:,}", *cells, f"{rate:.0f}"]
        lines.append("| " + " | ".join(row) + " |")
    lines.append("")
    for measured in cases:
        ways = [measured.engines[name] for name in (FORWARD, PIECES) if name in measured.engines]
        fastest = min(ways, key=lambda engine: engine.median)
        ratio = Ratio.of(fastest, measured.engines[EXTRACT])
        met = "" if ratio.value >= wanted else ": below"
        lines.append(
            f"- {measured.case}: {ratio} of the faster forward pass, wanted {wanted:g}{met}"
        )
    return [*lines, ""]


if __name__ == "__main__":
    main()
