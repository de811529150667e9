"""The part of an image that enters a network, the precision, and the features of inner blocks."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torchvision.transforms import RandomResizedCrop

from dpprobe.backbones import image_preprocessing
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.feature_digest import probes_agree, take_probe
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support.backbones import load as load_backbone
from tests.support.backbones import run
from tests.support.backbones import smooth_noise as noise

CPU = Runtime(device="cpu", precision="float32")
MODELS = ("test_vit", "test_resnet", "test_efficientnet", "test_byobnet")


def load(model: str = "test_vit", runtime: Runtime = CPU, **values: Any) -> Backbone:
    options = {"family": "timm", "model": model, "pretrained": False} | values
    return load_backbone(runtime, **options)


def reference(model: str = "test_vit", **arguments: Any) -> Any:
    """timm's model by itself, with the weights that the family draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(model, pretrained=False, **arguments).eval()


def rows(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        features: torch.Tensor = model.forward_head(model.forward_features(pixels), pre_logits=True)
    return features


# bytes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("written", "given"),
    [
        *(({"crop_mode": mode}, {"crop_mode": mode}) for mode in ("center", "squash", "border")),
        ({"size": 224}, {"input_size": (3, 224, 224)}),
    ],
)
def test_bytes_give_timms_own_features(
    model: str, written: dict[str, Any], given: dict[str, Any]
) -> None:
    ours = load(model, preprocessing=written)
    library = reference(model)
    if model == "test_vit" and "size" in written:
        library.set_input_size(img_size=224)
    data = resolve_model_data_config(library) | given
    assert ours.preprocessing["input_size"] == list(data["input_size"])
    transform = create_transform(**data)
    pictures = [noise(seed=seed, size=size) for seed, size in enumerate([(200, 170), (90, 300)])]
    tensors = [ours.transform(picture) for picture in pictures]
    assert {tensor.dtype for tensor in tensors} == {torch.uint8}
    expected = rows(library, torch.stack([transform(picture) for picture in pictures]))
    torch.testing.assert_close(
        ours.forward(torch.stack(tensors)),
        expected,
        rtol=1e-5,
        atol=1e-5 * float(expected.abs().max()),
    )


def test_normalisation_is_torchvisions_to_the_bit() -> None:
    backbone = load("test_resnet")
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            seen.append(batch)
            return batch.mean((2, 3))

    from dpprobe.backbones import network_forward

    model = reference("test_resnet")
    data = resolve_model_data_config(model)
    network = network_forward.prepare_network(
        Spy(), backbone_options({"family": "timm", "model": "x"}), CPU,  # type: ignore[arg-type]
        name="spy", channels=3, size=data["input_size"][1:], mean=data["mean"], std=data["std"],
        flip=False,
    )  # fmt: skip
    network.forward(backbone.transform(noise())[None])
    expected = create_transform(**data)(noise())
    assert torch.equal(seen[-1][0], expected)


# size


def test_a_checkpoint_is_resampled_to_the_size(tmp_path: Path) -> None:
    native, larger = tmp_path / "native.safetensors", tmp_path / "larger.safetensors"
    model = reference()
    model.pos_embed.data.normal_()
    save_file(model.state_dict(), native)
    model.set_input_size(img_size=224)
    save_file(model.state_dict(), larger)
    values: dict[str, Any] = {"pretrained": None, "preprocessing": {"size": 224}}
    resampled = load(checkpoint=str(native), **values)
    given = load(checkpoint=str(larger), **values)
    expected = rows(
        model.eval(), (resampled.transform(noise())[None] / 255 - 0.5) / 0.5
    )  # test_vit's mean and std
    torch.testing.assert_close(run(given, noise()), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run(resampled, noise()), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(
        ConfigError,
        match=r"not weights of test_vit: pos_embed is \[1, 197, 64\] and not \[1, 101, 64\]",
    ):
        load(checkpoint=str(larger), pretrained=None)


# crops


def test_an_inception_crop_is_a_function_of_the_image_and_the_seed() -> None:
    backbone = load(preprocessing={"crop": "inception"})
    crop = backbone.train_transform
    assert crop is not None
    one, other = (hashlib.sha256(name).digest() for name in (b"one", b"other"))
    first = crop(noise(), one)
    assert first.shape == (3, 160, 160)
    assert first.dtype == torch.uint8
    torch.manual_seed(3)
    assert torch.equal(first, crop(noise(), one))
    assert torch.equal(first, pickle.loads(pickle.dumps(crop))(noise(), one))
    assert not torch.equal(first, crop(noise(), other))
    reseeded = load(preprocessing={"crop": "inception", "crop_seed": 1})
    assert reseeded.train_transform is not None
    assert not torch.equal(first, reseeded.train_transform(noise(), one))
    plain = load()
    assert len({plain.fingerprint, backbone.fingerprint, reseeded.fingerprint}) == 3
    assert plain.train_transform is None
    assert torch.equal(plain.transform(noise()), backbone.transform(noise())), "test images"


def test_crops_of_an_image_have_public_numbers() -> None:
    """The first is the crop of a study without `crops`; none depends on the others or on labels."""
    backbone = load(preprocessing={"crop": "inception", "crops": 3})
    first, sha256 = backbone.train_transform, hashlib.sha256(b"one").digest()
    assert isinstance(first, image_preprocessing.InceptionCrop)
    assert first == load(preprocessing={"crop": "inception"}).train_transform
    parts = [replace(first, number=number)(noise(), sha256) for number in range(3)]
    again = [replace(first, number=number)(noise(), sha256) for number in (2, 1, 0)]
    assert all(torch.equal(part, same) for part, same in zip(parts, again[::-1], strict=True))
    assert len({part.numpy().tobytes() for part in parts}) == 3
    boxes = {
        image_preprocessing.crop_box(900, 900, seed=seed, sha256=sha256, number=number)
        for seed in (0, 1, 11)
        for number in (0, 1, 11)
    }
    assert len(boxes) == 9


@pytest.mark.parametrize(("width", "height"), [(100, 80), (60, 300), (300, 60), (1, 1)])
def test_crops_are_distributed_as_torchvisions(width: int, height: int) -> None:
    boxes = [
        image_preprocessing.crop_box(width, height, seed=0, sha256=str(index).encode())
        for index in range(1500)
    ]
    torch.manual_seed(0)
    blank = Image.new("L", (width, height))
    theirs = [RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(1500)]
    for top, left, h, w in boxes:
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        assert h > 0 < w
    ours, others = np.array(boxes, float), np.array(theirs, float)
    deviation = np.sqrt((ours.var(0) + others.var(0)) / 1500)
    assert (np.abs(ours.mean(0) - others.mean(0)) <= 4.5 * deviation + 1e-9).all()
    assert (ours.std(0) <= 1.15 * others.std(0) + 1e-9).all()
    assert (others.std(0) <= 1.15 * ours.std(0) + 1e-9).all()


# mirror images


def test_flip_is_the_mean_of_both_views() -> None:
    whole = {"crop_pct": 1}  # what is cut off a side depends on the side
    plain = load(layers="all", preprocessing=whole)
    both = load(layers="all", preprocessing=whole | {"flip": True})
    picture = noise((160, 160))
    mirrored = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    expected = run(plain, picture, mirrored).mean(0, keepdim=True)
    assert not torch.allclose(run(plain, picture), expected, rtol=1e-3)
    torch.testing.assert_close(run(both, picture), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run(both, picture), run(both, mirrored), rtol=1e-4, atol=1e-5)
    assert plain.forward_layers is not None
    assert both.forward_layers is not None
    batch = torch.stack([plain.transform(picture), plain.transform(mirrored)])
    separate = plain.forward_layers(batch)[1]["3"].mean(0)
    torch.testing.assert_close(
        both.forward_layers(batch)[1]["3"][0], separate, rtol=1e-4, atol=1e-5
    )
    assert plain.fingerprint != both.fingerprint


# layers


def test_layers_of_a_vit_are_its_class_tokens() -> None:
    backbone = load(layers="all")
    model = reference()
    pixels = (backbone.transform(noise())[None] / 255 - 0.5) / 0.5
    with torch.inference_mode():
        embedded = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(pixels))))
        _, blocks = model.forward_intermediates(pixels, return_prefix_tokens=True, output_fmt="NLC")
    assert backbone.forward_layers is not None
    features, layers = backbone.forward_layers(backbone.transform(noise())[None])
    depth = len(model.blocks)
    assert dict(backbone.layers) == {str(block): 64 for block in range(depth + 1)}
    assert list(layers) == list(backbone.layers)
    torch.testing.assert_close(layers["0"], embedded[:, 0], rtol=1e-4, atol=1e-5)
    for block, (_, prefix) in enumerate(blocks, start=1):
        torch.testing.assert_close(layers[str(block)], prefix[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features, run(backbone, noise()))
    torch.testing.assert_close(features, run(load(), noise()))
    assert {value.dtype for value in layers.values()} == {torch.float32}


def test_layers_of_a_resnet_are_its_stages() -> None:
    backbone = load("test_resnet", layers=[4, 0])
    model = reference("test_resnet")
    widths = [stage["num_chs"] for stage in model.feature_info]
    assert list(backbone.layers) == ["0", "4"]
    assert backbone.layers["4"] == widths[-1]
    assert backbone.forward_layers is not None
    features, layers = backbone.forward_layers(torch.stack([backbone.transform(noise())] * 3))
    torch.testing.assert_close(features, layers["4"], rtol=1e-4, atol=1e-5)  # pooled, as its head


# precision and compilation


def test_precision_changes_the_last_digits_and_the_fingerprint() -> None:
    exact = load(runtime=Runtime(device="cpu", precision="float32"))
    automatic = load()
    assert torch.equal(run(exact, noise()), run(automatic, noise()))
    for precision in ("bfloat16", "float16"):
        rough = load(runtime=Runtime(device="cpu", precision=precision))
        features = run(rough, noise())
        assert features.dtype == torch.float32
        difference = (features - run(exact, noise())).norm() / run(exact, noise()).norm()
        assert 1e-5 < difference < 0.05
        assert rough.fingerprint != automatic.fingerprint


# the digest of a forward pass


def test_a_probe_tells_backbones_apart_but_not_precisions() -> None:
    first, again = take_probe(load()), take_probe(load())
    assert first == again
    assert set(first) == {"sha256", "norm", "sample"}
    assert len(first["sample"]) == 64
    other = take_probe(load(preprocessing={"mean": 0.3}))
    assert other["sha256"] != first["sha256"]
    assert not probes_agree(first, other)
    assert not probes_agree(first, take_probe(load("test_resnet")))
    rough = take_probe(load(runtime=Runtime(device="cpu", precision="bfloat16")))
    assert rough["sha256"] != first["sha256"]
    assert probes_agree(first, rough)
