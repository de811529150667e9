"""What `init` prints and writes for tables and folders of many kinds, held against the stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from dpprobe.backbones.feature_dimensions import Dimensions
from dpprobe.data.options import compute_imbalance
from dpprobe.draft import available_backbone
from dpprobe.draft.seen_dataset import Seen, study_name
from dpprobe.draft.study_text import choose_delta
from tests.support.stored_records import check_values
from tests.unit.draft.conftest import Desk


def draft(desk: Desk, *words: str) -> tuple[str, dict[str, str]]:
    printed = desk.init(*words)
    files = [*desk.folder.glob("*.y*ml"), *desk.folder.glob("studies/**/*.y*ml")]
    written = {str(path.relative_to(desk.folder)): path.read_text() for path in files}
    for name in written:
        desk.study(name, check_classes=False)
        (desk.folder / name).unlink()
    return printed, written


def shorten(answers: Mapping[str, tuple[str, dict[str, str]]]) -> Iterator[tuple[str, Any]]:
    """Yields what is printed, and of each study the lines that the one before has not."""
    known: set[str] = set()
    for name, (printed, written) in answers.items():
        lines = {file: text.splitlines() for file, text in written.items()}
        new = {file: [each for each in text if each not in known] for file, text in lines.items()}
        counts = {file: len(text) for file, text in lines.items()}
        known = {each for text in lines.values() for each in text}
        yield name, {"printed": printed.splitlines(), "lines": counts, "new": new}


STATED = {
    "mean": [0.5] * 3,
    "std": [0.4] * 3,
    "input_size": [3, 192, 192],
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "classifier": "fc",
}
ABOUT = {"architecture": "mobilenetv2_100", "model_args": {"pad_type": "same"}}
MINE = "mobilenetv2_100_mine"
# A checkpoint with words after it, and the files beside it: what they state.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "of its name": ("mobilenetv2_100_imagenet", {}),
    "of capitals": ("MobileNetV2_100", {}),
    "of a tag": ("resnet18_ours --model mobilenetv2_100.ra_in1k", {}),
    "beside its folder": (MINE, {"config": ABOUT | {"pretrained_cfg": STATED}}),
    "beside it": (MINE, {MINE: ABOUT | STATED, "config": STATED | {"mean": [0.1] * 3}}),
    "no arguments": (MINE, {"config": {"pretrained_cfg": STATED}}),
    "of another model": (MINE, {"config": ABOUT | STATED | {"architecture": "resnet50"}}),
    "of other files": (MINE, {"config": {"license": "mit"}, MINE: [ABOUT | STATED]}),
    "a bad value": (MINE, {"config": ABOUT | STATED | {"mean": "x"}}),
    "broken": (MINE, {}),
    "broken model": (MINE, {}),
    "broken elsewhere": (MINE, {}),
    "of the longest": ("vit_small_patch16_224_mine", {}),
    "of an ending": ("ResNet50d_a1", {}),
}
FAULTS = {
    "broken": "checkpoint: no weights",
    "broken model": "model_args: x",
    "broken elsewhere": "no room",
}


def test_a_study_of_fetched_or_given_weights_is_as_stored(desk: Desk) -> None:
    """What looks at networks, a process of some seconds, has tests elsewhere."""
    answers = {}
    desk.images("x/a", "x/b")
    for name, (words, beside) in CHECKPOINTS.items():
        faults = {"network": FAULTS[name]} if name in FAULTS else {}
        known = Dimensions(known={"network": 1280}, faults=faults)
        desk.monkeypatch.setattr(available_backbone, "read_dimensions", lambda *_, k=known: k)
        file, *more = words.split()
        save_file({"weight": np.zeros(1, np.float32)}, desk.folder / f"{file}.safetensors")
        for stem, content in beside.items():
            desk.file(f"{stem}.json", json.dumps(content))
        answers[name] = draft(desk, "x", "--checkpoint", f"{file}.safetensors", *more)
        for path in desk.folder.glob("*.*"):
            path.unlink()
    for name in ("mobilenetv2_100.ra_in1k", "vit_base_patch16_224.augreg_in21k"):
        desk.file(f"cache/models--timm--{name}/refs/main", "0" * 40)
        desk.file(f"cache/models--timm--{name}/snapshots/{'0' * 40}/model.safetensors")
        answers[f"fetched {name}"] = draft(desk, "x")
    answers["a model alone"] = draft(desk, "x", "--model", "resnet18", "--force")
    check_values("drafts_of_checkpoints", dict(shorten(answers)))


def test_an_empty_class_counts_as_tables_count_it() -> None:
    counts = {"a": 30, "b": 15, "c": 0}
    seen = Seen(place="x", keys={}, counts=counts, images=45)
    assert seen.imbalance == compute_imbalance(tuple(counts.values())) == 2
    assert not seen.is_imbalanced


def test_delta_lies_below_one_over_the_patients() -> None:
    assert [choose_delta(n) for n in (0, 10_000, 10_001, 1_281_167)] == [1e-5, 1e-5, 1e-6, 1e-8]


def test_studies_are_named_after_their_data(desk: Desk) -> None:
    """Not as the folders of dpprobe's own files."""
    desk.monkeypatch.setenv("HOME", str(desk.folder))
    desk.images("lesions/images", "2024/Data", "a.b", "results", count=1)
    names = {
        "lesions/images": "lesions",
        "2024/Data": "2024",
        "a.b": "a_b",
        "Größe.csv": "groe",
        "___/train.csv.gz": "train",
        "日本.csv": "study",
        "x/Metadata.v2.tsv": "x",
        "lesions/list.csv": "list",
        "img/../lesions": "lesions",
        "results": "results",
        "Cells": "cells_images",
        "downloads": "downloads_images",
        "tables": "tables_images",
        "releases.parquet": "releases_images",
        "~/index": desk.folder.name.lower(),
    }
    assert {name: study_name(Path(name)) for name in names} == names
