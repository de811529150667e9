"""Damaged bytes anywhere in a feature shard: HDF5 alone beside dpprobe, and what the check costs.

In each damaged copy one bit is flipped, or 1 to 64 bytes are overwritten, in HDF5's own structures
or anywhere, as a seed chooses. Each is read in a process of its own, for at most two seconds. The
cost is that of reading a shard of 50,000 x 768 float16 from the page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from dpprobe.errors import StoreError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import CACHE_BYTES, RowColumns, feature_array, stored_blocks
from dpprobe.features.shard_header import ShardHeader
from dpprobe.features.shard_manifest import write_manifest
from dpprobe.features.shard_writer import write_shard

SECONDS = 2
REFUSED, READ, OTHER = 3, 0, 4  # exit codes of a reader


def write_store(folder: Path, rows: int, dimension: int) -> Path:
    """Writes a store of one shard; returns its manifest."""
    header = ShardHeader(
        split="train", rows=rows, shard=0, shards=1, class_names=("a", "b"), multi_label=False,
        dtype="float16", dataset_fingerprint="d", backbone="none", backbone_options={},
        backbone_fingerprint="b", weights_sha256=None, preprocessing={},
    )  # fmt: skip
    folder.mkdir()
    path = folder / "shard-00000-of-00001.h5"
    features = np.random.default_rng(0).normal(size=(rows, dimension)).astype(np.float16)
    columns = RowColumns(np.arange(rows) % 2, list(map(str, range(rows))))
    write_shard(path, header, columns, features)
    write_manifest([path], folder / "manifest.json", rows=rows, dataset_fingerprint="d")
    return folder / "manifest.json"


def read_hdf5(manifest: Path) -> None:
    """Reads features and labels with HDF5 alone."""
    with h5py.File(manifest.with_name("shard-00000-of-00001.h5")) as file:
        file["features"][...], file["labels"][...], file["ids"].asstr()[...], dict(file.attrs)


def read_store(manifest: Path) -> None:
    store = FeatureStore(manifest)
    store.read()
    assert len(store.ids) == store.rows


def list_shard(manifest: Path) -> None:
    """Reads a shard as the job that writes its manifest."""
    shard = manifest.with_name("shard-00000-of-00001.h5")
    write_manifest([shard], shard.with_name("again.json"), rows=200, dataset_fingerprint="d")


def read_apart(read: Callable[[Path], None], manifest: Path) -> str:
    """Reads in a process of its own; returns what became of it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = READ
        try:
            read(manifest)
        except (StoreError, OSError, KeyError, RuntimeError, ValueError):
            code = REFUSED
        except BaseException:
            code = OTHER
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "endless" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    return {REFUSED: "refused", READ: "read", OTHER: "traceback"}[os.WEXITSTATUS(status)]


def count_outcomes(folder: Path, tries: int, seed: int) -> dict[str, Counter[str]]:
    """Damages a small shard and counts, for each reader, what became of reading it."""
    manifest = write_store(folder / "small", 200, 32)
    shard = manifest.with_name("shard-00000-of-00001.h5")
    whole, counts = shard.read_bytes(), {}
    with h5py.File(shard) as file:
        chunk = file["features"].id.get_chunk_info(0)
        features = range(chunk.byte_offset, chunk.byte_offset + chunk.size)
    structures = [place for place in range(len(whole)) if place not in features]
    for name, read in (("HDF5", read_hdf5), ("store", read_store), ("manifest", list_shard)):
        chance, outcomes = random.Random(seed), Counter[str]()
        for turn in range(tries):
            place = chance.choice(structures if turn % 2 else range(len(whole)))
            damaged = bytearray(whole)
            if turn % 4 < 2:
                damaged[place] ^= 1 << chance.randrange(8)
            else:
                size = min(chance.choice([1, 4, 8, 64]), len(whole) - place)
                damaged[place : place + size] = chance.choice([b"\0", b"\xff", b""]) * size or (
                    chance.randbytes(size)
                )
            if damaged == whole:
                damaged[place] ^= 1
            shard.write_bytes(damaged)
            outcomes[read_apart(read, manifest)] += 1
        counts[name] = outcomes
    shard.write_bytes(whole)
    return counts


def read_as_before(manifest: Path) -> None:
    """Reads and hashes features as dpprobe did until it compared the bytes before."""
    digest = hashlib.sha256()
    with h5py.File(manifest.with_name("shard-00000-of-00001.h5"), rdcc_nbytes=CACHE_BYTES) as file:
        array = feature_array(file, None)
        features = np.empty(array.shape, np.float32)
        for start, block in stored_blocks(array):
            digest.update(block.data)
            features[start : start + len(block)] = block


def compare_times(run: Callable[[], object], reference: Callable[[], object], rounds: int) -> float:
    """Returns the ratio of the fastest rounds, by the processor's time, taken in turns."""
    times: dict[Callable[[], object], float] = {}
    for _ in range(rounds):
        for each in (run, reference):
            started = time.process_time()
            each()
            spent = time.process_time() - started
            times[each] = min(spent, times.get(each, spent))
    return times[run] / times[reference]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcomes = ("refused", "read", "crash", "endless", "traceback")
        print(f"{arguments.tries} damaged copies")
        print(f"{'':10}" + "".join(f"{outcome:>11}" for outcome in outcomes))
        for reader, counts in count_outcomes(folder, arguments.tries, arguments.seed).items():
            print(f"{reader:10}" + "".join(f"{counts[outcome]:11}" for outcome in outcomes))
        manifest = write_store(folder / "large", 50_000, 768)
        reading = compare_times(
            lambda: FeatureStore(manifest).read(),
            lambda: read_as_before(manifest),
            arguments.rounds,
        )
    print(f"reading a split: {reading:.2f} times the time of hashing features while reading")


if __name__ == "__main__":
    main()
