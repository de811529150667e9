"""Adapters equal hand-written layers, and affine maps equal the batch norms they replace."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers.norm import LayerNorm2d, RmsNorm, SimpleNorm
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from dpprobe.errors import ConfigError
from dpprobe.finetune.lora import (
    ChannelAffine,
    LoraLinear,
    check_reached,
    find_normalisations,
    insert_lora,
)
from dpprobe.finetune.options import Lora


def filled(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    shape=st.sampled_from([(5, 3), (5, 7, 3), (5, 3, 4, 6)]),
    scale=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3),
    shift=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3),
)
def test_channel_affine_scales_and_shifts_each_channel(
    shape: tuple[int, ...], scale: list[float], shift: list[float]
) -> None:
    layer = ChannelAffine(torch.tensor(scale), torch.tensor(shift))
    x = filled(*shape)
    channel = 1 if len(shape) == 4 else len(shape) - 1
    y = layer(x)
    assert y.shape == x.shape
    for index in range(3):
        torch.testing.assert_close(
            y.select(channel, index), x.select(channel, index) * scale[index] + shift[index]
        )


def test_channel_affine_keeps_the_type_of_its_input_and_rounds_once() -> None:
    layer = ChannelAffine(torch.full((3,), 1.001), torch.zeros(3))
    x = torch.full((2, 3, 2, 2), 1000.0, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    # 1.001 is 1 in bfloat16, so a rounded scale would lose it; float32 gives the nearest number
    assert torch.equal(y, (x.float() * layer.scale.view(-1, 1, 1)).to(torch.bfloat16))
    layer = ChannelAffine(torch.full((3,), 1.003), torch.zeros(3))
    assert layer(x)[0, 0, 0, 0].item() == 1004.0


def test_lora_is_the_hand_written_sum() -> None:
    base, a, b = nn.Linear(6, 4), filled(2, 6, seed=1), filled(4, 2, seed=2)
    layer = LoraLinear(base, a, alpha=3.0)
    x = filled(5, 7, 6)
    assert torch.equal(layer(x), base(x))  # b starts at zero
    with torch.no_grad():
        layer.b.weight.copy_(b)
    merged = base.weight + (3.0 / 2) * b @ a
    torch.testing.assert_close(layer(x), x @ merged.T + base.bias)


class Small(nn.Module):
    """A stem, two blocks with linear layers of the same names, and a final linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(6, 6), "proj": nn.Linear(6, 6)}) for _ in range(2)
        )
        self.end = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block["proj"](block["qkv"](x).tanh())  # type: ignore[index]
        y: torch.Tensor = self.end(x)
        return y


def named(*paths: str) -> nn.Module:
    """Returns a block with linear layers at these paths."""
    block = nn.Module()
    for path in paths:
        *folders, name = path.split(".")
        parent = block
        for folder in folders:
            parent.add_module(folder, dict(parent.named_children()).get(folder, nn.Module()))
            parent = parent.get_submodule(folder)
        parent.add_module(name, nn.Linear(2, 2))
    return block


def lora(model: nn.Module, *targets: str, rank: int = 2, seed: int = 0) -> dict[str, LoraLinear]:
    lora, blocks = Lora(rank=rank, targets=targets), list(getattr(model, "blocks", [model]))
    insert_lora(model, blocks, lora, seed=seed, name="small")
    return {path: one for path, one in model.named_modules() if isinstance(one, LoraLinear)}


def test_lora_is_added_at_its_targets_and_initialised_by_seed_and_layer() -> None:
    every = {"blocks.0.qkv", "blocks.0.proj", "blocks.1.qkv", "blocks.1.proj"}
    assert lora(Small()).keys() == every
    assert lora(Small(), "qkv").keys() == {"blocks.0.qkv", "blocks.1.qkv"}
    assert lora(Small(), "1.proj", "end").keys() == {"blocks.1.proj", "end"}
    first, again, other = lora(Small(), seed=3), lora(Small(), "qkv", seed=3), lora(Small(), seed=4)
    path = "blocks.1.qkv"
    assert first[path].scale == 1, "alpha is the rank"
    assert torch.equal(first[path].a.weight, again[path].a.weight)
    assert not torch.equal(first[path].a.weight, other[path].a.weight)
    assert not torch.equal(first[path].a.weight, first["blocks.0.qkv"].a.weight)
    large = lora(Small(), rank=1000)[path].a.weight.detach() * 6**0.5
    assert float(large.std()) == pytest.approx(1, abs=0.05)
    assert float(large.abs().max()) < 2.4  # from a truncated distribution


def test_lora_without_a_matching_layer_or_a_direct_call_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer of small ends in 'fc1'; choose from"):
        lora(Small(), "qkv", "fc1")
    shown = ["d.a.b.fc", "d.a.b.proj", "c.b.fc", "head", "1.2", "x.3"]
    many = [f"a.{number}" for number in range(12)]
    for paths, told in ((shown, "b.fc, b.proj, head, x.3"), (many, ", ".join(many[:8]))):
        with pytest.raises(ConfigError, match=rf"choose from {told}$"):
            lora(named(*paths), "none")
    assert lora(named("b.c", "a.b.c", "ab.c", "b.c.d"), "b.c").keys() == {"b.c", "a.b.c"}
    empty = nn.Sequential(nn.Conv2d(1, 1, 1))
    with pytest.raises(ConfigError, match="conv has no linear layer in its blocks"):
        insert_lora(empty, [empty[0]], Lora(rank=1), seed=0, name="conv")

    class Bypassing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.bypassed = (
                LoraLinear(nn.Linear(2, 2), filled(1, 2), alpha=1) for _ in "ab"
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.used(x) @ self.bypassed.base.weight
            return y

    model = Bypassing()
    with pytest.raises(ConfigError, match="small does not call its layer bypassed directly"):
        check_reached(model, lambda: model(filled(3, 2)), name="small")


def test_find_normalisations_skips_batch_norms() -> None:
    kept = [nn.RMSNorm(3), RmsNorm(3), SimpleNorm(3), nn.GroupNorm(1, 3), LayerNorm2d(3)]
    model = nn.Sequential(BatchNormAct2d(3), *kept, nn.Linear(3, 3))
    assert list(find_normalisations(model)) == kept
