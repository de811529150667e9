"""Damaged inputs are accepted or refused with our errors: no traceback, no hang, bounded memory.

Takes half a minute by default. To run it longer, with new seeds and printed counts:

    FUZZ_SECONDS=600 FUZZ_SEED=7 python -m pytest -s tests/project/test_fuzzed_inputs.py

A failure prints the kind and number of its input; `FUZZ_ONLY="csv 1234"` makes that input again.
Inputs that failed once are in `test_hostile_inputs.py`, or in CORPUS below.
"""

from __future__ import annotations

import faulthandler
import io
import itertools
import json
import logging
import os
import random
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file, save_file

from dpprobe.__main__ import main
from dpprobe.data import dataset_preparation
from dpprobe.data.images.image_files import open_image, pixel_hash
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import EncodedImage, SplitTable
from dpprobe.draft.csv_guesses import Wishes, look_at_csv
from dpprobe.draft.parquet_guesses import look_at_parquet
from dpprobe.features.feature_store import FeatureStore
from dpprobe.features.shard_file import read_header
from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import BUNDLE_FILES, FACTS_FILE, HEAD_FILE, STATEMENT_FILE
from dpprobe.release.bundle import write_sums as write_bundle_sums
from dpprobe.release.image_sources import find_images
from dpprobe.release.predict import Predictor
from dpprobe.release.verification.verify import verify_bundle
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from dpprobe.study.yaml_file import check_yaml
from tests.support.bundles import write_example
from tests.support.feature_stores import write_split
from tests.support.fuzzing import TEXTS, Tally, damage_bytes, damage_values, damage_words
from tests.support.shards import pack, png, samples

SECONDS = int(os.environ.get("FUZZ_SECONDS", "0"))
# Rounds with one input per kind, about a minute in total: the same number on all machines.
ROUNDS = 25
SEED = int(os.environ.get("FUZZ_SEED", "0"))
ONLY = os.environ.get("FUZZ_ONLY", "")
LONGEST = 60  # seconds per input, on a machine with other load
MEMORY = 4 << 30  # bytes in addition to the memory used at the start
ROWS = 24
CLASSES = ["cat", "dog"]
# Kind and number of each input that failed.
CORPUS = [
    "bundle 8000000062",
    "shard 8000000111",
    "command 8000000254",
    "tar 4102000000257",
    "tar 4103000000780",
]

STUDY: dict[str, Any] = {
    "study": "fuzzed",
    "datasets": {
        "digits": {"source": "sklearn", "name": "digits", "delta": 1e-5, "split_by": "id"},
        "rows": {
            "source": "csv",
            "root": ".",
            "train": "rows.csv",
            "label_column": "label",
            "class_names": CLASSES,
            "unit_column": "patient",
            "group_columns": {"age": {"column": "age", "bins": [18, 40]}},
        },
        "folder": {"source": "imagefolder", "path": "images"},
        "hub": {
            "source": "huggingface",
            "repo": "a/b",
            "revision": "0" * 40,
            "train": "x.parquet",
            "class_names": CLASSES,
        },
    },
    "backbones": {
        "pixels": {"family": "pixels", "size": 8, "color": "gray"},
        "net": {"family": "timm", "model": "resnet18", "preprocessing": {"size": 64}},
        "random": {"family": "scattering", "size": 32},
    },
    "methods": {
        "sgd": {"head": "sgd", "batch_size": 16, "steps": 20, "normalize": "l2"},
        "adam": {"head": "adam", "schedule": "warmup_cosine", "batch_size": 8},
        "newton": {"head": "newton"},
        "auto": {"head": "auto"},
        "tuned": {
            "head": "tuned",
            "base": {"head": "sgd", "batch_size": 8},
            "search": {"learning_rate": [0.1, 1.0]},
        },
        "ceiling": {"head": "nonprivate"},
    },
    "epsilons": [0.5, 1, "inf"],
    "seeds": 2,
    "tsne": {},
    "features": {"shards": 1},
    "privacy": {"unit": "image"},
    "fairness": {},
    "audit": {"epsilons": [1]},
    "releases": {
        "one": {"dataset": "digits", "backbone": "pixels", "method": "newton", "epsilon": 1.0}
    },
}
COMMANDS = [
    ["check", "study.yaml"],
    ["check", "study.yaml", "rows.csv"],
    ["catalog", "cifar10"],
    ["init", "rows.csv", "--label", "label", "--force", "--output", "new.yaml"],
    ["init", "rows.parquet", "--force"],
    ["init", "images", "--force"],
    ["init", "rows.tar", "--force"],
    ["verify", "bundle"],
    ["predict", "bundle", "images", "--output", "out.csv"],
    ["predict", "bundle", "rows.csv", "rows.parquet"],
    ["ledger", "data", "--delta", "1e-5"],
    ["plan", "--n", "1000", "--classes", "10", "--epsilon", "1"],
    ["results", "."],
]


@dataclass
class Desk:
    """A folder of valid inputs; for each kind, a method damages one input and reads it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    @cached_property
    def kinds(self) -> dict[str, Callable[[random.Random], object]]:
        return {
            "study": self.study,
            "csv": self.csv,
            "parquet": self.parquet,
            "tar": self.tar,
            "image": self.image,
            "bundle": self.bundle,
            "shard": self.shard,
            "command": self.command,
        }

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor.load_bundle(self.folder / "bundle")

    def write_inputs(self) -> None:
        """Writes the undamaged inputs."""
        for name in CLASSES:
            (self.folder / "images" / name).mkdir(parents=True)
        for row in range(ROWS):
            (self.folder / "images" / CLASSES[row % 2] / f"{row}.png").write_bytes(png(row))
        self.cells = [["path", "label", "patient", "age", "sex"]] + [
            [f"images/{name}/{row}.png", name, f"p{row // 2}", str(row), "fm"[row % 2]]
            for row, name in zip(range(ROWS), itertools.cycle(CLASSES), strict=False)
        ]
        (self.folder / "rows.csv").write_text("\n".join(map(",".join, self.cells)))
        self.columns: dict[str, Any] = {
            "image": [{"bytes": png(row), "path": None} for row in range(ROWS)],
            "label": [row % 2 for row in range(ROWS)],
            "patient": [f"p{row // 2}" for row in range(ROWS)],
            "age": [float(row) for row in range(ROWS)],
        }
        names = {"info": {"features": {"label": {"names": CLASSES, "_type": "ClassLabel"}}}}
        self.metadata: dict[str, Any] = {"huggingface": names, "dpprobe": {"class_names": CLASSES}}
        table = pa.table(self.columns).replace_schema_metadata({"huggingface": json.dumps(names)})
        pq.write_table(table, self.folder / "rows.parquet", compression="none")
        pack(self.folder / "rows.tar", samples(0, ROWS, patient=["a", "b", "c"], age=[1, 20, 50]))
        write_example(self.folder / "bundle")
        shutil.copytree(self.folder / "bundle", self.folder / "damaged")
        features = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
        write_split(self.folder / "store" / "train", features, np.arange(ROWS) % 3)
        # another process computes a network's dimension, which takes seconds
        small = {**STUDY, "backbones": {"pixels": STUDY["backbones"]["pixels"]}}
        (self.folder / "study.yaml").write_text(yaml.safe_dump(small))
        self.pictures = self.encode_pictures()

    @staticmethod
    def encode_pictures() -> list[bytes]:
        """Encodes a picture in each format that Pillow writes and `open_image` may read."""
        pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        coloured, found = Image.fromarray(pixels), []
        for mode, kind in itertools.product(
            ["RGB", "L", "P", "1", "RGBA", "I;16", "CMYK"],
            ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"],
        ):
            stream = io.BytesIO()
            try:
                coloured.convert("L").convert(mode).save(stream, format=kind)
            except (OSError, ValueError, KeyError):
                continue  # this file cannot be written
            found.append(stream.getvalue())
        assert len(found) > 25
        return found

    def prepare(self, chance: random.Random, source: str, **given: Any) -> None:
        """Prepares a dataset from the folder; in three of ten cases its options are damaged."""
        values = {"source": source, "class_names": CLASSES, "unit_column": "patient", **given}
        if chance.random() < 0.5:
            values["group_columns"] = {"age": {"column": "age", "bins": [18, 40]}}
        if chance.random() < 0.3:
            values = damage_values(chance, values)
            values["source"] = source
        options = dataset_options(values)
        options.check_files()
        options.count_rows()
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        dataset_preparation.prepare_dataset(options, out)
        for split in ("train", "test"):
            table = SplitTable(out / f"{split}.parquet")
            assert len(table.read_ids()) == len(table.read_labels()) == table.rows

    def study(self, chance: random.Random) -> None:
        path = self.folder / "damaged.yaml"
        if chance.random() < 0.3:
            path.write_bytes(damage_bytes(chance, yaml.safe_dump(STUDY).encode()))
        else:
            values = damage_values(chance, STUDY)
            text = yaml.dump(values, Dumper=yaml.SafeDumper, allow_unicode=chance.random() < 0.5)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        check_yaml(path)
        check_study(load_study(yaml.safe_load(path.read_text(encoding="utf-8-sig"))))

    def csv(self, chance: random.Random) -> None:
        path = self.folder / "damaged.csv"
        cells = [list(row) for row in self.cells]
        for _ in range(chance.choice([1, 1, 2, 5])):
            row = chance.choice(cells[chance.random() < 0.2 :] or cells)
            row[chance.randrange(len(row))] = chance.choice(TEXTS)
        data = "\n".join(map(",".join, cells)).encode("utf-8", "surrogatepass")
        path.write_bytes(damage_bytes(chance, data) if chance.random() < 0.3 else data)
        if chance.random() < 0.3:
            look_at_csv(str(path), Wishes())
        elif chance.random() < 0.3:
            self.predict_tables(path)
        else:
            root = str(self.folder)
            self.prepare(chance, "csv", root=root, train=path.name, label_column="label")

    def parquet(self, chance: random.Random) -> None:
        path = self.folder / "damaged.parquet"
        if chance.random() < 0.6:
            whole = (self.folder / "rows.parquet").read_bytes()
            path.write_bytes(damage_bytes(chance, whole))
        else:
            self.write_columns(chance, path)
        if chance.random() < 0.3:
            look_at_parquet(str(path), Wishes())
        elif chance.random() < 0.4:
            self.predict_tables(path)
        else:
            self.prepare(chance, "parquet", train=str(path))

    def write_columns(self, chance: random.Random, path: Path) -> None:
        """Writes a readable parquet file with damaged columns or metadata."""
        columns = dict(self.columns)
        name = chance.choice(list(columns))
        values: list[Any] = chance.choice([[0, 1, -1, 2**62, 10**12, 5], list(TEXTS)])
        kept = [each for each in chance.choices(values, k=ROWS) if type(each) is type(values[0])]
        columns[name] = chance.choice(
            [
                kept * ROWS,
                [*columns[name][1:], None],
                [10**12, *range(ROWS - 1)],
                [[0, 1]] * ROWS,
                [b"\xff"] * ROWS,
                [None] * ROWS,
                [{"bytes": b"", "path": "/dev/zero"}] * ROWS,
            ]
        )[:ROWS]
        try:
            table = pa.table(columns)
        except (pa.ArrowException, ValueError, TypeError):
            table = pa.table(self.columns)  # this file cannot be written
        damaged = damage_values(chance, self.metadata)
        metadata = {str(k).encode("utf-8", "replace"): json.dumps(damaged[k]) for k in damaged}
        pq.write_table(table.replace_schema_metadata(metadata), path)

    def tar(self, chance: random.Random) -> None:
        path = self.folder / "damaged.tar"
        if chance.random() < 0.5:
            path.write_bytes(damage_bytes(chance, (self.folder / "rows.tar").read_bytes()))
        else:
            members = samples(0, ROWS, patient=["a", "b", "c"], age=[1, 20, 50])
            for _ in range(chance.choice([1, 2, 4])):
                place = chance.randrange(len(members))
                name, data = members[place]
                if chance.random() < 0.4:
                    extension = "".join(name.partition(".")[1:])
                    name = chance.choice(TEXTS) + chance.choice([extension, ""])
                elif name.endswith("json"):
                    fields = damage_values(chance, json.loads(data))
                    data = json.dumps(fields).encode("utf-8", "surrogatepass")
                else:
                    data = damage_bytes(chance, data)
                members[place] = (name.encode("utf-8", "replace").decode(), data)
            pack(path, members, format=chance.choice([0, 1, 2][1:]))
        self.prepare(chance, "webdataset", train=str(path), label_column="label")

    def image(self, chance: random.Random) -> None:
        data = damage_bytes(chance, chance.choice(self.pictures))
        if chance.random() < 0.5:
            pixel_hash(open_image(data))
            return
        rows = [EncodedImage(0, data, None, "a", b"")]
        (block,) = self.predictor.predict_blocks(rows, 1, threads=1)
        assert len(block.rows) + len(block.faults) == 1
        assert np.isfinite(block.values).all()

    def predict_tables(self, path: Path) -> None:
        sources = find_images([path], image_column=None)
        for block in self.predictor.predict_blocks(sources.read_images(), sources.count, threads=1):
            assert np.isfinite(block.values).all()

    def bundle(self, chance: random.Random) -> None:
        whole, folder = self.folder / "bundle", self.folder / "damaged"
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        kind = chance.random()
        if kind < 0.25:
            name = chance.choice(BUNDLE_FILES)
            (folder / name).write_bytes(damage_bytes(chance, (folder / name).read_bytes()))
        elif kind < 0.8:
            name = chance.choice([FACTS_FILE, STATEMENT_FILE])
            values = damage_values(chance, read_json(folder / name))
            (folder / name).write_bytes(json.dumps(values).encode("utf-8", "surrogatepass"))
        else:
            tensors = load_file(folder / HEAD_FILE)
            values = tensors["weights"].copy()
            values.flat[chance.randrange(values.size)] = chance.choice([np.nan, np.inf, 3e38, 0])
            tensors = {chance.choice(["weights", "weights", "x"]): values}
            save_file(tensors, folder / HEAD_FILE)
        if chance.random() < 0.8:
            write_bundle_sums(folder)
        if chance.random() < 0.5:
            assert verify_bundle(folder).checks
        else:
            values = Predictor.load_bundle(folder).predict_images([Image.new("RGB", (9, 9), "red")])
            assert np.isfinite(values).all()

    def shard(self, chance: random.Random) -> None:
        folder = self.folder / "store" / "train"
        (shard,), manifest = folder.glob("*.h5"), folder / "manifest.json"
        kept = shard.read_bytes(), manifest.read_bytes()
        try:
            if chance.random() < 0.6:
                shard.write_bytes(damage_bytes(chance, kept[0]))
            elif chance.random() < 0.5:
                manifest.write_bytes(damage_bytes(chance, kept[1]))
            else:
                manifest.write_text(json.dumps(damage_values(chance, json.loads(kept[1]))), "utf-8")
            store = FeatureStore(manifest)
            store.read()
            assert len(store.ids) == len(store.labels) == store.rows
            assert read_header(shard).rows == store.rows
        finally:
            shard.write_bytes(kept[0])
            manifest.write_bytes(kept[1])

    def command(self, chance: random.Random) -> None:
        known = [word for words in COMMANDS for word in words]
        words = damage_words(chance, chance.choice(COMMANDS), known)
        # these need a new process, a network and minutes; `init /` would search the whole disk
        if set(words) & {"run", "export"} or ("init" in words and "/" in words):
            words = ["check"]
        self.monkeypatch.setattr(sys, "argv", ["dpprobe", *words])
        main()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Yields a desk with undamaged inputs, and limits the memory that a test may take."""
    desk = Desk(tmp_path, monkeypatch)
    desk.write_inputs()
    assert len(desk.predictor.classes) == 3
    monkeypatch.chdir(tmp_path)
    check_study(load_study(STUDY))  # undamaged, the study is accepted
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield desk
    logging.disable(logging.NOTSET)
    resource.setrlimit(resource.RLIMIT_AS, before)


def list_inputs(kinds: list[str]) -> Iterator[tuple[str, int]]:
    """Yields kinds in turn, each with a number: first inputs that failed once, then new ones."""
    for written in [ONLY] if ONLY else CORPUS:
        yield written.split()[0], int(written.split()[1])
    if ONLY:
        return
    until = time.monotonic() + SECONDS
    for number in itertools.count(SEED * 10**9):
        for kind in kinds:
            yield kind, number
        if time.monotonic() > until if SECONDS else number + 1 == SEED * 10**9 + ROUNDS:
            return


def test_damaged_inputs_are_accepted_or_refused(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    for kind, number in list_inputs(list(desk.kinds)):
        chance = random.Random(f"{kind} {number}")
        # ends calls that no alarm interrupts
        faulthandler.dump_traceback_later(4 * LONGEST, exit=True, file=2)
        tally.add_outcome(kind, number, lambda k=kind, c=chance: desk.kinds[k](c), LONGEST)  # type: ignore[misc]
        capsys.readouterr()
    faulthandler.cancel_dump_traceback_later()
    with capsys.disabled():
        print(f"\n{tally.describe_counts()}")
    assert ONLY or all(counts["refused"] for counts in tally.counts.values())
    assert not tally.failures, "\n\n".join(tally.failures[:40])
