"""The backbones of `resources/backbones.yaml`: names that exist, dimensions that are right."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from timm.models import get_pretrained_cfg

from dpprobe.backbones import loading, open_clip_models
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from dpprobe.options import NAME_PATTERN
from dpprobe.study import catalog

ENTRIES = catalog.backbone_entries()
KEYS = {"title", "options", "dimension", "licence", "trained_on", "source", "papers", "notes"}
TIMM = sorted(name for name, entry in ENTRIES.items() if entry["options"]["family"] == "timm")
CLIP = sorted(name for name, entry in ENTRIES.items() if entry["options"]["family"] == "open_clip")


def options(name: str, **values: Any) -> Any:
    return backbone_options(catalog.complete_backbone({"catalog": name} | values))


def noise() -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((300, 260), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_entry_is_whole_and_its_name_is_known(name: str) -> None:
    entry = ENTRIES[name]
    assert re.fullmatch(NAME_PATTERN, name)
    assert set(entry) | {"notes"} == KEYS
    assert entry["source"].startswith("https://")
    assert all(re.fullmatch("[0-9]{3}", paper) for paper in entry["papers"])
    completed = options(name)
    completed.check_files()
    assert completed.dimension == entry["dimension"]
    assert completed.catalog == name


@pytest.mark.parametrize("name", TIMM)
def test_timm_s_dimensions_weights_and_licences(name: str) -> None:
    entry = ENTRIES[name]
    model = entry["options"]["model"]
    known = get_pretrained_cfg(model)
    assert known is not None
    assert str(known.license).lower() == entry["licence"].lower()
    assert entry["source"].endswith(str(known.hf_hub_id))
    with torch.device("meta"):
        created = timm.create_model(model, pretrained=False, num_classes=0)
    assert created.num_features == entry["dimension"]


@pytest.mark.parametrize("name", CLIP)
def test_open_clips_dimensions_and_weights(name: str) -> None:
    entry = ENTRIES[name]
    model, tag = entry["options"]["model"], entry["options"]["pretrained"]
    assert (model, tag) in open_clip.list_pretrained()
    assert open_clip.get_model_config(model)["embed_dim"] == entry["dimension"]
    known = open_clip_models.known_models()
    assert known is not None
    assert known[model].tags[tag] == known[model].activation


def test_another_dimension_is_an_error() -> None:
    cpu, right = Runtime(device="cpu"), options("tiny_vit", pretrained=False)
    assert loading.load_backbone(right, runtime=cpu).dimension == 64
    with pytest.raises(ConfigError, match="dimension: 65 .* the backbone gives 64"):
        loading.load_backbone(right.model_copy(update={"dimension": 65}), runtime=cpu)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "vit_b16", "clip_vit_b32"])
def test_the_three_of_table_1_at_full_size(name: str) -> None:
    """Random weights: the whole pipeline against the library's own, dimensions 2048, 768, 512."""
    chosen = options(name, pretrained=False)
    backbone = loading.load_backbone(chosen, runtime=Runtime(device="cpu"))
    encode: Any
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "clip_vit_b32":
            model, _, preprocess = open_clip.create_model_and_transforms(chosen.architecture)
            encode = model.eval().encode_image
            assert backbone.preprocessing["activation"] == "quickgelu"
        else:
            encode = timm.create_model(chosen.model, pretrained=False).eval()
            data = resolve_model_data_config(encode)
            preprocess = create_transform(**data)
            encode.reset_classifier(0)
    with torch.inference_mode():
        expected = encode(preprocess(noise())[None])
    features = backbone.forward(backbone.transform(noise())[None])
    assert features.shape == (1, ENTRIES[name]["dimension"])
    scale = float(expected.abs().max())
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5 * scale)
