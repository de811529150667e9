"""Trained networks: the features they start from, and exactly which parameters are trained."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from timm.layers.norm_act import BatchNormAct2d, GroupNormAct
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.network_forward import Graph, list_blocks
from dpprobe.errors import ConfigError
from dpprobe.finetune.cut_shards import cut_backbone
from dpprobe.finetune.fine_tuned_network import (
    FineTunedNetwork,
    Network,
    build_network,
    load_tuned_state,
    split_state,
    transform_state,
    tuned_state,
    whole_network,
)
from dpprobe.finetune.lora import ChannelAffine
from dpprobe.finetune.options import Options
from dpprobe.finetune.standard_form import SelfAttention, standard_form
from dpprobe.heads.normalisation import L2, GroupNorm, LayerNorm, NoNormalisation, Normalisation
from dpprobe.heads.transform import Transform
from tests.support import tiny_clip
from tests.support.backbones import CPU, TINY, images, load, open_clip_backbone, timm_backbone

CLASSES = 3
UNIT = Transform(L2())
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
LORA = {"lora": {"rank": 2}}


def build(backbone: Backbone, *, seed: int = 0, **values: Any) -> FineTunedNetwork:
    return build_network(
        backbone, Options(**values), classes=CLASSES, seed=seed, device="cpu", transform=UNIT
    )


def join(backbone: Backbone, state: dict[str, torch.Tensor], **values: Any) -> Any:
    """Returns the whole network with its trained part."""
    return whole_network(
        backbone, Options(**values), state, classes=CLASSES, device="cpu", transform=UNIT
    )


def trained(network: FineTunedNetwork) -> list[str]:
    names = list(network.trained)
    assert names[-2:] == ["head.weight", "head.bias"]
    # the trained parameters are the module's own, and no others require gradients
    marked = {path: one for path, one in network.module.named_parameters() if one.requires_grad}
    assert marked.keys() == set(names)
    assert all(marked[name] is network.trained[name] for name in names)
    return names[:-2]


def features_of(network: FineTunedNetwork, inputs: torch.Tensor) -> torch.Tensor:
    """Returns the features [m, d] that enter the head."""
    assert isinstance(network.module, Network)
    return network.module.compute_features(inputs)


def disturb(network: FineTunedNetwork, scale: float = 0.02) -> None:
    """Changes all trained parameters, as training does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in network.trained.values():
            one.add_(scale * torch.randn(one.shape, generator=generator))


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("tune", ["all", {"blocks": 1}, {"blocks": 3}])
def test_a_network_starts_from_the_backbones_own_features(kind: str, tune: Any) -> None:
    backbone = timm_backbone(kind)
    network = build(backbone, tune=tune, init="lecun_normal")
    pictures = images(backbone)
    inputs = pictures
    if not network.from_images:
        stored = cut_backbone(backbone, CPU, tune["blocks"]).forward(pictures)
        inputs = stored.unflatten(1, network.shape).clone()
    assert inputs.shape[1:] == network.shape
    expected = nn.functional.normalize(backbone.forward(pictures).clone())
    features = features_of(network, inputs)
    torch.testing.assert_close(features.detach(), expected, **CLOSE)
    head = network.trained["head.weight"], network.trained["head.bias"]
    torch.testing.assert_close(network.module(inputs), features @ head[0].T + head[1])
    assert network.module(inputs).dtype == torch.float32


def test_heads_start_as_linear_ones_do(tmp_path: Path) -> None:
    backbone = timm_backbone("mobilenet")
    weights = torch.randn(CLASSES, 1280)
    path = tmp_path / "start.safetensors"
    save_file({"weights": weights}, path)
    network = build(backbone, tune="head", init="file", init_file=str(path), init_scale=2.0)
    assert torch.equal(network.trained["head.weight"].detach(), 2 * weights)
    assert torch.equal(network.trained["head.bias"].detach(), torch.zeros(CLASSES))
    save_file({"weights": weights.bfloat16()}, path)
    network = build(backbone, tune="head", init="file", init_file=str(path))
    assert torch.equal(network.trained["head.weight"].detach(), weights.bfloat16().float())
    one, again, other = (build(backbone, tune="head", init="torch", seed=s) for s in (1, 1, 2))
    heads = [each.trained["head.weight"].detach() for each in (one, again, other)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


TARGETED = {"lora": {"rank": 3, "targets": ["attn.qkv"], "alpha": 6}}


def module_names(model: nn.Module, kind: type[nn.Module]) -> set[str]:
    return {path for path, one in model.named_modules() if isinstance(one, kind)}


def plain_name(name: str) -> str:
    """Returns timm's name of a parameter; our affine maps and activations have other names."""
    *path, last = name.removeprefix("body.").split(".")
    words = [word for word in path if word != "norm"]
    return ".".join([*words, {"scale": "weight", "shift": "bias"}.get(last, last)])


def listed(names: dict[str, nn.Parameter]) -> list[tuple[str, tuple[int, ...]]]:
    return [(plain_name(name), tuple(one.shape)) for name, one in names.items()]


NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def library_s(model: nn.Module, tune: Any) -> dict[str, nn.Parameter]:
    """Returns the parameters of timm's network that an option names, in the network's order."""
    parameters = dict(model.named_parameters())
    if tune == "head":
        return {}
    if tune == "all":
        return parameters
    if tune == "bias":
        return {name: one for name, one in parameters.items() if name.endswith(".bias")}
    if tune == "norm":
        paths = module_paths(model, NORMS)
        return {name: one for name, one in parameters.items() if name.rpartition(".")[0] in paths}
    block = list_blocks(model)[-tune["blocks"]]  # this block and all after it
    first = next(iter(block.parameters()))
    place = next(place for place, one in enumerate(parameters.values()) if one is first)
    return dict(list(parameters.items())[place:])


def module_paths(model: nn.Module, kinds: Any) -> list[str]:
    return [path for path, one in model.named_modules() if isinstance(one, kinds)]


def input_shape(backbone: Backbone, block: nn.Module) -> tuple[int, ...]:
    """Returns the shape of a block's input in the backbone's own network."""
    seen: list[torch.Size] = []
    hook = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    backbone.forward(images(backbone, 1))
    hook.remove()
    return tuple(seen[0][1:])


@pytest.mark.slow
@pytest.mark.parametrize("augment", [None, {"views": 2}])
@pytest.mark.parametrize("kind", TINY)
def test_what_is_trained_are_the_library_s_parameters_by_their_kind(
    kind: str, augment: dict[str, int] | None
) -> None:
    backbone = timm_backbone(kind)
    model: Any = backbone.graph.model  # type: ignore[union-attr]
    pixels = tuple(images(backbone).shape[1:])
    tunes: list[Any] = ["head", "all", "bias", "norm", *({"blocks": count} for count in (1, 2, 3))]
    for tune in tunes:
        expected = library_s(model, tune)
        if not expected and tune != "head":
            with pytest.raises(ConfigError, match=f"tune: {tune}: .* has no such parameters; use"):
                build(backbone, tune=tune, augment=augment)
            continue
        network = build(backbone, tune=tune, augment=augment)
        names = {name: network.trained[name] for name in trained(network)}
        assert listed(names) == listed(expected), tune
        cut = augment is None and tune not in ("all", "bias", "norm")
        assert network.from_images == (not cut), tune
        if not cut:
            assert network.shape == pixels, tune
        elif tune == "head":
            assert network.shape == (backbone.dimension,)
        else:
            block = list_blocks(model)[-tune["blocks"]]
            assert network.shape == input_shape(backbone, block), tune


@pytest.mark.parametrize("tune", ["all", "bias", "norm", {"blocks": 1}])
def test_constants_of_the_library_are_never_trained(tune: Any) -> None:
    backbone = timm_backbone("vit")
    assert isinstance(backbone.graph, Graph)
    whole = trained(build(backbone, tune=tune))
    backbone.graph.learned -= {"blocks.3.norm1.bias"}
    whole.remove("body.blocks.3.norm1.bias")
    assert trained(build(backbone, tune=tune)) == whole


@pytest.mark.parametrize("augment", [None, {"views": 2}])
@pytest.mark.parametrize("kind", TINY)
def test_adapters_are_put_on_the_linear_layers_of_blocks(
    kind: str, augment: dict[str, int] | None
) -> None:
    backbone = timm_backbone(kind)
    model: Any = backbone.graph.model  # type: ignore[union-attr]
    within = {id(one) for block in list_blocks(model) for one in block.modules()}
    layers = {
        path: one
        for path, one in model.named_modules()
        if isinstance(one, nn.Linear) and id(one) in within
    }
    for tune, rank, chosen in (
        (LORA, 2, layers),
        (TARGETED, 3, {path: one for path, one in layers.items() if path.endswith("attn.qkv")}),
    ):
        if not chosen:
            said = "tune: lora: .*no linear layer"
            with pytest.raises(ConfigError, match=said):
                build(backbone, tune=tune, augment=augment)
            continue
        network = build(backbone, tune=tune, augment=augment)
        expected = []
        for path, one in chosen.items():
            expected += [(f"body.{path}.a.weight", (rank, one.in_features))]
            expected += [(f"body.{path}.b.weight", (one.out_features, rank))]
        found = [(name, tuple(network.trained[name].shape)) for name in trained(network)]
        assert found == expected
        assert network.from_images
        if tune is TARGETED:  # alpha over the rank
            path = next(iter(chosen))
            assert network.module.get_submodule(f"body.{path}").scale == 2


@pytest.mark.parametrize("model", ["tiny", "tiny-timm"])
@pytest.mark.parametrize("tune", ["all", "bias", "norm", LORA, {"blocks": 2}])
def test_towers_of_open_clip_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, tune: Any
) -> None:
    tiny_clip.register(tmp_path, monkeypatch)
    backbone = open_clip_backbone(model)
    network = build(backbone, tune=tune, init="lecun_normal")
    assert trained(network)
    expected = nn.functional.normalize(backbone.forward(images(backbone)).clone())
    state = tuned_state(network)
    whole = join(backbone, state, tune=tune)
    head = network.trained["head.weight"]
    torch.testing.assert_close(whole(images(backbone)), expected @ head.detach().T, **CLOSE)
    assert isinstance(backbone.graph, Graph)
    backbone.graph.learned = frozenset()  # timm now trains none, so `all` trains none
    copied = standard_form(backbone.graph, name="net")
    assert not any(one.requires_grad for one in copied.parameters())


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_in_layers_equals_torchs(batch_first: bool) -> None:
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    nn.init.normal_(reference.in_proj_bias)
    x = torch.randn(5, 7, 8)
    expected = reference(x, x, x, need_weights=False)[0]
    ours = SelfAttention(reference)
    torch.testing.assert_close(ours(x, x, x, need_weights=False)[0], expected)
    mask = torch.zeros(7, 7)
    for keys, options, said in (
        ((x + 1, x), {}, "to another sequence"),
        ((x, x + 1), {}, "to another sequence"),
        ((x, x), {"attn_mask": mask}, "with a mask"),
        ((x, x), {"need_weights": True}, "its weigh"),
        ((x, x), {"key_padding_mask": mask}, "a padding mask"),
    ):
        with pytest.raises(ValueError, match=said):
            ours(x, *keys, **options)


class Attends(nn.Module):
    """Has attention layers of several kinds, in blocks and after them."""

    def __init__(self) -> None:
        super().__init__()
        more: list[dict[str, Any]] = [
            {},
            {"add_bias_kv": True},
            {"add_zero_attn": True},
            {"kdim": 6},
            {"bias": False},
        ]
        self.blocks = nn.Sequential(*(nn.MultiheadAttention(8, 2, **each) for each in more))
        self.behind = nn.MultiheadAttention(8, 2)


def test_plain_attention_in_blocks_is_replaced() -> None:
    graph = Graph(Attends(), mean=[0.0], std=[1.0], flip=False)
    copied: Any = standard_form(graph, name="net")
    replaced = [isinstance(one, SelfAttention) for one in (*copied.blocks, copied.behind)]
    assert replaced == [True, False, False, False, True, False]
    assert copied.blocks[4].in_proj.bias is None


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4),
        BatchNormAct2d(4),
        nn.BatchNorm2d(4, affine=False),
        FrozenBatchNorm2d(4),
    ],
)
def test_channel_affine_equals_the_batch_norm_it_replaces(norm: Any) -> None:
    """A norm that is used twice stays one layer; hooks that the backbone did not add stay too."""
    torch.manual_seed(0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 3)
    if norm.weight is not None:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Conv2d(4, 4, 1), norm).eval()
    for layer in (model[0], model[2]):
        layer.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    learned = frozenset(path for path, _ in model.named_parameters())
    graph = Graph(model, mean=[0.0] * 3, std=[1.0] * 3, flip=False, learned=learned)
    folded = standard_form(graph, name="net")
    assert not module_names(folded, nn.BatchNorm2d)
    (affine,) = [one for one in folded.modules() if isinstance(one, ChannelAffine)]
    learned_norm = isinstance(norm, nn.BatchNorm2d) and norm.affine
    assert affine.scale.requires_grad == learned_norm  # constants stay constant
    x = torch.randn(5, 3, 6, 6)
    torch.testing.assert_close(folded(x), model(x))


def test_a_group_norm_with_an_activation_has_the_values_of_its_parts() -> None:
    torch.manual_seed(0)
    norm = GroupNormAct(4, 2, eps=0.5)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    graph = Graph(nn.Sequential(norm), mean=[0.0] * 4, std=[1.0] * 4, flip=False)
    x = torch.randn(5, 4, 6, 6)
    grouped = x.unflatten(1, (2, 2))
    mean = grouped.mean((2, 3, 4), keepdim=True)
    variance = grouped.var((2, 3, 4), keepdim=True, unbiased=False)
    plain = ((grouped - mean) / (variance + 0.5).sqrt()).flatten(1, 2)
    wanted = (plain * norm.weight[:, None, None] + norm.bias[:, None, None]).relu()
    torch.testing.assert_close(standard_form(graph, name="net")(x), wanted)


def test_the_backbone_is_left_as_it_was() -> None:
    backbone = load(family="timm", pretrained=False, layers="all", **TINY["mobilenet"])
    assert backbone.graph is not None
    assert backbone.forward_layers is not None
    pictures = images(backbone)
    before, state = backbone.forward(pictures).clone(), copy.deepcopy(backbone.graph.state_dict())
    for tune in ("all", "norm", {"blocks": 2}):
        network = build(backbone, tune=tune, init="torch")
        disturb(network)
        if network.from_images:
            network.module(pictures).sum().backward()
    assert torch.equal(backbone.forward(pictures), before)
    assert backbone.graph.state_dict().keys() == state.keys()
    assert all(torch.equal(one, state[name]) for name, one in backbone.graph.state_dict().items())
    assert not any(one.requires_grad for one in backbone.graph.parameters())
    # the backbone's layers can still be read, and copies do not write into it
    _, layers = backbone.forward_layers(pictures)
    kept = {name: values.clone() for name, values in layers.items()}
    build(backbone, tune="all").module(pictures)
    assert all(torch.equal(layers[name], kept[name]) for name in kept)


def spoilt(kind: str, path: str, module: nn.Module) -> Backbone:
    """Returns a backbone with one layer replaced."""
    backbone = timm_backbone(kind)
    assert isinstance(backbone.graph, Graph)
    parent, _, name = path.rpartition(".")
    setattr(backbone.graph.model.get_submodule(parent), name, module)
    return backbone


class Centring(nn.Module):
    """Subtracts the mean over the batch, which mixes rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Raising(nn.Module):
    def __init__(self, kind: type[Exception]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise self.kind("its words")


@pytest.mark.parametrize("tune", ["all", "bias", {"blocks": 1}])
def test_an_error_names_the_layer_or_network_that_cannot_be_fine_tuned(tune: Any) -> None:
    norm = nn.BatchNorm2d(64, track_running_stats=False)
    with pytest.raises(ConfigError, match=r"layer2\.0\.bn1 of test_resnet has no running"):
        build(spoilt("resnet", "layer2.0.bn1", norm), tune=tune)
    with pytest.raises(ConfigError, match=r"layer2\.0\.bn1 of test_resnet works on volumes"):
        build(spoilt("resnet", "layer2.0.bn1", nn.BatchNorm3d(64)), tune=tune)
    for kind in (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
        with pytest.raises(ConfigError, match="vit_tiny.* cannot run in the form .*its words"):
            build(spoilt("vit", "blocks.1.norm2", Raising(kind)), tune=tune)
    with pytest.raises(ConfigError, match=r"layer blocks\.1\.norm2 of vit_tiny_patch16_224 mixes"):
        build(spoilt("vit", "blocks.1.norm2", Centring()), tune=tune)


def test_random_crops_and_mirrored_views_are_refused_with_a_cut() -> None:
    size = TINY["mobilenet"]["preprocessing"]
    crops = timm_backbone("mobilenet", preprocessing={**size, "crop": "inception"})
    flips = timm_backbone("mobilenet", preprocessing={**size, "flip": True})
    with pytest.raises(ConfigError, match="has preprocessing.crop: inception"):
        build(crops, tune={"blocks": 1})
    with pytest.raises(ConfigError, match="has preprocessing.flip"):
        build(flips, tune={"blocks": 1})
    with pytest.raises(ConfigError, match="has preprocessing.flip"):
        cut_backbone(flips, CPU, 1)
    build(crops, tune="head")  # a head on stored features accepts any backbone
    network = build(flips, tune="all", init="lecun_normal")
    expected = nn.functional.normalize(flips.forward(images(flips)).clone())
    features = features_of(network, images(flips)).detach()
    torch.testing.assert_close(features, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["mobilenet", "vit", "convnext", "nfnet", "resnet_fused_norm"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_the_whole_network_computes_what_the_cut_one_learned(kind: str, blocks: int) -> None:
    backbone, tune = timm_backbone(kind), {"blocks": blocks}
    network = build(backbone, tune=tune, init="torch")
    pictures = images(backbone)
    stored = cut_backbone(backbone, CPU, blocks).forward(pictures).unflatten(1, network.shape)
    untuned = network.module(stored.clone()).detach()
    disturb(network)
    tuned = network.module(stored.clone()).detach()
    assert not torch.allclose(tuned, untuned, atol=1e-3)
    for augment in (None, {"views": 1}):
        whole = join(backbone, tuned_state(network), tune=tune, augment=augment)
        torch.testing.assert_close(whole(pictures), tuned, rtol=1e-4, atol=1e-4)
        assert not any(one.requires_grad for one in whole.parameters())


@pytest.mark.parametrize("tune", ["head", "all", "bias", "norm", LORA, {"blocks": 2}])
def test_states_are_put_back_exactly(tune: Any) -> None:
    backbone = timm_backbone("vit")
    network = build(backbone, tune=tune)
    disturb(network)
    state = tuned_state(network)
    assert list(state) == list(network.trained)
    assert all(one.is_contiguous() and not one.requires_grad for one in state.values())
    again = build(backbone, tune=tune, seed=9)
    load_tuned_state(again, state)
    disturb(network)  # `state` is a copy
    for name, one in again.trained.items():
        assert torch.equal(one.detach(), state[name])
    whole = join(backbone, state, tune=tune)
    assert whole(images(backbone)).shape == (5, CLASSES)
    arrays = {name: torch.randn(3) for name in ("centre", "scale")}
    cast(Network, network.module).transform = Transform(L2(), arrays)
    parts = split_state({**state, **transform_state(network)})
    assert [each.keys() for each in parts] == [state.keys(), arrays.keys()]
    assert all(torch.equal(parts[1][name], one) for name, one in arrays.items())


def test_states_of_other_networks_are_refused() -> None:
    backbone = timm_backbone("vit")
    network = build(backbone, tune="head")
    other = tuned_state(build(backbone, tune="bias"))
    state = tuned_state(network)
    for given, said in (
        (other, r"body.patch_embed.proj.bias is \[48\] .* but nothing in"),
        ({"head.weight": state["head.weight"]}, r"head.bias is nothing in .* but \[3\]"),
        (state | {"head.bias": torch.zeros(4)}, r"head.bias is \[4\] in the saved state but"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_tuned_state(network, given)


@pytest.mark.parametrize("spec", [L2(), LayerNorm(), GroupNorm(groups=4), NoNormalisation()])
def test_gradients_flow_through_the_normalisation_of_features(spec: Normalisation) -> None:
    rows = torch.linspace(-3, 2, 24).square().view(3, 8)
    kept = rows.clone()
    inputs = rows.clone().requires_grad_(True)
    weights = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    transform = Transform(spec)
    (transform(inputs) * weights).sum().backward()
    assert torch.equal(inputs.detach(), kept)  # `inputs` were not changed
    assert inputs.grad is not None
    exact = rows.double().requires_grad_(True)
    out = {
        "l2": nn.functional.normalize(exact),
        "group_norm": nn.functional.group_norm(exact, 4),
        "layer_norm": nn.functional.layer_norm(exact, exact.shape[1:]),
        "none": exact,
    }[spec.kind]
    (expected,) = torch.autograd.grad((out * weights.double()).sum(), exact)
    torch.testing.assert_close(inputs.grad.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_backbone_that_is_not_a_network_of_image_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="the backbone is not a network"):
        build(load(family="pixels", size=4), tune="all")
    backbone = timm_backbone("vit")
    floats = replace(backbone, transform=lambda picture: backbone.transform(picture).float())
    with pytest.raises(ConfigError, match="does not take images as bytes"):
        build(floats, tune="all")


def test_a_row_of_zeros_has_a_finite_gradient() -> None:
    rows = torch.zeros(2, 4, requires_grad=True)
    Transform(L2())(rows).sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.ones(2, 4))
