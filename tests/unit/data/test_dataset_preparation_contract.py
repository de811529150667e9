"""Every source, with more rows than any batch, writes the tables that a plain loop expects.

The rows have patients, groups with blanks, and one or several labels, in no sorted order. The
expected sides are computed here in plain Python, by digests and counts.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from dpprobe.data import dataset_preparation, table_writer
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import csv_rows, parquet
from dpprobe.data.sources.embedding_formats import embedding_file
from dpprobe.data.sources.embedding_rows import read_vector
from dpprobe.data.table import SplitTable, decode_image, read_info
from dpprobe.errors import DataError
from tests.support.hub_server import COMMIT, Repository, ask_only, serve
from tests.support.shards import pack
from tests.support.sources import write_table

ROWS, TESTED = 480, 200
CLASSES = ["cat", "dog", "owl"]
FRACTION, SEED = 0.3, 5
Sides = list[str | None]


class Row(NamedTuple):
    """An example before any source writes it; its content follows from `number`."""

    number: int
    label: int
    labels: tuple[int, ...]
    patient: str
    sex: str
    age: int | None

    @property
    def name(self) -> str:
        return f"{self.number * 7919 % 10_007:05d}"

    @property
    def vector(self) -> list[float]:
        return [self.number / 8, -self.number, 0.5]

    @property
    def groups(self) -> dict[str, str]:
        old = "" if self.age is None else ">=40" if self.age >= 40 else "<40"
        return {"group_sex": self.sex, "group_age": old}

    @property
    def columns(self) -> dict[str, Any]:
        named = dict(zip(CLASSES, self.labels, strict=True))
        who = {"patient": self.patient, "sex": self.sex, "age": self.age}
        return {"path": f"{self.name}.png", "kind": CLASSES[self.label], **named, **who}


def make_rows() -> list[Row]:
    draw = random.Random(3)
    rows = []
    for number in range(ROWS + TESTED):
        side = "p" if number < ROWS else "q"
        age = draw.choice([None, *range(20, 80)])
        labels = tuple(draw.randrange(2) for _ in CLASSES)
        patient = f"{side}{draw.randrange(ROWS // 4)}"
        label, sex = draw.choice([0, 0, 1, 2]), draw.choice(["f", "m", ""])
        rows.append(Row(number, label, labels, patient, sex, age))
    return rows


ALL = make_rows()


def png(row: Row) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2), (row.number % 256, row.number // 256, 9)).save(stream, format="PNG")
    return stream.getvalue()


IMAGES = {row.number: png(row) for row in ALL}


class Setting(NamedTuple):
    """How rows are split (`own`: the source has a test set), and which columns are named."""

    split: str
    several: bool = False
    patients: bool = False
    most: int | None = None
    few: bool = False

    @property
    def parts(self) -> dict[str, list[Row]]:
        if self.few:  # and no owl is in the test split
            tested = [row for row in ALL[ROWS : ROWS + 30] if CLASSES[row.label] != "owl"]
            return {"train": ALL[:30], "test": tested}
        return {"train": ALL[:ROWS], **({"test": ALL[ROWS:]} if self.split == "own" else {})}

    @property
    def options(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self.split != "own":
            made |= {"split_by": self.split, "test_fraction": FRACTION, "split_seed": SEED}
        if self.patients:
            made |= {"unit_column": "patient", "max_images_per_patient": self.most}
        return made


GROUPS = {"group_columns": {"sex": "sex", "age": {"column": "age", "bins": [40]}}}
SETTINGS = {
    "id, at most 2 images": Setting("id", patients=True, most=2),
    "own, several labels": Setting("own", several=True, patients=True),
    "own, at most 2 images": Setting("own", patients=True, most=2),
    "class": Setting("class"),
    "class, patients": Setting("class", patients=True),
    "class, several labels": Setting("class", several=True, patients=True),
    "id, several labels": Setting("id", several=True),
}


# Each source writes the parts of a setting, and returns its options and the rows' ids.

Written = tuple[dict[str, Any], dict[str, list[str]]]


def numbered(parts: dict[str, list[Row]]) -> dict[str, list[str]]:
    names = {split: split if len(parts) > 1 else "row" for split in parts}
    return {
        split: [f"{names[split]}-{place:08d}" for place in range(len(rows))]
        for split, rows in parts.items()
    }


def name_labels(setting: Setting) -> dict[str, Any]:
    if setting.several:
        return {"label_columns": CLASSES}
    return {"label_column": "kind", "class_names": CLASSES}


def write_folder(folder: Path, setting: Setting) -> Written:
    ids: dict[str, list[str]] = {}
    for split, rows in setting.parts.items():
        prefix = f"{split}/" if setting.split == "own" else ""
        ids[split] = [f"{prefix}{CLASSES[row.label]}/{row.name}.png" for row in rows]
        for name, row in zip(ids[split], rows, strict=True):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(IMAGES[row.number])
    return {"source": "imagefolder", "path": str(folder), "embed": setting.split == "class"}, ids


TEXTS = {"own": ("csv", ","), "id": ("TSV", "\t"), "class": ("csv", ";")}


def write_csv(folder: Path, setting: Setting) -> Written:
    """Writes patients within paths, ages by two keys in another file, and rows to be filtered out.

    Paths of rows with several labels are made from columns; a single file has both splits.
    """
    kind, delimiter = TEXTS[setting.split]
    kind += ".gz" if setting.patients else ""
    template = "{path:.1}/{path}" if setting.several else "{path}"
    in_one = {}
    if setting.several and setting.split == "own":
        in_one = {"split_column": "part", "id_column": "path"}
    ids: dict[str, list[str]] = {split: [] for split in setting.parts}
    lines: dict[str, list[dict[str, Any]]] = {}
    ages: list[dict[str, Any]] = []
    for split, rows in setting.parts.items():
        for row in rows:
            line = row.columns | {"study": f"files/{row.patient}/s1", "view": "front"}
            age = {"file": line["path"], "of": line["study"], "age": line.pop("age")}
            ages += [age | {"of": "none", "age": 99}, age, age | {"age": 98}]
            del line["patient"]
            line["part"] = split
            file = folder / template.format(**line)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(IMAGES[row.number])
            ids[split].append(line["path"] if in_one else template.format(**line))
            out = {"part": "validate"} if in_one and row.number % 4 else {"view": "side"}
            twice = [line, line | out | {"path": "none.png"}][: 2 - row.number % 2]
            lines.setdefault("train" if in_one else split, []).extend(twice)
    for name, table_lines in lines.items():
        write_table(folder / f"{name}.{kind}", table_lines, delimiter)
    write_table(folder / "ages.csv", ages, ";" if delimiter == ";" else ",")
    by = {"path": "file", "study": "of"}
    options = {
        "source": "csv",
        "root": str(folder),
        **name_labels(setting),
        **GROUPS,
        **in_one,
        "extract": {"patient": {"column": "study", "pattern": "files/([pq][0-9]+)/"}},
        "joins": [{"file": "ages.csv", "by": by, "columns": ["age"], "first": True}],
        "filters": {"view": ["front"]},
        "delimiter": ";" if delimiter == ";" else None,
        "path_template": template if setting.several else None,
    }
    return options | {split: f"{split}.{kind}" for split in lines}, ids


def parquet_bytes(rows: Sequence[Row], setting: Setting) -> bytes:
    columns = {
        "image": pa.array([{"bytes": IMAGES[row.number], "path": None} for row in rows]),
        "label": pa.array([[*row.labels] if setting.several else row.label for row in rows]),
        "patient": pa.array([row.patient for row in rows]).dictionary_encode(),
        "sex": pa.array([row.sex or None for row in rows]),
        "age": pa.array([row.age for row in rows]),
        "name": pa.array([row.name for row in rows]),
    }
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, row_group_size=110)
    return stream.getvalue()


def in_two(rows: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Splits rows into two files, neither of which is a multiple of a batch."""
    return rows[: len(rows) * 3 // 10], rows[len(rows) * 3 // 10 :]


def parquet_files(setting: Setting) -> dict[str, bytes]:
    return {
        f"{split}-{number}.parquet": parquet_bytes(part, setting)
        for split, rows in setting.parts.items()
        for number, part in enumerate(in_two(rows))
    }


def write_parquet(folder: Path, setting: Setting) -> Written:
    for name, content in parquet_files(setting).items():
        (folder / name).write_bytes(content)
    options = {"source": "parquet", "class_names": CLASSES, "id_column": "name", **GROUPS}
    ids = {split: [row.name for row in rows] for split, rows in setting.parts.items()}
    return options | {split: str(folder / f"{split}-*.parquet") for split in setting.parts}, ids


def write_hub(_: Path, setting: Setting) -> Written:
    options = {
        "source": "huggingface",
        "repo": "some/animals",
        "revision": COMMIT,
        **GROUPS,
        "class_names": CLASSES,
        "several_labels": setting.several,
        **{split: f"{split}-*.parquet" for split in setting.parts},
    }
    return options, numbered(setting.parts)


def write_tar(folder: Path, setting: Setting) -> Written:
    for split, rows in setting.parts.items():
        for number, part in enumerate(in_two(rows)):
            members = []
            for row in part:
                label = [*row.labels] if setting.several else CLASSES[row.label]
                fields = row.columns | {"label": label, "sex": row.sex or None}
                members.append((f"n/{row.name}.png", IMAGES[row.number]))
                members.append((f"n/{row.name}.json", json.dumps(fields).encode()))
            pack(folder / f"{split}-{number}.tar", members)
    options = {
        "source": "webdataset",
        "class_names": CLASSES,
        "label_column": "label",
        **GROUPS,
        "several_labels": setting.several,
    }
    ids = {split: [f"n/{row.name}" for row in rows] for split, rows in setting.parts.items()}
    return options | {split: str(folder / f"{split}-*.tar") for split in setting.parts}, ids


def write_vectors(suffix: str, folder: Path, setting: Setting) -> Written:
    options = {"source": "embeddings", "root": str(folder), **name_labels(setting), **GROUPS}
    for split, rows in setting.parts.items():
        options |= SAVERS[suffix](folder, split, rows)
    if "vectors" in options:
        options["vectors"] = {"vectors": options["vectors"]}
    if suffix == "items":
        ids = {split: [row.name for row in rows] for split, rows in setting.parts.items()}
        return options | {"id_column": "name", "pool": "mean"}, ids
    return options, numbered(setting.parts)


def texts_of(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    names = rows[0].columns
    return {
        name: np.array(["" if (one := row.columns[name]) is None else str(one) for row in rows])
        for name in names
    }


def save_npy(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    np.save(folder / f"{split}.npy", np.array([row.vector for row in rows], np.float64))
    write_table(folder / f"{split}.csv", [row.columns for row in rows])
    return {split: f"{split}.npy", "table" if split == "train" else "test_table": f"{split}.csv"}


def save_npz(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    vectors = np.array([row.vector for row in rows], np.float32)
    arrays: dict[str, Any] = {"own": vectors, "other": -vectors, **texts_of(rows)}
    np.savez_compressed(folder / f"{split}.npz", **arrays)
    return {split: f"{split}.npz", "vectors": "own"}


def save_safetensors(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    vectors = np.array([row.vector for row in rows], np.float32)
    save_file({"own": vectors, "other": -vectors}, folder / f"{split}.safetensors")
    write_table(folder / f"{split}.csv", [row.columns for row in rows])
    tables = {"table" if split == "train" else "test_table": f"{split}.csv"}
    return {split: f"{split}.safetensors", "vectors": "own", **tables}


def save_parquet(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Writes two files with lists of float64 of variable length."""
    for number, part in enumerate(in_two(rows)):
        columns = {name: [row.columns[name] for row in part] for name in part[0].columns}
        vectors = pa.array([row.vector for row in part])
        content = pa.table({**columns, "embedding": vectors})
        pq.write_table(content, folder / f"{split}-{number}.parquet", row_group_size=77)
    return {split: f"{split}-*.parquet"}


def save_h5ad(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Writes plain, categorical and masked columns in AnnData's layout."""
    texts = texts_of(rows)
    with h5py.File(folder / f"{split}.h5ad", "w") as file:
        file["obsm/X_own"] = np.array([row.vector for row in rows], np.float32)
        sexes = ["f", "m"]
        file["obs/sex/categories"] = [sex.encode() for sex in sexes]
        file["obs/sex/codes"] = [sexes.index(row.sex) if row.sex else -1 for row in rows]
        file["obs/age/values"] = [row.age or 0 for row in rows]
        file["obs/age/mask"] = [row.age is None for row in rows]
        for name in ("kind", "patient", *CLASSES):
            file[f"obs/{name}"] = [text.encode() for text in texts[name]]
    return {split: f"{split}.h5ad", "vectors": "obsm/X_own"}


def save_h5(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    with h5py.File(folder / f"{split}.h5", "w") as file:
        file["own/features"] = np.array([row.vector for row in rows], np.float64)
        for name, texts in texts_of(rows).items():
            file[name] = [text.encode() for text in texts]
    return {split: f"{split}.h5", "vectors": "own/features"}


def save_items(folder: Path, split: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Writes a file per row; half of them have three patches, whose mean is the row's vector."""
    (folder / split).mkdir()
    for place, row in enumerate(rows):
        patches = np.array([row.vector], np.float32) + np.array([[-2], [0], [2]], np.float32)
        if place % 2:
            with h5py.File(folder / split / f"{row.name}.h5", "w") as file:
                file["features"], file["coords"] = patches, np.zeros((3, 2), int)
        else:
            tensors = {"features": torch.tensor(row.vector)}
            torch.save(tensors, folder / split / f"{row.name}.pt")
    write_table(folder / f"{split}.csv", [row.columns | {"name": row.name} for row in rows])
    return {split: split, "table" if split == "train" else "test_table": f"{split}.csv"}


SAVERS: dict[str, Callable[[Path, str, Sequence[Row]], dict[str, Any]]] = {
    "npy": save_npy,
    "npz": save_npz,
    "safetensors": save_safetensors,
    "parquet": save_parquet,
    "h5ad": save_h5ad,
    "h5": save_h5,
    "items": save_items,
}
SOURCES: dict[str, Callable[[Path, Setting], Written]] = {
    "folder": write_folder,
    "csv": write_csv,
    "parquet": write_parquet,
    "tar": write_tar,
    "hub": write_hub,
    **{f"vectors in {suffix}": partial(write_vectors, suffix) for suffix in SAVERS},
}
CASES = [
    (source, name)
    for source in SOURCES
    for name, setting in SETTINGS.items()
    if source != "folder" or not (setting.several or setting.patients)
] + [("folder", "own")]


def rank(name: str) -> bytes:
    return hashlib.sha256(f"{SEED}\n{name}".encode()).digest()


def choose_sides(setting: Setting, rows: Sequence[Row], ids: Sequence[str]) -> Sides:
    """Returns the expected sides of rows that dpprobe splits."""
    names = [row.patient for row in rows] if setting.patients else ids
    if setting.split == "id":
        tested = {name for name in names if Fraction(int(rank(name).hex(), 16), 2**256) < FRACTION}
    else:
        classes: dict[str, Counter[int]] = {}
        for name, row in zip(names, rows, strict=True):
            classes.setdefault(name, Counter())[0 if setting.several else row.label] += 1
        strata: dict[int, list[str]] = {}
        for name, counts in classes.items():
            strata.setdefault(min(counts, key=lambda k: (-counts[k], k)), []).append(name)
        tested = set()
        for members in strata.values():
            count = min(max(math.floor(FRACTION * len(members) + 0.5), 1), len(members) - 1)
            tested |= {*sorted(members, key=rank)[:count]}
    return ["test" if name in tested else "train" for name in names]


def leave_out(setting: Setting, rows: Sequence[Row], sides: Sides) -> Sides:
    seen: Counter[str] = Counter()
    kept: Sides = []
    for row, side in zip(rows, sides, strict=True):
        seen[row.patient] += 1
        out = setting.most is not None and side == "train" and seen[row.patient] > setting.most
        kept.append(None if out else side)
    return kept


def expected_tables(
    setting: Setting, ids: dict[str, list[str]], *, in_folders: bool
) -> dict[str, list[tuple[str, Row]]]:
    tables: dict[str, list[tuple[str, Row]]] = {"train": [], "test": []}
    for split, rows in setting.parts.items():
        sides: Sides = [split] * len(rows)
        if setting.split != "own":
            sides = choose_sides(setting, rows, ids[split])
        for side, name, row in zip(leave_out(setting, rows, sides), ids[split], rows, strict=True):
            if side is not None:
                tables[side].append((name, row))
    return {side: sorted(rows) if in_folders else rows for side, rows in tables.items()}


def read_contents(read: SplitTable, start: int, stop: int) -> Iterator[tuple[str, Any]]:
    for image in read.read_images(start, stop):
        if read.holds_vectors:
            yield image.id, read_vector(image, "vectors", split=read.split).tolist()
        else:
            pixel = decode_image(image, split=read.split).getpixel((0, 0))
            assert isinstance(pixel, tuple)
            yield image.id, pixel[0] + 256 * pixel[1]


def prepare(
    source: str, setting: Setting, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[DatasetOptions, dict[str, list[str]]]:
    (folder / "in").mkdir(parents=True)
    written, ids = SOURCES[source](folder / "in", setting)
    options = dataset_options(written | setting.options | more)
    options.check_files()
    if source == "hub":
        with serve({"some/animals": Repository(parquet_files(setting))}) as hub:
            ask_only(hub.url, monkeypatch)
            dataset_preparation.download_dataset(options, folder / "hub")
    dataset_preparation.prepare_dataset(options, folder / "out", downloaded=folder / "hub")
    return options, ids


@pytest.mark.parametrize("source", SOURCES)
def test_a_class_without_test_rows_and_embedding_are_up_to_the_options(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("own", few=True)
    with pytest.raises(DataError, match="test: no row of class owl"):
        prepare(source, setting, tmp_path / "one", monkeypatch)
    more: dict[str, Any] = {"embed": True} if source in ("folder", "csv", "tar") else {}
    prepare(source, setting, tmp_path / "two", monkeypatch, missing_classes="warn", **more)
    assert read_info(tmp_path / "two/out/dataset.json").untested_classes == ("owl",)
    read = SplitTable(tmp_path / "two/out/train.parquet")
    assert all(image.data for image in read.read_images(0, read.rows))


@pytest.mark.slow
@pytest.mark.parametrize(("source", "name"), CASES)
def test_tables_have_the_rows_of_their_source(
    source: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(table_writer.BATCH_ROWS, csv_rows.BATCH_ROWS, parquet.BATCH_ROWS) < TESTED
    monkeypatch.setattr(table_writer, "GROUP_ROWS", 130)  # so that files have several row groups
    monkeypatch.setattr(embedding_file, "BLOCK_ROWS", 130)
    setting = SETTINGS.get(name) or Setting(name)
    options, ids = prepare(source, setting, tmp_path, monkeypatch)
    wanted = expected_tables(setting, ids, in_folders=source == "folder")
    info = read_info(tmp_path / "out/dataset.json")
    assert info.class_names == tuple(CLASSES)
    assert options.count_rows() in (None, tuple(len(rows) for rows in wanted.values()))
    counts = options.count_class_units()
    for split, rows in wanted.items():
        read = SplitTable(tmp_path / "out" / f"{split}.parquet")
        named, wanted_rows = zip(*rows, strict=True)
        assert read.read_ids() == [*named]
        labels = [[*row.labels] if setting.several else row.label for row in wanted_rows]
        assert read.read_labels().tolist() == labels
        has = np.array(labels) if setting.several else np.eye(3, dtype=int)[labels]
        assert info.splits[split].per_class == tuple(has.sum(axis=0))
        patients = [row.patient for row in wanted_rows] if setting.patients else None
        units = {
            name: {unit for unit, row in zip(patients or named, has, strict=True) if row[k]}
            for k, name in enumerate(CLASSES)
        }
        sizes = Counter(patients or named)
        shares = {
            name: sum(
                row[k] / sizes[unit] for unit, row in zip(patients or named, has, strict=True)
            )
            for k, name in enumerate(CLASSES)
        }
        if counts is not None:
            assert not counts.test_at
            assert getattr(counts, split) == {name: len({*each}) for name, each in units.items()}
            if split == "test":
                assert (counts.test_shares or counts.test) == pytest.approx(shares)
        if not read.holds_vectors:
            images = [hashlib.sha256(IMAGES[row.number]).digest() for row in wanted_rows]
            assert read.image_hashes() == images
            assert len({*read.image_hashes(), *read.pixel_hashes()}) == 2 * len(rows)
            linked = source in ("csv", "tar") or (source, name) == ("folder", "own")
            assert [image.data is None for image in read.read_images(0, 2)] == [linked] * 2
        assert read.read_units() == patients
        if patients is not None:
            assert info.units is not None
            assert info.units[split] == len(set(patients))
            assert split == "test" or info.train_units("patient") == len(set(patients))
            assert split == "test" or options.count_units() in (None, len(set(patients)))
        assert split == "test" or info.train_units("image") == len(rows)
        if source != "folder":
            groups = [row.groups for row in wanted_rows]
            assert read.read_groups() == {
                name: [each[name] for each in groups] for name in ("group_sex", "group_age")
            }
        for start, stop in ((0, len(rows)), (len(rows) // 3, len(rows) // 3 + 5)):
            contents = [
                (name, row.vector if read.holds_vectors else row.number)
                for name, row in rows[start:stop]
            ]
            assert list(read_contents(read, start, stop)) == contents
            assert read.read_labels(start, stop).tolist() == labels[start:stop]
