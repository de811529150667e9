"""Networks that a Python function of the user builds, such as `my_package.nets:build`.

The function returns a torch.nn.Module that takes normalised images, float32 [batch, channels,
height, width], and returns one row of features per image, [batch, d].
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.checkpoints import fill_model, hash_weights, read_state
from dpprobe.backbones.network_options import NetworkOptions, Views
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from dpprobe.backbones.square_network import SquareNetwork


class Preprocessing(Views):
    """The size of images and the constants that normalise them."""

    size: int = Field(224, ge=1, description="Images enter at size x size pixels.")
    resize: int | None = Field(
        None,
        ge=1,
        description="Resize the shorter side to this many pixels, then crop the centre. If absent, "
        "images of any shape are resized to size x size.",
    )
    interpolation: Literal["bicubic", "bilinear", "nearest"] = Field(
        "bicubic", description="Interpolation of resized images."
    )

    @model_validator(mode="after")
    def _check_resize(self) -> Preprocessing:
        if self.resize is not None and self.resize < self.size:
            raise ValueError(
                f"resize {self.resize} is below size {self.size}; use {self.size} or more"
            )
        return self


class Options(NetworkOptions):
    """A network that a function builds; its features are the network's output."""

    family: Literal["imported"] = "imported"
    module: str = Field(
        pattern=r"^\w+(\.\w+)*:\w+$",
        description="Function that builds the network, as package.module:function, imported from "
        "the working folder or the Python environment.",
    )
    arguments: dict[str, Any] = Field({}, description="Keyword arguments of `module`.")
    color: Literal["gray", "rgb"] = Field("rgb", description="Number of channels: one or three.")
    preprocessing: Preprocessing = Preprocessing()

    @property
    def image_channels(self) -> int:
        return 1 if self.color == "gray" else 3

    @model_validator(mode="after")
    def _check_channels(self) -> Options:
        self.preprocessing.check_channels(self.image_channels)
        return self

    def check_files(self) -> None:
        self.check_checkpoint()
        if self._find_source() is None:
            package = self.module.partition(":")[0].partition(".")[0]
            with _working_folder():
                known = package in sys.modules or importlib.util.find_spec(package) is not None
            if not known:
                raise ConfigError(
                    f"module: {self.module}: no module {package} in the working folder or the "
                    "environment; correct the name, or install the package"
                )

    def input_files(self) -> tuple[str, ...]:
        source = self._find_source()
        return (*super().input_files(), *([] if source is None else [str(source)]))

    def _find_source(self) -> Path | None:
        """Returns the module's file in the working folder; None for an installed module."""
        path = resolve_path(self.module.partition(":")[0].replace(".", "/"))
        files = (path.with_suffix(".py"), path / "__init__.py")
        return next((each for each in files if each.is_file()), None)


def load(options: Options, runtime: Runtime) -> Backbone:
    """Builds the network with the checkpoint's weights; ConfigError if the weights do not fit."""
    from dpprobe.backbones.network_forward import state_sha256  # slow import: torch

    square = _make_network(options)
    weights = hash_weights(options, square.model)
    return square.load(
        runtime,
        weights_sha256=weights,
        hashed_weights=f"{weights} {state_sha256(square.model)}",
        libraries=[],
        architecture=options.module,
        trained=True,
    )


def describe(options: Options, device: str) -> dict[str, int]:  # noqa: ARG001
    """Returns the numbers of features and blocks; uses the CPU, as the user's code may need it."""
    from dpprobe.backbones.network_forward import describe_network  # slow import: torch

    runtime = Runtime(device="cpu", precision="float32")
    return describe_network(_make_network(options).prepare(runtime)[0])


@contextmanager
def _working_folder() -> Iterator[None]:
    """Puts the working folder first in Python's search path for modules."""
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def _build_model(options: Options) -> nn.Module:
    import torch  # slow import: torch

    module, _, function = options.module.partition(":")
    try:
        with _working_folder(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # equal random weights in every job
            model = getattr(importlib.import_module(module), function)(**options.arguments)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"module: {options.module} cannot be called with {options.arguments} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"module: {options.module} returns {type(model).__name__}; return a torch.nn.Module"
        )
    if options.checkpoint is not None:
        path = resolve_path(options.checkpoint)
        remedy = "build the trained network, or load the weights in the function"
        fill_model(model, read_state(path), path=path, name=options.module, remedy=remedy)
    return model


def _make_network(options: Options) -> SquareNetwork:
    from dpprobe.backbones.square_network import SquareNetwork  # slow import: torch

    views = options.preprocessing
    return SquareNetwork(
        model=_build_model(options),
        options=options,
        name=options.module,
        channels=options.image_channels,
        views=views,
        resized=views.model_dump(include={"size", "resize", "interpolation"}),
    )
