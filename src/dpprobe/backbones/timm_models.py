"""Models of timm, by a name with a tag of weights, or from a local checkpoint."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from dpprobe.backbones import local_folders
from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.checkpoints import hash_weights
from dpprobe.backbones.hub_files import HUB_PREFIXES, TIMM_WEIGHTS, HubFile, require_files
from dpprobe.backbones.network_options import (
    NO_NETWORK,
    NetworkOptions,
    Views,
    channels_error,
    read_model_list,
)
from dpprobe.backbones.registry import backbone_options
from dpprobe.backbones.sister_models import list_sisters
from dpprobe.errors import ConfigError
from dpprobe.files import json_files
from dpprobe.options import resolve_path
from dpprobe.similar_names import suggest_names

if TYPE_CHECKING:
    import torch

    from dpprobe.backbones import network_forward
    from dpprobe.backbones.image_preprocessing import Mode

# A file with timm's version, architectures and tags, which test_timm_models.py updates.
ARCHITECTURES = Path(__file__).with_name("timm_models.txt")
# Marks an old name in the list of tags; timm replaces it by another name with a tag.
DEPRECATED = "*"
# Arguments of timm that other options of the backbone set.
RESERVED_ARGUMENTS = frozenset({"checkpoint_path", "model_name", "pretrained"})
# Layers that a study may name: timm itself accepts `mlp_layer` only as a class.
_MLP_LAYERS = ("GluMlp", "Mlp", "SwiGLU", "SwiGLUPacked")
# Architectures whose authors use the class token where timm pools the patches, according to notes
# in timm/models/eva.py; also EUPE, which has DINOv3's architecture and forward pass.
_OF_CLASS_TOKEN = re.compile(r"(?<![a-z0-9])vit_\w+_(dinov3|sapiens2)\w*")
# Keys that dpprobe reads in `pretrained_cfg` of a model's file on the Hub, with `input_size`.
_STATED = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
# The preprocessing values that matter most for correct features.
_TRAINED_WITH = ("mean", "std", "size", "interpolation")


class Preprocessing(Views):
    """Overrides of the preprocessing that timm resolves from the model."""

    interpolation: Literal["bicubic", "bilinear", "lanczos", "nearest"] | None = Field(
        None, description="Interpolation of resized images; if absent, the model's interpolation."
    )
    crop_pct: float | None = Field(
        None, gt=0, le=1, description="Share of the resized image that the crop keeps."
    )
    crop_mode: Literal["center", "squash", "border"] | None = Field(
        None, description="Method that makes an image square; if absent, the model's method."
    )


class Options(NetworkOptions):
    """A timm model; its features are the input of its classifier."""

    imports = ("timm.data.transforms_factory",)

    family: Literal["timm"] = "timm"
    model: str = Field(
        min_length=1,
        description="timm's name, such as resnet50.a1_in1k; hf-hub:OWNER/NAME for a repository of "
        "the Hub; local-dir:FOLDER for a folder with config.json and weights.",
    )
    pretrained: bool = Field(
        True,
        description="Download timm's weights for `model`. With false and without a checkpoint, "
        "weights are random from a fixed seed, only for trials.",
    )
    model_args: dict[str, Any] = Field({}, description="Further arguments of timm.create_model.")
    append_patch_mean: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Append the mean of the patch tokens to the class token of a ViT, which "
        "doubles the number of features, as the authors of Virchow do.",
    )
    preprocessing: Preprocessing = Preprocessing()

    @model_validator(mode="before")
    @classmethod
    def _prefer_checkpoint(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("checkpoint") is not None:
            if values.get("pretrained"):
                raise ValueError("pretrained: true and a checkpoint are both set; keep one of them")
            return {**values, "pretrained": False}
        return values

    @field_validator("model_args")
    @classmethod
    def _check_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(RESERVED_ARGUMENTS & value.keys())
        if taken:
            raise ValueError(
                f"{taken[0]} is an option of the backbone, not of model_args; move it to the "
                "backbone"
            )
        channels = value.get("in_chans", 3)
        if type(channels) is not int or channels < 1:
            raise ValueError(f"in_chans {channels!r}: must be a whole number of 1 or more")
        layer = value.get("mlp_layer", _MLP_LAYERS[0])
        if layer not in _MLP_LAYERS:
            raise ValueError(f"mlp_layer {layer!r}: choose one of {', '.join(_MLP_LAYERS)}")
        return value

    @model_validator(mode="after")
    def _check_channels(self) -> Options:
        self.preprocessing.check_channels(self.model_args.get("in_chans", 3))
        return self

    def check_files(self) -> None:
        self._check_name()
        self.check_checkpoint()
        local_folders.check_folder(self.model, local_folders.TIMM_CONFIG, weights=self.pretrained)

    def input_files(self) -> tuple[str, ...]:
        folder = local_folders.list_files(self.model, local_folders.TIMM_CONFIG)
        return (*super().input_files(), *folder)

    def without_folder(self) -> Options:
        """Returns options in which a folder's path is replaced by its configuration's SHA-256."""
        name = local_folders.hide_folder(self.model, local_folders.TIMM_CONFIG)
        return self.model_copy(update={"model": name})

    def _check_name(self) -> None:
        """Checks a model's name against the installed timm's list, without importing timm."""
        known = known_architectures()
        if known is None or ":" in self.model:
            return
        architecture, _, tag = self.model.partition(".")
        if architecture not in known:
            raise ConfigError(
                f"model: timm has no model {architecture!r}; {suggest_names(architecture, known)}"
            )
        tags = known[architecture]
        if not self.pretrained or tags == (DEPRECATED,):
            return
        if not tags:
            raise ConfigError(
                f"model: timm has no weights of {architecture}; name a checkpoint, or write "
                "`pretrained: false` for random weights"
            )
        if tag and tag not in tags:
            raise ConfigError(_explain_tag(architecture, tag, tags))

    def list_warnings(self) -> list[str]:
        """Warns if pooling differs from the authors' pooling, or preprocessing is only assumed."""
        written = self.preprocessing.model_dump(exclude_none=True)
        assumed = [name for name in _TRAINED_WITH if name not in written]
        pooling = self._warn_of_pooling()
        others = [*pooling, *self._warn_of_sisters()]
        if self.checkpoint is None or not assumed:
            return others
        return [
            *others,
            f"{self.checkpoint}: preprocessing {', '.join(assumed)} and further model_args are "
            f"assumed to be timm's for {self.model}. Wrong values cost accuracy: compare them with "
            "the training, and set its values under preprocessing and model_args, such as pad_type",
        ]

    def _warn_of_pooling(self) -> list[str]:
        """Warns if timm pools the patches where a model's authors use the class token."""
        if "global_pool" in self.model_args or self.append_patch_mean:
            return []
        architecture = _OF_CLASS_TOKEN.search(self._read_architecture())
        if architecture is None:
            return []
        return [
            f"timm's features of {architecture[0]} are the mean of the patch tokens, but its "
            "authors use the class token. Write `model_args: {global_pool: token}` for the class "
            "token, or `global_pool: avg` to keep the mean without this warning"
        ]

    def _warn_of_sisters(self) -> list[str]:
        """Warns if a checkpoint fits several architectures, and no file in its folder names one."""
        if self.checkpoint is None or self.model.startswith(local_folders.PREFIX):
            return []
        name, sisters = self.model.partition(".")[0], list_sisters(self.model)
        path = resolve_path(self.checkpoint)
        stated = {file.name: named for file, _, named in _read_configs(path, "") if named}
        if not sisters or name in stated.values():
            return []
        named = [f"{file} names {value}. " for file, value in stated.items() if value in sisters]
        return [
            f"{self.checkpoint}: its tensors fit {name}, and also {' and '.join(sisters)}, which "
            f"computes different features from them without an error. {''.join(named)}Compare with "
            f"the training, or with what `dpprobe init --checkpoint` shows. If {name} is right, "
            f'write {{"architecture": "{name}"}} into {path.with_suffix(".json").name} next to the '
            "file"
        ]

    def _read_architecture(self) -> str:
        """Returns the model's name, or the architecture that a folder's configuration states."""
        if not self.model.startswith(local_folders.PREFIX):
            return self.model
        try:
            values = json_files.read_json(
                Path(local_folders.list_files(self.model, local_folders.TIMM_CONFIG)[0])
            )
        except (OSError, ValueError):
            return ""  # `check_files` and loading report a folder that cannot be read
        stated = isinstance(values, dict) and "global_pool" not in (values.get("model_args") or {})
        return str(values.get("architecture", "")) if stated else ""

    def extraction_params(self) -> dict[str, Any]:
        """Returns the options without the checkpoint's path.

        `Options` cannot be recreated from the result: without a checkpoint the weights would be
        random.
        """
        values = super().extraction_params() | {"model": self.without_folder().model}
        del values["checkpoint"]
        return values if self.checkpoint is None else values | {"pretrained": None}


def _read_configs(path: Path, default: str) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Yields files with facts about a checkpoint, each with its values and architecture."""
    for file in (path.with_suffix(".json"), path.with_name("config.json")):
        try:
            values = json_files.read_json(file)
        except (OSError, ValueError):
            continue
        if isinstance(values, dict):
            inner = values.get("pretrained_cfg")
            inner = inner if isinstance(inner, dict) else {}
            named = values.get("architecture", inner.get("architecture", default))
            yield file, values, str(named).partition(".")[0]


def read_stated_config(path: Path, model: str) -> dict[str, Any] | None:
    """Reads a model's preprocessing and arguments from a file in its checkpoint's folder.

    The file is `config.json` as on the Hub, or has the checkpoint's name and the ending `.json`.
    Returns the file, and the options `preprocessing` and `model_args`; None without a file for the
    model. Raises ConfigError if a value is invalid.
    """
    for file, values, architecture in _read_configs(path, model):
        stated = values.get("pretrained_cfg", values)
        if architecture != model.partition(".")[0] or not isinstance(stated, dict):
            continue
        given = {key: stated[key] for key in _STATED if key in stated}
        match stated.get("input_size"):
            case [_, height, width] if height == width:
                given["size"] = height
        arguments = values.get("model_args")
        arguments = arguments if isinstance(arguments, dict) else {}
        options = {
            "preprocessing": given,
            "model_args": {k: v for k, v in arguments.items() if k != "num_classes"},
        }
        try:
            backbone_options({"family": "timm", "model": model, **options})
        except ConfigError as error:
            fault = str(error).splitlines()[0].removeprefix("family: ")
            raise ConfigError(
                f"{file}: states unusable values ({fault}); correct or remove the file"
            ) from error
        if given:
            return {"file": file.name, **options}
    return None


def known_architectures() -> dict[str, tuple[str, ...]] | None:
    """Reads each architecture's tags from `ARCHITECTURES`; None for another version of timm."""
    listed = read_model_list(ARCHITECTURES, "timm")
    return None if listed is None else {name: tuple(tags) for name, *tags in listed}


def list_hub_files(options: Options) -> list[HubFile]:
    """Lists the files that timm downloads from the Hub, but not files from other servers."""
    from timm.models import get_pretrained_cfg  # slow import: torch

    if options.model_args.keys() & {"cache_dir", "pretrained_cfg", "pretrained_cfg_overlay"}:
        return []
    repository = options.model.partition(":")[2]
    if repository:
        if not options.model.startswith(HUB_PREFIXES):
            return []
        weights = [HubFile("weights", repository, TIMM_WEIGHTS)] if options.pretrained else []
        return [HubFile("config", repository, ("config.json",)), *weights]
    known = get_pretrained_cfg(options.model) if options.pretrained else None
    if known is None or not known.hf_hub_id:
        return []
    named = known.hf_hub_filename
    return [HubFile("weights", known.hf_hub_id, (named,) if named else TIMM_WEIGHTS)]


def load(options: Options, runtime: Runtime) -> Backbone:
    """Loads a timm model without its classifier; ConfigError if the options do not fit."""
    from timm.data.transforms_factory import create_transform

    from dpprobe.backbones.image_preprocessing import ToBytes, make_train_crop  # slow import: torch

    model = _create_model(options)
    weights_sha256 = hash_weights(options, model)
    config = model.pretrained_cfg
    architecture = config.get("architecture") or options.model.partition(".")[0]
    tag = (config.get("tag") or None) if options.pretrained else None
    views = options.preprocessing
    network, resolved = _make_network(model, options, runtime)
    channels, height, width = resolved["input_size"]
    mode: Mode = "L" if channels == 1 else "RGB"
    described = {**resolved, **views.resolved_views()}
    steps = create_transform(**resolved, is_training=False, normalize=False)
    return Backbone(
        **vars(network),
        preprocessing={"color": mode, **described},
        weights_sha256=weights_sha256,
        fingerprint=backbone_fingerprint(
            options.without_folder(),
            preprocessing=described,
            weights_sha256=weights_sha256,
            libraries=["pillow", "timm", "torch", "torchvision"],
            architecture=architecture,
            pretrained_tag=tag,
            exclude=frozenset({"checkpoint", "preprocessing", "pretrained"}),
            precision=runtime.precision,
        ),
        transform=ToBytes(mode=mode, steps=steps),
        train_transform=make_train_crop(
            views, mode=mode, size=(height, width), interpolation=resolved["interpolation"]
        ),
        architecture=architecture,
        pretrained_tag=tag,
        trained=options.pretrained or options.checkpoint is not None,
    )


def describe(options: Options, device: str) -> dict[str, int]:
    """Returns the numbers of features and blocks of a model, without loading its weights.

    The device is "meta" (computes nothing), or "cpu" for a model that needs real numbers. Raises
    the errors that `load` raises, except errors in fetching weights.
    """
    runtime = Runtime(device=device, precision="float32")
    from dpprobe.backbones import network_forward  # slow import: torch

    network = _make_network(_create_model(options, shapes=True), options, runtime)[0]
    return network_forward.describe_network(network)


def _make_network(
    model: Any, options: Options, runtime: Runtime
) -> tuple[network_forward.Network, dict[str, Any]]:
    from timm.data.config import resolve_model_data_config

    from dpprobe.backbones import network_forward  # slow import: torch

    resolved = _resolve_preprocessing(options, resolve_model_data_config(model))
    channels, height, width = resolved["input_size"]
    _resize_network(model, options, (height, width))
    model.reset_classifier(0)
    network = network_forward.prepare_network(
        _append_patches(model, options) if options.append_patch_mean else model,
        options,
        runtime,
        name=options.model,
        channels=channels,
        size=(height, width),
        mean=resolved["mean"],
        std=resolved["std"],
        flip=options.preprocessing.flip,
    )
    return network, resolved


def _append_patches(model: Any, options: Options) -> torch.nn.Module:
    """Wraps a ViT to return its class token and mean patch token, both after its norm."""
    import torch

    pooling = getattr(model, "global_pool", None)
    if pooling != "token" or getattr(model, "cls_token", None) is None:
        raise ConfigError(
            f"append_patch_mean: {options.model} has no class token as features (global_pool: "
            f"{pooling}); write `model_args: {{global_pool: token}}` if it is a ViT with a class "
            "token, or remove append_patch_mean"
        )

    class ClassAndPatches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            tokens = self.trunk.forward_features(images)
            patches = tokens[:, self.trunk.num_prefix_tokens :].mean(1)
            return torch.cat([self.trunk.forward_head(tokens), patches], dim=1)

    return ClassAndPatches()


def _create_model(options: Options, *, shapes: bool = False) -> Any:
    """Creates the model with its weights; from a checkpoint, without the classifier.

    A checkpoint may have the model's own resolution, or the resolution `preprocessing.size`. With
    `shapes`, no weights are fetched, and only the shapes of a checkpoint are read.
    """
    from dpprobe.backbones import checkpoints  # slow import: torch

    if options.checkpoint is None:
        return _call_timm(options, pretrained=options.pretrained and not shapes)
    path = resolve_path(options.checkpoint)
    numpy = path.suffix in checkpoints.NUMPY_SUFFIXES
    state = {} if numpy else checkpoints.read_state(path, shapes=shapes)
    sizes: list[dict[str, int]] = [{}]
    if options.preprocessing.size is not None:
        sizes.append({"img_size": options.preprocessing.size})
    errors: list[ConfigError] = []
    for size in sizes:
        try:
            if numpy:
                return _call_timm(options, checkpoint_path=str(path), **size)
            model = _call_timm(options, **size)
            checkpoints.load_weights(model, state, path=path, name=options.model)
        except ConfigError as error:
            errors.append(error)
        else:
            return model
    raise errors[0]


def _call_timm(options: Options, **arguments: Any) -> Any:
    import timm
    import torch

    from dpprobe.backbones.network_forward import one_line  # slow import: torch

    arguments = options.model_args | arguments
    if "mlp_layer" in arguments:
        arguments["mlp_layer"] = getattr(timm.layers, arguments["mlp_layer"])
    shapes = not arguments.get("pretrained")
    try:
        require_files(f for f in list_hub_files(options) if f.part == "config" or not shapes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # equal random weights for every shard
            model = timm.create_model(local_folders.expand_name(options.model), **arguments)
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError, OSError) as error:
        if fault := _explain_fault(options, str(error)):
            raise ConfigError(fault) from error
        remedy = "check the name, the checkpoint and model_args"
        if options.pretrained:
            remedy = f"check the name and model_args; {NO_NETWORK}"
        raise ConfigError(
            f"model: timm cannot create {options.model} ({one_line(error)}); {remedy}"
        ) from error
    if not hasattr(model, "reset_classifier"):
        raise ConfigError(
            f"model: {options.model} has no classifier, but features are the input of the "
            "classifier; choose another model"
        )
    return model


def _explain_tag(architecture: str, tag: str, tags: Sequence[str]) -> str:
    has = f"it has {', '.join(tags)}" if tags else "timm has no weights of this model"
    close = suggest_names(tag, tags)
    return f"model: timm has no weights {tag!r} of {architecture}; {close}: {has}"


def _explain_fault(options: Options, said: str) -> str | None:
    """Explains a name, tag or argument that timm does not know; None for other errors."""
    import timm

    architecture, _, tag = options.model.partition(".")
    if said.startswith("Unknown model ("):
        remedy = suggest_names(architecture, timm.list_models())
        return f"model: timm has no model {architecture!r}; {remedy}"
    if tag and said.startswith("Invalid pretrained tag"):
        tags = [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*")]
        return _explain_tag(architecture, tag, tags)
    refused = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", said)
    if refused is None or refused[2] not in options.model_args:
        return None
    kind, key = refused.groups()
    remedy = suggest_names(key, _list_arguments(architecture, kind))
    return f"model_args: {key} is no argument of {architecture} ({kind}); {remedy}"


def _list_arguments(architecture: str, kind: str) -> list[str]:
    """Lists a model class's arguments that a study may set; empty if the class is not found."""
    import timm

    try:
        module = sys.modules[timm.model_entrypoint(architecture).__module__]
        names = inspect.signature(getattr(module, kind)).parameters
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return []
    return [name for name in names if name not in RESERVED_ARGUMENTS]


def _resize_network(model: Any, options: Options, size: tuple[int, int]) -> None:
    """Resamples a ViT's position embeddings; raises ConfigError if patches do not tile images."""
    from dpprobe.backbones.network_forward import one_line  # slow import: torch

    embed: Any = getattr(model, "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    if patch is None or not hasattr(model, "set_input_size"):
        return
    remedy = f"set a preprocessing.size that is a multiple of {math.lcm(*patch)}"
    if any(side % part for side, part in zip(size, patch, strict=True)):
        raise ConfigError(
            f"model: {options.model} does not take images of {[*size]} (patches of {[*patch]} do "
            f"not tile them); {remedy}"
        )
    if tuple(embed.img_size or ()) == size:
        return
    try:
        model.set_input_size(img_size=size)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model: {options.model} does not take images of {[*size]} ({one_line(error)}); "
            f"{remedy}, or remove it"
        ) from error


def _resolve_preprocessing(options: Options, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns timm's preprocessing with the study's overrides, JSON-compatible."""
    channels = options.model_args.get("in_chans", resolved["input_size"][0])
    given = options.preprocessing.model_dump(
        exclude_none=True, exclude={"crop", "crop_seed", "crops", "flip"}
    )
    size = given.pop("size", options.model_args.get("img_size"))
    sides = [size, size] if isinstance(size, int) else list(resolved["input_size"][1:])
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in (dict(resolved) | given).items()
    }
    values["input_size"] = [channels, *sides]
    for name in ("mean", "std"):
        values[name] = options.preprocessing.list_constants(name, channels) or values[name]
        if len(values[name]) != channels:
            raise ConfigError(channels_error(name, len(values[name]), channels))
    return values
