"""Inputs that once hung, crashed or were accepted by mistake now raise one of dpprobe's errors."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from dpprobe.data import dataset_preparation
from dpprobe.data.images.image_files import is_image_file
from dpprobe.data.people.group_columns import warn_of_code
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources.embedding_files import open_embeddings
from dpprobe.data.table import SplitTable
from dpprobe.draft.csv_guesses import Wishes
from dpprobe.draft.parquet_guesses import look_at_parquet
from dpprobe.errors import ConfigError, DataError, StoreError
from dpprobe.features.shard_file import opened_shard
from dpprobe.files.json_files import read_record
from dpprobe.files.plain_files import require_plain_file
from dpprobe.release.bundle import HEAD_FILE, WEIGHTS, write_sums
from dpprobe.release.ledger.ledger_file import LedgerFile
from dpprobe.release.predict import Predictor, predict
from dpprobe.release.signing import signature_holds
from dpprobe.study.study_file import load_study
from dpprobe.study.yaml_file import check_yaml
from tests.support.bundles import write_example
from tests.support.refusals import change_values
from tests.support.shards import pack, png, samples
from tests.support.small_study import changed

CLASSES = ["cat", "dog"]


def write_parquet(path: Path, rows: int = 200, **columns: Any) -> Path:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    image = pa.array([{"bytes": png(row % 256), "path": None} for row in range(rows)], kind)
    values = {"image": image, "label": [row % 2 for row in range(rows)], **columns}
    pq.write_table(pa.table(values), path, compression="none", row_group_size=rows)
    return path


def options_of(source: str, **values: Any) -> Any:
    return dataset_options({"source": source, "class_names": CLASSES, **values})


def prepare(folder: Path, options: Any) -> SplitTable:
    dataset_preparation.prepare_dataset(options, folder)
    return SplitTable(folder / "train.parquet")


# bundles


def test_a_head_with_nonfinite_weights_or_scores_makes_no_prediction(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "bundle")
    Image.new("RGB", (8, 8), "white").save(tmp_path / "a.png")
    tensors = load_file(folder / HEAD_FILE)
    not_finite = "head.safetensors: weights: not finite float32 numbers"
    overflow = "image 0: the head's scores .* are not finite numbers"
    largest = np.finfo(np.float32).max
    for values, match in ((np.nan, not_finite), (np.inf, not_finite), (largest, overflow)):
        edited = tensors[WEIGHTS].copy()
        edited[slice(None) if np.isfinite(values) else (1, 3)] = values
        save_file({WEIGHTS: edited}, folder / HEAD_FILE)
        write_sums(folder)
        with pytest.raises(DataError, match=match):
            Predictor.load_bundle(folder).predict_images([Image.open(tmp_path / "a.png")])
        if not np.isfinite(values):
            with pytest.raises(DataError, match=match):
                predict(folder, [tmp_path / "a.png"], output=tmp_path / "out.csv")
            assert not (tmp_path / "out.csv").exists()


# depth and size


def test_deep_brackets_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    unreadable = r"deep.json: unreadable \(not valid JSON \(brackets nested"
    with pytest.raises(DataError, match=unreadable):
        read_record(tmp_path / "deep.json", kind="x", version=1)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800"])
@pytest.mark.parametrize("place", ["results_dir", "datasets.rows.root", "datasets.rows.filters"])
def test_texts_that_no_path_can_have_are_one_error(place: str, text: str) -> None:
    rows = {"source": "csv", "train": "a.csv", "label_column": "x", "class_names": CLASSES}
    study = changed("datasets.rows", rows)
    value = {text: ["x"]} if place.endswith("filters") else text
    what = r"a NUL character or half a character \(a lone surrogate\)"
    with pytest.raises(ConfigError, match=f"^config: .*: contains {what}; remove it$"):
        load_study(change_values(study, {place: value}))


# paths that are not files


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(path := tmp_path / "pipe.png")
    return path


@pytest.mark.usefixtures("pipe")
@pytest.mark.parametrize("place", ["/dev/zero", "pipe.png"])
def test_a_csv_of_devices_and_pipes_names_them(tmp_path: Path, place: str) -> None:
    lines = [f"{number}.png,{CLASSES[number % 2]}" for number in range(20)]
    for number in range(20):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "rows.csv").write_text("\n".join(["path,label", *lines, f"{place},cat"]))
    options = options_of("csv", root=str(tmp_path), train="rows.csv", label_column="label")
    with pytest.raises(DataError, match=rf"{place}: .*cannot be read \(a device, a pipe or a sock"):
        prepare(tmp_path / "out", options)


def test_files_are_plain_at_every_door(tmp_path: Path, pipe: Path) -> None:
    bundle = write_example(tmp_path / "bundle")
    vectors = ("a.h5ad", "a.npz", "a.npy")
    for name in ("a.parquet", "a.csv", "a.tar", "noname", "a.json", "ledger.jsonl", *vectors):
        os.mkfifo(tmp_path / name)
    text = "a device, a pipe or a socket"
    with pytest.raises(DataError, match=rf"ledger\.jsonl: {text}.* plain file"):
        LedgerFile(tmp_path / "ledger.jsonl").read_entries()
    with pytest.raises(DataError, match=text):
        read_record(tmp_path / "a.json", kind="x", version=1)
    for name in vectors:
        with pytest.raises(ConfigError, match=f"no file .*{name}"):
            open_embeddings(tmp_path / name, option="train")
    with pytest.raises(StoreError), opened_shard(pipe):
        pass
    with pytest.raises(ConfigError, match=text):
        options_of("parquet", train=str(tmp_path / "a.parquet")).check_files()
    with pytest.raises(ConfigError, match="no file a.csv"):
        options_of("csv", root=str(tmp_path), train="a.csv", label_column="x").check_files()
    with pytest.raises(ConfigError, match=text):
        options_of("webdataset", train=str(tmp_path / "a.tar")).check_files()
    for name in ("a.parquet", "a.csv", "noname", "pipe.png"):
        with pytest.raises(ConfigError, match=text):
            predict(bundle, [tmp_path / name], output=None)
    with pytest.raises(ConfigError, match="no file"):
        predict(bundle, [tmp_path], output=None, checkpoint=pipe)
    with pytest.raises(ConfigError, match="unreadable"):
        signature_holds(bundle, pipe)
    with pytest.raises(ConfigError, match=text):
        check_yaml(pipe)
    assert not is_image_file(tmp_path / "noname")
    require_plain_file(bundle)  # reading a folder is a different error


# parquet


def test_invalid_parquet_metadata_raises_a_config_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    table = pq.read_table(path)
    for written in ("[" * 100_000, "{", json.dumps({"class_names": 5})):
        pq.write_table(table.replace_schema_metadata({"dpprobe": written}), path)
        with pytest.raises(ConfigError, match=r"a.parquet: its metadata"):
            options_of("parquet", train=str(path)).check_files()


def test_a_label_of_a_trillion_is_refused_as_a_class_index(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", label=[10**12, *[0] * 199])
    match = "column label has the label 1000000000000: .*at most 1,0"
    with pytest.raises(ConfigError, match=match):
        look_at_parquet(str(path), Wishes())


# patients and groups


@pytest.mark.parametrize("source", ["csv", "parquet", "webdataset"])
def test_groups_are_made_in_the_same_way_of_every_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    warn_of_code.cache_clear()
    ages = [[-1, 30, 50, -99][row % 4] for row in range(40)]
    options = write_source(tmp_path, source, age=ages, sex=["F", "f"] * 20)
    listed = prepare(tmp_path / "a", options(group_columns=["age"])).read_groups()
    assert listed == prepare(tmp_path / "b", options(group_columns={"age": "age"})).read_groups()
    assert {*listed["group_age"]} <= {*map(str, ages)}
    caplog.clear()
    warn_of_code.cache_clear()
    many = {
        "range": {"column": "age", "bins": [18, 40]},
        "years": "age",
        "sex": {"column": "sex", "ignore_case": True},
    }
    groups = prepare(tmp_path / "c", options(group_columns=many)).read_groups()
    for age, place in (("age: -1", "falls into <18"), ("years: -99", "is a separate group")):
        assert caplog.text.count(f"{age} may be a code for unknown, but {place}") == 1
    assert {*groups["group_range"]} == {"<18", "18-39", ">=40"}
    assert {*groups["group_sex"]} == {"f"}
    wrong = write_source(tmp_path, source, age=["F"] + ["20"] * 39)
    with pytest.raises(DataError, match="age is 'F', which is not a number"):
        prepare(tmp_path / "d", wrong(group_columns={"age": {"column": "age", "bins": [18]}}))


def write_source(folder: Path, source: str, **columns: list[Any]) -> Any:
    """Writes 40 images with columns; returns the options that use them."""
    labels = [row // 4 % 2 for row in range(40)]
    if source == "csv":
        lines = [",".join(["path", "label", *columns])]
        for row in range(40):
            (folder / f"{row}.png").write_bytes(png(row))
            values = [values[row] for values in columns.values()]
            lines.append(",".join(map(str, [f"{row}.png", CLASSES[labels[row]], *values])))
        (folder / "rows.csv").write_text("\n".join(lines))
        given = {"root": str(folder), "train": "rows.csv", "label_column": "label"}
    elif source == "parquet":
        write_parquet(folder / "rows.parquet", 40, label=labels, **columns)
        given = {"train": str(folder / "rows.parquet")}
    else:
        members = []
        for row in range(40):
            fields = {name: values[row] for name, values in columns.items()} | {"y": labels[row]}
            members += [(f"{row}.png", png(row)), (f"{row}.json", json.dumps(fields).encode())]
        given = {"train": str(pack(folder / "rows.tar", members)), "label_column": "y"}
    return lambda **more: options_of(source, **given, **more)


# tars


@pytest.mark.parametrize("column", ["id_column", "unit_column", "group_columns", "label_column"])
@pytest.mark.parametrize("split_by", ["class", "id"])
def test_half_of_a_character_in_a_field_is_named(
    tmp_path: Path, column: str, split_by: str
) -> None:
    """`"\\ud800"` is valid JSON but not UTF-8: the split once raised a traceback for it."""
    half = ["\ud800" if number == 3 else "" for number in range(12)]
    fields = {"name": [f"{half[number]}row-{number}" for number in range(12)]}
    if column == "label_column":
        fields["label"] = [f"{CLASSES[number % 2]}{half[number]}" for number in range(12)]
    shard = pack(tmp_path / "a.tar", samples(0, 12, **fields))
    given: dict[str, Any] = {column: "label" if column == "label_column" else "name"}
    if column == "group_columns":
        given = {"group_columns": {"sort": "name"}}
    options = options_of("webdataset", train=str(shard), split_by=split_by, **given)
    with pytest.raises(DataError) as error:
        prepare(tmp_path / "out", options)
    assert "ud800" in str(error.value) + (tmp_path / "out" / "problems.csv").read_text()


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("key", ["a\0b", "x" * 120 + "\0b"])
def test_a_sample_whose_key_has_a_nul_is_not_lost(tmp_path: Path, kind: int, key: str) -> None:
    if kind == tarfile.USTAR_FORMAT:
        key = key[-3:]
    members = [*samples(0, 4), (f"{key}.png", png(9)), (f"{key}.cls", b"1")]
    shard = pack(tmp_path / "a.tar", members, format=kind)
    with pytest.raises(DataError, match=r"a.tar: a file name contains a NUL character, "):
        prepare(tmp_path / "out", options_of("webdataset", train=str(shard)))
