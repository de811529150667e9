"""Thresholds decide which class is named, and a table says which bundle and thresholds made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.release.predict import Predictor, predict
from dpprobe.versions import code_version
from tests.support.command_line import run_main
from tests.support.network_bundles import write_release


def pictures(folder: Path) -> Path:
    folder.mkdir()
    for row in range(12):
        values = np.random.default_rng(row).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{row:02d}.png")
    (folder / "bad.png").write_bytes(b"bad")
    return folder


def test_a_table_states_its_bundle_and_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = {"family": "pixels", "size": 8}
    folder = write_release(tmp_path / "bundle", pixels, classes=("a=b", "ü", "c"), scale=3.0)
    images = pictures(tmp_path / "in")
    digest = hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest()
    thresholds = {"a=b": 0.9, "ü": 0.25}
    words = ["predict", folder, images, "--threshold", "a=b=0.9", "--threshold", "ü=0.25"]
    assert run_main(monkeypatch, *words, "--output", tmp_path / "out.csv") == 3
    predict(folder, [images], output=tmp_path / "out.parquet", thresholds=thresholds)
    table, typed = pd.read_csv(tmp_path / "out.csv"), pd.read_parquet(tmp_path / "out.parquet")

    known = {"bundle": "lesions_v1", "bundle_sha256": digest, "dpprobe": code_version()}
    metadata = pq.read_schema(tmp_path / "out.parquet").metadata
    assert json.loads(metadata[b"dpprobe"]) == known | {"thresholds": thresholds}
    assert table.columns.tolist()[-5:] == ["error", *known, "thresholds"]
    rows = table[[*known, "thresholds"]].drop_duplicates().to_dict("records")
    assert rows == [known | {"thresholds": "a=b=0.9|ü=0.25"}], "unreadable images included"
    assert typed.columns.tolist() == table.columns.tolist()[:-4]
    assert table["class"].fillna("").tolist() == typed["class"].fillna("").tolist()

    predictor = Predictor.load_bundle(folder, device="cpu", thresholds=thresholds)
    good = typed[typed["error"].isna()]
    values = good.filter(like="probability_").to_numpy()
    assert predictor.name_classes(values) == good["class"].tolist()
    plain = Predictor.load_bundle(folder, device="cpu").name_classes(values)
    assert plain != good["class"].tolist(), "thresholds change nothing, so the test says nothing"

    capsys.readouterr()
    assert run_main(monkeypatch, "predict", folder, images) == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].endswith(f",lesions_v1,{digest},{code_version()},")
