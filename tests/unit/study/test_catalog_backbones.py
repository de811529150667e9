"""Backbones in `resources/backbones.yaml` have names that exist and right dimensions."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
from open_clip.model import _build_vision_tower
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from timm.models import get_pretrained_cfg

from dpprobe.backbones import loading, open_clip_models, timm_models
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from dpprobe.options import NAME_PATTERN
from dpprobe.study import catalog

ENTRIES = catalog.backbone_entries()
KEYS = {
    "title",
    "options",
    "dimension",
    "parameters",
    "pooling",
    "licence",
    "trained_on",
    "source",
    "papers",
}
SOME = {"architecture", "dimension_before_projection", "access", "notes"}
TIMM = sorted(name for name, entry in ENTRIES.items() if entry["options"]["family"] == "timm")
CLIP = sorted(name for name, entry in ENTRIES.items() if entry["options"]["family"] == "open_clip")
HUB = {name for name, entry in ENTRIES.items() if ":" in entry["options"]["model"]}
# Each of these takes a second to build, and the tests build another size of its architecture.
SLOW = {"nfnet_f2", "nfnet_f3", "nfnet_f4", "nfnet_f5", "h_optimus_0", "dinov2_g14", "virchow"}
META = Runtime(device="meta", precision="float32")
# The catalog's words for the poolings of timm and open_clip.
POOLINGS = {"token": "class token", "tok": "class token", "avg": "average", "map": "attention"}


def options(name: str, **values: Any) -> Any:
    return backbone_options(catalog.complete_backbone({"catalog": name} | values))


def noise() -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((300, 260), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_entry_is_whole_and_its_name_is_known(name: str) -> None:
    entry = ENTRIES[name]
    assert re.fullmatch(NAME_PATTERN, name)
    assert entry.keys() >= KEYS
    assert entry.keys() <= KEYS | SOME
    assert entry.get("access", "gated") == "gated"
    assert ("architecture" in entry) == (name in HUB)
    assert entry["source"].startswith("https://")
    assert all(re.fullmatch("[0-9]{3}", paper) for paper in entry["papers"])
    completed = options(name)
    completed.check_files()
    assert completed.dimension == entry["dimension"]
    assert completed.catalog == name


@pytest.mark.locked
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TIMM) - SLOW))
def test_timm_s_sizes_and_pooling(name: str) -> None:
    """Repositories of the Hub are built with the architecture that their configuration names."""
    entry = ENTRIES[name]
    changed = {"model": entry["architecture"]} if name in HUB else {}
    chosen = options(name, pretrained=False, **changed)
    with torch.device("meta"):
        model = timm_models._create_model(chosen)
        model.reset_classifier(0)
        parameters = sum(each.numel() for each in model.parameters())  # for the original image size
        network = timm_models._make_network(model, chosen, META)[0]
    assert parameters == entry["parameters"]
    assert network.dimension == entry["dimension"]
    pool = getattr(model, "global_pool", None)
    pool = pool if isinstance(pool, str) else pool or model.head.global_pool
    named = POOLINGS[pool if isinstance(pool, str) else pool.pool_type]
    assert entry["pooling"] == ("class + patch mean" if chosen.append_patch_mean else named)
    assert chosen.list_warnings() == []


@pytest.mark.locked
@pytest.mark.parametrize("name", sorted(set(TIMM) - HUB))
def test_timm_s_weights_and_licences(name: str) -> None:
    entry = ENTRIES[name]
    known = get_pretrained_cfg(entry["options"]["model"])
    assert known is not None
    assert str(known.license).lower() == entry["licence"].lower()
    assert entry["source"].endswith(str(known.hf_hub_id))


@pytest.mark.locked
@pytest.mark.parametrize("name", CLIP)
def test_open_clips_sizes_and_pooling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRIES[name]
    chosen = options(name, **({} if name in HUB else {"pretrained": False}))
    if name == "biomedclip":  # its authors' configuration
        tower = {"timm_model_name": entry["architecture"], "timm_model_pretrained": False}
        config = {"embed_dim": 512, "vision_cfg": tower | {"timm_pool": "", "timm_proj": "linear"}}
    else:
        config = open_clip.get_model_config(entry.get("architecture", chosen.model))
    given = config["embed_dim"], config["vision_cfg"], config.get("quick_gelu", False)
    with torch.device("meta"):  # without the text tower, which takes longer
        visual = _build_vision_tower(*given)
    size = getattr(visual, "image_size", 224)
    visual.preprocess_cfg = vars(open_clip.transform.PreprocessCfg(size=size))
    assert sum(each.numel() for each in visual.parameters()) == entry["parameters"]
    pool: Any = getattr(getattr(visual, "trunk", visual), "global_pool", None)
    assert entry["pooling"] == POOLINGS[pool or getattr(visual, "pool_type", "map")]
    model = SimpleNamespace(visual=visual)
    monkeypatch.setattr(open_clip_models, "_create_model", lambda *_, **__: model)
    assert open_clip_models.describe(chosen, "meta")["dimension"] == entry["dimension"]
    before = options(name, with_projection=False)
    assert before.dimension == entry.get("dimension_before_projection")
    if before.dimension is None:
        with pytest.raises(ConfigError, match="ends without a projection"):
            open_clip_models.describe(before, "meta")
    else:
        assert open_clip_models.describe(before, "meta")["dimension"] == before.dimension


@pytest.mark.locked
@pytest.mark.parametrize("name", sorted(set(CLIP) - HUB))
def test_open_clips_weights(name: str) -> None:
    model, tag = (ENTRIES[name]["options"][key] for key in ("model", "pretrained"))
    assert (model, tag) in open_clip.list_pretrained()
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
    """With random weights, the pipeline equals the library's own (dimensions 2048, 768, 512)."""
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
