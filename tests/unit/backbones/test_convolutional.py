"""Convolutional networks to train from scratch: layers, initial weights, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.nn import functional

from dpprobe.backbones import convolutional, loading
from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.describe import describe_backbone
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from dpprobe.finetune.cut_shards import cut_backbone
from dpprobe.finetune.engine_check import check_network
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, build_network
from dpprobe.finetune.options import Options
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.transform import Transform
from dpprobe.study.study_file import load_study
from tests.support.backbones import CPU, load
from tests.unit.finetune.small_networks import Small, added, clipped, gradients, sums

SMALL: dict[str, Any] = {
    "family": "convolutional",
    "preprocessing": {"size": 12},
    "stages": [
        {"filters": 4, "kernel": 4, "stride": 2, "padding": 0, "pool": 2, "pool_stride": 1},
        {"filters": 6},
    ],
    "hidden": 5,
}
SCATTERED: dict[str, Any] = {
    "family": "convolutional",
    "color": "rgb",
    "preprocessing": {"size": 16},
    "scattering": {"J": 2, "L": 2, "groups": 3},
    "stages": [{"filters": 4, "pool": 2}, {"filters": 6}],
}


def network_of(backbone: Backbone, tune: Any = "all", classes: int = 10) -> FineTunedNetwork:
    return build_network(
        backbone,
        Options(tune=tune, init="torch"),
        classes=classes,
        seed=0,
        device="cpu",
        transform=Transform(NoNormalisation()),
    )


# The studies' networks have as many parameters as Tramer and Boneh 2021 count: 26 thousand and 551
# thousand on pixels, 33 thousand and 187 thousand on scattering coefficients.
@pytest.mark.parametrize(
    ("study", "backbone", "parameters", "features", "blocks"),
    [
        ("cnn_mnist", "cnn", 26_010, 32, 2),
        ("cnn_fashion_mnist", "cnn", 26_010, 32, 2),
        ("cnn_cifar10", "cnn", 550_570, 128, 6),
        ("cnn_fashion_mnist", "scatternet_cnn", 33_066, 32, 2),
        ("scatternet_cnn_mnist", "scatternet_cnn", 33_066, 32, 2),
        ("scatternet_cnn_cifar10", "scatternet_cnn", 187_210, 1024, 2),
    ],
)
def test_a_study_s_network_is_the_published_one(
    repository: Path, study: str, backbone: str, parameters: int, features: int, blocks: int
) -> None:
    loaded_study = load_study(yaml.safe_load((repository / f"config/{study}.yaml").read_text()))
    options = loaded_study.backbones[backbone]
    assert describe_backbone(options) == {"dimension": features, "blocks": blocks}
    loaded = loading.load_backbone(options, runtime=CPU)
    tune: Any = loaded_study.methods["from_scratch"].model_dump()["tune"]
    network = network_of(loaded, tune)
    assert sum(one.numel() for one in network.trained.values()) == parameters
    assert network.module(torch.zeros(2, *network.shape)).shape == (2, 10)
    activations = [one for one in network.module.modules() if isinstance(one, nn.Tanh)]
    dense = 0 if features == 1024 else 1
    assert len(activations) == blocks + dense


def test_a_convolutional_backbone_follows_its_options_and_weights_seed() -> None:
    backbone = load(**SMALL | {"preprocessing": {"size": 12, "mean": 0.5, "std": 0.25}})
    assert backbone.graph is not None
    weights = dict(backbone.graph.model.named_parameters())  # type: ignore[union-attr]
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12), dtype=np.uint8))
    x = (torch.from_numpy(np.array(picture, np.float32))[None, None] / 255 - 0.5) / 0.25
    first = "blocks.0.convolution."
    x = functional.conv2d(x, weights[f"{first}weight"], weights[f"{first}bias"], stride=2)
    x = functional.max_pool2d(x.tanh(), 2, 1)
    second = "blocks.1.convolution."
    x = functional.conv2d(x, weights[f"{second}weight"], weights[f"{second}bias"], padding=1)
    x = functional.linear(x.tanh().flatten(1), weights["dense.weight"], weights["dense.bias"])
    row = backbone.forward(backbone.transform(picture)[None])
    torch.testing.assert_close(row, x.tanh())
    assert backbone.dimension == row.shape[1] == 5
    changed = load(**SMALL, activation="relu")
    assert changed.forward(backbone.transform(picture)[None]).min() >= 0
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = load(**SMALL), load(**SMALL), load(**SMALL, weights_seed=1)
    assert torch.equal(torch.rand(3), expected), "no other random number moves"
    assert one.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert not one.trained
    alike = [{"filters": 6, "kernel": 3, "pool": 1}] * 3
    graph: Any = load(**SMALL | {"stages": alike}).graph
    torch.manual_seed(0)
    drawn = [torch.nn.Conv2d(channels, 6, 3).weight for channels in (1, 6, 6)]
    kernels = [each for each in graph.model.parameters() if each.ndim == 4]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(kernels, drawn, strict=True))


@pytest.mark.parametrize("shape", [(9, 20, 3), (40, 12, 3)])
def test_images_that_are_not_square_are_resized_without_cropping(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
    picture = Image.fromarray(pixels)
    squeezed = picture.convert("L").resize((12, 12), Image.Resampling.BICUBIC)
    seen = load(**SMALL).transform(picture)
    np.testing.assert_array_equal(seen.numpy(), np.asarray(squeezed)[None])


def test_scattering_coefficients_feed_the_network_and_are_not_trained() -> None:
    backbone = load(**SCATTERED)
    size = {"size": 16, "J": 2, "L": 2, "color": "rgb"}
    plain = load(family="scattering", **size)
    picture = Image.fromarray(
        np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    )
    maps = plain.forward(plain.transform(picture)[None]).reshape(1, 3 * 9, 4, 4)
    stored = cut_backbone(backbone, CPU, 2).forward(backbone.transform(picture)[None])
    torch.testing.assert_close(stored.reshape(maps.shape), functional.group_norm(maps, 3))
    # `all` trains the same parameters from images as the two blocks from stored activations.
    cut, whole = network_of(backbone, {"blocks": 2}), network_of(backbone)
    assert list(cut.trained) == list(whole.trained)
    assert cut.shape == (27, 4, 4)
    scores = whole.module(backbone.transform(picture)[None])
    torch.testing.assert_close(cut.module(stored.reshape(maps.shape).clone()), scores)


@pytest.mark.parametrize(
    ("values", "tune"), [(SMALL, "all"), (SMALL, {"blocks": 1}), (SCATTERED, {"blocks": 2})]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_check_before_training_takes_it(values: dict[str, Any], tune: Any) -> None:
    network = network_of(load(**values), tune, classes=3)
    dtype = torch.uint8 if network.from_images else torch.float32
    check_network(
        network,
        sigmoid=False,
        precision="float32",
        example=torch.zeros(3, *network.shape, dtype=dtype),
        classes=3,
    )


@pytest.mark.parametrize(("values", "shape"), [(SMALL, (1, 12, 12)), (SCATTERED, (27, 4, 4))])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_its_gradients_are_clipped_row_by_row(
    values: dict[str, Any], shape: tuple[int, ...]
) -> None:
    backbone = load(**values)
    trained = dict(backbone.graph.model.named_children())  # type: ignore[union-attr]
    parts = [part for name, part in trained.items() if name not in ("scattering", "norm")]
    torch.manual_seed(2)
    network = Small.of(nn.Sequential(*parts, nn.Linear(backbone.dimension or 0, 3)), shape)
    inputs, labels = torch.randn(7, *shape), torch.arange(7) % 3
    alone = gradients(network, inputs, labels)
    limit = float(alone.norm(dim=1).median())  # clips some gradients, but not all
    ours = added(sums(network, limit), inputs, labels, None)
    torch.testing.assert_close(ours, clipped(alone, limit).float(), rtol=1e-3, atol=1e-5)


ONE = [{"filters": 1, "kernel": 1, "padding": 0}]


def of(**values: Any) -> convolutional.Options:
    return convolutional.Options(**{"family": "convolutional", "stages": ONE} | values)


sizes = st.integers(1, 5)


@given(
    side=st.integers(1, 12),
    kernel=sizes,
    stride=sizes,
    padding=st.integers(0, 2),
    pool=sizes,
    pool_stride=st.none() | sizes,
)
def test_a_stage_fits_exactly_where_torch_runs_it(
    side: int, kernel: int, stride: int, padding: int, pool: int, pool_stride: int | None
) -> None:
    maps = torch.zeros(1, 1, side, side)
    if pool == 1:
        pool_stride = None
    try:
        maps = nn.Conv2d(1, 2, kernel, stride, padding)(maps)
        maps = nn.MaxPool2d(pool, pool_stride)(maps) if pool > 1 else maps
    except RuntimeError:
        maps = torch.zeros(1, 2, 0, 0)
    stage = {"filters": 2, "kernel": kernel, "stride": stride, "padding": padding, "pool": pool}
    values = {"stages": [stage | {"pool_stride": pool_stride}], "preprocessing": {"size": side}}
    if maps.shape[-1] > 0:
        options = of(**values)
        assert options.stages[0].measure_side(side) == maps.shape[-1]
        assert describe_backbone(options)["dimension"] == maps[0].numel()
    else:
        said = f"stage 1 does not fit its input of {side} x {side} positions"
        with pytest.raises(ValueError, match=said):
            of(**values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"stages": []}, "stages: .*1 or more entries"),
        ({"stages": [{"filters": 4, "pool_stride": 2}]}, "pool_stride 2 has no effect with pool 1"),
        ({"stages": [{"filters": 4097}]}, "filters: 4097: must be a number of 4,?096 or less"),
        ({"checkpoint": "w.pth"}, "checkpoint: 'w.pth': must be null"),
        (
            {"stages": [{"filters": 4, "pool": 4}] * 2, "preprocessing": {"size": 12}},
            "stages: stage 2 does not fit its input of 3 x 3 positions; choose a smaller kernel",
        ),
        ({"preprocessing": {"size": 15}, "scattering": {"J": 4}}, "images are smaller than 2.J"),
        ({"scattering": {"groups": 2}}, "groups 2: does not divide the 81 channels; choose a div"),
        ({"color": "rgb", "preprocessing": {"mean": [0.1, 0.2]}}, "mean: 2 values for 3 channels"),
        ({"preprocessing": {"mean": [0.1, 0.2, 0.3]}}, "mean: 3 values for 1 channels"),
    ],
)
def test_networks_that_cannot_be_built_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        backbone_options({"family": "convolutional", "stages": ONE} | values)


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ({"preprocessing": {"size": 12}}, (1, 12)),
        ({"color": "rgb"}, (3, 32)),
        # 1 + J L + J (J - 1) / 2 L^2 coefficients per channel, 2^J pixels apart
        ({"preprocessing": {"size": 8}, "scattering": {"J": 3}}, (217, 1)),
        ({"color": "rgb", "scattering": {"J": 1, "L": 2}}, (3 * 3, 16)),
        ({"preprocessing": {"size": 16}, "scattering": {"J": 4, "L": 1}}, (1 + 4 + 6, 1)),
    ],
)
def test_the_first_stage_s_input_is_known(values: dict[str, Any], shape: tuple[int, int]) -> None:
    assert of(**values).input_shape == shape
    backbone = load(**{"family": "convolutional", "stages": ONE} | values)
    assert backbone.graph is not None
    network: Any = backbone.graph.model
    (stage,) = network.blocks
    seen: list[Any] = []
    stage.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    backbone.forward(backbone.transform(Image.new("RGB", (20, 20)))[None])
    assert seen == [(1, *shape, shape[1])]
