"""Checkpoints: read by what they are, held against the model, their classifier ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from dpprobe.backbones import loading, timm_models
from dpprobe.backbones.backbone import Runtime

CPU = Runtime(device="cpu")
MODELS = ("test_vit", "test_efficientnet", "test_resnet", "test_convnext")


def saved(path: Path, model: str = "test_vit", **arguments: Any) -> dict[str, torch.Tensor]:
    """Writes weights of a seed that no default has, and returns them."""
    torch.manual_seed(7)
    state: dict[str, torch.Tensor] = timm.create_model(model, **arguments).state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return state


def features(path: Path, model: str = "test_vit", **values: Any) -> torch.Tensor:
    options = timm_models.Options(model=model, checkpoint=str(path), **values)
    backbone = loading.load_backbone(options, runtime=CPU)
    generator = torch.Generator().manual_seed(1)
    shape = (2, *backbone.preprocessing["input_size"])
    return backbone.forward(torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("model", MODELS)
def test_a_classifier_of_any_number_of_classes_is_ignored(
    tmp_path: Path, model: str, suffix: str
) -> None:
    """The same weights before it give the same features: with 965 classes, and with 1,000."""
    path, other, headless = (tmp_path / f"{name}{suffix}" for name in "abc")
    state = saved(path, model, num_classes=965)
    wide = timm.create_model(model).state_dict()
    kept = {name: value for name, value in state.items() if value.shape == wide[name].shape}
    assert len(kept) < len(state), "the classifier's shape differs"
    save = save_file if suffix == ".safetensors" else torch.save
    save(wide | kept, other)
    save(kept, headless)
    expected = features(path, model, model_args={"num_classes": 965})
    torch.testing.assert_close(features(path, model), expected, rtol=0, atol=0)
    torch.testing.assert_close(features(other, model), expected, rtol=0, atol=0)
    torch.testing.assert_close(features(headless, model), expected, rtol=0, atol=0)
    none = features(path, model, model_args={"num_classes": 0})
    torch.testing.assert_close(none, expected, rtol=0, atol=0)
    told = timm_models.describe(timm_models.Options(model=model, checkpoint=str(path)), "cpu")
    assert told["dimension"] == expected.shape[1]
