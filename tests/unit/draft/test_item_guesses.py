"""Folders with one file of vectors per item, and their tables, become studies."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import pytest
import yaml

from tests.unit.draft.conftest import Desk

HIDDEN = "    # "


def put_items(desk: Desk, patches: int, folder: str = "uni", **arrays: Any) -> None:
    """Writes 60 files of slides of 30 patients, with vectors of 4 numbers, and their table."""
    (desk.folder / folder).mkdir()
    random = np.random.default_rng(0)
    for number in range(60):
        with h5py.File(desk.folder / folder / f"s{number}.h5", "w") as file:
            file["features"] = random.normal(size=(patches, 4)).astype("f4")
            file["coords"] = np.zeros((patches, 2), int)
            for name, values in arrays.items():
                file[name] = values
    rows = [
        {"slide": f"s{each}", "diagnosis": "ab"[each // 2 % 2], "patient": f"p{each // 2}"}
        for each in range(60)
    ]
    desk.table("slides.csv", rows)


@pytest.mark.parametrize("words", [["uni"], ["uni/", "--table", "slides.csv"], ["slides.csv"]])
@pytest.mark.parametrize("patches", [1, 3])
def test_the_study_runs_once_a_person_confirms(desk: Desk, words: list[str], patches: int) -> None:
    put_items(desk, patches)
    said = desk.init(*words)
    assert "uni: 60 items of 30 patients, 2 classes" in said
    assert "60 of 60 items have a file" in said
    assert "names:" not in said
    text = (desk.folder / "slides.yaml").read_text()
    (keys,) = yaml.safe_load(text)["datasets"].values()
    wanted: dict[str, Any] = {
        "source": "embeddings",
        "train": "uni",
        "table": "slides.csv",
        "id_column": "slide",
    }
    wanted |= {"label_column": "diagnosis", "class_names": ["a", "b"], "unit_column": "patient"}
    assert wanted | ({"pool": "mean"} if patches > 1 else {}) == {
        key: keys[key] for key in (*wanted, "pool") if key in keys
    }
    assert "vectors" not in keys
    refused = desk.run("check", "slides.yaml")
    assert "backbones.uni.each_by_itself: missing" in refused
    confirmed = text.replace(HIDDEN + "model", "    model").replace(HIDDEN + "each", "    each")
    (desk.folder / "slides.yaml").write_text(confirmed)
    checked = desk.run("check", "slides.yaml")
    pooled = ", pooled by mean" if patches > 1 else ""
    assert f"slides: uni: features [*, 4] of float32 in each file{pooled}; 60 of 60" in checked


def test_check_counts_the_items_without_a_file(desk: Desk) -> None:
    put_items(desk, 3)
    (desk.folder / "uni" / "s7.h5").rename(desk.folder / "uni" / "S7.h5")
    assert (
        "59 of 60 items have a file; not 's7' (only S7.h5, which has a similar name); 1 file "
        "without an item" in desk.init("uni")
    )
