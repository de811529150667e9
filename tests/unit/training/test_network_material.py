"""A network's data: augmented training images, unchanged test images, random rows for checks.

Other tests cover `image_inputs` and `check_network`; these tests check the arguments.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.features.feature_store import FeatureStore
from dpprobe.finetune.options import Options
from dpprobe.heads.registry import method_options
from dpprobe.training import network_material
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.network_material import Material
from tests.support.feature_stores import separable, write_split

Asked = list[tuple[Any, dict[str, Any]]]


class Table(str):
    """Replaces a split table, without null examples."""

    nulls = ()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Returns a list of the first argument and the named arguments of each call."""
    calls: Asked = []

    def note(first: Any, *_: Any, **named: Any) -> object:
        calls.append((first, named))
        return object()

    monkeypatch.setattr(network_material, "image_inputs", note)
    monkeypatch.setattr(network_material, "check_network", note)
    monkeypatch.setattr(network_material, "SplitTable", Table)
    monkeypatch.setattr(network_material, "check_table", lambda *_: None)
    loaded = SimpleNamespace(weights_sha256=None)
    monkeypatch.setattr(network_material, "load_backbone", lambda *_, **__: loaded)
    return calls


def material_of(folder: Path, **options: Any) -> Material:
    for number, split in enumerate(("train", "test")):
        labels = np.arange(12) % 3
        units = [f"p{row // 2}" for row in range(12)]
        write_split(folder / split, separable(labels, 4, seed=number), labels, units=units)
    stores = (
        FeatureStore(folder / "train/manifest.json"),
        FeatureStore(folder / "test/manifest.json"),
    )
    method = method_options({"head": "fine_tune", "tune": "all", **options})
    assert isinstance(method, Options)
    files: Any = SimpleNamespace(tables=("train.parquet", "test.parquet"), backbone=None)
    return Material(
        options=method,
        files=files,
        stores=stores,
        inputs=FitInputs(stores[0], "patient"),
        memory_mb=7,
        device="cpu",
        threads=3,
    )


@pytest.mark.parametrize("augment", [None, {"views": 4, "pad": 1}])
def test_training_images_have_views_and_units_and_test_images_neither(
    tmp_path: Path, asked: Asked, augment: dict[str, int] | None
) -> None:
    material = material_of(tmp_path, augment=augment)
    material.make_train_inputs(11)
    assert material.test is material.test, "read once"
    (train, of_train), (test, of_test) = asked
    assert (train, test) == ("train.parquet", "test.parquet")
    always = {"memory_mb": 7, "threads": 3}
    views = {"split": "train", "augment": material.options.augment, "seed": 11}
    assert of_train == {**always, **views, "units": material.inputs.units}
    assert of_train["units"].count == 6
    assert (of_train["augment"] is None) == (augment is None)
    assert of_test == {**always, "split": "test", "augment": None, "seed": 0, "units": None}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"sigmoid": False, "precision": "float32", "views": 1, "together": 24}),
        ({"loss": "sigmoid"}, {"sigmoid": True, "views": 1, "together": 24}),
        ({"augment": {"views": 4}}, {"views": 4, "together": 6}),
        ({"precision": "bfloat16"}, {"precision": "bfloat16"}),
        ({"engine": "opacus"}, {"engine": "opacus"}),
    ],
)
@pytest.mark.parametrize("from_images", [False, True])
def test_gradients_are_checked_as_they_are_computed(
    tmp_path: Path, asked: Asked, options: dict[str, Any], wanted: dict[str, Any], from_images: bool
) -> None:
    """Uses random rows of the network's shape; with 24 inputs and four views, six rows fit."""
    network: Any = SimpleNamespace(
        shape=(3, 8, 6), trained={"w": torch.zeros(1)}, from_images=from_images
    )
    material_of(tmp_path, **options).check_gradients(network, physical_batch=24)
    ((given, named),) = asked
    assert given is network
    assert {name: named[name] for name in wanted} == wanted
    assert named["classes"] == 3
    example = named["example"]
    assert example.dtype == (torch.uint8 if from_images else torch.float32)
    assert example.shape == (3, 3, 8, 6)
    values = example.double()
    mean, deviation = (127.5, 255 / 12**0.5) if from_images else (0.0, 1.0)  # uniform, normal
    assert abs(values.mean() - mean) < 0.2 * deviation
    assert abs(values.std() / deviation - 1) < 0.2
