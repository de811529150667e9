"""The network that a method trains: a part of a backbone, with a head, and what of it is trained.

Whatever is trained, the network is cut, or not, from one and the same copy of the backbone, and its
parameters keep their names: `body.<name in that copy>` and `head.weight`, `head.bias`. So the state
of a network that was trained from stored activations fits the whole network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from dpprobe.backbones.backbone import Backbone
from dpprobe.backbones.networks import Graph, line
from dpprobe.backbones.probe import probe_image
from dpprobe.errors import ConfigError
from dpprobe.finetune.adapters import (
    ChannelAffine,
    Film,
    LoraLinear,
    check_reached,
    insert_film,
    insert_lora,
    normalisations,
)
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.cut import cut_network
from dpprobe.finetune.options import Options, TuneLora
from dpprobe.finetune.row_mixing import check_rows_apart
from dpprobe.finetune.standard_form import standard_form
from dpprobe.heads.initial_weights import sized_weights
from dpprobe.heads.rows import Transform

_HEAD = ("head.weight", "head.bias")


class Network(nn.Module):
    """Inputs -> float32 scores: a body that gives features, their normalisation, a linear head."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        body: nn.Module,
        head: nn.Linear,
        transform: Transform,
        *,
        graph: Graph | None,
    ) -> None:
        """Takes the backbone's graph where inputs are images, for what is done to their bytes."""
        super().__init__()
        self.body, self.head, self.transform = body, head, transform
        self.from_images = graph is not None
        self.flip = graph is not None and graph.flip
        if graph is not None:
            self.register_buffer("mean", graph.mean.detach().clone(), persistent=False)
            self.register_buffer("std", graph.std.detach().clone(), persistent=False)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns float32 [m, d], normalised as the head takes them."""
        if self.from_images:
            inputs = (inputs.to(torch.float32) / 255 - self.mean) / self.std
        rows: torch.Tensor = self.body(inputs).float()
        if self.flip:
            rows = (rows + self.body(inputs.flip(-1)).float()) / 2
        return self.transform(rows)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.features(inputs)).float()
        return scores


@dataclass(frozen=True, kw_only=True)
class TunedNetwork:
    """A network on its device, in evaluation mode, and what of it is trained.

    Attributes:
      module: inputs -> scores [m, K] float32; only `trained` requires gradients.
      trained: by the names of `module`, in a fixed order; head.weight [K, d] and head.bias [K]
        are last.
      shape: of one input: (C, H, W) of images, the shape of an activation, or (d,).
      from_images: True if inputs are uint8 images [m, C, H, W], which the module scales and
        normalises, else float32 activations or features.
    """

    module: nn.Module
    trained: Mapping[str, nn.Parameter]
    shape: tuple[int, ...]
    from_images: bool


def build_network(
    backbone: Backbone,
    options: Options,
    *,
    classes: int,
    seed: int,
    device: str,
    transform: Transform,
) -> TunedNetwork:
    """Builds the network that a seed's training starts from.

    It is to be called before threads that run networks start: cutting is a trace, which changes
    torch's modules for all of them while it lasts.

    Args:
      backbone: loaded on the CPU; it stays as it was.
      options: the method's, located.
      classes: K.
      seed: of the head's and adapters' random starts.
      device: "cpu" or "cuda".
      transform: of features before the head.

    Raises:
      ConfigError: when the backbone is no network, mixes rows, cannot be cut, or has nothing that
        `tune` trains.
    """
    graph = _graph(backbone)
    if options.tune == "head" and options.cut:
        assert backbone.dimension is not None, "a network's features have one dimension"
        head = _head(options, classes, backbone.dimension, seed)
        module = Network(nn.Identity(), head, transform, graph=None)
        return _tuned(module, [], (backbone.dimension,), device)
    if options.cut:
        check_cut(backbone)
    prepared = _prepared(backbone, options, seed)
    head = _head(options, classes, prepared.width, seed)
    body = prepared.suffix if options.cut else prepared.model
    module = Network(body, head, transform, graph=None if options.cut else graph)
    return _tuned(module, prepared.trained, prepared.cut if options.cut else prepared.image, device)


def whole_network(
    backbone: Backbone,
    options: Options,
    state: Mapping[str, torch.Tensor],
    *,
    classes: int,
    device: str,
    transform: Transform,
) -> nn.Module:
    """Returns images (uint8) -> scores, with tuned parameters put into the whole network.

    Args:
      backbone, options, classes, device, transform: as in `build_network`.
      state: of `tuned_state`, of a network that was built with these options.

    Raises:
      ConfigError: when the state is of another network.
    """
    prepared = _prepared(backbone, options, seed=0)
    head = nn.Linear(prepared.width, classes)
    module = Network(prepared.model, head, transform, graph=_graph(backbone))
    network = _tuned(module, prepared.trained, prepared.image, device)
    load_tuned_state(network, state)
    return module.requires_grad_(False)


def features_of(network: TunedNetwork) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns inputs -> the features [m, d] that enter the head."""
    assert isinstance(network.module, Network)
    return network.module.features


def tuned_state(network: TunedNetwork) -> dict[str, torch.Tensor]:
    """Returns copies of the trained parameters, contiguous, on the network's device."""
    return {
        name: torch.empty(one.shape, dtype=one.dtype, device=one.device).copy_(one.detach())
        for name, one in network.trained.items()
    }


def load_tuned_state(network: TunedNetwork, state: Mapping[str, torch.Tensor]) -> None:
    """Puts values into the trained parameters.

    Raises:
      ConfigError: when names or shapes are not those of the trained parameters.
    """
    for name in (*network.trained, *state):
        if name not in state or name not in network.trained:
            where = "is missing in" if name not in state else "is only in"
            raise ConfigError(
                f"tuned parameters: {name} {where} the state; it is of a network of other options "
                "or of another backbone: train again"
            )
        if state[name].shape != network.trained[name].shape:
            raise ConfigError(
                f"tuned parameters: {name} is {list(state[name].shape)} in the state and "
                f"{list(network.trained[name].shape)} in the network; train again"
            )
    with torch.no_grad():
        for name, parameter in network.trained.items():
            parameter.copy_(state[name])


def check_cut(backbone: Backbone) -> None:
    """Refuses a cut where the activations of one image are not those of one view.

    Raises:
      ConfigError: for random crops of training images, and for mirrored views.
    """
    name = _name(backbone)
    if backbone.train_transform is not None:
        raise ConfigError(
            f"tune: {name} has preprocessing.crop: inception, and activations of one random crop "
            "would be stored for all steps; write crop: centre, or augment to train from images"
        )
    if _graph(backbone).flip:
        raise ConfigError(
            f"tune: {name} has preprocessing.flip, two passes an image, and activations of one are "
            "stored; remove flip, or write augment to train from images"
        )


def example_images(backbone: Backbone, graph: Graph | None = None) -> torch.Tensor:
    """Returns three public images [3, C, H, W] of the size that a backbone takes.

    They are uint8, or normalised as the graph says, where one is given.
    """
    plain = backbone.transform(probe_image())
    if plain.dtype != torch.uint8:
        raise ConfigError(
            f"tune: {_name(backbone)} does not take images as bytes; take a network of timm or "
            "open_clip"
        )
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, plain.shape, generator=generator, dtype=torch.uint8)
    images = torch.stack([plain, noise, noise // 8])
    if graph is None:
        return images
    normalised: torch.Tensor = (images.to(torch.float32) / 255 - graph.mean.cpu()) / graph.std.cpu()
    return normalised


def frozen_model(backbone: Backbone) -> nn.Module:
    """Returns a copy of the backbone's network, as trained networks are made of, all frozen."""
    return standard_form(_graph(backbone), name=_name(backbone)).requires_grad_(False)


def _name(backbone: Backbone) -> str:
    return backbone.architecture or "the backbone"


def _graph(backbone: Backbone) -> Graph:
    if not isinstance(backbone.graph, Graph):
        raise ConfigError(
            "tune: the backbone is no network, so nothing of it can be trained; write head: sgd, "
            "or take a network of timm or open_clip"
        )
    return backbone.graph


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A checked copy of a backbone's network on the CPU.

    Attributes:
      model: with adapters, where `tune` has them.
      suffix: what of it stands behind the cut; all where nothing is cut.
      trained: the names that `tune` trains in both.
      image: the shape of an image.
      cut: the shape of an activation at the cut.
      width: of the features.
    """

    model: nn.Module
    suffix: nn.Module
    trained: list[str]
    image: tuple[int, ...]
    cut: tuple[int, ...]
    width: int


def _prepared(backbone: Backbone, options: Options, seed: int) -> _Prepared:
    name, graph = _name(backbone), _graph(backbone)
    model = standard_form(graph, name=name).cpu()
    example = example_images(backbone, graph)
    before = _tried(lambda: model(example), name)
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
        adapters = _insert_adapters(model, options, seed, name)
        if adapters:
            check_reached(
                model,
                (LoraLinear, Film),
                lambda: _unchanged(before, _tried(lambda: model(example), name), name),
                name=name,
            )
        trained = _trained(model, options, learned)
    if not trained and options.tune != "head":
        raise ConfigError(
            f"tune: {options.tune}: {name} has no such parameters; write bias, {{blocks: k}} or all"
        )
    return _Prepared(
        model=model, suffix=suffix, trained=trained, image=image, cut=cut, width=before.shape[1]
    )


def _insert_adapters(model: nn.Module, options: Options, seed: int, name: str) -> bool:
    tune = options.tune
    if isinstance(tune, TuneLora):
        insert_lora(
            model,
            blocks_of(model, name),
            rank=tune.lora.rank,
            targets=tune.lora.targets,
            alpha=tune.lora.alpha,
            seed=seed,
            name=name,
        )
    elif tune == "film":
        insert_film(model, name=name)
    return isinstance(tune, TuneLora) or tune == "film"


def _tried(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    try:
        with torch.no_grad():
            return run()
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"tune: {name} cannot be run in the form that is trained ({line(error)}); write "
            "another tune, or take another backbone"
        ) from error


def _unchanged(before: torch.Tensor, after: torch.Tensor, name: str) -> None:
    if not torch.equal(before, after):
        raise ConfigError(
            f"tune: adapters change the features of {name} before any training; write another tune"
        )


def _trained(model: nn.Module, options: Options, learned: set[str]) -> list[str]:
    """Returns the names that are trained beside the head, in the model's order."""
    tune = options.tune
    if tune == "head":
        chosen = set()
    elif tune == "all":
        chosen = learned
    elif tune == "bias":
        biases = {path for path in learned if path.rpartition(".")[2] == "bias"}
        chosen = biases | (learned & _parameters(model, (ChannelAffine,), "shift"))
    elif tune == "norm":
        norms = tuple({type(norm) for _, norm, _, _ in normalisations(model)})
        chosen = learned & _parameters(model, norms)
    elif tune == "film":
        chosen = _parameters(model, (Film,))
    else:
        adapters = _parameters(model, (LoraLinear,))
        chosen = {path for path in adapters if ".base." not in path}
    return [path for path, _ in model.named_parameters() if path in chosen]


def _parameters(
    model: nn.Module, kinds: tuple[type[nn.Module], ...], end: str | None = None
) -> set[str]:
    """Returns the full names of the parameters in layers of some kinds."""
    return {
        f"{path}.{part}"
        for path, module in model.named_modules()
        if isinstance(module, kinds)
        for part, _ in module.named_parameters()
        if end in (None, part)
    }


def _head(options: Options, classes: int, width: int, seed: int) -> nn.Linear:
    start = sized_weights(options, [seed], classes=classes, dimension=width)[0]
    head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(start[:, :-1])
        head.bias.copy_(start[:, -1])
    return head


def _tuned(
    module: Network, trained: list[str], shape: tuple[int, ...], device: str
) -> TunedNetwork:
    """Moves a network to its device and marks what is trained in it."""
    module = module.to(device).eval().requires_grad_(False)
    known = dict(module.named_parameters())
    names = [*(f"body.{path}" for path in trained), *_HEAD]
    return TunedNetwork(
        module=module,
        trained={name: known[name].requires_grad_(True) for name in names},
        shape=shape,
        from_images=module.from_images,
    )
