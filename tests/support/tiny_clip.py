"""Tiny open_clip models for tests, with names that no real model has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VISION: dict[str, Any] = {
    "image_size": 32,
    "layers": 3,
    "width": 32,
    "head_width": 16,
    "patch_size": 8,
}
TEXT: dict[str, Any] = {
    "context_length": 77,
    "vocab_size": 49408,
    "width": 16,
    "heads": 2,
    "layers": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT},
    "tiny-quickgelu": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT},
    "tiny-resnet": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": TEXT,
    },
    "tiny-timm": {
        "embed_dim": 24,
        "custom_text": True,
        "init_logit_bias": -10.0,
        "vision_cfg": {
            "timm_model_name": "test_vit",
            "timm_pool": "",
            "timm_proj": "linear",
            "image_size": 160,
        },
        "text_cfg": TEXT,
    },
    "tiny-tokenizer": {
        "embed_dim": 24,
        "vision_cfg": VISION,
        "text_cfg": TEXT | {"hf_tokenizer_name": "nobody/nothing"},
    },
}


def register(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the models in open_clip, and in the names that the backbone family accepts."""
    from open_clip import factory

    from dpprobe.backbones import open_clip_models

    folder.mkdir(exist_ok=True)
    for name, model in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(model))
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", [*factory._MODEL_CONFIG_PATHS, folder])
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))
    factory._rescan_model_configs()
    names = folder / "names.txt"
    names.write_text("open_clip_torch 0.0.1\n")
    monkeypatch.setattr(open_clip_models, "NAMES", names)
