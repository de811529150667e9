"""CSV manifests: long cells, paths, spellings and copies, and what the documentation prints."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.backbones.registry import backbone_options
from dpprobe.data import csv_files, csv_manifest, csv_rows
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import read_info
from dpprobe.errors import ConfigError, DataError
from dpprobe.study.study_file import load_study
from tests.support.shards import png
from tests.support.sources import prepare, write_manifest, write_table


def animals(rows: int = 20) -> list[dict[str, Any]]:
    return [
        {"path": f"images/{n:03d}.png", "kind": "cat" if n % 3 else "dog", "sex": "fm"[n % 2]}
        for n in range(rows)
    ]


def read_rows(values: dict[str, Any]) -> dict[Any, Any]:
    options: Any = dataset_options(values)
    return csv_rows.read_rows(options)


@pytest.mark.parametrize("place", ["unused", "header", "group", "joined", "too long"])
@pytest.mark.parametrize("cell", ["y" * 131_073, "two\nlines" * 20_000])
def test_long_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str, place: str) -> None:
    name = cell if place == "header" else "note"
    noted = [row | {name: "" if number % 7 else cell} for number, row in enumerate(animals())]
    values = write_manifest(tmp_path, animals() if place == "joined" else noted)
    if place == "joined":
        write_table(tmp_path / "notes.csv", noted)
        values["joins"] = [{"file": "notes.csv", "by": "path", "columns": ["note"]}]
    if place in ("group", "joined"):
        values["group_columns"] = ["note"]
    if place == "too long":
        monkeypatch.setattr(csv_files, "MOST_CHARACTERS", 1000)
        with pytest.raises(ConfigError, match="field limit.*; close a quotation mark"):
            dataset_options(values).count_rows()
        return
    train, _ = prepare(tmp_path / "out", **values)
    if "group_columns" in values:
        assert set(train.read_groups()["group_note"]) == {"", cell}
    assert csv.field_size_limit() == 131_072


# paths


def test_paths_are_relative_to_the_root_unless_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = write_manifest(tmp_path / "here", animals()) | {"root": "here"}
    train, _ = prepare(tmp_path / "out", **given)
    assert str(next(train.read_images(0, 1)).path).startswith("here/images/")
    absolute, _ = prepare(tmp_path / "other", **given | {"train": str(tmp_path / "here/a.csv")})
    assert absolute.fingerprint == train.fingerprint


# what the documentation says


def documented() -> list[dict[str, Any]]:
    """The studies' parts that docs/your-own-data.md prints."""
    text = (Path(__file__).parents[3] / "docs/your-own-data.md").read_text()
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line[4:])
        elif blocks[-1]:
            blocks.append([])
    return [
        yaml.safe_load("\n".join(block))
        for block in blocks
        if block and block[0] in ("datasets:", "backbones:")
    ]


def test_what_the_documentation_prints_is_accepted() -> None:
    parts = documented()
    datasets = [options for part in parts for options in part.get("datasets", {}).values()]
    backbones = [options for part in parts for options in part.get("backbones", {}).values()]
    assert Counter(options["source"] for options in datasets) == {
        "csv": 2, "imagefolder": 1, "parquet": 1, "webdataset": 1,
    }  # fmt: skip
    for options in datasets:
        dataset_options(options)
    assert len(backbones) == 2
    for options in backbones:
        backbone_options(options)


def test_the_example_study_is_accepted_with_what_is_commented_out(repository: Path) -> None:
    text = (repository / "config/own_csv.yaml").read_text()
    load_study(yaml.safe_load(text))
    lines = []
    for line in text.splitlines():
        plain = line.replace("  # ", "  ", 1)
        keep = plain if line.startswith("  # ") and (":" in plain or "- " in plain) else line
        lines.append("" if "  Several labels" in keep or "  a file of their" in keep else keep)
    start = lines.index("backbones:")
    study = yaml.safe_load("\n".join([*lines[:start], *text.splitlines()[start:]]))
    options = load_study(study).datasets["findings"]
    assert isinstance(options, csv_manifest.Options)
    assert options.uncertain == {"edema": "ones", "effusion": "zeros", "pneumonia": "drop"}


@pytest.mark.parametrize("name", ["~$lock.jpg", "~nobody/x.jpg"])
def test_a_rows_path_is_data(tmp_path: Path, name: str) -> None:
    values = write_manifest(tmp_path, [*animals(), {"path": name, "kind": "cat", "sex": "f"}])
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match="cannot be read") as caught:
        prepare(tmp_path / "out", **values)
    assert "restore the file or leave the image out" in str(caught.value)
    (tmp_path / name).write_bytes(png(99))
    prepare(tmp_path / "out", **values)


# names in two spellings, and copies under several patients


def test_groups_in_two_spellings_are_told(tmp_path: Path) -> None:
    rows = animals()
    rows[3]["sex"] = rows[3]["sex"].upper()
    given = write_manifest(tmp_path, rows)
    with pytest.raises(DataError, match="sex: '[fmM]' and '[fmM]' are separate groups; use"):
        prepare(tmp_path / "out", **given, group_columns=["sex"])
    folded = {"sex": {"column": "sex", "ignore_case": True}}
    train, _ = prepare(tmp_path / "out", **given, group_columns=folded)
    assert set(train.read_groups()["group_sex"]) == {"f", "m"}


def test_no_row_is_lost_by_its_split_or_filter_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row | {"part": "train" if n % 4 else "test"} for n, row in enumerate(animals())]
    rows[7]["part"] = "Train"
    given = write_manifest(tmp_path, rows, split_column="part")
    with pytest.raises(ConfigError, match="a.csv line 9: part is 'Train', not 'train'"):
        read_rows(given)
    both = {**given, "train_values": ["train", "Train"]}
    assert len(read_rows(both)["train"].frame) == 15
    assert "neither split" not in caplog.text
    for value in ("val", ""):
        rows[5]["part"] = rows[6]["part"] = value
        write_table(tmp_path / "a.csv", rows)
        assert len(read_rows(both)["train"].frame) == 13
        assert f"a.csv: 2 rows of neither split, such as part {value!r}; not used" in caplog.text
    with pytest.raises(ConfigError, match=r"filters.kind: a.csv line \d: kind is 'dog', not 'Dog'"):
        read_rows(both | {"filters": {"kind": ["Dog"]}})


def test_copies_are_counted_by_image_and_by_patient(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = animals()
    for number, row in enumerate(rows):
        row |= {"patient": f"p{number // 2}", "part": "test" if number < 4 else "train"}
    given = write_manifest(tmp_path, rows, split_column="part", unit_column="patient")
    for number in (7, 8, 9):  # of one patient, of another, and twice of that one
        (tmp_path / rows[number]["path"]).write_bytes((tmp_path / rows[6]["path"]).read_bytes())
    prepare(tmp_path / "out", **given)
    assert "train: 1 rows repeat an image of another patient" in caplog.text
    copies = read_info(tmp_path / "out/dataset.json").train_copies
    counts = {"image": {"rows": 3, "most": 4}, "patient": {"rows": 1, "most": 2}}
    assert copies == {unit: of | {"by": "bytes and pixels"} for unit, of in counts.items()}
    with (tmp_path / "out/problems.csv").open(newline="") as stream:
        listed = [row["detail"] for row in csv.DictReader(stream)]
    told = ["of another patient: 'p4' and 'p3'" in detail for detail in listed]
    assert told == [False, True, True]


@pytest.mark.parametrize("name", [r"images\\003.png", "images/003.PNG", "images/ 003.png"])
def test_a_path_in_another_spelling_is_told(tmp_path: Path, name: str) -> None:
    rows = animals()
    given = write_manifest(tmp_path, rows)
    rows[3]["path"] = name
    write_table(tmp_path / "a.csv", rows)
    with pytest.raises(DataError, match="write / instead|there is '003.png', with"):
        prepare(tmp_path / "out", **given)
