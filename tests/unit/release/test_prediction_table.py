"""Thresholds decide which class is named, and a table says which bundle and thresholds made it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.errors import ConfigError
from dpprobe.release.bundle import BundleFacts, read_facts
from dpprobe.release.predict import Predictor, predict
from dpprobe.release.prediction_table import check_thresholds, label_of
from dpprobe.versions import code_version
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.network_bundles import write_release


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("bundle") / "pixels")


def facts_of(example: Path, classes: str, *, link: str = "softmax", many: bool = False) -> Any:
    facts = read_facts(example)
    head = facts.head.model_copy(update={"link": link})
    changed = {"class_names": tuple(classes.split()), "multi_label": many, "head": head}
    return facts.model_copy(update=changed)


def name_class(values: list[float], facts: BundleFacts, **thresholds: float) -> str:
    checked = check_thresholds(thresholds, facts)
    return label_of(np.array(values, np.float32), facts, checked)


@pytest.mark.parametrize(
    ("value", "threshold", "said"),
    [
        (0.1, 0.1, "ill"), (0.09, 0.1, "well"), (0.7, 0.7, "ill"), (0.69999, 0.7, "well"),
        (0.95, 0.99, "well"), (0.0, 0.0, "ill"), (1.0, 1.0, "ill"),
    ],
)  # fmt: skip
def test_of_two_classes_one_is_named_from_its_threshold_on(
    example: Path, value: float, threshold: float, said: str
) -> None:
    facts = facts_of(example, "well ill")
    assert name_class([1 - value, value], facts, ill=threshold) == said
    plain = "ill" if value > 0.5 else "well"
    assert name_class([1 - value, value], facts) == plain


@pytest.mark.parametrize(
    ("values", "thresholds", "said"),
    [
        # the most probable class does not matter where another one reaches its threshold
        ([0.7, 0.2, 0.1], {"b": 0.2}, "b"),
        ([0.7, 0.19, 0.11], {"b": 0.2}, "a"),
        # of several that do, the most probable one
        ([0.6, 0.15, 0.25], {"b": 0.1, "c": 0.1}, "c"),
        # a class that misses its threshold is not named, however probable
        ([0.1, 0.6, 0.3], {"b": 0.9}, "c"),
        ([0.4, 0.4, 0.2], {}, "a"),
    ],
)
def test_of_three_classes_those_that_reach_a_threshold_come_first(
    example: Path, values: list[float], thresholds: dict[str, float], said: str
) -> None:
    assert name_class(values, facts_of(example, "a b c"), **thresholds) == said


def test_each_of_several_labels_has_its_threshold_or_one_half(example: Path) -> None:
    facts = facts_of(example, "a b c", link="sigmoid", many=True)
    values = [0.5, 0.3, 0.9]
    assert name_class(values, facts) == "c"
    assert name_class(values, facts, b=0.3) == "b|c"
    assert name_class(values, facts, a=0.5) == "a|c"  # from 0.5 on; without one, above 0.5
    assert name_class(values, facts, a=0.6, b=0.6, c=0.95) == ""


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ({"ill ": 0.2}, "^threshold of ill : pixels has no class with this name; write ill: the"),
        ({"x": 0.2}, "threshold of x: .*; correct it: the classes are well, ill$"),
        ({"ill": 1.01}, "threshold of ill: 1.01; write a probability from 0 to 1"),
        ({"ill": -0.1}, "threshold of ill: -0.1; write"),
        ({"ill": float("nan")}, "threshold of ill: nan; write"),
        ({"ill": float("inf")}, "threshold of ill: inf; write"),
        (
            {"ill": 0.2, "well": 0.2},
            "all 2 classes have a threshold, .* leave out the threshold of the default class",
        ),
    ],
)
def test_thresholds_that_cannot_be_are_one_error(
    example: Path, thresholds: dict[str, float], message: str
) -> None:
    facts = facts_of(example, "well ill").model_copy(update={"name": "pixels"})
    with pytest.raises(ConfigError, match=message):
        check_thresholds(thresholds, facts)


def test_scores_have_no_thresholds(example: Path) -> None:
    facts = facts_of(example, "a b", link="none")
    with pytest.raises(ConfigError, match="gives scores, not probabilities; leave thresholds out"):
        check_thresholds({"a": 0.5}, facts)
    assert check_thresholds({}, facts) == {}


# tables


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


def test_a_wrong_threshold_is_told_before_the_backbone_is_loaded(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    monkeypatch.setattr("dpprobe.backbones.loading.load_backbone", lambda *_, **__: 1 / 0)
    words = ["predict", example, tmp_path / "x.png", "--threshold", "nevus=0.3"]
    said = str(run_main(monkeypatch, *words))
    assert "threshold of nevus: lesions_v1 has no class with this name; write naevus" in said
