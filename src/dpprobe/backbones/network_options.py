"""Options that every network has: views of an image, a checkpoint, layers."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

from dpprobe.backbones.options import BackboneOptions
from dpprobe.data.downloads.addresses import Sha256
from dpprobe.errors import ConfigError
from dpprobe.options import Options, resolve_path

Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]

# The remedy in messages if a library could not fetch weights.
NO_NETWORK = (
    "without a network, download the weights once with a network connection (they stay in the "
    "Hugging Face cache), or name a local checkpoint"
)

# The largest number of stored crops per image, because names of crops have two digits.
MOST_CROPS = 99


class Views(Options):
    """The part of an image that enters a network, and its mirror image."""

    size: int | None = Field(
        None,
        ge=1,
        description="Images enter at size x size pixels; position embeddings of a ViT are "
        "resampled to this size.",
    )
    mean: FiniteFloat | tuple[FiniteFloat, ...] | None = Field(
        None, description="One mean for all channels, or one per channel."
    )
    std: Scale | tuple[Scale, ...] | None = Field(
        None, description="One standard deviation for all channels, or one per channel."
    )
    crop: Literal["centre", "inception"] = Field(
        "centre",
        description="inception: one random part of each training image, 8 to 100% of its area, "
        "with a width-to-height ratio of 3/4 to 4/3. The part depends only on the image's bytes "
        "and crop_seed. Test images keep the central crop.",
    )
    crop_seed: int | None = Field(
        None,
        ge=0,
        description="Public seed for `crop: inception`, independent of the study's seed; 0 if "
        "absent.",
    )
    crops: int | None = Field(
        None,
        ge=1,
        le=MOST_CROPS,
        exclude_if=lambda value: value is None,
        description="Only for `crop: inception`: store this many random parts of each training "
        "image in addition to its central part. Heads trained by gradient steps use one random "
        "part per pass over the data, in turn; all other computations use the central part.",
    )
    flip: bool = Field(
        False,
        description="Average the features of each image and of its mirror image: two forward "
        "passes, one feature vector.",
    )

    @model_validator(mode="after")
    def _check_crops(self) -> Views:
        for name in ("crop_seed", "crops"):
            value = getattr(self, name)
            if value is not None and self.crop != "inception":
                raise ValueError(
                    f"{name} {value} has no effect with crop centre; remove it, or write "
                    "`crop: inception`"
                )
        return self

    def check_channels(self, channels: int) -> None:
        """Raises ValueError unless mean and std each have one number, or one per channel."""
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) not in (1, channels):
                raise ValueError(channels_error(name, len(value), channels))

    def list_constants(self, name: Literal["mean", "std"], channels: int) -> list[float] | None:
        """Returns the mean or deviation of each channel; None if absent."""
        value = getattr(self, name)
        if value is None:
            return None
        values = list(value) if isinstance(value, tuple) else [value]
        return values * channels if len(values) == 1 else values

    def resolved_views(self) -> dict[str, Any]:
        """Returns the options of crop and flip, which dpprobe adds to a library's preprocessing."""
        seed = {"crop_seed": self.crop_seed or 0} if self.crop == "inception" else {}
        crops = {} if self.crops is None else {"crops": self.crops}
        return {"crop": self.crop, **seed, **crops, "flip": self.flip}


class NetworkOptions(BackboneOptions):
    """The options of every network."""

    network: ClassVar[bool] = True

    checkpoint: str | None = Field(
        None,
        min_length=1,
        description="A local file of weights, whose tensors must have exactly the names of the "
        "network's tensors.",
    )
    checkpoint_sha256: Sha256 | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Expected SHA-256 of the checkpoint, checked when the weights are loaded.",
    )
    layers: Literal["all"] | tuple[Index, ...] = Field(
        (),
        description="Numbers of blocks whose features are stored too, or all. 0 is the input of "
        "the first block, l the output of block l. For a convolutional network, blocks are its "
        "stages.",
    )
    token: Literal["class", "pooled"] | None = Field(
        None,
        description="Feature vector of a block: the class token, or the mean over the patches "
        "(pooled). Default: the class token, or the mean for a network without class token.",
    )

    @field_validator("layers")
    @classmethod
    def _check_layers(cls, value: str | tuple[int, ...]) -> str | tuple[int, ...]:
        if isinstance(value, str):
            return value
        for block in value:
            if value.count(block) > 1:
                raise ValueError(f"block {block} appears twice; remove one")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _check_sha256(self) -> NetworkOptions:
        if self.checkpoint_sha256 is not None and self.checkpoint is None:
            raise ValueError("checkpoint_sha256: has no checkpoint to check; remove it")
        return self

    @model_validator(mode="after")
    def _check_token(self) -> NetworkOptions:
        if self.token is not None and not self.layers:
            raise ValueError(
                f"token {self.token} has no effect without layers; remove it, or write "
                "`layers: all`"
            )
        return self

    @model_validator(mode="after")
    def _check_layers_and_crops(self) -> NetworkOptions:
        if self.layers and self.stored_crops:
            raise ValueError(
                f"preprocessing.crops {self.stored_crops} with layers: features of inner blocks "
                "are computed for the central crop only; define two backbones, one with crops and "
                "one with layers"
            )
        return self

    @model_validator(mode="after")
    def _check_crop_and_decoding(self) -> NetworkOptions:
        if self.jpeg_decoding == "scaled" and self._views.crop == "inception":
            raise ValueError(
                "jpeg_decoding scaled with preprocessing.crop inception: small random crops need "
                "images decoded in full; remove one of the two"
            )
        return self

    @property
    def _views(self) -> Views:
        views: Views = getattr(self, "preprocessing")  # noqa: B009
        return views

    @property
    def random_crops(self) -> bool:
        return self._views.crop == "inception" and not self.stored_crops

    @property
    def stored_crops(self) -> int:
        return self._views.crops or 0

    def check_checkpoint(self) -> None:
        if self.checkpoint is not None and not resolve_path(self.checkpoint).is_file():
            raise ConfigError(
                f"checkpoint: no file {self.checkpoint}; correct the path or put the file there"
            )

    def input_files(self) -> tuple[str, ...]:
        return () if self.checkpoint is None else (str(resolve_path(self.checkpoint)),)


def read_model_list(path: Path, library: str) -> list[list[str]] | None:
    """Reads the lines of a library's model list; None if another version is installed."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    with suppress(PackageNotFoundError):
        if first == f"{library} {version(library)}":
            return [line.split() for line in lines]
    return None


def channels_error(name: str, values: int, channels: int) -> str:
    return (
        f"preprocessing.{name}: {values} values for {channels} channels; give one number, or one "
        "per channel"
    )
