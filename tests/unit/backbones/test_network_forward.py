"""Backbones: their features, what their fingerprints cover, and what they refuse."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
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
from torch import nn
from torchvision.transforms import RandomResizedCrop

from dpprobe import devices
from dpprobe.backbones import image_preprocessing, loading, timm_models
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.feature_digest import probes_agree, take_probe
from dpprobe.backbones.network_forward import (
    Blocks,
    Network,
    find_blocks,
    forward_pass,
    list_blocks,
    one_line,
    prepare_network,
    state_sha256,
)
from dpprobe.backbones.projection import draw_signs
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.private_mark import mark_metadata
from tests.support.backbones import CPU, load, noise, run
from tests.support.backbones import smooth_noise as smooth

PIXELS: dict[str, Any] = {"family": "pixels"}
SCATTERING: dict[str, Any] = {"family": "scattering", "size": 8}
TINY: dict[str, Any] = {"family": "timm", "model": "test_vit", "pretrained": False}


MODELS = ("test_vit", "test_resnet", "test_efficientnet", "test_byobnet")


def timm_of(model: str = "test_vit", runtime: Runtime = CPU, **values: Any) -> Backbone:
    options = {"family": "timm", "model": model, "pretrained": False} | values
    return load(runtime, **options)


def reference(model: str = "test_vit", **arguments: Any) -> Any:
    """Returns timm's own model with the weights that the family draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.create_model(model, pretrained=False, **arguments).eval()


def rows(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        features: torch.Tensor = model.forward_head(model.forward_features(pixels), pre_logits=True)
    return features


def test_scattering_is_channel_major_and_hardly_expands() -> None:
    """The public bounds of `normalize: {kind: channels}` depend on this."""
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
    array = np.zeros((32, 32), np.uint8)
    array[:8, :8] = 255
    row = run(load(family="scattering", color="rgb"), Image.fromarray(array).convert("RGB"))
    channels = row.reshape(3, 81, 8, 8)
    torch.testing.assert_close(channels[0], channels[2])
    assert (channels[0, :, :4, :4].sum((1, 2)) > 0.8 * channels[0].sum((1, 2))).all()


def test_signs_are_written_in_stone_and_inner_products_survive() -> None:
    """Features must be bit-identical to those stored long ago."""
    matrix = draw_signs(24, 5)
    assert matrix.shape == (24, 5)
    assert matrix.dtype == torch.float32
    assert matrix.abs().unique().tolist() == [np.float32(5**-0.5)]
    bits = np.packbits(matrix.numpy().reshape(-1) > 0)
    stone = hashlib.shake_256(b"dpprobe projection 24 to 5").hexdigest(15)
    assert bits.tobytes().hex() == stone == "c9d53c5922463d08433aba35f2096e"
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(50, 15_552, generator=generator))
    rows[1] = (rows[0] + rows[2]) / 2**0.5
    short = rows @ draw_signs(15_552, 512)
    error = (short @ short.T - rows @ rows.T).abs()
    assert error.max() < 5 / 512**0.5
    assert error.mean() < 1 / 512**0.5


@pytest.mark.parametrize("values", [SCATTERING, {"family": "pixels", "size": 8, "color": "rgb"}])
def test_features_are_the_projected_ones(values: dict[str, Any]) -> None:
    pictures = [noise(seed=seed) for seed in range(4)]
    whole, short = load(**values), load(**values, project=20)
    assert (short.dimension, whole.fingerprint == short.fingerprint) == (20, False)
    expected = run(whole, *pictures) @ draw_signs(int(whole.dimension or 0), 20)
    features = run(short, *pictures)
    assert not features.requires_grad
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)


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
    pixels = create_transform(**resolve_model_data_config(model))(picture)[None]
    expected = rows(model, pixels)
    torch.testing.assert_close(run(backbone, picture), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    "model",
    [
        "test_vit",
        "test_efficientnet",
        "test_resnet",
        "test_convnext",
        "deit_tiny_distilled_patch16_224",  # has two classifiers
    ],
)
def test_a_classifier_of_any_number_of_classes_is_ignored(
    tmp_path: Path, model: str, suffix: str
) -> None:
    """With 965, 1,000 or no classes, the same other weights give the same features."""
    torch.manual_seed(7)
    state = timm.create_model(model, num_classes=965).state_dict()
    wide = timm.create_model(model).state_dict()
    kept = {name: value for name, value in state.items() if value.shape == wide[name].shape}
    assert len(kept) < len(state), "the classifier's shape differs"
    found = []
    for name, saved, classes in (
        ("a", state, 965),
        ("a", state, 1000),
        ("a", state, 0),
        ("b", wide | kept, 1000),
        ("c", kept, 1000),
    ):
        path = tmp_path / f"{name}{suffix}"
        (save_file if suffix == ".safetensors" else torch.save)(saved, path)
        values = {"family": "timm", "model": model, "checkpoint": str(path)}
        backbone = load(**values, model_args={"num_classes": classes})
        found.append(run(backbone, noise((90, 70)), noise((90, 70), seed=1)))
        assert torch.equal(found[-1], found[0])
        told = describe_backbone(backbone_options(values))
        assert told["dimension"] == found[0].shape[1]


def test_content_not_place_decides_a_fingerprint_and_a_refusal(
    checkpoint: Path,
) -> None:
    moved = checkpoint.with_name("moved.safetensors")
    first = load(family="timm", model="test_vit", checkpoint=str(checkpoint)).fingerprint
    checkpoint.rename(moved)
    assert load(family="timm", model="test_vit", checkpoint=str(moved)).fingerprint == first
    state = timm.create_model("test_vit", pretrained=False).state_dict()
    state["norm.bias"] += 1e-3
    save_file(state, moved)
    assert load(family="timm", model="test_vit", checkpoint=str(moved)).fingerprint != first
    cell = {"dataset": "d", "backbone": "b", "method": "net", "epsilon": "2"}
    save_file(load_file(moved), moved, metadata=mark_metadata(cell, {}))
    with pytest.raises(PrivacyError, match="net trained on private rows of d at epsilon 2"):
        load(family="timm", model="test_vit", checkpoint=str(moved))


def test_transforms_can_be_sent_to_another_process() -> None:
    for values in (TINY, SCATTERING, PIXELS):
        transform = load(**values).transform
        picture = noise((16, 16))
        copy = pickle.loads(pickle.dumps(transform))
        torch.testing.assert_close(copy(picture), transform(picture), rtol=0, atol=0)


def test_architecture_tag_and_training_are_as_timm_resolves_them(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(family="timm", model="test_vit", checkpoint=str(checkpoint))
    assert (loaded.architecture, loaded.pretrained_tag, loaded.trained) == ("test_vit", None, True)
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
    ours = timm_of(model, preprocessing=written)
    library = reference(model)
    if model == "test_vit" and "size" in written:
        library.set_input_size(img_size=224)
    data = resolve_model_data_config(library) | given
    assert ours.preprocessing["input_size"] == list(data["input_size"])
    transform = create_transform(**data)
    pictures = [smooth(seed=seed, size=size) for seed, size in enumerate([(200, 170), (90, 300)])]
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
    backbone = timm_of("test_resnet")
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learned = torch.nn.Parameter(torch.ones(1))
            self.constant = torch.nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            seen.append(batch)
            return batch.mean((2, 3))

    model = reference("test_resnet")
    data = resolve_model_data_config(model)
    network = prepare_network(
        Spy(),
        backbone_options({"family": "timm", "model": "x"}),  # type: ignore[arg-type]
        CPU,
        name="spy",
        channels=3,
        size=data["input_size"][1:],
        mean=data["mean"],
        std=data["std"],
        flip=False,
    )
    network.forward(backbone.transform(smooth())[None])
    expected = create_transform(**data)(smooth())
    assert torch.equal(seen[-1][0], expected)
    assert network.graph.learned == {"learned"}
    network.forward(expected[None])
    assert torch.equal(seen[-1][0], expected), "floats are normalised already"


def test_a_checkpoint_is_resampled_to_the_size(tmp_path: Path) -> None:
    native, larger = tmp_path / "native.safetensors", tmp_path / "larger.safetensors"
    model = reference()
    model.pos_embed.data.normal_()
    save_file(model.state_dict(), native)
    model.set_input_size(img_size=224)
    save_file(model.state_dict(), larger)
    values: dict[str, Any] = {"pretrained": None, "preprocessing": {"size": 224}}
    resampled = timm_of(checkpoint=str(native), **values)
    given = timm_of(checkpoint=str(larger), **values)
    expected = rows(
        model.eval(), (resampled.transform(smooth())[None] / 255 - 0.5) / 0.5
    )  # mean and std of test_vit
    torch.testing.assert_close(run(given, smooth()), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(run(resampled, smooth()), expected, rtol=1e-4, atol=1e-4)
    said = r"not weights of test_vit: pos_embed has shape \[1, 197, 64\] instead of \[1, 101, 64\]"
    for other in ({}, {"size": 192}):  # neither the model's nor the given resolution
        with pytest.raises(ConfigError, match=said):
            timm_of(checkpoint=str(larger), pretrained=None, preprocessing=other)


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


def test_flip_is_the_mean_of_both_views() -> None:
    whole = {"crop_pct": 1}  # otherwise the crop depends on the side
    plain = timm_of(layers="all", preprocessing=whole)
    both = timm_of(layers="all", preprocessing=whole | {"flip": True})
    picture = smooth((160, 160))
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


def test_layers_of_a_vit_are_its_class_tokens() -> None:
    backbone = timm_of(layers="all")
    model = reference()
    pixels = (backbone.transform(smooth())[None] / 255 - 0.5) / 0.5
    with torch.inference_mode():
        embedded = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(pixels))))
        _, blocks = model.forward_intermediates(pixels, return_prefix_tokens=True, output_fmt="NLC")
    assert backbone.forward_layers is not None
    features, layers = backbone.forward_layers(backbone.transform(smooth())[None])
    depth = len(model.blocks)
    assert dict(backbone.layers) == {str(block): 64 for block in range(depth + 1)}
    assert list(layers) == list(backbone.layers)
    torch.testing.assert_close(layers["0"], embedded[:, 0], rtol=1e-4, atol=1e-5)
    for block, (_, prefix) in enumerate(blocks, start=1):
        torch.testing.assert_close(layers[str(block)], prefix[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features, run(backbone, smooth()))
    torch.testing.assert_close(features, run(timm_of(), smooth()))
    assert {value.dtype for value in layers.values()} == {torch.float32}


def test_precision_changes_last_digits_and_fingerprints_but_no_probe() -> None:
    exact = timm_of(runtime=Runtime(device="cpu", precision="float32"))
    automatic = timm_of()
    assert torch.equal(run(exact, smooth()), run(automatic, smooth()))
    for precision in ("bfloat16", "float16"):
        rough = timm_of(runtime=Runtime(device="cpu", precision=precision))
        features = run(rough, smooth())
        assert features.dtype == torch.float32
        difference = (features - run(exact, smooth())).norm() / run(exact, smooth()).norm()
        assert 1e-5 < difference < 0.05
        assert rough.fingerprint != automatic.fingerprint
    first = take_probe(timm_of())
    assert take_probe(timm_of()) == first
    other = take_probe(timm_of(preprocessing={"mean": 0.3}))
    assert other["sha256"] != first["sha256"]
    assert not probes_agree(first, other)
    assert not probes_agree(first, take_probe(timm_of("test_resnet")))
    close = take_probe(timm_of(runtime=Runtime(device="cpu", precision="bfloat16")))
    assert close["sha256"] != first["sha256"]
    assert probes_agree(first, close)


# Features of inner blocks: where blocks are found, and how their outputs are pooled.


PREFIX = 2  # a class token and a register
TOKEN = nn.Parameter(torch.zeros(1))
CLASS_TOKEN: dict[str, Any] = {"num_prefix_tokens": PREFIX, "cls_token": TOKEN}


class Parts(nn.Module):
    """A module with named parts and attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def linear(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


RESNET = Parts(**{f"layer{number}": linear(number) for number in (1, 2, 3, 8, 9)}, layer4=None)
# A network, the path of its blocks (None: not found), tokens before patches, class token or not.
PLACES: dict[str, tuple[nn.Module, Any, int, bool]] = {
    "class token": (Parts(blocks=linear(3), **CLASS_TOKEN), "blocks", 2, True),
    "registers": (Parts(blocks=linear(11), num_prefix_tokens=2), "blocks", 2, False),
    "no prefix": (
        Parts(blocks=linear(3), num_prefix_tokens=0, cls_token=TOKEN),
        "blocks",
        0,
        False,
    ),
    "list": (Parts(blocks=nn.ModuleList(linear(2)), stages=linear(7)), "blocks", 0, False),
    "stages": (Parts(stages=linear(2)), "stages", 0, False),
    "empty blocks": (Parts(blocks=linear(0), stages=linear(2)), "stages", 0, False),
    "no list": (
        Parts(blocks=nn.Linear(1, 1), stages=linear(2)),
        "stages",
        0,
        False,
    ),
    "first channels": (Parts(output_fmt="NCHW", stages=linear(3)), "stages", 0, False),
    "tower of open_clip": (
        Parts(visual=Parts(transformer=Parts(resblocks=nn.ModuleList(linear(4))))),
        "visual.transformer.resblocks",
        1,
        True,
    ),
    "timm in open_clip": (
        Parts(visual=Parts(trunk=Parts(blocks=linear(5), num_prefix_tokens=1, cls_token=TOKEN))),
        "visual.trunk.blocks",
        1,
        True,
    ),
    "last channels": (Parts(output_fmt="NHWC", stages=linear(3)), None, 0, False),
    "nothing": (nn.Linear(2, 2), None, 0, False),
    "only empty blocks": (Parts(blocks=linear(0)), None, 0, False),
}


@pytest.mark.parametrize("kind", PLACES)
def test_blocks_are_found_where_libraries_put_them(kind: str) -> None:
    network, place, prefix, class_token = PLACES[kind]
    found = find_blocks(network)
    if place is None:
        assert (found, list_blocks(network)) == (None, [])
    else:
        blocks = list(network.get_submodule(place).children())
        assert found == Blocks(blocks, prefix, class_token)
        assert list_blocks(network) == blocks


def test_a_resnets_stages_are_its_layers_one_to_eight() -> None:
    stages = [getattr(RESNET, f"layer{number}") for number in (1, 2, 3, 8)]
    assert find_blocks(RESNET) == Blocks(stages, 0, False)
    assert list_blocks(RESNET) == [block for stage in stages for block in stage]


class Block(nn.Module):
    """Doubles its tokens and applies `gives`; is called `calls` times."""

    def __init__(self, calls: int = 1, gives: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.calls, self.gives = calls, gives

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.gives(tokens * 2)


class Net(Parts):
    """Passes images [m, 5, 2, 3] as 6 tokens of 5 numbers through all blocks; gives the second."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = images.flatten(2).transpose(1, 2)
        for block in self.blocks:  # type: ignore[union-attr]
            for _ in range(block.calls):
                given = block(tokens)
                tokens = given if isinstance(given, torch.Tensor) and given.ndim == 3 else tokens
        return tokens[:, 1]


IMAGES = torch.arange(60.0).reshape(2, 5, 2, 3) ** 2
TOKENS = IMAGES.flatten(2).transpose(1, 2)


def prepare(network: nn.Module, **options: Any) -> Network:
    values: Any = backbone_options({"family": "timm", "model": "x", **options})
    grey: dict[str, Any] = {"mean": [0.0] * 5, "std": [1.0] * 5, "flip": False}
    return prepare_network(network, values, CPU, name="N", channels=5, size=(2, 3), **grey)


def take(*blocks: Block, layers: Any, token: str | None = None, **more: Any) -> dict[str, Any]:
    network = prepare(Net(blocks=nn.Sequential(*blocks), **more), layers=layers, token=token)
    assert network.forward_layers is not None
    features, taken = network.forward_layers(IMAGES)
    torch.testing.assert_close(features, network.forward(IMAGES))
    assert network.layers == {name: rows.shape[1] for name, rows in taken.items()}
    return taken


def three() -> list[Block]:
    return [Block(), Block(), Block()]


@pytest.mark.parametrize("layers", ["all", [3, 1], [0], [2]])
@pytest.mark.parametrize("token", [None, "class", "pooled"])
def test_layer_k_is_the_output_of_block_k(layers: Any, token: str | None) -> None:
    """Block k has doubled the tokens k times; layer 0 is the first block's input."""
    taken = take(*three(), layers=layers, token=token, **CLASS_TOKEN)
    wanted = [0, 1, 2, 3] if layers == "all" else sorted(layers)
    assert list(taken) == [str(layer) for layer in wanted]
    rows = TOKENS[:, PREFIX:].mean(1) if token == "pooled" else TOKENS[:, 0]
    for layer in wanted:
        torch.testing.assert_close(taken[str(layer)], 2**layer * rows)


def test_without_a_class_token_patches_are_averaged() -> None:
    registers: dict[str, Any] = {"num_prefix_tokens": PREFIX}
    for more, patches in (({}, TOKENS), (registers, TOKENS[:, PREFIX:])):
        taken = take(*three(), layers=[1], **more)
        torch.testing.assert_close(taken["1"], 2 * patches.mean(1))
        with pytest.raises(ConfigError, match="token: N has no class token; write `token: pooled`"):
            take(*three(), layers=[1], token="class", **more)


@pytest.mark.parametrize(
    ("blocks", "layers", "said"),
    [
        ([Block(), Block(0)], [2], "layers: block 2 of N is not called; remove layers"),
        ([Block(0)], [0], "layers: block 1 of N is not called"),
        ([Block(), Block(0), Block(0)], "all", "layers: block 2 of N is not called"),
        ([Block(gives=lambda x: (x, x))], [1], "block 1 of N gives neither tokens nor maps"),
        ([Block(gives=lambda x: x[:, 0])], [1], "block 1 of N gives neither tokens nor maps"),
        ([Block(), Block()], [1, 3], "layers: N has no block 3; use numbers from 0 to 2"),
    ],
)
def test_layers_that_a_network_does_not_give_are_refused(
    blocks: list[Block], layers: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        take(*blocks, layers=layers, **CLASS_TOKEN)


def test_a_network_that_gives_no_rows_or_takes_no_such_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gives features of shape \[5, 2, 3\] per image instead"):
        prepare(nn.Identity())
    said = r"model: N does not take images of \[5, 2, 3\] in precision float32 \(.*change preproc"
    with pytest.raises(ConfigError, match=said):
        prepare(nn.Sequential(nn.Flatten(), nn.Linear(31, 4)))


def test_a_hash_of_weights_covers_names_types_shapes_and_values() -> None:
    one = torch.arange(4.0)
    states = [
        {"a": one},
        {"b": one},
        {"a": one.view(torch.int32)},
        {"a": one.reshape(2, 2)},
        {"a": one + 1},
        {"a": one, "b": one},
        {"a": one[:2], "b": one[2:]},
    ]

    def hashed(state: dict[str, torch.Tensor]) -> str:
        kept = {name: nn.Parameter(value, requires_grad=False) for name, value in state.items()}
        return state_sha256(nn.ParameterDict(kept))

    assert len({hashed(state) for state in states}) == len(states)
    assert hashed({"b": one, "a": one}) == hashed({"a": one, "b": one}), "order is no content"


def test_an_error_is_reported_on_one_line_of_at_most_200_characters() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("x" * 200)) == "x" * 200
    assert one_line(ValueError("x" * 201)) == "x" * 200 + "..."
