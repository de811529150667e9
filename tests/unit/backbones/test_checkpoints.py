"""Checkpoints: read by what they are, held against the model, their classifier ignored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from dpprobe.backbones import checkpoints, loading, timm_models
from dpprobe.backbones.backbone import Runtime
from dpprobe.errors import ConfigError

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


def test_what_stands_before_the_classifier_is_loaded_strictly(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    state = saved(path)
    for changed, message in (
        (
            {name: one for name, one in state.items() if name != "norm.bias"},
            "1 of its .* norm.bias",
        ),
        (state | {"norm.other": torch.zeros(3)}, "the model has no norm.other"),
        (state | {"norm.bias": torch.zeros(3)}, r"norm.bias is \[3\] and not \[64\]"),
    ):
        save_file(changed, path)
        with pytest.raises(
            ConfigError, match=f"a.safetensors: these are not weights of test_vit: .*{message}"
        ):
            features(path)


def jpeg(path: Path) -> None:
    Image.new("RGB", (8, 8)).save(path, format="JPEG")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (jpeg, "this is a JPEG image, not a file of weights"),
        (lambda path: path.write_text("<!DOCTYPE html><title>Log in"), "this is a web page"),
        (
            lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "this is a pointer of Git",
        ),
        (lambda path: path.write_bytes(b""), "this is empty, not"),
        (
            lambda path: path.write_text("the weights are on the other disk\n"),
            "this is a text, not",
        ),
        (lambda path: path.write_bytes(bytes(range(200))), "no weights can be read from it"),
    ],
)
def test_files_that_are_no_weights_are_refused_by_name(
    tmp_path: Path, suffix: str, write: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / f"a{suffix}"
    write(path)
    for shapes in (True, False):
        with pytest.raises(ConfigError, match=f"checkpoint: .*a{suffix}: {message}") as error:
            checkpoints.read_state(path, shapes=shapes)
        assert "name a .safetensors file" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_file_without_named_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"epoch": 3}, path)
    with pytest.raises(ConfigError, match="it should contain named tensors"):
        checkpoints.read_state(path)


@pytest.mark.parametrize(
    ("place", "prefix"),
    [
        ("state_dict", "module."), ("model_state_dict", ""), ("net", "module."),
        ("model", "_orig_mod."), ("weights", "model."), ("params", "module._orig_mod."),
        (None, "backbone."),
    ],
)  # fmt: skip
def test_what_a_trainer_wraps_around_weights_is_unwrapped(
    tmp_path: Path, place: str | None, prefix: str
) -> None:
    path = tmp_path / "a.pth"
    state = saved(path)
    expected = features(path)
    wrapped = {prefix + name: value for name, value in state.items()}
    beside = {"epoch": torch.tensor(3), "optimizer_state_dict": {"lr": torch.tensor(0.1)}}
    torch.save({**beside, place: wrapped} if place else wrapped, path)
    torch.testing.assert_close(features(path), expected, rtol=0, atol=0)
