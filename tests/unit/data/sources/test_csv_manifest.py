"""CSV manifests: long cells, paths, spellings, copies, and the examples in the documentation."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.backbones.registry import backbone_options
from dpprobe.data.file_states import hash_file_states
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import csv_files, csv_manifest
from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.sources import prepare, write_images, write_manifest, write_table


def animals(rows: int = 20) -> list[dict[str, Any]]:
    return [
        {"path": f"images/{n:03d}.png", "kind": "cat" if n % 3 else "dog", "sex": "fm"[n % 2]}
        for n in range(rows)
    ]


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


def test_a_folder_is_a_manifest_of_its_images(tmp_path: Path) -> None:
    """A folder gives the same tables as a CSV file that lists the paths of its images."""
    names = [f"{kind}/p{n % 7}_{'fm'[n % 2]}_{n}.png" for n in range(20) for kind in ("cat", "dog")]
    write_images(tmp_path / "in/images", names)
    options = {
        "source": "csv",
        "root": str(tmp_path / "in"),
        "label_column": "kind",
        "class_names": ["cat", "dog"],
        "unit_column": "patient",
        "group_columns": ["sex"],
        "split_by": "id",
        "test_fraction": 0.4,
        "extract": {
            "kind": {"column": "path", "pattern": "(cat|dog)/"},
            "patient": {"column": "path", "pattern": "/(p[0-9])_"},
            "sex": {"column": "path", "pattern": "_([fm])_"},
        },
    }
    write_table(tmp_path / "in/a.csv", [{"path": f"images/{name}"} for name in sorted(names)])
    (tmp_path / "in/images/.DS_Store").write_bytes(b"")
    folder = options | {"train": "images"}
    tables = [
        prepare(tmp_path / name, **options | {"train": train})
        for name, train in (("folder", "images"), ("file", "a.csv"))
    ]
    for made, wanted in zip(*tables, strict=True):
        for read in ("read_ids", "read_groups", "read_units"):
            assert getattr(made, read)() == getattr(wanted, read)()
        assert made.read_labels().tolist() == wanted.read_labels().tolist()
        assert len(made.read_ids()) > 5
    listed = dataset_options(folder)
    assert {Path(each).name for each in listed.input_files()} == {"images", "cat", "dog"}
    before = hash_file_states(listed.list_source_files())
    (tmp_path / "in/images/cat" / "p9_f_9.png").write_bytes(b"png")
    assert hash_file_states(listed.list_source_files()) != before
    (tmp_path / "in/images/notes.txt").write_text("no image")
    with pytest.raises(ConfigError, match=r"notes\.txt: not an image; move it out of"):
        prepare(tmp_path / "out", **folder)


def test_paths_are_relative_to_the_root_unless_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = write_manifest(tmp_path / "here", animals()) | {"root": "here"}
    train, _ = prepare(tmp_path / "out", **given)
    assert str(next(train.read_images(0, 1)).path).startswith("here/images/")
    absolute, _ = prepare(tmp_path / "other", **given | {"train": str(tmp_path / "here/a.csv")})
    assert absolute.fingerprint == train.fingerprint


def documented() -> list[dict[str, Any]]:
    """Returns the parts of studies that docs/your-own-data.md prints."""
    text = (Path(__file__).parents[4] / "docs/your-own-data.md").read_text()
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line[4:])
        elif blocks[-1]:
            blocks.append([])
    kinds = ("datasets:", "backbones:")
    return [yaml.safe_load("\n".join(each)) for each in blocks if each and each[0] in kinds]


def test_what_the_documentation_prints_is_accepted() -> None:
    parts = documented()
    datasets = [options for part in parts for options in part.get("datasets", {}).values()]
    backbones = [options for part in parts for options in part.get("backbones", {}).values()]
    assert Counter(options["source"] for options in datasets) == {
        "csv": 3,
        "imagefolder": 1,
    }
    for options in datasets:
        dataset_options(options)
    assert len(backbones) == 1
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
