"""The faults of a dataset are seen before extraction, and told at once."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import json
import logging
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.data import dataset_checks, dataset_preparation, problems, table
from dpprobe.data.dataset_checks import rare_words
from dpprobe.data.group_columns import warn_of_code
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import ConfigError, DataError
from tests.support.shards import CLASSES
from tests.support.sources import write_images
from tests.support.stored_records import check_values, to_plain
from tests.unit.data.test_image_files import BLUE, encoded


def noise(seed: int, *, size: int = 24, kind: str = "JPEG") -> bytes:
    """An image of its own for each seed."""
    picture = Image.frombytes("L", (size, size), random.Random(seed).randbytes(size * size))
    stream = io.BytesIO()
    picture.save(stream, format=kind)
    return stream.getvalue()


def animation() -> bytes:
    frames = [Image.new("L", (4, 4), value) for value in (0, 90)]
    stream = io.BytesIO()
    frames[0].save(stream, format="GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


class Rows:
    """Rows of both splits, good ones at first, for a test to spoil."""

    def __init__(self, directory: Path, train: int = 6, test: int = 4) -> None:
        self.directory = directory
        self.splits = {
            name: [self._row(name, number) for number in range(count)]
            for name, count in (("train", train), ("test", test))
        }

    def _row(self, name: str, number: int) -> dict[str, Any]:
        path = self.directory / "images" / f"{name}{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(number + (1000 if name == "test" else 0)))
        return {
            "id": f"{name}-{number}",
            "path": path,
            "label": number % 2,
            "unit": f"{name[0]}{number // 2}",
            "sex": "fm"[number % 2],
            "origin": f"{name}.csv line {number + 2}",
        }

    def write(self, **changed: Any) -> None:
        plain, embed = changed.pop("plain", False), changed.pop("embed", False)
        values = {"source": "sklearn", "name": "digits"} | changed
        table.write_dataset(
            self.directory / "out",
            self._batches(plain=plain),
            options=dataset_options(values),
            class_names=CLASSES,
            rows=sum(map(len, self.splits.values())),
            chosen_test=True,
            units=not plain,
            groups=["group_sex"],
            embed=embed,
        )

    def _batches(self, *, plain: bool = False) -> Iterator[tuple[str, pa.Table]]:
        for name, rows in self.splits.items():
            for start in range(0, len(rows), 3):
                part = {key: [row[key] for row in rows[start : start + 3]] for key in rows[0]}
                yield (
                    name,
                    table.make_batch(
                        ids=part["id"],
                        labels=part["label"],
                        images=[None] * len(part["id"]),
                        paths=[*map(str, part["path"])],
                        groups={"group_sex": part["sex"]},
                        units=None if plain else part["unit"],
                        origins=None if plain else part["origin"],
                    ),
                )

    def report(self) -> list[dict[str, str]]:
        with (self.directory / "out/problems.csv").open(newline="") as stream:
            return list(csv.DictReader(stream))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


Spoil = Callable[[Rows], None]


def content(data: bytes) -> Spoil:
    def spoil(rows: Rows) -> None:
        rows.splits["train"][4]["path"].write_bytes(data)

    return spoil


def change(**changed: Any) -> Spoil:
    return lambda rows: rows.splits["train"][4].update(changed)


def remove_dogs(rows: Rows, split: str) -> None:
    for row in rows.splits[split]:
        row["label"] = 0


def spoil_all(rows: Rows) -> None:
    """Every kind of problem, some of them several times."""
    train, test = rows.splits["train"], rows.splits["test"]
    train[0]["path"].write_bytes(b"")
    train[1]["path"].write_bytes(train[1]["path"].read_bytes()[:-100])
    train[2]["path"].unlink()
    train[3]["id"] = "train-2"
    train[4]["label"] = 9
    test[0]["path"].write_bytes(train[5]["path"].read_bytes())
    remove_dogs(rows, "test")


def copy(source: int, *targets: int, split: str = "train", kind: str = "") -> Spoil:
    """Makes images those of a training row, or the same pixels in another kind of file."""

    def spoil(rows: Rows) -> None:
        path = rows.splits["train"][source]["path"]
        for target in targets:
            if kind:
                Image.open(path).save(rows.splits[split][target]["path"], format=kind)
            else:
                rows.splits[split][target]["path"].write_bytes(path.read_bytes())

    return spoil


def use_grey(high: int) -> Spoil:
    """One of the images has the most bits."""

    def spoil(rows: Rows) -> None:
        for number, row in enumerate((*rows.splits["test"], *rows.splits["train"])):
            most = high if number == 1 else high // (2 + number)
            values = np.linspace(number, most, 64).astype(np.uint16).reshape(8, 8)
            Image.fromarray(values).save(row["path"], format="PNG")

    return spoil


def turn(rows: Rows) -> None:
    rows.splits = dict(reversed(rows.splits.items()))


SIZES = {"train": 6, "test": 4, "classes": 2}
HASH, WARN = {"verify": "hash"}, {"duplicates": "warn"}
SPOILS: list[tuple[Sequence[Spoil], dict[str, Any]]] = [
    ([], {}),
    ([], {"expect": SIZES}),
    ([], {"expect": {"train": 7, "test": 3, "classes": 3}}),
    *(
        ([content(data)], more)
        for more in ({}, HASH)
        for data in (noise(4)[:-100], b"", b"<!DOCTYPE html><title>404</title>", animation())
    ),
    *(
        ([change(**changed)], more)
        for more in ({}, HASH)
        for changed in (
            {"path": Path("none.jpg")},
            {"id": "train-1"},
            {"id": "test-1"},
            {"id": ""},
            {"label": 7},
            {"label": -1},
            {"label": None},
            {"id": "test-1", "label": 2},
        )
    ),
    *(
        ([spoil], more)
        for more in ({}, HASH, WARN, WARN | HASH)
        for spoil in (
            copy(5, 2, split="test"),
            copy(0, 2, split="test", kind="BMP"),
            copy(0, 4),
            copy(0, 1, 4),
        )
    ),
    ([copy(5, 2, 3, split="test"), copy(0, 0, split="test")], WARN),
    ([copy(0, 1, kind="BMP"), copy(0, 4)], {}),
    ([copy(0, 1, kind="BMP"), copy(0, 4)], HASH),
    ([copy(5, 2, split="test"), turn], {}),
    ([copy(0, 2, kind="PNG"), turn], {}),
    *(
        ([lambda rows, split=split: remove_dogs(rows, split)], more)
        for split in ("train", "test")
        for more in ({}, {"missing_classes": "warn"})
    ),
    ([spoil_all], {"expect": {"train": 7, "test": 3, "classes": 3}}),
    ([spoil_all], {}),
    *(
        ([spoil], {"plain": True})
        for spoil in (copy(5, 2, split="test"), copy(0, 4), change(id="test-1", label=2), spoil_all)
    ),
    ([copy(2, 3, 4, 5)], {}),
    ([change(unit="t1"), copy(0, 1)], {}),
    ([change(sex="M")], {}),
    ([change(unit="")], {}),
    ([change(unit="T0", sex="")], {}),
    ([change(sex="-9")], {}),
    ([lambda rows: rows.splits["train"][4].update(path=rows.directory / "images/TRAIN4.jpg")], {}),
    ([change(path="images\\\\train4.jpg")], {}),
    ([change(path="images/\0.jpg")], {}),
    ([change(sex="M"), lambda rows: rows.splits["train"][3].update(sex="F")], {}),
    ([content(encoded(Image.new("I;16", (4, 4)), "PNG"))], {}),
    ([content(BLUE)], {}),
    *(
        ([spoil], {"embed": True})
        for spoil in (
            content(noise(4)[:-100]),
            copy(0, 2, split="test", kind="BMP"),
            copy(0, 4, kind="PNG"),
        )
    ),
    ([change(sex="-15")], {}),
    ([use_grey(1000), content(BLUE)], {}),
    *(([use_grey(high)], {}) for high in (255, 256, 1000, 4010, 32767, 32768, 65535)),
]
FACTS = ("train_copies", "duplicates_across_splits", "classes_without_test_rows")


def test_each_problem_has_its_words_report_and_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After good tables of the day before, which may not pass for those of today."""
    monkeypatch.setattr(dataset_checks, "SHOWN", 1)
    answers = []
    warn_of_code.cache_clear()  # which warns once about each
    for number, (spoils, options) in enumerate(SPOILS):
        rows = Rows(tmp_path / str(number))
        rows.write()
        for spoil in spoils:
            spoil(rows)
        caplog.clear()
        answer: Any = {}
        with caplog.at_level(logging.WARNING, "dpprobe"):
            try:
                rows.write(**options)
                facts = json.loads((rows.directory / "out/dataset.json").read_text())
                answer = {name: facts[name] for name in FACTS if name in facts}
            except DataError as error:
                answer = error
        left = sorted(path.name for path in (rows.directory / "out").iterdir())
        report = rows.report() if "problems.csv" in left else []
        shown = to_plain([answer, caplog.messages, left, [[*row.values()] for row in report]])
        text = json.dumps(shown).replace(str(rows.directory), "FOLDER").replace("null byte", "NUL")
        answers.append(json.loads(text))
    check_values("data_problems", answers)


def test_a_good_run_clears_the_report(rows: Rows) -> None:
    for spoil in (content(b""), copy(0, 4)):
        spoil(rows)
        with suppress(DataError):
            rows.write()
        assert rows.report()
    content(noise(4))(rows)
    rows.write()
    assert not (rows.directory / "out/problems.csv").exists()
    assert SplitTable(rows.directory / "out/train.parquet").rows == 6


def test_an_interrupted_check_leaves_neither_a_report_nor_a_description(rows: Rows) -> None:
    rows.write()
    rows.splits["train"][4]["path"].write_bytes(b"")

    def batches() -> Iterator[tuple[str, pa.Table]]:
        yield from rows._batches()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.write_dataset(
            rows.directory / "out",
            batches(),
            options=dataset_options({"source": "sklearn", "name": "digits"}),
            class_names=CLASSES,
            units=True,
            groups=["group_sex"],
            rows=10,
        )
    left = sorted(path.name for path in (rows.directory / "out").iterdir())
    assert left == ["test.parquet", "train.parquet"]
    assert SplitTable(rows.directory / "out/train.parquet").rows == 6


def test_a_class_of_few_images_is_rare() -> None:
    for train, test in itertools.product(range(7), repeat=2):
        assert bool(rare_words(("a",), (train,), (test,))) == (0 < min(train, test) < 5)


def test_memory_does_not_grow_with_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times the rows; each image of some 60 kB, so that keeping them would show."""
    monkeypatch.setattr(table, "BATCH_ROWS", 8)

    def read(_: str, number: int) -> tuple[str, int, bytes]:
        return f"{number}", number % 2, noise(number, size=240, kind="BMP")

    def peak(name: str, count: int) -> int:
        folder, parts = tmp_path / name, {"train": range(count), "test": range(10_000, 10_008)}
        options = dataset_options({"source": "sklearn", "name": "digits"})
        tracemalloc.start()
        table.write_dataset(
            folder,
            table.batch_images(parts, read),
            options=options,
            class_names=CLASSES,
            rows=count + 8,
        )
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert read_info(folder / "dataset.json").train_rows == count
        return top

    peak("first", 8)  # what is imported on the way counts, once
    small, large = peak("small", 24), peak("large", 120)
    assert large < small + (2 << 20), f"{small} bytes for 24 rows, {large} for 120"


def test_problems_are_counted_not_kept(tmp_path: Path) -> None:
    tracemalloc.start()
    with problems.Problems(tmp_path) as gathered:
        for row in range(20_000):
            assert row != problems.SHOWN or "more" not in str(gathered.make_error())
            gathered.add_problem(
                "label", f"label {row} is none", split="train", row=row, row_id=f"id{row}"
            )
        error = gathered.make_error()
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert top < 1 << 20
    assert "20000 labels without a class" in str(error)
    assert str(error).count(" is none") == problems.SHOWN
    assert "  and 19980 more" in str(error)
    assert len((tmp_path / "problems.csv").read_text().splitlines()) == 20_001


def test_a_report_of_an_earlier_run_does_not_survive(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/problems.csv").write_text("split,row,id,path,problem,detail\n")
    gone = dataset_options({"source": "imagefolder", "path": str(tmp_path / "none")})
    with pytest.raises(ConfigError):
        dataset_preparation.prepare_dataset(gone, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_disk_that_fills_under_the_tables_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
    write_images(tmp_path / "images", [f"{kind}/{n}.png" for kind in CLASSES for n in range(4)])
    options = dataset_options({"source": "imagefolder", "path": str(tmp_path / "images")})
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(DataError, match="the disk filled up while the split tables were written"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
