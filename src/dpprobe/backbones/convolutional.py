"""Small convolutional networks with public random weights, to be trained from scratch.

The network's input is pixels (Papernot et al. 2020, "Tempered Sigmoid Activations for Deep Learning
with Differential Privacy") or scattering coefficients (Tramer and Boneh 2021, "Differentially
Private Learning Needs Better Features (or Much More Data)"). `fine_tune` trains the network and
adds the last layer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.network_options import NetworkOptions, Views
from dpprobe.backbones.scattering import count_paths
from dpprobe.options import Options as Block

if TYPE_CHECKING:
    from torch import nn

    from dpprobe.backbones.square_network import SquareNetwork


class Stage(Block):
    """A convolution with biases, its activation and, optionally, max pooling."""

    filters: int = Field(ge=1, le=4096, description="Number of output channels.")
    kernel: int = Field(3, ge=1, description="Height and width of a filter.")
    stride: int = Field(1, ge=1, description="Stride of the filter.")
    padding: int = Field(1, ge=0, description="Zeros added on each side.")
    pool: int = Field(1, ge=1, description="Maximum over pool x pool positions; 1 for no pooling.")
    pool_stride: int | None = Field(
        None, ge=1, description="Stride of the pooling windows; default: the value of `pool`."
    )

    @model_validator(mode="after")
    def _check_pool(self) -> Stage:
        if self.pool == 1 and self.pool_stride is not None:
            raise ValueError(f"pool_stride {self.pool_stride} has no effect with pool 1; remove it")
        return self

    def measure_side(self, side: int) -> int:
        """Returns a stage's output height and width; below 1 if a window does not fit."""
        convolved = (side + 2 * self.padding - self.kernel) // self.stride + 1
        return (convolved - self.pool) // (self.pool_stride or self.pool) + 1


class Scattering(Block):
    """Scattering coefficients as the input; the wavelets are never trained."""

    J: int = Field(
        2, ge=1, le=8, description="Number of scales: coefficients are 2^J pixels apart."
    )
    L: int = Field(8, ge=1, le=32, description="Number of orientations of the wavelets.")
    groups: int | None = Field(
        None,
        ge=1,
        description="Number of groups of a group normalisation, which treats each image separately "
        "and has no trained scales. If absent, coefficients are not normalised.",
    )


class Preprocessing(Views):
    """The size of images, and public constants that normalise pixel values in 0..1."""

    size: int = Field(
        32,
        ge=1,
        description="Images enter at size x size pixels; images of another size are "
        "resized (bicubic).",
    )


class Options(NetworkOptions):
    """A small convolutional network whose weights are random, from a public seed."""

    family: Literal["convolutional"] = "convolutional"
    checkpoint: None = Field(None, description="Always null: the weights are random.")
    color: Literal["gray", "rgb"] = Field("gray", description="Number of channels: one or three.")
    preprocessing: Preprocessing = Preprocessing()
    scattering: Scattering | None = Field(
        None, description="Use scattering coefficients as the input; if absent, use pixels."
    )
    stages: tuple[Stage, ...] = Field(
        min_length=1, description="The convolutions in order: the blocks of the network."
    )
    hidden: int | None = Field(
        None,
        ge=1,
        description="Units of a dense layer with activation after the last stage; if absent, the "
        "network has no dense layer.",
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="Activation after each layer.")
    weights_seed: int = Field(
        0,
        ge=0,
        description="Public seed of the initial weights, which all seeds of a cell share.",
    )

    @property
    def image_channels(self) -> int:
        return 1 if self.color == "gray" else 3

    @property
    def input_shape(self) -> tuple[int, int]:
        """The number of channels, and the height and width, of the first stage's input."""
        size = self.preprocessing.size
        if self.scattering is None:
            return self.image_channels, size
        paths = count_paths(self.scattering.J, self.scattering.L)
        return self.image_channels * paths, size // 2**self.scattering.J

    @model_validator(mode="after")
    def _check_shapes(self) -> Options:
        self.preprocessing.check_channels(self.image_channels)
        channels, side = self.input_shape
        groups = self.scattering.groups if self.scattering else None
        if side < 1:
            raise ValueError("scattering.J: images are smaller than 2^J; set a smaller J")
        if groups is not None and channels % groups:
            raise ValueError(
                f"scattering.groups {groups}: does not divide the {channels} channels; choose a "
                f"divisor of {channels}"
            )
        for number, stage in enumerate(self.stages, 1):
            before, side = side, stage.measure_side(side)
            if side < 1:
                raise ValueError(
                    f"stages: stage {number} does not fit its input of {before} x {before} "
                    "positions; choose a smaller kernel, stride or pool"
                )
        return self

    def check_files(self) -> None:
        """Checks nothing, because the options name no file."""


def load(options: Options, runtime: Runtime) -> Backbone:
    from dpprobe.backbones.network_forward import state_sha256  # slow import: torch

    square = _make_network(options)
    weights = state_sha256(square.model)
    return square.load(
        runtime, weights_sha256=weights, hashed_weights=weights, libraries=["kymatio"]
    )


def describe(options: Options, device: str) -> dict[str, int]:
    """Returns the numbers of features and blocks; `device` as in `timm_models.describe`."""
    from dpprobe.backbones.network_forward import describe_network  # slow import: torch

    return describe_network(
        _make_network(options).prepare(Runtime(device=device, precision="float32"))[0]
    )


def _make_network(options: Options) -> SquareNetwork:
    from dpprobe.backbones.square_network import SquareNetwork  # slow import: torch

    return SquareNetwork(
        model=_make_model(options),
        options=options,
        name="the convolutional network",
        channels=options.image_channels,
        views=options.preprocessing,
        resized={"size": options.preprocessing.size, "interpolation": "bicubic"},
    )


def _make_model(options: Options) -> nn.Module:
    """Makes the network without last layer, with PyTorch's initialisation from `weights_seed`."""
    import torch  # slow import: torch
    from torch import nn

    from dpprobe.backbones.convolutional_layers import ConvolutionStage, ScatteringMaps

    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[options.activation]
    channels, side = options.input_shape
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if scattering := options.scattering:
        parts["scattering"] = ScatteringMaps(
            scales=scattering.J, orientations=scattering.L, size=options.preprocessing.size
        )
        if scattering.groups is not None:
            parts["norm"] = nn.GroupNorm(scattering.groups, channels, affine=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.weights_seed)
        blocks = parts["blocks"] = nn.Sequential()
        for stage in options.stages:
            convolution = nn.Conv2d(
                channels, stage.filters, stage.kernel, stage.stride, stage.padding
            )
            pool = nn.MaxPool2d(stage.pool, stage.pool_stride) if stage.pool > 1 else nn.Identity()
            blocks.append(ConvolutionStage(convolution, activation(), pool))
            channels, side = stage.filters, stage.measure_side(side)
        parts["flatten"] = nn.Flatten()
        if options.hidden is not None:
            parts["dense"] = nn.Linear(channels * side**2, options.hidden)
            parts["activation"] = activation()
    return nn.Sequential(parts)
