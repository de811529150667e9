"""A draft's backbone is a checkpoint, cached weights from the Hub, or wavelets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from dpprobe.backbones.feature_dimensions import Dimensions
from dpprobe.draft import available_backbone
from dpprobe.study import catalog
from tests.support.backbones import describe_here
from tests.unit.draft.conftest import Desk

MODELS = timm.list_models()
HUB = "https://huggingface.co/"
# The catalog's backbones with weights in a repository of the Hub, in catalog order.
ON_THE_HUB = {
    name: str(entry["source"]).removeprefix(HUB)
    for name, entry in catalog.backbone_entries().items()
    if str(entry["source"]).startswith(HUB)
}


@pytest.fixture
def folder(desk: Desk) -> Desk:
    """Describes networks in this process: starting another takes seconds."""
    describe_here(desk.monkeypatch)
    desk.images("x/a", "x/b", count=30)
    return desk


def save(desk: Desk, model: str, file: str, **arguments: Any) -> str:
    network = timm.create_model(model, **arguments)
    save_file(network.state_dict(), desk.folder / file)
    return file


@pytest.mark.parametrize(
    ("model", "file"),
    [("test_vit", "test_vit_mine"), ("test_resnet", "Test_ResNet.best"), ("test_vit", "w")],
)
def test_a_checkpoint_is_drafted_with_timm_s_features_and_preprocessing(
    folder: Desk, model: str, file: str
) -> None:
    """The network's name comes from the file's name, or from `--model` with a tag."""
    checkpoint = save(folder, model, f"{file}.safetensors", num_classes=3)
    asked = f"{model}.r160_in1k" if file == "w" else model
    drafted = folder.draft("x", "--checkpoint", checkpoint, *(["--model", asked] * (file == "w")))
    keys = {"family": "timm", "model": asked, "checkpoint": checkpoint}
    assert drafted.backbones == {model: keys}
    network = timm.create_model(model, num_classes=0).eval()
    features = network(torch.zeros(1, 3, 160, 160)).shape[1]
    assert f"\nbackbone:    {model}, {features} features per image\n" in drafted.said
    assert f"--d {features}" in drafted.said
    told = timm.get_pretrained_cfg(asked)
    assert told is not None
    comment = " ".join(drafted.text.replace("#", "").split())
    for name in ("mean", "std", "interpolation"):
        assert f"{name} {getattr(told, name)}" in comment
    assert f"size {told.input_size[-1]})" in comment
    assert "must not be trained on your private images" in comment
    assert "vit_base_patch16_224" not in comment, "no better one is proposed"


def test_preprocessing_that_a_file_states_is_written(folder: Desk) -> None:
    """The network's arguments are written too, but not timm's default preprocessing."""
    stated = {"mean": [0.5] * 3, "std": [0.4] * 3, "interpolation": "bilinear", "crop_pct": 1.0}
    arguments = {"global_pool": "avg", "num_classes": 3}
    values = {"architecture": "test_vit", "model_args": arguments, "pretrained_cfg": stated}
    checkpoint = save(folder, "test_vit", "test_vit.safetensors", **arguments)
    folder.file("config.json", json.dumps(values))
    drafted = folder.draft("x", "--checkpoint", checkpoint)
    keys = drafted.backbones["test_vit"]
    assert keys["preprocessing"] == stated
    assert keys["model_args"] == {"global_pool": "avg"}
    assert "Preprocessing: see config.json." in drafted.text
    assert "Assumed" not in drafted.text
    folder.file("config.json", json.dumps(values | {"model_args": {}}))
    save(folder, "test_vit", checkpoint)
    assert "model_args" not in folder.draft("x", "--checkpoint", checkpoint).backbones["test_vit"]


REFUSED: dict[str, list[str]] = {
    # the content of test_vit.safetensors; words in the error
    "weights of test_resnet": ["--checkpoint: test_vit.safetensors: "],
    "a picture": ["--checkpoint: test_vit.safetensors: this is a PNG image", "name a .safetensors"],
    "a bad mean": ["config.json: states unusable values", "mean: 'x'", "correct or remove"],
    "a bad argument": ["model_args"],
}


@pytest.mark.parametrize("fault", REFUSED)
def test_weights_that_do_not_load_are_refused(folder: Desk, fault: str) -> None:
    """The error names no option that `init` does not have."""
    checkpoint = save(
        folder, "test_resnet" if "resnet" in fault else "test_vit", "test_vit.safetensors"
    )
    stated: dict[str, Any] = {"mean": "x" if fault == "a bad mean" else 0.5}
    if fault == "a picture":
        (folder.folder / checkpoint).write_bytes(b"\x89PNG\r\n\x1a\n")
    elif fault.startswith("a bad"):
        arguments = {"depths": 2} if fault == "a bad argument" else {}
        folder.file("config.json", json.dumps(stated | {"model_args": arguments}))
    said = folder.refuse("x", "--checkpoint", checkpoint)
    assert [fact for fact in REFUSED[fault] if fact not in said] == [], said
    assert not said.startswith("--model_args")


@given(
    model=st.sampled_from(MODELS),
    rest=st.sampled_from(["", "_mine", ".pth", "-0.91", "MINE.safetensors"]),
    capitals=st.booleans(),
)
def test_a_checkpoint_s_network_is_the_longest_name_of_timm(
    model: str, rest: str, *, capitals: bool
) -> None:
    file = model.upper() + rest if capitals else model + rest
    stem = file.lower().partition(".")[0]  # in timm, a tag of weights follows the dot
    starts = (stem[:end] for end in range(len(stem), 0, -1))
    longest = next(start for start in starts if timm.is_model(start))  # or an older name
    assert available_backbone._find_model(Path("some", file)) == longest
    with patch.object(available_backbone, "known_architectures", return_value=None):
        assert available_backbone._find_model(Path("some", file)) == longest, "another version"


def test_a_network_of_the_hub_gets_a_name_that_a_study_may_have(folder: Desk) -> None:
    checkpoint = save(folder, "test_vit", "w.safetensors")
    known = Dimensions(known={"network": 64})
    folder.monkeypatch.setattr(available_backbone, "read_dimensions", lambda *_: known)
    model = "hf-hub:timm/test_vit.r160_in1k"
    chosen = available_backbone.choose_backbone(checkpoint, model)
    assert (chosen.name, chosen.dimension, chosen.keys["model"]) == ("test_vit", 64, model)


def test_the_catalog_s_first_cached_backbone_is_chosen(folder: Desk) -> None:
    """The choice does not depend on other cached backbones; with an empty cache it is wavelets."""
    chosen = available_backbone.choose_backbone(None, None)
    assert chosen.keys == {"family": "scattering", "size": 32, "color": "rgb", "project": 512}
    assert (chosen.name, chosen.dimension, chosen.pretrained) == ("scattering", 512, False)
    for name, repository in reversed(ON_THE_HUB.items()):
        entry = catalog.backbone_entries()[name]
        place = f"cache/models--{repository.replace('/', '--')}"
        folder.file(f"{place}/refs/main", "0" * 40)
        kind = {"timm": "model", "open_clip": "open_clip_model"}[entry["options"]["family"]]
        folder.file(f"{place}/snapshots/{'0' * 40}/{kind}.safetensors")
        chosen = available_backbone.choose_backbone(None, None)
        assert chosen.keys == {"catalog": name}
        assert (chosen.name, chosen.dimension) == (name, entry["dimension"])
        assert chosen.comment.startswith(f"{entry['title']}, trained on {entry['trained_on']}.")
    assert folder.draft("x").backbones == {name: {"catalog": name}}
