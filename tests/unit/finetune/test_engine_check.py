"""The check of a network refuses layers that would break a clipped sum, and names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpprobe.backbones.row_mixing import (
    ComputeInFloat64,
    check_rows_apart,
    find_mixed_row,
    make_public_rows,
)
from dpprobe.devices import use_precision
from dpprobe.errors import ConfigError
from dpprobe.finetune import example_gradients, gradient_rules
from dpprobe.finetune.engine_check import check_network, move_parameters
from tests.support.gpu import DEVICES
from tests.unit.finetune.small_networks import Small, of_timm


def check(network: Small, classes: int = 3, **options: Any) -> None:
    defaults = {"sigmoid": False, "precision": "float32", "views": 1}
    dtype = options.pop("dtype", torch.float32)
    device = next(iter(network.trained.values())).device
    example = torch.zeros(2, *network.shape, dtype=dtype, device=device)
    check_network(network, example=example, classes=classes, **{**defaults, **options})


def small(*front: nn.Module) -> Small:
    torch.manual_seed(0)
    module = nn.Sequential(
        *front,
        nn.Conv2d(4, 6, 3),
        nn.GroupNorm(2, 6),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 16, 3),
    )
    with torch.no_grad():
        for parameter in module[-1].parameters():
            parameter.zero_()
    return Small.of(module, (4, 6, 6))


class Bytes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 255


class Mixes(nn.Module):
    """Mixes rows, but only in batches of some sizes."""

    def __init__(self, *, above: int = 0, most: float = math.inf, share: float = 0.05) -> None:
        super().__init__()
        self.above, self.most, self.share = above, most, share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = x - self.share * x.mean(0, keepdim=True)
        return mixed if self.above < len(x) <= self.most else x


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_pass(precision: str, sigmoid: bool, views: int) -> None:
    check(small(), precision=precision, sigmoid=sigmoid, views=views)
    check(small(Bytes()), dtype=torch.uint8)


NETWORKS = ["mobilenetv2_100", "resnet26", "test_convnext", "test_nfnet", "test_vit"]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_whole_networks_pass(name: str, precision: str, device: str) -> None:
    """Networks have their usual depth; convolutions on a GPU choose an algorithm per shape."""
    size = 160 if name == "test_vit" else 32
    if precision != "float16":  # a narrower ResNet, as it takes most of the time
        narrow: dict[str, Any] = {"channels": (16, 32, 64, 128)} if name == "resnet26" else {}
        network = of_timm(name, size, **narrow)
        network.module.to(device)
        check(network, 5, precision=precision)
    module = of_timm(name, size).module.to(device)
    dtype = None if precision == "float32" else getattr(torch, precision)

    def run(images: torch.Tensor) -> torch.Tensor:
        with use_precision(device, dtype):
            return module(images)

    rows = make_public_rows((3, size, size), torch.float32).to(device)
    assert find_mixed_row(run, rows, 17, precision=precision) is None


class OfBatch(nn.Module):
    """Applies a function to the whole batch."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Beside(nn.Module):
    """Has a layer whose output is not used."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = OfBatch(function)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer(x)
        return x


# After trained layers, mixing gives wrong gradients; after frozen layers it only mixes.
MIXERS = {
    "mean": Mixes(),
    "batch norm in training": nn.BatchNorm2d(4, track_running_stats=False),
    "softmax over the batch": OfBatch(lambda x: x.softmax(0)),
    "number of rows": OfBatch(lambda x: x / len(x)),
    "number of rows, a millionth": OfBatch(lambda x: x * (1 + 1e-6 / len(x))),
    "above nine rows": Mixes(above=9, share=1e-3),
    # Adds the previous row to each row; the first row has no previous row.
    "row before": OfBatch(lambda x: torch.cat([x[:1], x[1:] + 0.1 * x[:-1]])),
    "row after": OfBatch(lambda x: torch.cat([x[:-1] + 0.1 * x[1:], x[-1:]])),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_mixed_rows_are_refused(mixer: str, precision: str, device: str) -> None:
    network = small(MIXERS[mixer])
    network.module.to(device)
    with pytest.raises(ConfigError, match="mixes the rows of a batch"):
        check(network, precision=precision, together=12)


class Float32(nn.Module):
    """Converts to float32 in three ways, and allocates memory itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape, device=x.device)
        out[:] = x.to(torch.float32)
        return out.float().to(dtype=torch.float32) / 3


def test_float64_passes_through_what_asks_for_float32() -> None:
    rows = torch.randn(4, 5, dtype=torch.float64)
    linear = nn.Linear(5, 2)
    with torch.no_grad(), ComputeInFloat64():
        result = nn.Sequential(Float32(), linear, Float32())(rows)
    expected = ((rows / 3) @ linear.weight.double().T + linear.bias.double()) / 3
    torch.testing.assert_close(result, expected, rtol=1e-14, atol=1e-14)


class Faint(nn.Module):
    """A layer whose gradient is a small part of the network's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-3 * self.inner(x)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("1.weight", [0.9, 1, 1]),
        ("2.weight", [1, 1, 1.1]),
        ("0.inner.weight", [0.9, 0.9, 0.9]),
        ("1.weight", [1, -1, 1]),
    ],
)
def test_an_error_names_the_parameter_whose_gradient_is_wrong_for_any_row(
    name: str, factors: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = small(Faint())
    module = network.module.get_submodule(name.removesuffix(".weight"))
    rule = gradient_rules.rule_of(module)
    right = rule.compute_gradients

    def wrong(call: example_gradients.Call, names: Any) -> example_gradients.Gradients:
        result = right(call, names)
        if call.module is module:
            of_rows = torch.tensor(factors).view(-1, *[1] * (result["weight"].ndim - 1))
            result["weight"] = of_rows * result["weight"]
        return result

    monkeypatch.setattr("dpprobe.finetune.ghost.forms_gradients", lambda _: True)
    monkeypatch.setattr(rule, "compute_gradients", wrong)
    with pytest.raises(ConfigError, match=f"gives a wrong gradient of {name}.*choose another"):
        check(network)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [0.9, 0.998, 1.3, 1.04])
def test_a_wrong_norm_is_refused(
    factor: float, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = example_gradients.squared_norms
    monkeypatch.setattr("dpprobe.finetune.ghost.forms_gradients", lambda _: False)
    factors = torch.tensor([1, 1, factor])
    monkeypatch.setattr("dpprobe.finetune.ghost.squared_norms", lambda a, g: factors * right(a, g))
    refuses = pytest.raises(ConfigError, match="wrong gradient norm")
    with nullcontext() if factor == 1.04 else refuses:  # rounding may make a norm slightly larger
        check(small(), precision=precision)


def test_parameters_that_are_nearly_zero_are_moved_alone_and_come_back() -> None:
    network = small()
    before = {name: one.detach().clone() for name, one in network.trained.items()}

    def list_moved() -> set[str]:
        return {name for name, one in network.trained.items() if not one.equal(before[name])}

    with move_parameters(network, torch.Generator().manual_seed(0)):
        assert list_moved() == {name for name, one in before.items() if not one.any()}
        assert len(list_moved()) == 3 < len(before)
        generator = torch.Generator().manual_seed(0)
        for name in [name for name, one in before.items() if not one.any()]:
            one = network.trained[name]
            length = 100 if one.ndim == 1 else before[name][0].numel()
            assert torch.equal(one, torch.randn(one.shape, generator=generator) / length**0.5)
    assert not list_moved()


class HalfCalled(nn.Module):
    """Uses a part of a layer's weight without calling the layer."""

    def __init__(self, part: float = 1e-2, *, called: bool = False) -> None:
        super().__init__()
        self.table = nn.Linear(4, 1, bias=False)
        self.part, self.called = part, called

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.table(x.movedim(1, -1)).movedim(-1, 1) if self.called else x
        return y + self.part * self.table.weight.view(4, 1, 1)


OUTSIDE = r"parameter 1\.table\.weight: it is used outside its layer, .* choose another"


class Turned(nn.Module):
    """Passes tokens as the first dimension and rows as the second."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(2).permute(2, 0, 1)).permute(1, 2, 0).reshape(x.shape)


class Fails(nn.Module):
    """Cannot be computed row by row: it reads its memory address, and raises `kind`."""

    def __init__(self, kind: type[Exception] = RuntimeError) -> None:
        super().__init__()
        self.scale, self.kind = nn.Parameter(torch.ones(())), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return x * self.scale if x.data_ptr() else x * self.scale * 1.0
        except RuntimeError as error:
            raise self.kind(*error.args) from None


def test_mixing_in_large_batches_is_refused() -> None:
    network = small(Mixes(above=15))
    check(network, together=15)
    with pytest.raises(ConfigError, match="in a batch of 3 rows"):  # only 3 rows were drawn
        check(small(Mixes(above=2)), together=1)
    with pytest.raises(ConfigError, match="mixes the rows of a batch"):
        check(network, together=16)
    with pytest.raises(ConfigError, match="mixes the rows of a batch"):
        check(network, together=8, views=2)
    for mixer in (Mixes(above=2), MIXERS["row before"]):
        model = nn.Sequential(nn.ReLU(), mixer, nn.Flatten())
        with pytest.raises(ConfigError, match="layer 1 of net mixes the rows"):
            check_rows_apart(model, torch.randn(3, 4, 6, 6), name="net")
    check_rows_apart(nn.Sequential(nn.ReLU(), nn.Flatten()), torch.randn(3, 4, 6, 6), name="net")
    for odd in (lambda x: (x, x), lambda x: x[0, 0, 0, 0], lambda x: torch.cat([x, x[:1]])):
        model = nn.Sequential(Beside(odd), Mixes(above=2))
        with pytest.raises(ConfigError, match="layer 1 of net mixes the rows"):
            check_rows_apart(model, torch.randn(3, 4, 6, 6), name="net")


@pytest.mark.parametrize(
    ("layer", "precision"),
    [
        # shares below the rounding of scores, in float32 or bfloat16
        (Mixes(above=15, share=1e-7), "float32"),
        (Mixes(above=15, share=1e-7), "bfloat16"),
        (Mixes(above=15), "bfloat16"),
        # batches of a size that only a step's last physical batch has
        (Mixes(above=15, most=31), "bfloat16"),
    ],
)
def test_mixing_at_the_physical_batch_size_is_refused(layer: nn.Module, precision: str) -> None:
    check(small(layer), together=8, precision=precision)
    with pytest.raises(ConfigError, match="in a batch of 16 rows, a row's scores change"):
        check(small(layer), together=64, precision=precision)


@pytest.mark.parametrize(
    "branches",
    [
        lambda x: x.max() > 1e6,
        lambda x: x.amax((1, 2, 3)).tolist()[0] > 1e6,
        lambda x: x.detach().numpy().max() > 1e6,
        lambda x: np.asarray(x.detach()).max() > 1e6,
        lambda x: len(x[x > 1e6]),
        lambda x: len((x > 1e6).nonzero()),
        lambda x: len(torch.unique(x > 1e6)) > 1,
    ],
)
def test_a_branch_by_numbers_is_refused(branches: Callable[[torch.Tensor], Any]) -> None:
    layer = OfBatch(lambda x: x - x.mean(0) if branches(x) else x)
    for run in (
        lambda: check(small(layer)),
        lambda: check_rows_apart(nn.Sequential(layer), torch.randn(3, 4, 6, 6), name="net"),
    ):
        with pytest.raises(ConfigError, match="reads a number from its batch"):
            run()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    "read",
    [torch.amax, torch.amin, torch.mean, torch.std, torch.linalg.vector_norm],
    ids=lambda read: read.__name__,
)
def test_what_a_network_takes_from_the_whole_batch_shows(read: Any, dtype: torch.dtype) -> None:
    rows = make_public_rows((1, 6, 6), dtype)
    for count in (2, 16):
        assert find_mixed_row(lambda x: x.float() + 1e-3 * read(x.float()), rows, count)
        assert find_mixed_row(lambda x: x.float() * 1e3, rows, count) is None


class Branch(nn.Module):
    """A branch that starts nearly closed, with a gate of 1e-7, as LayerScale does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.gate = inner, nn.Parameter(torch.full((4, 1, 1), 1e-7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * self.inner(x)


def captured() -> nn.Module:
    layer = HalfCalled(called=True)
    weights = [layer.table.weight]
    layer.register_forward_hook(lambda _, __, y: y + 1e-9 * weights[0].view(4, 1, 1))
    return layer


def multiply(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return x @ torch.ones(6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (HalfCalled, OUTSIDE),
        (lambda: HalfCalled(1e-9, called=True), OUTSIDE),  # too small for rounded gradients
        (captured, OUTSIDE),
        (lambda: Branch(Mixes()), "mixes the rows of a batch"),
        (Turned, r"wrong gradient of 1\.linear\."),
        (lambda: Branch(Turned()), r"wrong gradient of 1\.inner\.linear\."),
        *(
            (partial(Fails, kind), "gradients cannot be computed per row .* choose another")
            for kind in (RuntimeError, TypeError, ValueError, AttributeError, IndexError)
        ),
        (
            lambda: OfBatch(lambda x: x * multiply(2 * x)[..., None]),
            r"does not run in float64 \(.*choose another",
        ),
        (lambda: OfBatch(lambda x: x * 0), "the trained parameters get no gradient"),
        (lambda: OfBatch(lambda x: x[::2]), r"scores have shape \(4, 3\) for 8 rows"),
        (lambda: OfBatch(lambda x: x[:, None]), r"scores have shape \(8, 1, 3\) for 8 rows"),
    ],
)
def test_layers_without_correct_per_example_gradients_are_refused(
    layer: Callable[[], nn.Module], said: str, precision: str
) -> None:
    network = small(nn.Conv2d(4, 4, 1), layer())
    if said.startswith(("the trained", r"scores have shape \(8")):
        network = Small.of(nn.Sequential(nn.Linear(8, 3), layer()), (8,))
    before = {name: one.clone() for name, one in network.trained.items()}
    with pytest.raises(ConfigError, match=said):
        check(network, precision=precision, together=8)
    assert all(isinstance(one, nn.Parameter) for one in network.module.parameters())
    assert all(torch.equal(one, before[name]) for name, one in network.trained.items())
