"""Costs of a run over many images: slopes per row, and their totals at 1e6, 1e8 and 1e9.

Each part runs in a process of its own at two numbers of rows; a slope is the difference of seconds,
of bytes on disk or of peak memory over the difference of rows, so that what is there before the
first row does not count.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import multiprocessing
import resource
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpprobe.artifacts import write_json
from dpprobe.data import table
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import RowColumns
from dpprobe.features.shard_header import ShardHeader, row_range
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.shard_writer import write_shard

RESULTS = Path(__file__).resolve().parent / "results" / "scale.json"
CLASSES = ("even", "odd")
OPTIONS = {"source": "sklearn", "name": "digits", "verify": "hash", "missing_classes": "warn"}
SIZES = (1e6, 1e8, 1e9)
DIMENSION = 768
SHARD_ROWS = 10_000
IMAGE_BYTES = 100  # an image here is a number: no decoder is measured


class Slope(NamedTuple):
    """Costs of one row: processor seconds, bytes of peak memory and on disk; and the most rows
    tried.
    """

    seconds: float
    memory: float
    disk: float
    rows: int


def main() -> None:
    """Prints the slopes and, of all parts, writes them to bench/results/scale.json."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--rows", type=int, default=100_000, help="the smaller number of rows")
    parser.add_argument("--no-write", action="store_true")
    arguments = parser.parse_args()
    slopes = {}
    for name in arguments.parts:
        slopes[name] = measure(name, arguments.rows)
        print(f"{name}: {words(slopes[name])}", flush=True)
    print(f"\n| part | {' | '.join(f'{size:.0e} rows' for size in SIZES)} |")
    print("|---" * (len(SIZES) + 1) + "|")
    for name, slope in slopes.items():
        print(f"| {name} | {' | '.join(total(slope, size) for size in SIZES)} |")
    if slopes.keys() == PARTS.keys() and not arguments.no_write:
        write_json(RESULTS, {name: slope._asdict() for name, slope in slopes.items()})


def measure(name: str, rows: int) -> Slope:
    few, many = (in_process(name, count) for count in (rows, 3 * rows))
    more = 2 * rows
    seconds, memory, disk = ((b - a) / more for a, b in zip(few, many, strict=True))
    return Slope(seconds, memory, disk, 3 * rows)


def in_process(name: str, rows: int) -> tuple[float, float, float]:
    """Runs a part on so many rows: seconds of processor, peak memory, bytes that it wrote."""
    with tempfile.TemporaryDirectory(prefix="dpprobe-scale-") as folder:
        ready = Path(folder, "ready")
        for step, output in ((MAKERS.get(name), "made"), (PARTS[name], "measured")):
            if step is None:
                continue
            ready.mkdir(exist_ok=True)
            process = multiprocessing.get_context("spawn").Process(
                target=run, args=(name, output, ready, rows)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(f"{name}: failed with exit code {process.exitcode}")
        seconds, memory, disk = json.loads((ready / "answer.json").read_text())
    return seconds, memory, disk


def run(name: str, output: str, folder: Path, rows: int) -> None:
    logging.disable(logging.WARNING)
    work = MAKERS[name] if output == "made" else PARTS[name]
    before, started = written(folder), time.process_time()
    work(folder, rows)
    seconds = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer = (seconds, memory, written(folder) - before)
    (folder / "answer.json").write_text(json.dumps(answer))


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def words(slope: Slope) -> str:
    return (
        f"{1e6 * slope.seconds:.1f} us, {slope.memory:.0f} B of memory, {slope.disk:.0f} B on disk "
        f"a row (up to {slope.rows:,} rows)"
    )


def total(slope: Slope, rows: float) -> str:
    return (
        f"{slope.seconds * rows / 3600:.2g} h, {slope.memory * rows / 1e9:.2g} GB memory, "
        f"{slope.disk * rows / 1e9:.2g} GB disk"
    )


# what is measured


def images(rows: int, *, first: int = 0) -> Iterator[bytes]:
    for row in range(first, first + rows):
        yield row.to_bytes(8, "big") * (IMAGE_BYTES // 8)


def batches(rows: int) -> Iterator[tuple[str, pa.Table]]:
    """Rows whose images lie in tars of 10,000, as `webdataset` has them; the last are tested on."""
    for start in range(0, rows, 128):
        stop = min(start + 128, rows)
        data = list(images(stop - start, first=start))
        paths = [
            f"shards/{row // SHARD_ROWS:06d}.tar#offset={512 * (3 * row)},size=100000,"
            f"member=n{row % 1000:04d}/{row:012d}.jpg"
            for row in range(start, stop)
        ]
        yield (
            "train" if stop < rows else "test",
            table.make_batch(
                ids=[f"n{row % 1000:04d}/{row:012d}" for row in range(start, stop)],
                labels=[row % 2 for row in range(start, stop)],
                images=data,
                paths=paths,
            ),
        )


def write_tables(folder: Path, rows: int) -> None:
    """Split tables of rows whose images are numbers, hashed and not decoded."""
    table.write_dataset(
        folder / "data", batches(rows), options=dataset_options(OPTIONS), class_names=CLASSES,
        rows=rows,
    )  # fmt: skip


def read_whole_columns(folder: Path, rows: int) -> None:
    """Labels and names of all rows, as a reader of a whole split has them."""
    split = SplitTable(folder / "data" / "train.parquet")
    kept = split.read_labels(), split.read_ids()
    assert len(kept[1]) > rows - 256


def read_own_columns(folder: Path, rows: int) -> None:  # noqa: ARG001
    """Labels and names of a shard of 5,000 rows, as an extraction job has them."""
    split = SplitTable(folder / "data" / "train.parquet")
    kept = split.read_labels(20_000, 25_000), split.read_ids(20_000, 25_000)
    assert len(kept[1]) == 5000


def make_tars(folder: Path, rows: int) -> None:
    """Tars of 10,000 samples each, an image and its label."""
    for first in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - first)
        with tarfile.open(folder / f"{first:09d}.tar", "w") as tar:
            for row, data in enumerate(images(count, first=first), start=first):
                for extension, content in (("jpg", data), ("cls", str(row % 2).encode())):
                    info = tarfile.TarInfo(f"n{row % 1000:04d}/{row:012d}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def index_tars(folder: Path, rows: int) -> None:
    """The first pass of `webdataset`: headers and labels of tars, kept as rows."""
    from dpprobe.data import webdataset_rows

    values = {"source": "webdataset", "train": str(folder), "class_names": CLASSES}
    kept: Any = webdataset_rows.read_shards(dataset_options(values))  # type: ignore[arg-type]
    assert len(kept["train"]) == rows


def header(rows: int, shard: int, shards: int, info: Any) -> ShardHeader:
    return ShardHeader(
        split="train", rows=rows, class_names=CLASSES, multi_label=False, dtype="float16",
        dataset_fingerprint=info.fingerprint, backbone="bench", backbone_options={},
        backbone_fingerprint="0" * 64, weights_sha256=None, architecture=None,
        pretrained_tag=None, trained=False, preprocessing={}, shard=shard, shards=shards,
        versions={}, precision="float32",
    )  # fmt: skip


def write_shards(folder: Path, rows: int) -> None:
    """Shards of 10,000 rows of 768 features, written, synced and read back."""
    split = SplitTable(folder / "data" / "train.parquet")
    info = read_info(folder / "data" / "dataset.json")
    shards = max(1, rows // SHARD_ROWS)
    features = np.random.default_rng(0).standard_normal((rows // shards + 1, DIMENSION), "float32")
    for shard in range(shards):
        start, stop = row_range(split.rows, shard, shards)
        write_shard(
            folder / "features" / f"shard-{shard:05d}-of-{shards:05d}.h5",
            header(split.rows, shard, shards, info),
            RowColumns(split.read_labels(start, stop), split.read_ids(start, stop)),
            features[: stop - start].astype("float16"),
        )


def make_shards(folder: Path, rows: int) -> None:
    write_tables(folder, rows)
    write_shards(folder, rows)


def manifest(folder: Path, rows: int) -> None:  # noqa: ARG001
    """The manifest: every shard is read and hashed."""
    info = read_info(folder / "data" / "dataset.json")
    shards = sorted((folder / "features").glob("*.h5"))
    write_manifest(
        shards, folder / "features" / "manifest.json", rows=info.train_rows,
        dataset_fingerprint=info.fingerprint,
    )  # fmt: skip


def make_store(folder: Path, rows: int) -> None:
    make_shards(folder, rows)
    manifest(folder, rows)


def read_names(folder: Path, rows: int) -> None:
    """Labels and names of all rows of a store, as a training job has them, and no feature."""
    store = FeatureStore(folder / "features" / "manifest.json")
    assert len(store.labels) > rows - 256


def stream(folder: Path, rows: int) -> None:
    """One pass over the features of a store, in blocks, as heads above `memory_mb` take them."""
    store = FeatureStore(folder / "features" / "manifest.json")
    assert sum(len(block) for _, block in store.read_blocks(4096)) > rows - 256


PARTS: dict[str, Callable[[Path, int], None]] = {
    "split tables": write_tables,
    "columns of a whole split": read_whole_columns,
    "columns of a shard": read_own_columns,
    "index of tars": index_tars,
    "shards": write_shards,
    "manifest": manifest,
    "labels and names of a store": read_names,
    "a pass over the features": stream,
}
# Inputs of a part, made in a process of their own, which is not measured.
MAKERS: dict[str, Callable[[Path, int], None]] = {
    "columns of a whole split": write_tables,
    "columns of a shard": write_tables,
    "index of tars": make_tars,
    "shards": write_tables,
    "manifest": make_shards,
    "labels and names of a store": make_store,
    "a pass over the features": make_store,
}


if __name__ == "__main__":
    main()
