"""Models of timm, by name with its pretrained tag, or from a local checkpoint."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from dpprobe import artifacts
from dpprobe.backbones import Backbone, identity
from dpprobe.config import BackboneOptions, resolve_path
from dpprobe.errors import ConfigError
from dpprobe.options import Options as Block

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from dpprobe.backbones.images import Mode

# The architectures that timm knows, after the version that knows them; see `list_architectures`.
ARCHITECTURES = Path(__file__).with_name("timm_models.txt")
# What the options themselves decide.
RESERVED_ARGUMENTS = frozenset({"checkpoint_path", "model_name", "pretrained"})
# Pixels of one pass on a CPU, 16 images of 128 x 128: beyond, activations outgrow what malloc
# keeps, each is mapped afresh, and MobileNetV2 runs at a half to a third of its speed.
CPU_PIXELS = 16 * 128 * 128


Deviation = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Preprocessing(Block):
    """Overrides of the preprocessing that timm resolves from the model."""

    size: int | None = Field(None, ge=1, description="Images enter at size x size.")
    mean: FiniteFloat | tuple[FiniteFloat, ...] | None = Field(
        None, description="For all channels or each."
    )
    std: Deviation | tuple[Deviation, ...] | None = Field(
        None, description="For all channels or each."
    )
    interpolation: Literal["bicubic", "bilinear", "lanczos", "nearest"] | None = None
    crop_pct: float | None = Field(
        None, gt=0, le=1, description="The part of the resized image that the crop keeps."
    )
    crop_mode: Literal["center", "squash", "border"] | None = None


class Options(BackboneOptions):
    """A timm model; the features are what enters its classifier."""

    family: Literal["timm"] = "timm"
    model: str = Field(min_length=1, description="timm's name, such as resnet50.a1_in1k.")
    checkpoint: str | None = Field(
        None, min_length=1, description="A local file of weights, loaded strictly."
    )
    pretrained: bool = Field(
        True,
        description="Fetch timm's weights for the name. Without and without a checkpoint the "
        "weights are random, from a fixed seed: for trying things out.",
    )
    model_args: dict[str, Any] = Field({}, description="Further arguments of timm.create_model.")
    preprocessing: Preprocessing = Preprocessing()

    @model_validator(mode="before")
    @classmethod
    def _prefer_checkpoint(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("checkpoint") is not None:
            if values.get("pretrained"):
                raise ValueError("pretrained: true beside a checkpoint; keep one of them")
            return {**values, "pretrained": False}
        return values

    @field_validator("model_args")
    @classmethod
    def _check_arguments(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(RESERVED_ARGUMENTS & value.keys())
        if taken:
            raise ValueError(f"{taken[0]} is an option of the backbone itself; write it there")
        channels = value.get("in_chans", 3)
        if type(channels) is not int or channels < 1:
            raise ValueError(f"in_chans {channels!r}: must be a whole number, one or more")
        return value

    @model_validator(mode="after")
    def _check_channels(self) -> Options:
        channels = self.model_args.get("in_chans", 3)
        for name in ("mean", "std"):
            value = getattr(self.preprocessing, name)
            if isinstance(value, tuple) and len(value) not in (1, channels):
                raise ValueError(_channels_error(name, len(value), channels))
        return self

    def check(self) -> None:
        self._check_name()
        if self.checkpoint is not None and not resolve_path(self.checkpoint).is_file():
            raise ConfigError(
                f"checkpoint: no file {self.checkpoint}; correct it or put the file there"
            )

    def _check_name(self) -> None:
        """Only where the names are those of the timm that is installed, without importing it."""
        known = known_architectures()
        architecture = self.model.partition(".")[0]
        if known is None or ":" in self.model or architecture in known:
            return
        close = difflib.get_close_matches(architecture, known, n=3)
        remedy = f"write {' or '.join(close)}" if close else "correct it"
        raise ConfigError(f"model: timm knows no {architecture!r}; {remedy}")

    def input_files(self) -> tuple[str, ...]:
        return () if self.checkpoint is None else (str(resolve_path(self.checkpoint)),)

    def extraction_params(self) -> dict[str, Any]:
        """The options without the checkpoint's path.

        They cannot be read back without one: that would be a model of random weights.
        """
        values = self.model_dump(mode="json", exclude={"checkpoint"})
        return values if self.checkpoint is None else values | {"pretrained": None}


def known_architectures() -> frozenset[str] | None:
    """The names in `ARCHITECTURES`; None where they are not those of the installed timm."""
    first, *names = ARCHITECTURES.read_text(encoding="utf-8").splitlines()
    try:
        return frozenset(names) if first == f"timm {version('timm')}" else None
    except PackageNotFoundError:
        return None


def list_architectures() -> str:
    """What belongs into `ARCHITECTURES` for the installed timm."""
    import timm
    from timm.models import _registry

    names: Iterable[str] = {*timm.list_models(), *_registry._deprecated_models}
    return "\n".join([f"timm {version('timm')}", *sorted(names)]) + "\n"


def load(options: Options, *, device: str) -> Backbone:
    """A timm model without its classifier.

    Raises:
      ConfigError: for a name timm does not know, a checkpoint that does not fit the model, or an
        image size that the model does not take.
    """
    import torch
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    model = _create(options)
    if options.checkpoint is None:
        weights_sha256 = _state_sha256(model)
    else:
        weights_sha256 = artifacts.sha256_file(resolve_path(options.checkpoint))
    architecture, tag = _name(options, model)
    resolved = _preprocessing(options, resolve_model_data_config(model))
    model.reset_classifier(0)
    model = model.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)
    forward = _forward(model, device)
    blank = torch.zeros(1, *resolved["input_size"])
    try:
        shape = forward(blank).shape
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"model: {options.model} does not take images of {resolved['input_size']} "
            f"({_line(error)}); change preprocessing.size or model_args"
        ) from error
    if len(shape) != 2:
        raise ConfigError(
            f"model: {options.model} gives features of shape {list(shape[1:])}, not one row an "
            "image; choose its pooling in model_args (global_pool)"
        )
    mode: Mode = "L" if resolved["input_size"][0] == 1 else "RGB"
    return Backbone(
        dimension=shape[1],
        preprocessing={"color": mode, **resolved},
        weights_sha256=weights_sha256,
        fingerprint=identity(
            options,
            preprocessing=resolved,
            weights_sha256=weights_sha256,
            libraries=["pillow", "timm", "torch", "torchvision"],
            architecture=architecture,
            pretrained_tag=tag,
            exclude=frozenset({"checkpoint", "preprocessing", "pretrained"}),
        ),
        transform=TimmTransform(mode, create_transform(**resolved, is_training=False)),
        forward=forward,
        architecture=architecture,
        pretrained_tag=tag,
        trained=options.pretrained or options.checkpoint is not None,
    )


def _name(options: Options, model: Any) -> tuple[str, str | None]:
    """The architecture that timm chose, and the tag of the weights if they are timm's."""
    resolved = model.pretrained_cfg
    architecture = resolved.get("architecture") or options.model.partition(".")[0]
    return architecture, (resolved.get("tag") or None) if options.pretrained else None


def _forward(model: Any, device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    on_gpu = device.startswith("cuda")

    @torch.inference_mode()
    def forward(batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(device, memory_format=torch.channels_last)
        rows = len(batch) if on_gpu else max(1, CPU_PIXELS // batch[0, 0].numel())
        with torch.autocast("cuda", enabled=on_gpu):
            parts = [model(part).float() for part in batch.split(rows)]
        return torch.cat(parts)

    return forward


class TimmTransform:
    """timm's evaluation transform after the conversion to the model's colours."""

    def __init__(self, mode: Mode, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.mode = mode
        self.transform = transform

    def __call__(self, image: Image.Image) -> torch.Tensor:
        from dpprobe.backbones.images import convert

        return self.transform(convert(image, self.mode))


def _create(options: Options) -> Any:
    import timm
    import torch

    arguments = dict(options.model_args)
    if options.checkpoint is not None:
        arguments["checkpoint_path"] = str(resolve_path(options.checkpoint))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # weights that no checkpoint gives are the same in every shard
            return timm.create_model(options.model, pretrained=options.pretrained, **arguments)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"model: timm cannot create {options.model} ({_line(error)}); "
            "check the name, the checkpoint and model_args"
        ) from error


def _preprocessing(options: Options, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What timm resolves from the model, with the study's overrides; JSON-compatible."""
    channels = options.model_args.get("in_chans", resolved["input_size"][0])
    given = options.preprocessing.model_dump(exclude_none=True)
    size = given.pop("size", options.model_args.get("img_size"))
    sides = [size, size] if isinstance(size, int) else list(resolved["input_size"][1:])
    values = {name: _plain(value) for name, value in (dict(resolved) | given).items()}
    values["input_size"] = [channels, *sides]
    for name in ("mean", "std"):
        if isinstance(values[name], float | int):
            values[name] = [values[name]]
        if name in given and len(values[name]) == 1:
            values[name] = values[name] * channels
        if len(values[name]) != channels:
            raise ConfigError(_channels_error(name, len(values[name]), channels))
    return values


def _channels_error(name: str, values: int, channels: int) -> str:
    return (
        f"preprocessing.{name}: {values} values for {channels} channels; "
        "write one number, or one a channel"
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _state_sha256(model: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and values of all weights."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _line(error: Exception) -> str:
    """The error's text on one line, cut where it lists a whole model."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
