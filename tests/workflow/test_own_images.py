"""A user's own images, in a folder or listed in a CSV file, work with the studies in `config/`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from PIL import Image

from .conftest import Workspace


def write_images(folder: Path, rows: int) -> None:
    """Writes two classes with stripes of different direction; sizes and modes vary."""
    generator = np.random.default_rng(0)
    for name in ("across", "along"):
        (folder / name / "deeper").mkdir(parents=True)
        for row in range(rows):
            side = int(generator.integers(24, 60))
            stripes = (np.arange(side) // 4 % 2 * 180).astype(np.float64)
            image = np.tile(stripes, (side, 1)) + generator.uniform(0, 70, size=(side, side))
            pixels = (image if name == "along" else image.T).astype(np.uint8)
            mode = "RGB" if row % 2 else "L"
            path = folder / name / ("deeper" if row % 3 else ".") / f"{row:03d}.png"
            Image.fromarray(pixels).convert(mode).save(path)


def test_a_folder_of_images(workspace: Workspace, repository: Path) -> None:
    study: dict[str, Any] = yaml.safe_load((repository / "config/own_images.yaml").read_text())
    path = "images/{lesions} <of> 20[26]*"  # a literal name, not a pattern
    study["datasets"]["lesions"]["path"] = path
    write_images(workspace.directory / path, rows=60)
    study |= {"epsilons": [8], "seeds": 2}
    workspace.run(study, "summaries")
    results = workspace.directory / study["results_dir"]
    table = pq.read_table(results / "summary/lesions.parquet").to_pandas()
    assert set(table["train_rows"]) == {96}
    assert table[table["method"] == "nonprivate"]["accuracy"].min() > 0.9
    assert "Nothing to be done" in workspace.run(study, "summaries").stdout
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):  # written by file managers
        (workspace.directory / path / "along" / name).write_bytes(b"\0")
    assert "Nothing to be done" in workspace.run(study, "summaries").stdout

    deep = workspace.directory / path / "along/deeper/001.png"
    Image.open(deep).transpose(Image.Transpose.ROTATE_90).save(deep)
    planned = workspace.planned(study, "summaries")
    assert planned["prepare_data"] == 1, "an image replaced in place is noticed"


def write_manifest(root: Path, rows: int) -> list[dict[str, Any]]:
    """Writes the same images with a CSV; each patient has two images of the same kind."""
    write_images(root, rows=rows)
    listed = []
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        kind = path.relative_to(root).parts[0]
        listed.append(
            {
                "file": path.relative_to(root).as_posix(),
                "diagnosis": {"across": "benign", "along": "malignant"}[kind],
                "patient": f"p{kind}{number // 2}",
                "sex": "fm"[number % 2],
                "age": 15 + number % 70 if number % 9 else "",
            }
        )
    with (root / "lesions.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
    return listed


def test_a_csv_of_images(workspace: Workspace, repository: Path) -> None:
    study: dict[str, Any] = yaml.safe_load((repository / "config/own_csv.yaml").read_text())
    root = workspace.directory / "images"
    listed = write_manifest(root, rows=60)
    study |= {"epsilons": [8], "seeds": 2}

    spoiled = root / listed[3]["file"]
    image = spoiled.read_bytes()
    spoiled.write_bytes(image[:-30])
    (root / listed[8]["file"]).rename(root / "away.png")
    refused = workspace.run(study, check=False)
    assert refused.returncode != 0
    assert "1 missing image, 1 unreadable image; " in refused.stdout
    assert "lesions.csv line 5: cannot be decoded" in refused.stdout
    assert "Traceback" not in refused.stdout
    folder = workspace.directory / study["data_dir"] / "lesions"
    assert [path.name for path in folder.iterdir()] == ["problems.csv"]

    spoiled.write_bytes(image)
    (root / "away.png").rename(root / listed[8]["file"])
    workspace.run(study)
    assert not (folder / "problems.csv").exists()
    results = workspace.directory / study["results_dir"]
    table = pq.read_table(results / "summary/lesions.parquet").to_pandas()
    assert set(table["train_rows"]) == {96}
    assert table[table["method"] == "nonprivate"]["accuracy"].min() > 0.9
    groups = pq.read_table(folder / "test.parquet").to_pandas()
    assert set(groups["group_age"]) <= {"", "<18", "18-39", "40-59", "60-79", ">=80"}
    assert len(set(groups["group_age"])) > 3
    patients = {row["file"]: row["patient"] for row in listed}
    sides = [
        {patients[name] for name in pq.read_table(folder / f"{split}.parquet")["id"].to_pylist()}
        for split in ("train", "test")
    ]
    assert not sides[0] & sides[1]
    assert "Nothing to be done" in workspace.run(study).stdout
    os.utime(root / "lesions.csv", (1e9, 1e9))
    assert workspace.planned(study, "data")["prepare_data"] == 1, "a backup was restored"

    statement = results / "cells/lesions/scattering/auto/eps-8/privacy.json"
    of_patients = json.loads(statement.read_text())
    assert of_patients["unit"] == "patient"
    assert of_patients["n"] == len(sides[0]) == 48
    assert table["train_units"].tolist() == [48] * len(table)
    report = (results / "report.html").read_text()
    assert "one patient (all of their training images together)" in report
    of_rows = study | {"privacy": {"unit": "image"}}
    output = workspace.run(of_rows, "heads").stdout
    assert "datasets.lesions: unit: image, and patients may have several" in output
    planned = workspace.planned(of_rows)
    assert not {"prepare_data", "extract_features"} & planned.keys()
    of_images = json.loads(statement.read_text())
    assert of_images["unit"] == "image"
    assert of_images["n"] == 96
    assert of_images["patients"] == {"images": None, "epsilon": None}
    workspace.run(study, "heads")
    assert json.loads(statement.read_text()) == of_patients

    manifest = root / "lesions.csv"
    manifest.write_text(manifest.read_text().replace(",benign,", ",unclear,", 2))
    refused = workspace.run(study, check=False)
    assert refused.returncode != 0
    assert "2 labels without a class" in refused.stdout
    assert [path.name for path in folder.iterdir()] == ["problems.csv"]
    again = workspace.run(study, check=False)
    assert again.returncode != 0, "tables of before may not pass for those of the file of today"
