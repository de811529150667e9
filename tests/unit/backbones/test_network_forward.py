"""Backbones: what they compute, what their fingerprints cover, what they refuse."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform

from dpprobe import devices
from dpprobe.backbones import loading, timm_models
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.network_forward import forward_pass
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.private_mark import mark_metadata
from tests.support.backbones import load, noise, run

PIXELS: dict[str, Any] = {"family": "pixels"}
SCATTERING: dict[str, Any] = {"family": "scattering", "size": 8}
TINY: dict[str, Any] = {"family": "timm", "model": "test_vit", "pretrained": False}


CPU = Runtime(device="cpu")


def renew_list(file: Path, wanted: str) -> None:
    """Compares a stored list of a library's models; with RENEW=1 it is written anew."""
    if os.environ.get("RENEW"):
        file.write_text(wanted, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == wanted, f"run this test with RENEW=1 for {file.name}"


def its_own(model: Any) -> Any:
    """timm's own evaluation transform of a model."""
    return create_transform(**resolve_model_data_config(model))


# colours


@pytest.mark.parametrize("family", ["pixels", "scattering"])
def test_grey_bits_are_part_of_a_backbone(family: str) -> None:
    plain, told = load(family=family, size=32), load(family=family, grey_bits=12, size=32)
    assert load(family=family, grey_bits=16, size=32).fingerprint == plain.fingerprint
    assert told.fingerprint != plain.fingerprint
    assert told.preprocessing == {**plain.preprocessing, "grey_bits": 12}
    grey = np.linspace(0, 255, 32 * 32).round().astype(np.uint8).reshape(32, 32)
    deep = Image.fromarray((grey.astype(np.uint32) * 4095 // 255).astype(np.uint16))
    eight = Image.fromarray(grey)
    torch.testing.assert_close(told.transform(deep), plain.transform(eight), atol=0.005, rtol=0)
    assert torch.equal(told.transform(eight), plain.transform(eight))
    with pytest.raises(ConfigError, match="grey_bits"):
        load(family="external", model="v", each_by_itself=True, grey_bits=12)


# pixels


def test_pixels_in_colour_resized_and_shifted() -> None:
    backbone = load(family="pixels", color="rgb", size=6, mean=0.5, std=0.25)
    assert backbone.dimension == 108
    features = run(backbone, Image.new("RGB", (20, 9), (255, 0, 51)))[0].reshape(3, 6, 6)
    for channel, value in enumerate((1.0, 0.0, 0.2)):
        assert torch.allclose(features[channel], torch.tensor((value - 0.5) / 0.25), atol=1e-6)


# scattering


def test_scattering_hardly_expands() -> None:
    """The public bounds of `normalize: {kind: channels}` rest on this."""
    ramp = np.linspace(0, 255, 32).astype(np.uint8)
    stripes = np.where(np.arange(32) % 8 < 4, 255, 0).astype(np.uint8)
    arrays = [np.broadcast_to(line, (32, 32)) for line in (ramp, stripes, stripes[::-1])]
    arrays += [np.full((32, 32), value, np.uint8) for value in (0, 128, 255)]
    pictures = [Image.fromarray(np.ascontiguousarray(array)).convert("RGB") for array in arrays]
    pictures += [noise((32, 32), seed=seed) for seed in range(5)]
    pictures += [noise((5, 5), seed=seed).resize((32, 32)) for seed in range(5)]
    rows = run(load(family="scattering", color="rgb"), *pictures).unflatten(1, (243, 64))
    grey = rows[4:5]
    assert rows.square().sum(1).mean(1).max() <= 3 * 1.01
    assert rows.mean(2).norm(dim=1).max() <= 1.7321 * 1.01
    assert (rows - grey).square().mean(2).sqrt().norm(dim=1).max() <= 0.8661 * 1.01


def test_scattering_is_channel_major() -> None:
    """A row is channels x positions: a bright corner stays in its corner of every channel."""
    array = np.zeros((32, 32), np.uint8)
    array[:8, :8] = 255
    row = run(load(family="scattering", color="rgb"), Image.fromarray(array).convert("RGB"))
    channels = row.reshape(3, 81, 8, 8)
    torch.testing.assert_close(channels[0], channels[2])
    assert (channels[0, :, :4, :4].sum((1, 2)) > 0.8 * channels[0].sum((1, 2))).all()


# timm


@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("bfloat16", True)])
def test_float32_means_full_float32_on_a_gpu_too(precision: Any, tf32: bool) -> None:
    # cuDNN's default rounds factors of convolutions to 10 bits: features were 1% off the CPU's
    seen = []

    class Network(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(torch.backends.cudnn.allow_tf32)
            return images.flatten(1)

    runtime = Runtime(device="cpu", precision=precision)
    grey = [0.5] * 3
    forward = forward_pass(Network(), runtime, name="network", mean=grey, std=grey)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        forward(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
        assert torch.backends.cudnn.allow_tf32
    assert seen == [tf32]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(7)
    model = timm.create_model("test_vit", pretrained=False)
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    return path


def test_checkpoint_is_loaded_and_named_by_its_hash(checkpoint: Path) -> None:
    backbone = load(family="timm", model="test_vit", checkpoint=str(checkpoint))
    assert backbone.weights_sha256 == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    picture = noise((160, 160))
    assert not torch.allclose(run(backbone, picture), run(load(**TINY), picture), atol=1e-3)
    torch.manual_seed(7)
    model = timm.create_model("test_vit", pretrained=False, num_classes=1000).eval()
    with torch.inference_mode():
        pixels = its_own(model)(picture)[None]
        expected = model.forward_head(model.forward_features(pixels), pre_logits=True)  # type: ignore[operator]
    torch.testing.assert_close(run(backbone, picture), expected, rtol=1e-4, atol=1e-5)


def test_fingerprint_follows_content_not_place(checkpoint: Path) -> None:
    first = load(family="timm", model="test_vit", checkpoint=str(checkpoint))
    moved = checkpoint.rename(checkpoint.with_name("moved.safetensors"))
    assert (
        load(family="timm", model="test_vit", checkpoint=str(moved)).fingerprint
        == first.fingerprint
    )
    state = timm.create_model("test_vit", pretrained=False).state_dict()
    state["norm.bias"] += 1e-3
    save_file(state, moved)
    assert (
        load(family="timm", model="test_vit", checkpoint=str(moved)).fingerprint
        != first.fingerprint
    )


def test_transforms_can_be_sent_to_another_process() -> None:
    for values in (TINY, SCATTERING, PIXELS):
        transform = load(**values).transform
        picture = noise((16, 16))
        copy = pickle.loads(pickle.dumps(transform))
        torch.testing.assert_close(copy(picture), transform(picture), rtol=0, atol=0)


def test_a_checkpoint_that_was_trained_on_private_rows_is_refused(checkpoint: Path) -> None:
    cell = {"dataset": "d", "backbone": "b", "method": "net", "epsilon": "2"}
    save_file(load_file(checkpoint), checkpoint, metadata=mark_metadata(cell, {}))
    with pytest.raises(PrivacyError, match="net trained on private rows of d at epsilon 2"):
        load(family="timm", model="test_vit", checkpoint=str(checkpoint))


def test_the_list_of_architectures_is_timms() -> None:
    listed: dict[str, list[str]] = {name: [] for name in timm.list_models()}
    for weights in timm.list_pretrained():
        name, _, tag = weights.partition(".")
        listed[name].append(tag)
    listed |= {name: [timm_models.DEPRECATED] for name in timm.models._registry._deprecated_models}
    lines = [" ".join([name, *sorted(tags)]) for name, tags in sorted(listed.items())]
    wanted = "\n".join([f"timm {timm.__version__}", *lines]) + "\n"
    renew_list(timm_models.ARCHITECTURES, wanted)
    known = timm_models.known_architectures()
    assert known is not None
    assert set(timm.list_models()) <= known.keys()
    assert "a1_in1k" in known["resnet50"]


def test_names_are_checked_only_against_the_timm_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = backbone_options({"family": "timm", "model": "of_the_future"})
    with pytest.raises(ConfigError, match="timm has no model 'of_the_future'"):
        options.check_files()
    monkeypatch.setattr(timm_models, "ARCHITECTURES", tmp_path / "names.txt")
    (tmp_path / "names.txt").write_text("timm 0.0.1\nresnet50\n")
    options.check_files()


def test_architecture_tag_and_training_are_as_timm_resolves_them(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = {"family": "timm", "model": "test_vit", "checkpoint": str(checkpoint)}
    for values, trained in ((TINY, False), (written, True)):
        loaded = load(**values)
        assert loaded.weights_sha256 is not None
        assert (loaded.architecture, loaded.pretrained_tag) == ("test_vit", None)
        assert loaded.trained == trained
    assert (load(**PIXELS).architecture, load(**PIXELS).trained) == (None, False)

    real = timm.create_model

    def fetch(name: str, **arguments: Any) -> Any:
        assert arguments["pretrained"]
        return real(name, **(arguments | {"pretrained": False}))

    monkeypatch.setattr(timm, "create_model", fetch)
    monkeypatch.setattr(timm_models, "require_files", list)  # the Hub answers
    fetched = load(family="timm", model="test_vit")
    assert (fetched.architecture, fetched.pretrained_tag) == ("test_vit", "r160_in1k")
    assert fetched.trained


def test_missing_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    options = backbone_options(PIXELS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="device: the study asks for cuda.*torch sees no GPU"):
        loading.load_backbone(options, runtime=Runtime(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.resolve_device("auto") == "cuda"
