"""Hostile inputs of several kinds: files that point elsewhere, sizes that a header claims, inputs
that never end, and names that a terminal or a spreadsheet would execute.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import resource
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.doctor.recorded_files import read_recorded
from dpprobe.draft.csv_guesses import Wishes
from dpprobe.draft.parquet_guesses import look_at_parquet
from dpprobe.errors import ConfigError, DataError, DpprobeError, StoreError
from dpprobe.exhibits.tables import Column, Table, TableCell, comma_separated
from dpprobe.features.shard_file import check_seal, opened_shard, seal_shard
from dpprobe.files.json_files import read_record
from dpprobe.files.plain_files import read_bounded
from dpprobe.json_values import parse_json
from dpprobe.privacy.limits import epsilon_token
from dpprobe.release.ledger.ledger_file import LedgerFile
from dpprobe.release.predict import predict
from dpprobe.results.confusion import confusion_csv
from dpprobe.shown_text import Terminal, printable, spreadsheet_text
from dpprobe.study.study_file import load_study
from dpprobe.study.yaml_file import check_yaml
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.shards import CLASSES, pack, png, samples
from tests.support.small_study import STUDY

MEGABYTE = 1 << 20
SECRET = b"root:x:0:0:"


# files that point elsewhere


Point = Callable[[h5py.File, Path, Path], object]


def of_soft_link(file: h5py.File, _: Path, other: Path) -> None:
    file["away"] = h5py.ExternalLink(str(other), "/")
    file["X"] = h5py.SoftLink("/away/X")


def of_virtual_dataset(file: h5py.File, _: Path, other: Path) -> None:
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(str(other), "X", (4, 2))
    file.create_virtual_dataset("X", layout)


def of_storage(name: str, shape: tuple[int, ...], *, relative: bool = False) -> Point:
    """Returns a function that adds an array stored in another file, and plain X if it is not X."""

    def point(file: h5py.File, secret: Path, _: Path) -> None:
        if name != "X":
            file["X"] = np.ones((4, 2), "f4")
        place = secret.name if relative else str(secret)
        file.create_dataset(name, shape, "u1", external=[(place, 0, 8)])

    return point


def of_column_storage(file: h5py.File, secret: Path, other: Path) -> None:
    file.create_group("obs/kind")["categories"] = [b"a", b"b"]
    of_storage("obs/kind/codes", (4,))(file, secret, other)


def of_link(name: str) -> Point:
    return lambda file, _, other: file.__setitem__(name, h5py.ExternalLink(str(other), name))


ELSEWHERE: dict[str, Point] = {
    "storage": of_storage("X", (4, 2)),
    "relative storage": of_storage("X", (4, 2), relative=True),
    "link": of_link("X"),
    "group": of_link("obsm"),
    "soft link": of_soft_link,
    "dangling link": lambda file, *_: file.__setitem__("X", h5py.SoftLink("/nowhere")),
    "virtual dataset": of_virtual_dataset,
    "column": of_column_storage,
    "deep": of_storage("uns/a/b/c", (4,)),
}


@pytest.mark.parametrize("point", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("kind", ["vectors", "shard"])
def test_hdf5_reads_no_other_file(tmp_path: Path, point: Point, kind: str) -> None:
    secret, other = tmp_path / "passwd", tmp_path / "other.h5"
    secret.write_bytes(SECRET)
    with h5py.File(other, "w") as file:
        file["X"] = np.ones((4, 2), "f4")
        file["obsm/X_pca"] = np.ones((4, 2), "f4")
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w", userblock_size=512) as file:
        point(file, secret, other)
        file.require_group("obs")
    match = "a.h5ad: .*(link to another place|numbers in other files)"
    if kind == "vectors":
        for read in ("list_vectors", "columns"):
            with pytest.raises(ConfigError, match=match):
                getattr(open_embeddings(path, option="train"), read)()
    else:
        seal_shard(path)
        check_seal(path)
        with pytest.raises(StoreError, match=match), opened_shard(path):
            pass


def test_hdf5_of_own_arrays_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((4, 2), "f4")
        file["obs/kind"] = [b"a", b"b", b"a", b"b"]
        file["obsm/again"] = file["X"]  # a second hard link
        file["obs/loop"] = file["obs"]  # a circle of hard links
    assert open_embeddings(path, option="train").list_vectors().keys() == {"X", "obsm/again"}


# sizes that a header promises


def bomb_npz(path: Path, *, member: str = "X", shape: Any = (1 << 22, 32)) -> None:
    """Writes an npz file of float32 zeros, compressed by a factor of 1,000."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{member}.npy", "w") as stream,
    ):
        stream.write(header.getvalue())
        for _ in range(int(np.prod(shape)) * 4 // MEGABYTE):
            stream.write(bytes(MEGABYTE))


def bomb_npz_members(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(2000):
            archive.writestr(f"{number}.npy", b"")


def bomb_npy_header(path: Path, start: bytes, size: int) -> None:
    path.write_bytes(b"\x93NUMPY" + start + struct.pack("<I", size))
    os.truncate(path, size + 12)  # sparse: no block on disk


def bomb_h5ad(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("obs")
        shape = options.pop("shape", (10_000_000, 100))
        file.create_dataset(options.pop("name", "X"), shape, "f4", fillvalue=1.0, **options)


def bomb_h5ad_texts(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((4, 2), "f4")
        file.create_dataset("obs/kind", (400,), "S10000000", chunks=(1,))


def bomb_parquet_nulls(path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"label": pa.nulls(5_000_000, kind)}), path)


def bomb_parquet_lists(path: Path) -> None:
    zeros = pa.array(np.zeros(40_000_000, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(zeros, 20_000_000)
    pq.write_table(pa.table({"X": lists, "label": ["a", "b"]}), path)


def bomb_parquet_label(path: Path, size: int = 64 * MEGABYTE, rows: int = 1000) -> None:
    index = pa.array(np.zeros(rows, np.int32))
    labels = pa.DictionaryArray.from_arrays(index, pa.array(["x" * size]))
    table = pa.table({"X": [[1.0, 2.0]] * rows, "label": labels})
    pq.write_table(table, path, store_schema=rows % 2 == 0)


Bomb = Callable[[Path], None]
BOMBS: dict[str, Bomb] = {
    "npz": bomb_npz,
    "column.npz": partial(bomb_npz, member="y", shape=(1 << 27,)),
    "members.npz": bomb_npz_members,
    "header.npy": partial(bomb_npy_header, start=b"\x02\x00", size=2**31),
    "header3.npy": partial(bomb_npy_header, start=b"\x03\x00", size=2**32 - 1),
    "h5ad": bomb_h5ad,
    "chunks.h5ad": partial(bomb_h5ad, chunks=(1024, 100), compression="gzip"),
    "width.h5ad": partial(bomb_h5ad, shape=(2, 2**34), chunks=(1, 1024)),
    "column.h5ad": partial(bomb_h5ad, name="obs/kind", shape=(10**9,), chunks=(1024,)),
    "texts.h5ad": bomb_h5ad_texts,
    "nulls.parquet": partial(bomb_parquet_nulls, kind=pa.int64()),
    "null_texts.parquet": partial(bomb_parquet_nulls, kind=pa.string()),
    "lists.parquet": bomb_parquet_lists,
    "label.parquet": bomb_parquet_label,
    "plain_label.parquet": partial(bomb_parquet_label, rows=1001),
    "short_label.parquet": partial(bomb_parquet_label, size=900_000),
}
REFUSALS = (
    r"needs [\d.]+ MB, but the file has|a header of [\d,]+ bytes|a string of more than|arrays"
)


@contextmanager
def at_most(megabytes: int) -> Iterator[None]:
    """Limits the address space that this process may still allocate, so that a bomb fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * MEGABYTE, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def read_all(path: Path) -> None:
    file = open_embeddings(path, option="train")
    file.list_vectors()
    file.read_columns(["label"])


@pytest.mark.parametrize("name", BOMBS)
def test_vectors_out_of_proportion_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"a.{name}"
    BOMBS[name](path)
    with at_most(1000), pytest.raises(ConfigError, match=rf"a\.{name}: .*({REFUSALS})"):
        read_all(path)
    if name.endswith("parquet"):
        with at_most(1000), pytest.raises(ConfigError, match=rf"a\.{name}: .*({REFUSALS})"):
            look_at_parquet(str(path), Wishes())


@pytest.mark.parametrize("name", ["nulls", "null_texts", "plain_label"])
def test_predictions_of_tables_out_of_proportion(tmp_path: Path, name: str) -> None:
    folder = write_example(tmp_path / "bundle")
    BOMBS[f"{name}.parquet"](tmp_path / "a.parquet")
    with at_most(1000), pytest.raises(DpprobeError, match=rf"a\.parquet: .*({REFUSALS}|null)"):
        predict(folder, [tmp_path / "a.parquet"], output=None, image_column="label")


def test_compressed_columns_of_usual_size_are_read(tmp_path: Path) -> None:
    rows = 200_000
    labels = np.array(["a class with a long name", "b"])[np.arange(rows) % 2]
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((rows, 64), np.float32), y=labels)
    file = open_embeddings(tmp_path / "a.npz", option="train")
    assert file.list_vectors()["X"].rows == rows
    assert file.read_columns(["y"])["y"] == labels.tolist()
    table = pa.table({"X": [[1.0, 2.0]] * rows, "label": pa.array(labels).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = open_embeddings(tmp_path / "a.parquet", option="train").read_columns(["label"])
    assert columns["label"] == labels.tolist()


def sparse(path: Path, start: bytes = b"{") -> Path:
    """Writes a sparse file of 3 GB that occupies no disk space."""
    path.write_bytes(start)
    os.truncate(path, 3 << 30)
    return path


def test_text_files_of_gigabytes_are_refused_unread(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=r"a\.yaml: .*3,221,225,472 bytes, more than"):
            check_yaml(sparse(tmp_path / "a.yaml"))
        with pytest.raises(DataError, match=r"ledger\.jsonl: 3,221,225,472 bytes, more than"):
            LedgerFile(sparse(tmp_path / "ledger.jsonl")).read_entries()
        with pytest.raises(DataError, match=r"a\.json: unreadable .*3,221,225,472 bytes"):
            read_record(sparse(tmp_path / "a.json"), kind="x", version=1)
        (tmp_path / "calibration").mkdir()
        found = read_recorded(sparse(tmp_path / "calibration/a.json"))
        assert found is not None
        assert str(found.checked.fault).startswith("unreadable (3,221,225,472 bytes, more than")
        with pytest.raises(OSError, match="more than 5"):
            read_bounded(sparse(tmp_path / "b.json"), 5)
        assert tracemalloc.get_traced_memory()[1] < 50 * MEGABYTE
    finally:
        tracemalloc.stop()


# waiting


def test_a_million_columns_are_one_short_error(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(1_000_000))
    (tmp_path / "a.csv").write_text(f"{names}\n")
    options = dataset_options(
        {
            "source": "csv",
            "root": str(tmp_path),
            "train": "a.csv",
            "label_column": "x",
            "class_names": CLASSES,
        }
    )
    with pytest.raises(ConfigError, match="1,000,000 columns, but at most 100,000 can be read"):
        options.check_files()
    (tmp_path / "a.csv").write_text(f"{names.partition(',c60000,')[0]}\n")
    with pytest.raises(ConfigError, match="no column 'path'.* and 59,900 more") as error:
        options.check_files()
    assert len(str(error.value)) < 1000
    (tmp_path / "a.csv").write_text(f"{names.partition(',c60000,')[0]},c5\n")
    with pytest.raises(ConfigError, match="two columns are named 'c5'"):
        options.check_files()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"epsilons: [{','.join(map(str, range(100_001)))}]", "more than 100,000 keys and values"),
        (f"seed: {'9' * 1_000_000}", "1: a number of 1,000,000 characters"),
        (f"delta: 0.{'1' * 1_000_000}", "1: a number of 1,000,002 characters"),
        (f"seed: {'1:' * 1_000_000}1", "1: a number of 2,000,001 characters"),
        (f"seed: {'9' * 10_000_000}", "10,000,006 bytes, more than 4,194,304"),
        (f"a: {'{b: ' * 200}{'}' * 200}", "brackets nested too deeply"),
        ("a: &a [*a]", "a.0.0.0.0.0: more than 32 levels"),
        ("a: &a {b: *a}", "a.b.b.b.b.b: more than 32 levels"),
        ("a: &a\n  - b: &b\n      - *a\n      - *b\n", "more than 32 levels"),
        (
            "a: [&a x, &b [*a, *a], &c [*b, *b]]\nb: &d {k: *c}\nc: [*d, &e [*e]]",
            "more than 32 levels",
        ),
        (
            "\n".join(
                [
                    "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
                    *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)),
                ]
            ),
            "300,000 values",
        ),
    ],
)
def test_yaml_that_takes_minutes_is_refused_at_once(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match) as error:
        check_yaml(path)
    assert len(str(error.value)) < 500


# tracebacks


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"number": ' + "9" * 10**7,
        '{"format": "dpprobe-ledger", "format": "x"}',
        "[" * 40 + "]" * 40,
        "NaN",
    ],
)
def test_lines_of_a_ledger_that_no_reader_accepts(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger.jsonl"
    for end in ("\n", ""):
        path.write_text(line + end)
        if end or line.startswith("["):
            with pytest.raises(DataError, match=r"ledger\.jsonl, line 1: damaged \(.*\); restore"):
                LedgerFile(path).read_entries()


def test_a_full_disk_behind_standard_output_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_example(tmp_path / "bundle")
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    images = [str(path) for path in sorted(tmp_path.glob("*.png"))]
    for words in (["catalog"], ["predict", str(folder), *images]):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            monkeypatch.setattr(sys, "stdout", full)
            line = run_main(monkeypatch, *words)
        assert line == (
            "dpprobe: standard output: cannot be written (No space left on device); "
            "free space or have the quota raised, and run again"
        )


@pytest.mark.parametrize("words", [["catalog"], ["catalog", "cifar10"], ["doctor", "--help"]])
def test_commands_end_quietly_behind_a_full_disk(words: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = subprocess.run(
            [sys.executable, "-m", "dpprobe", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 1


# Maps the path of each link to its target; the last one links to its own folder.
LOOPS = [
    {"cat/loop.png": "loop.png"},
    {"cat/a": "b", "cat/b": "a"},
    {"loop": "loop"},
    {"cat/up": ".."},
    {"cat/x": "../dog", "dog/y": "../cat"},
    {"": "images"},
]


@pytest.mark.parametrize("links", LOOPS, ids=str)
def test_loops_of_links_in_a_folder_of_images(tmp_path: Path, links: dict[str, str]) -> None:
    folder = tmp_path / "images"
    for name in CLASSES if "" not in links else ():
        (folder / name).mkdir(parents=True)
        for number in range(4):
            (folder / name / f"{number}.png").write_bytes(png(number))
    for place, target in links.items():
        (folder / place).symlink_to(target)
    options = dataset_options({"source": "imagefolder", "path": str(folder)})
    for door in (options.check_files, options.count_rows, options.count_classes):
        with pytest.raises(
            ConfigError, match=r"path: .*(symbolic links|links to a folder|no fold)"
        ):
            door()
    options.image_params()


# accepted without a message


@pytest.mark.parametrize(
    "text",
    [
        '{"label": "cat", "label": "dog"}',
        '{"label": "cat", "x": {"a": 1, "a": 2}}',
        '{"label": "cat", "\\u006cabel": "dog"}',
        '[{"a": 1, "a": 1}]',
        '{"":0,"":0}',
    ],
)
def test_duplicate_json_keys_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="appears twice in one object"):
        parse_json(text)
    members = [
        *samples(0, 8, label=[CLASSES[n % 2] for n in range(8)]),
        ("x.png", png(99)),
        ("x.json", text.encode()),
    ]
    shard = pack(tmp_path / "a.tar", members)
    options = dataset_options(
        {
            "source": "webdataset",
            "train": str(shard),
            "class_names": CLASSES,
            "label_column": "label",
        }
    )
    with pytest.raises(DataError, match=r"x\.json is not JSON \(the key .* appears twice"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seed: 010", "8"),
        ("seed: -010", "-8"),
        ("seed: 0_10", "8"),
        ("epsilons: [1:30]", "90"),
        ("epsilons: [1:30.5]", "90.5"),
        ("a: {b: [x, 12:00:00]}", "43200"),
        ("010: a", "8"),
        ('a: !!int "017"', "15"),
    ],
)
def test_numbers_in_another_base_are_reported(tmp_path: Path, text: str, value: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"study: a\n{text}\n")
    with pytest.raises(ConfigError, match=rf"a\.yaml:2: .*YAML reads this number as {value}; "):
        check_yaml(path)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "10",
        "1.5",
        "1e-5",
        "0x10",
        "0b11",
        "1_000",
        '"010"',
        "'1:30'",
        "08",
        "12:30 pm",
        ".inf",
        "00:61",
        "0.10",
        "-0",
    ],
)
def test_numbers_that_have_one_reading_are_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(f"a: [{text}]\n")
    check_yaml(tmp_path / "a.yaml")


def test_a_float_that_overflows_is_refused_rather_than_read_as_infinity(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("epsilons: [1.0e+400]")
    with pytest.raises(ConfigError, match=r"a\.yaml:1: 1\.0e\+400: too large for a number"):
        check_yaml(tmp_path / "a.yaml")
    assert epsilon_token("inf") == epsilon_token("Infinity") == epsilon_token(np.inf) == "inf"


@pytest.mark.parametrize("name", ["x" * 300, "x" * 81, "ab" * 150, "a" * 20, "b" + "xy" * 20])
@pytest.mark.parametrize("block", ["methods", "backbones", "datasets"])
def test_names_that_no_path_can_have(name: str, block: str) -> None:
    study = {**STUDY, block: {name: next(iter(STUDY[block].values()))}}
    with pytest.raises(ConfigError, match="80 or fewer characters|20 times, which Snakemake"):
        load_study(study)


def test_names_of_eighty_letters_are_accepted() -> None:
    name = ("abcdefghijklmnopqrstuvwxyz0123456789" * 3)[:80]
    study = {**STUDY, "methods": {name: next(iter(STUDY["methods"].values()))}}
    assert name in load_study(study).methods


# names that a terminal or a spreadsheet would execute


UNSHOWN = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "a\rb",
    "\x9b2J",
    "a\x08b",
    "\u202egnp.exe",
    "\u2066a",
    "\x00",
    "\x7f",
    "caf\udce9",
]


@pytest.mark.parametrize("text", UNSHOWN)
def test_escape_sequences_never_reach_a_terminal(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown != text
    stream = io.StringIO()
    print(text, file=Terminal(stream, "standard output"))
    assert stream.getvalue() == f"{shown}\n"
    assert str(DataError(f"{text}: no file")) == f"{shown}: no file"
    with caplog.at_level(logging.WARNING, "dpprobe"):
        logging.getLogger("dpprobe").warning("not used: %s", text)
    assert caplog.messages == [f"not used: {shown}"]


@pytest.mark.parametrize("text", ["plain", "tab\tand\nline", "größer ≥ 2 ± 1", "猫"])
def test_other_texts_are_shown_unchanged(text: str) -> None:
    assert printable(text) == text


def test_names_of_files_and_classes_are_shown_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    for name in ("\x1b[31mcat", "dog\x1b]0;owned\x07"):
        (images / name).mkdir(parents=True)
        for number in range(6):
            (images / name / f"{number}.png").write_bytes(png(number))
        (images / name / "bad\x1b[2J.txt").write_text("no image")
    line = run_main(monkeypatch, "init", images, "--output", tmp_path / "study.yaml")
    said = f"{line}{''.join(capsys.readouterr())}"
    assert "\x1b" not in said
    assert "\\x1b" in said
    folder = write_example(tmp_path / "bundle")
    (path := tmp_path / "a\x1b[31m.png").write_bytes(png(1))
    (bad := tmp_path / "bad\x9b2J.png").write_text("no image")
    code = run_main(monkeypatch, "predict", folder, path, bad)
    said = f"{code}{''.join(capsys.readouterr())}"
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "a\\x1b[31m.png" in said
    assert said.count("bad\\x9b2J.png") >= 2  # in the table and on standard error


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3+cmd|'x'!A0",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "a;=cmd",
    "＝cmd",
    "=1",
    "-a",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    table = Table(name="a", columns=(Column(title=text),), rows=[(TableCell(text=text),)])
    written = [comma_separated(table), confusion_csv(np.eye(2, dtype=int), [text, "b"])]
    cells = [cell for part in written for row in csv.reader(io.StringIO(part)) for cell in row]
    assert spreadsheet_text(text) in cells
    for cell in cells:
        for part in cell.split(";"):
            assert part[:1] not in {*"=+@-\t\r", "＝"}, cell


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "+0.5",
        "-1.5e-3",
        "1,000",
        "-3%",
        "-",
        "a-b",
        "a=b",
        "x",
        "",
        "inf",
        "-inf",
        "77.7%",
        "2024-01-01",
        "a; b",
    ],
)
def test_numbers_and_names_of_a_csv_stay(text: str) -> None:
    assert spreadsheet_text(text) == text
