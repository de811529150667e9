"""Per-example gradients of every supported layer equal one-row differentiation in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import norm as timm_norms
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.layer_scale import LayerScale
from timm.layers.std_conv import ScaledStdConv2d
from torch import nn

from dpprobe.finetune import convolution_gradients, example_gradients, ghost
from dpprobe.finetune.example_gradients import ModuleRule, Rule, row_norms, squared_norms
from dpprobe.finetune.gradient_rules import rule_of
from dpprobe.finetune.lora import ChannelAffine
from tests.support.gpu import DEVICES
from tests.unit.finetune.small_networks import Small, added, clipped, gradients, sums, with_head

ROWS = 5
MAPS = (6, 5, 7)
TOKENS = (9, 6)


class ConvNeXtLike(nn.Module):
    """Passes maps with channels last in memory to a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class Twice(nn.Module):
    """Calls one layer twice, under two names, and changes its output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = self.again = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(torch.relu_(self.linear(x)))


class Tokens(nn.Module):
    """Has parameters at the root of a network that broadcast over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 6))
        self.pos_embed = nn.Parameter(torch.randn(1, 10, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.unused = nn.Parameter(torch.randn(1, 6))
        self.mix = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.mix((x * self.scale).transpose(1, 2))


class SelfAttention(nn.Module):
    """Uses its children's parameters without calling the children."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.more = nn.MultiheadAttention(6, 3, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.more(x, x, x, need_weights=False)[0]
        return self.attention(x, x, x, need_weights=False)[0]


class Gate(nn.Module):
    """A layer without a gradient rule that takes tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(
        self,
        x: torch.Tensor,
        *,
        gate: torch.Tensor,
        power: int,
        shift: torch.Tensor,
        place: torch.Tensor,
        shared: torch.Tensor,
        factor: torch.Tensor,
    ) -> torch.Tensor:
        moved = self.scale[place].view(-1, 1, 1) + factor * shared * self.scale
        return (x * self.scale * gate) ** power + shift.sin() * self.scale + moved


class Gated(nn.Module):
    """Passes arguments that differ between rows, and arguments that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.mean((1, 2), keepdim=True)
        return self.gate(
            x,
            shift=2 * rows,
            power=2,
            gate=rows.cos(),
            place=(10 * rows).long()[:, 0, 0] % 6,
            shared=torch.linspace(0, 1, 6, device=x.device),
            factor=torch.tensor(1.5),
        )


def affine(channels: int) -> nn.Module:
    return ChannelAffine(torch.rand(channels) + 0.5, torch.randn(channels))


def activated(layer: nn.Module) -> nn.Module:
    """Changes the layer's output in place, as networks do."""
    return nn.Sequential(layer, nn.ReLU6(inplace=True))


MANY = (3, 40, 40)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 8), (6,)),
    "linear of tokens": (lambda: nn.Linear(6, 8), TOKENS),
    "linear of few tokens": (lambda: nn.Linear(96, 64), (2, 96)),
    "linear of maps": (lambda: nn.Linear(7, 4), MAPS),
    "linear without bias": (lambda: nn.Linear(6, 8, bias=False), TOKENS),
    "conv": (lambda: nn.Conv2d(6, 4, 3), MAPS),
    "conv of few positions": (lambda: nn.Conv2d(64, 64, 3, padding=1, stride=2), (64, 4, 4)),
    "conv of many positions": (lambda: nn.Conv2d(3, 4, 3, padding=1), MANY),
    "conv stride dilation": (lambda: nn.Conv2d(6, 4, (3, 2), (2, 1), (2, 1), (2, 1)), MAPS),
    "conv stride that leaves a rest": (lambda: nn.Conv2d(6, 4, 2, stride=3), MAPS),
    "conv of lines": (lambda: nn.Conv2d(6, 4, (1, 3), padding=(0, 1)), MAPS),
    "conv of columns": (lambda: nn.Conv2d(6, 4, (3, 1), stride=(1, 2), padding=(2, 0)), MAPS),
    "grouped pointwise": (lambda: nn.Conv2d(6, 4, 1, groups=2), MAPS),
    "pointwise": (lambda: nn.Conv2d(6, 4, 1), MAPS),
    "pointwise of few positions": (lambda: nn.Conv2d(64, 48, 1), (64, 2, 2)),
    "pointwise stride": (lambda: nn.Conv2d(6, 4, 1, stride=2, bias=False), MAPS),
    "pointwise unequal strides": (lambda: nn.Conv2d(6, 4, 1, stride=(3, 1)), MAPS),
    "pointwise padded": (lambda: nn.Conv2d(6, 4, 1, padding=(2, 1)), MAPS),
    "grouped": (lambda: nn.Conv2d(6, 4, (3, 2), padding=(1, 0), groups=2), MAPS),
    "grouped of many positions": (lambda: nn.Conv2d(3, 6, 3, stride=1, groups=3), MANY),
    "depthwise": (lambda: nn.Conv2d(6, 6, (3, 5), padding=(1, 2), groups=6), MAPS),
    "depthwise stride": (lambda: nn.Conv2d(6, 6, 3, (2, 1), (2, 1), groups=6), MAPS),
    "depthwise of few": (lambda: nn.Conv2d(6, 12, 3, padding=1, stride=2, groups=6), (6, 2, 2)),
    "depthwise of many positions": (lambda: nn.Conv2d(3, 3, 5, padding=2, groups=3), MANY),
    "conv same": (lambda: Conv2dSame(6, 4, (3, 2), stride=(2, 1)), MAPS),
    "depthwise same": (lambda: Conv2dSame(6, 6, 3, stride=2, groups=6), MAPS),
    "conv reflected": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), MAPS),
    "conv padding by name": (lambda: nn.Conv2d(6, 4, 3, padding="same"), MAPS),
    "standardised conv": (lambda: ScaledStdConv2d(6, 4, 3, padding=1), MAPS),
    "layer norm": (lambda: nn.LayerNorm(6), TOKENS),
    "layer norm of vectors": (lambda: nn.LayerNorm(6), (6,)),
    "layer norm of timm": (lambda: timm_norms.LayerNorm(6), TOKENS),
    "layer norm of maps": (lambda: timm_norms.LayerNorm2d(6), MAPS),
    "layer norm of two dimensions": (lambda: nn.LayerNorm([9, 6]), TOKENS),
    "group norm": (lambda: nn.GroupNorm(3, 6), MAPS),
    "group norm of tokens": (lambda: nn.GroupNorm(3, 9), TOKENS),
    "affine of maps": (lambda: affine(6), MAPS),
    "affine of tokens": (lambda: affine(6), TOKENS),
    "affine of vectors": (lambda: affine(6), (6,)),
    "transposed conv": (lambda: nn.ConvTranspose2d(6, 4, 2), MAPS),
    "layer scale": (lambda: LayerScale(6, init_values=0.7), TOKENS),
    "prelu": (lambda: nn.PReLU(6), MAPS),
    "channels last": (ConvNeXtLike, MAPS),
    "layer used twice": (Twice, TOKENS),
    "tokens": (Tokens, TOKENS),
    "attention": (SelfAttention, TOKENS),
    "arguments by row": (Gated, TOKENS),
}


def started(name: str) -> Small:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    # With tanh, the layer's input depends on a trained layer.
    body = nn.Sequential(nn.Linear(shape[-1], shape[-1]), nn.Tanh(), activated(layer))
    return with_head(body, shape)


def batch(
    network: Small, *, views: int = 0, channels_last: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    inputs = torch.randn(ROWS, *((views,) if views else ()), *network.shape)
    if channels_last and inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs, torch.arange(ROWS) % 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("views", [0, 1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_clipped_sums_of_a_layer_equal_those_of_single_rows(
    name: str, views: int, device: str
) -> None:
    network = started(name)
    inputs, labels = batch(network, views=views)
    rows = gradients(network, inputs, labels)
    limit = float(rows.norm(dim=1).median())
    network.module.to(device)
    total = added(sums(network, limit), inputs.to(device), labels.to(device), None)
    expected = clipped(rows, limit)
    assert (total - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("name", LAYERS)
def test_each_parameter_has_its_gradient(name: str) -> None:
    # Compares per parameter, as a norm over all of them would hide errors of small ones.
    network = started(name)
    inputs, labels = batch(network, channels_last=True)
    rows = gradients(network, inputs, labels)
    sizes = [parameter.numel() for parameter in network.trained.values()]
    total = torch.zeros(sum(sizes))
    norms = sums(network).add_rows(total, inputs, labels, None)
    for part, expected in zip(total.split(sizes), rows.sum(0).split(sizes), strict=True):
        assert (part - expected).norm() <= 2e-5 * expected.norm() + 1e-7 * rows.norm()
    torch.testing.assert_close(norms, rows.norm(dim=1), rtol=2e-5, atol=0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_single_parts_of_layers_can_be_trained(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training only weights or only biases has right sums, also in pieces of one row."""
    monkeypatch.setattr(example_gradients, "PIECE_BYTES", 2**6)
    whole = started(name)
    network = Small.of(whole.module, whole.shape, lambda name: name.endswith(kind))
    inputs, labels = batch(network)
    rows = gradients(network, inputs, labels)
    total = added(sums(network, 0.1), inputs, labels, None)
    expected = clipped(rows, 0.1)
    assert (total - expected).norm() < 2e-5 * expected.norm()


@pytest.mark.parametrize("name", LAYERS)
def test_both_ways_of_a_layer_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = started(name)
    inputs, labels = batch(network, views=2)
    results = []
    # Grouped blocks have only one way.
    for way in (lambda _: True, lambda sizes: sizes[0] >= 10**6):
        monkeypatch.setattr(ghost, "forms_gradients", way)
        results.append(added(sums(network, 0.1), inputs, labels, None))

    assert (results[0] - results[1]).norm() < 1e-4 * results[0].norm()


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("name", [name for name in LAYERS if name.startswith("conv ")])
def test_patches_have_the_gradients_and_sums_of_convolutions(
    name: str, views: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = started(name)
    inputs, labels = batch(network, views=views)
    results = []
    for forms, numbers, piece in ((1, 0, 1), (1, 10**9, 1), (1, 10**9, 10**9), (0, 0, 1)):
        rows: Any = (lambda _: True) if forms else (lambda sizes: sizes[0] >= 10**6)
        monkeypatch.setattr(ghost, "forms_gradients", rows)
        monkeypatch.setattr(convolution_gradients, "PATCH_NUMBERS", numbers)
        monkeypatch.setattr(convolution_gradients, "PIECE_BYTES", {"cpu": piece})
        results.append(added(sums(network, 0.1), inputs, labels, None))
    monkeypatch.setattr(
        convolution_gradients.Conv2dRule, "add_weight", Rule.add_weight
    )  # as on a GPU
    results.append(added(sums(network, 0.1), inputs, labels, None))
    for one, other, most in ((0, 1, 1e-5), (0, 3, 1e-4), (3, 4, 1e-5)):
        assert (results[one] - results[other]).norm() < most * results[one].norm()
    assert torch.allclose(results[1], results[2], rtol=1e-6, atol=1e-8)


def test_a_network_in_channels_last_is_the_same() -> None:
    network = started("depthwise")
    inputs, labels = batch(network)
    before = added(sums(network, 0.1), inputs, labels, None)
    network.module.to(memory_format=torch.channels_last)
    other = inputs.contiguous(memory_format=torch.channels_last)
    assert (added(sums(network, 0.1), other, labels, None) - before).norm() < 1e-6


def test_gradients_are_formed_where_that_is_cheaper_by_rules_of_their_own() -> None:
    """Gradients are formed above sqrt(16 h) and h / 4 positions; h = in * out / (in + out)."""
    first = [
        next(t for t in range(1, 99) if example_gradients.forms_gradients((t, inputs, outputs)))
        for inputs, outputs in ((2, 2), (8, 8), (64, 32), (512, 512), (600, 500), (512, 16))
    ]
    assert first == [5, 9, 19, 65, 69, 16]
    slow = {name for name, (make, _) in LAYERS.items() if isinstance(rule_of(make()), ModuleRule)}
    assert slow == {
        "conv reflected",
        "conv padding by name",
        "standardised conv",
        "transposed conv",
        "prelu",
        "layer norm of two dimensions",
        "layer scale",
        "channels last",
        "layer used twice",
        "tokens",
        "attention",
        "arguments by row",
    }


@pytest.mark.parametrize("positions", [1, 2, 16, 100])
def test_norms_from_pairs_of_positions_are_never_too_small(positions: int) -> None:
    generator = torch.Generator().manual_seed(positions)
    inputs = torch.randn(64, positions, 40, generator=generator)
    outputs = torch.randn(64, positions, 30, generator=generator)
    inputs[:32] = inputs[:32, :1]
    # The terms of half of the rows cancel.
    outputs[:32] -= outputs[:32].mean(1, keepdim=True) * (1 if positions > 1 else 0)
    squares = squared_norms(inputs, outputs)
    formed = torch.bmm(outputs.double().transpose(1, 2), inputs.double())
    expected = formed.square().sum((1, 2))
    assert (squares >= expected * (1 - 1e-6)).all()
    torch.testing.assert_close(squares[32:], expected[32:], rtol=1e-4, atol=0)
    assert (squares[:32].sqrt() <= expected[:32].sqrt() + 1e-3 * positions * 35).all()


@pytest.mark.parametrize("value", [0.3, 0.37])
@pytest.mark.parametrize("positions", [1, 2, 9])
def test_long_products_of_alike_numbers_are_never_too_small(positions: int, value: float) -> None:
    inputs = torch.full((2, positions, 50_000), value)
    outputs = torch.full((2, positions, 10), value)
    squares = squared_norms(inputs, outputs)
    expected = positions**2 * 500_000 * float(inputs[0, 0, 0]) ** 4
    assert (squares >= expected * (1 - 1e-6)).all()
    assert (squares <= expected * (1 + 1e-3)).all()


@pytest.mark.parametrize("positions", [1, 4])
def test_squared_norms_do_not_underflow_float32(positions: int) -> None:
    inputs, outputs = torch.full((1, positions, 2), 1e19), torch.full((1, positions, 3), 1e-24)
    squares = squared_norms(inputs, outputs)
    assert squares >= 6 * positions**2 * 1e-10 * (1 - 1e-6)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("size", [1, 1023, 10_000, 3_000_001])
def test_norms_of_long_gradients_are_exact(size: int, strided: bool) -> None:
    rows = torch.full((size, 2), 0.37).T if strided else torch.full((2, size), 0.37)
    norms = row_norms(rows)
    expected = float(rows[0, 0]) * size**0.5
    assert ((norms / expected - 1).abs() < 5e-7).all()
