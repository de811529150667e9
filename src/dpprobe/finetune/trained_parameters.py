"""Makes a checked copy of a backbone's network, and lists the parameters to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.feature_digest import probe_image
from dpprobe.backbones.network_forward import Graph, one_line
from dpprobe.backbones.row_mixing import check_rows_apart, make_public_rows
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.cut import cut_network
from dpprobe.finetune.lora import (
    ChannelAffine,
    LoraLinear,
    check_reached,
    find_normalisations,
    insert_lora,
)
from dpprobe.finetune.options import Options, TuneLora
from dpprobe.finetune.standard_form import standard_form


def check_cut(backbone: Backbone) -> None:
    """Raises ConfigError if a backbone crops at random or mirrors, because only one version of each
    image would be stored."""
    name = network_name(backbone)
    if backbone.train_transform is not None:
        raise ConfigError(
            f"tune: {name} has preprocessing.crop: inception, so all steps would use one stored "
            "crop per image; write `crop: centre`, or `augment`, which trains from images"
        )
    if network_graph(backbone).flip:
        raise ConfigError(
            f"tune: {name} has preprocessing.flip, which needs two passes per image, but only "
            "one is stored; remove flip, or write `augment`, which trains from images"
        )


def example_images(backbone: Backbone, graph: Graph) -> torch.Tensor:
    """Returns three public images [3, C, H, W], normalised for the network `graph`."""
    plain = backbone.transform(probe_image())
    if plain.dtype != torch.uint8:
        raise ConfigError(
            f"tune: {network_name(backbone)} does not take images as bytes; choose a network of "
            "timm or open_clip"
        )
    images = make_public_rows(plain.shape, torch.uint8)
    normalised: torch.Tensor = (images.to(torch.float32) / 255 - graph.mean.cpu()) / graph.std.cpu()
    return normalised


def frozen_model(backbone: Backbone) -> nn.Module:
    """Returns a frozen copy of the backbone's network, from which networks to train are built."""
    return standard_form(network_graph(backbone), name=network_name(backbone)).requires_grad_(False)


def network_name(backbone: Backbone) -> str:
    return backbone.architecture or "the backbone"


def network_graph(backbone: Backbone) -> Graph:
    if not isinstance(backbone.graph, Graph):
        raise ConfigError(
            "tune: the backbone is not a network, so it cannot be trained; write `head: sgd`, or "
            "choose a network of timm or open_clip as the backbone"
        )
    return backbone.graph


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked copy of a backbone's network on the CPU."""

    model: nn.Module  # the network, with adapters if `tune` is lora
    suffix: nn.Module  # the part after the cut; the whole network if nothing is cut
    trained: list[str]  # names of the trained parameters, in `model` and in `suffix`
    image: tuple[int, ...]
    cut: tuple[int, ...]  # shape of an activation at the cut
    width: int


def prepare_backbone(backbone: Backbone, options: Options, seed: int) -> Prepared:
    name, graph = network_name(backbone), network_graph(backbone)
    model = standard_form(graph, name=name).cpu()
    example = example_images(backbone, graph)
    before = _try_run(lambda: model(example), name)
    check_rows_apart(model, example, name=name)
    learned = {path for path, one in model.named_parameters() if one.requires_grad}
    model.requires_grad_(False)
    image = tuple(example.shape[1:])
    suffix, cut, trained = model, image, []
    if options.blocks is not None:
        prefix, suffix, cut = cut_network(model, options.blocks, example=example[:2], name=name)
        frozen = {path for path, _ in prefix.named_parameters()}
        behind = {path for path, _ in suffix.named_parameters()} - frozen
        trained = [path for path, _ in model.named_parameters() if path in behind & learned]
    else:
        if isinstance(options.tune, TuneLora):
            insert_lora(model, blocks_of(model, name), options.tune.lora, seed=seed, name=name)
            after = check_reached(model, lambda: _try_run(lambda: model(example), name), name=name)
            if not torch.equal(before, after):
                raise ConfigError(
                    f"tune: adapters change the features of {name} before any training; choose "
                    "another tune"
                )
        trained = _name_trained(model, options, learned)
    if not trained and options.tune != "head":
        raise ConfigError(
            f"tune: {options.tune}: {name} has no such parameters; use bias, {{blocks: k}} or all"
        )
    return Prepared(
        model=model, suffix=suffix, trained=trained, image=image, cut=cut, width=before.shape[1]
    )


def _try_run(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    try:
        with torch.no_grad():
            return run()
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"tune: {name} cannot run in the form that is trained ({one_line(error)}); choose "
            "another tune, or choose another backbone"
        ) from error


def _name_trained(model: nn.Module, options: Options, learned: set[str]) -> list[str]:
    """Returns the names of trained parameters, without the head's, in the model's order."""
    tune = options.tune
    if tune == "head":
        chosen = set()
    elif tune == "all":
        chosen = learned
    elif tune == "bias":
        biases = {path for path in learned if path.rpartition(".")[2] == "bias"}
        chosen = biases | (learned & _name_parameters(model, (ChannelAffine,), "shift"))
    elif tune == "norm":
        norms = tuple({type(norm) for norm in find_normalisations(model)})
        chosen = learned & _name_parameters(model, norms)
    else:
        adapters = _name_parameters(model, (LoraLinear,))
        chosen = {path for path in adapters if ".base." not in path}
    return [path for path, _ in model.named_parameters() if path in chosen]


def _name_parameters(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], end: str | None = None
) -> set[str]:
    return {
        f"{path}.{part}"
        for path, module in model.named_modules()
        if isinstance(module, kinds)
        for part, _ in module.named_parameters()
        if end in (None, part)
    }
