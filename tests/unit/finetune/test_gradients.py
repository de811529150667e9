"""Clipped sums of networks equal sums over single rows in float64, and rows stay bounded."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpprobe.errors import ConfigError
from dpprobe.finetune.gradients import STABILITY, Clipping, clip_factors
from dpprobe.finetune.lora import ChannelAffine
from tests.support.gpu import DEVICES
from tests.unit.finetune.small_networks import Small, added, clipped, gradients, of_timm, sums

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "mobilenetv2_100": (64, {}),
    "vit_tiny_patch16_224": (48, {"img_size": 48, "depth": 3}),
    "resnet26": (64, {"channels": (16, 32, 64, 128)}),  # a quarter of its channels
    "test_convnext": (64, {}),
    "test_convnext2": (64, {}),
    "test_nfnet": (64, {}),
    "test_efficientnet_gn": (64, {}),
    "test_efficientnet_ln": (64, {}),
    "tf_mobilenetv3_small_minimal_100": (64, {}),
}
warnings = pytest.mark.filterwarnings("ignore:There is a performance drop")


def small(seed: int = 0, classes: int = 3) -> Small:
    """Returns a convolutional network with about half of the kinds of layers."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        ChannelAffine(torch.rand(4) + 0.5, torch.randn(4)),
        nn.ReLU6(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
    return Small.of(module, (2, 4, 4))


def batch(rows: int, network: Small, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, *network.shape, generator=generator)
    return inputs, torch.randint(0, classes, (rows,), generator=generator)


@warnings
@pytest.mark.parametrize("name", MODELS)
def test_networks_have_the_sums_of_single_rows(name: str) -> None:
    size, options = MODELS[name]
    network = of_timm(name, size, **options)
    inputs, labels = batch(3, network, 5)
    rows = gradients(network, inputs, labels)
    limit = float(rows.norm(dim=1).median())
    total = added(sums(network, limit), inputs, labels, None)

    # Activations near a ReLU's ends may be cut off in float32 but not in float64.
    expected = clipped(rows, limit)
    assert (total - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_labels(sigmoid: bool, soft: bool) -> None:
    network = small()
    inputs, labels = batch(6, network)
    zeros = nn.functional.one_hot(labels, 3).float()
    given_labels = zeros * 0.9 + 0.1 / 3 if soft else labels
    rows = gradients(network, inputs, zeros * 0.9 + 0.1 / 3 if soft else zeros, sigmoid=sigmoid)
    limit = float(rows.norm(dim=1).median())
    total = added(sums(network, limit, sigmoid=sigmoid), inputs, given_labels, None)
    torch.testing.assert_close(total.double(), clipped(rows, limit), rtol=1e-4, atol=1e-5)


def test_automatic_clipping_and_the_norms_before_a_clip() -> None:
    network = small()
    inputs, labels = batch(6, network)
    rows = gradients(network, inputs, labels)
    automatic = sums(network, 0.3, clipping="automatic")
    total = added(automatic, inputs, labels, None)
    expected = (0.3 / (rows.norm(dim=1) + STABILITY)) @ rows
    torch.testing.assert_close(total.double(), expected, rtol=1e-4, atol=1e-5)
    weights = torch.tensor([1.0, 0.5, 0.0, 0.25, 1.0, 1 / 3])  # weights of clipped gradients
    total = added(sums(network, 0.3), inputs, labels, weights)
    expected = clipped(rows, 0.3, weights.double())
    torch.testing.assert_close(total.double(), expected, rtol=1e-4, atol=1e-5)
    clipping = sums(network, float(rows.norm(dim=1).median()))
    norms = clipping.add_rows(torch.zeros(clipping.size), inputs, labels, None)
    torch.testing.assert_close(norms, rows.norm(dim=1), rtol=1e-4, atol=0)


def test_bfloat16_is_near_float32() -> None:
    network = small()
    inputs, labels = batch(8, network)
    expected = added(sums(network, 0.5), inputs, labels, None)
    total = added(sums(network, 0.5, precision="bfloat16"), inputs, labels, None)
    assert 0 < (total - expected).norm() < 0.05 * expected.norm()


def test_sums_are_added_in_the_order_of_the_parameters() -> None:
    network = small()
    turned = replace(network, trained=dict(reversed([*network.trained.items()])))
    inputs, labels = batch(4, network)
    ahead = added(sums(network), inputs, labels, None)
    sizes = [parameter.numel() for parameter in network.trained.values()]
    total = torch.ones(sum(sizes))
    sums(turned).add_rows(total, inputs, labels, None)
    back = torch.cat(total.split(sizes[::-1])[::-1])
    torch.testing.assert_close(back, ahead + 1)


def test_an_empty_batch_adds_nothing_to_the_sum() -> None:
    network = small()
    inputs, labels = batch(0, network)
    total = torch.full((sums(network).size,), 3.0)
    norms = sums(network, 1.0).add_rows(total, inputs, labels, torch.zeros(0))
    assert (total == 3).all()
    assert len(norms) == 0


@pytest.mark.parametrize("clipping", ["fixed", "automatic"])
def test_gradients_of_zero_add_zero(clipping: str) -> None:
    # With scores of a million to zero, the softmax is exactly one and zero.
    network = small()
    with torch.no_grad():
        network.trained["7.bias"].copy_(torch.tensor([1e6, 0.0, 0.0]))
    inputs, _ = batch(4, network)
    total = added(
        sums(network, 1.0, clipping=clipping), inputs, torch.zeros(4, dtype=torch.int64), None
    )
    assert (total == 0).all()


@pytest.mark.parametrize("limit", [0.3, math.inf])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_examples_without_a_finite_gradient_contribute_zero(bad: float, limit: float) -> None:
    network = small()
    inputs, labels = batch(6, network)
    weights = torch.rand(6, generator=torch.Generator().manual_seed(0))
    kept = torch.tensor([0, 2, 3, 5])
    clipping = sums(network, limit)
    expected = added(clipping, inputs[kept], labels[kept], weights[kept])
    inputs[1, 0, 2, 1] = bad
    inputs[4] = bad
    total = torch.zeros(clipping.size)
    norms = clipping.add_rows(total, inputs, labels, weights)
    if bad != 3e38:  # later layers may saturate and give a gradient after all
        torch.testing.assert_close(total, expected)
        assert (~norms.isfinite()).nonzero().flatten().tolist() == [1, 4]
    assert total.isfinite().all()


def test_examples_with_non_finite_labels_contribute_no_gradient() -> None:
    network = small()
    inputs, labels = batch(3, network)
    soft = nn.functional.one_hot(labels, 3).float()
    expected = added(sums(network, 1.0), inputs[1:], soft[1:], None)
    soft[0, 1] = math.nan
    torch.testing.assert_close(added(sums(network, 1.0), inputs, soft, None), expected)


NUMBERS = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-40, 1e20, 3e38, -3e38]),
    st.floats(-1e6, 1e6, width=32),
)


@settings(max_examples=60)
@given(
    changes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 31), NUMBERS), max_size=12),
    clipping=st.sampled_from(["fixed", "automatic"]),
    precision=st.sampled_from(["float32", "bfloat16"]),
    limit=st.floats(1e-3, 1e3),
)
def test_no_row_moves_a_sum_by_more_than_the_clip(
    changes: list[tuple[int, int, float]], clipping: str, precision: str, limit: float
) -> None:
    network = small()
    inputs, labels = batch(3, network)
    for row, place, value in changes:
        inputs[row].view(-1)[place] = value
    sum_of_rows = sums(network, limit, clipping=clipping, precision=precision)
    alone = [added(sum_of_rows, inputs[i : i + 1], labels[i : i + 1], None) for i in range(3)]
    together = added(sum_of_rows, inputs, labels, None)
    for total in alone:
        assert float(total.double().norm()) <= limit
    assert together.isfinite().all()
    if precision == "float32":
        torch.testing.assert_close(together, sum(alone), rtol=1e-3, atol=1e-3 * limit)


@warnings
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["mobilenetv2_100", "vit_tiny_patch16_224", "resnet26"])
def test_the_clipped_norm_is_at_most_the_clip(name: str, precision: str, device: str) -> None:
    size, options = MODELS[name]
    network = of_timm(name, size, **options)
    inputs, labels = (one.to(device) for one in batch(4, network, 5))
    network.module.to(device)
    clipping = sums(network, 1.0, precision=precision)
    for row in range(4):
        total = added(clipping, inputs[row : row + 1], labels[row : row + 1], None)
        assert 0.99 < float(total.double().norm()) <= 1.0


def test_no_layer_outputs_stay_in_memory_after_a_batch() -> None:
    network = small()
    clipping = sums(network, 0.3)
    kept: list[weakref.ref[torch.Tensor]] = []
    for module in network.module.modules():
        module.register_forward_hook(lambda _m, _i, output: kept.append(weakref.ref(output)))

    added(clipping, *batch(5, network), None)
    gc.collect()
    assert kept
    assert not [one for one in kept if one() is not None]


def test_shared_parameters_and_overwritten_inputs_are_refused() -> None:
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    module[2].weight = module[0].weight
    with pytest.raises(ConfigError, match=r"0\.weight: used by several layers; choose another"):
        sums(Small.of(module, (5,)))

    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.affine = ChannelAffine(torch.rand(5), torch.rand(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.affine(x)
            x.detach().mul_(2)
            return y

    network = Small.of(nn.Sequential(nn.Linear(5, 5), Overwrites(), nn.Linear(5, 3)), (5,))
    inputs, labels = batch(2, network)
    with pytest.raises(ConfigError, match=r"1\.affine: its input is overwritten.*another backbone"):
        added(sums(network), inputs, labels, None)


@given(
    norms=st.lists(st.floats(0, 1e30), min_size=1, max_size=5),
    limit=st.floats(1e-6, 1e6),
    clipping=st.sampled_from(["fixed", "automatic"]),
)
def test_factors_bring_norms_below_the_clip(
    norms: list[float], limit: float, clipping: Clipping
) -> None:
    lengths = torch.tensor(norms, dtype=torch.float64)
    factors = clip_factors(lengths, limit, clipping).float().double()
    assert np.all((factors * lengths).numpy() <= limit)
    assert np.all(factors.numpy() >= 0)


@pytest.mark.parametrize("value", [0.3, 0.37, 0.7])
def test_a_layer_of_a_million_numbers_is_clipped(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpprobe.finetune.ghost.forms_gradients", lambda _: True)
    first, last = nn.Linear(1000, 1000), nn.Linear(1000, 2)
    with torch.no_grad():
        first.weight.fill_(1e-3)
        last.weight[1] = -last.weight[0].fill_(0.5)
    network = Small.of(nn.Sequential(first, last), (1000,))
    inputs = torch.full((1, 1000), value)
    total = added(sums(network, 1.0), inputs, torch.tensor([1]), None)
    assert 0.99 < float(total.double().norm()) <= 1.0


def test_gradients_too_long_for_float32_factors_add_no_more_than_the_clip() -> None:
    module = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(module.weight)
    network = Small.of(module, (1,))
    limit = 2e-9
    for size in np.geomspace(1e18, 3e38, 200):
        inputs = torch.full((1, 1), float(size))
        total = added(sums(network, limit), inputs, torch.tensor([0]), None)
        assert float(total.double().norm()) <= limit
