"""Features of inner blocks: where blocks are found, and what is taken of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpprobe.backbones.network_forward import (
    Blocks,
    Network,
    describe_network,
    find_blocks,
    list_blocks,
    one_line,
    prepare_network,
    state_sha256,
)
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support.backbones import CPU

PREFIX = 2  # a class token and a register
TOKEN = nn.Parameter(torch.zeros(1))
CLASS_TOKEN: dict[str, Any] = {"num_prefix_tokens": PREFIX, "cls_token": TOKEN}


class Parts(nn.Module):
    """A module of named parts and attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def linear(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


RESNET = Parts(**{f"layer{number}": linear(number) for number in (1, 2, 3, 8, 9)}, layer4=None)
# A network, where its blocks are (None: nowhere), the tokens before patches, a class token or not.
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


def test_blocks_in_stages_are_listed_in_order_and_a_stage_without_blocks_counts_as_one() -> None:
    inner, plain = linear(3), nn.ReLU()
    stages = nn.Sequential(linear(2), Parts(blocks=inner), plain, Parts(blocks=nn.ReLU()))
    network = Parts(stages=stages)
    assert list_blocks(network) == [*stages[0], *inner, plain, stages[3]]  # type: ignore[misc]


class Block(nn.Module):
    """Doubles its tokens; is called as often as told, and returns what `gives` makes of them."""

    def __init__(self, calls: int = 1, gives: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.calls, self.gives = calls, gives

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.gives(tokens * 2)


class Net(Parts):
    """Images [m, 5, 2, 3] -> 6 tokens of 5 numbers through all blocks -> the second token."""

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


def test_a_block_that_is_called_twice_gives_the_mean_of_both_calls() -> None:
    taken = take(Block(), Block(2), Block(), layers="all", **CLASS_TOKEN)
    factors = {"0": 1, "1": 2, "2": (4 + 8) / 2, "3": 16}
    for name, factor in factors.items():
        torch.testing.assert_close(taken[name], factor * TOKENS[:, 0])


def test_maps_are_averaged_over_positions_whatever_the_token() -> None:
    maps = Block(gives=lambda tokens: tokens.transpose(1, 2).unflatten(2, (2, 3)))
    for token in (None, "class", "pooled"):
        taken = take(maps, Block(), layers=[1, 2], token=token, **CLASS_TOKEN)
        torch.testing.assert_close(taken["1"], 2 * IMAGES.mean((2, 3)))


def test_layers_are_float32_of_the_same_pass_in_half_precision() -> None:
    half = Block(gives=lambda tokens: tokens.half())
    assert take(half, layers=[1], **CLASS_TOKEN)["1"].dtype == torch.float32


@pytest.mark.parametrize(
    ("blocks", "layers", "said"),
    [
        ([Block(), Block(0)], [2], "layers: block 2 of N is not called; remove layers"),
        ([Block(0)], [0], "layers: block 1 of N is not called"),
        ([Block(), Block(0), Block(0)], "all", "layers: block 2 of N is not called"),
        ([Block(gives=lambda x: (x, x))], [1], "block 1 of N gives neither tokens nor maps"),
        ([Block(gives=lambda x: x[:, 0])], [1], "block 1 of N gives neither tokens nor maps"),
        ([Block(), Block()], [1, 3], "layers: N has no block 3; write numbers from 0 to 2"),
    ],
)
def test_layers_that_a_network_does_not_give_are_refused(
    blocks: list[Block], layers: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        take(*blocks, layers=layers, **CLASS_TOKEN)


def test_a_network_without_blocks_gives_features_alone() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(30, 4))
    prepared = prepare(network)
    assert (prepared.forward_layers, prepared.layers, prepared.dimension) == (None, {}, 4)
    assert describe_network(prepared) == {"dimension": 4, "blocks": 0}
    with pytest.raises(ConfigError, match="layers: N gives no access to its blocks; remove layers"):
        prepare(network, layers="all")
    blocks = prepare(Net(blocks=nn.Sequential(*three())))
    assert describe_network(blocks) == {"dimension": 5, "blocks": 3}


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


def test_an_error_is_told_on_one_line_of_at_most_200_characters() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("x" * 200)) == "x" * 200
    assert one_line(ValueError("x" * 201)) == "x" * 200 + "..."
