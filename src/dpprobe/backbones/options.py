"""Options of every backbone, and options of all networks: views, a checkpoint, layers."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, field_validator, model_validator

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

MOST_GREY_BITS = 16

# Options of a backbone that do not affect its features.
BACKBONE_NOTES = frozenset({"catalog", "checkpoint_sha256", "dimension"})


class BackboneOptions(Options, ABC):
    """A frozen feature extractor; `family` selects the module that loads it."""

    # True for a neural network, whose extraction gains from threads.
    network: ClassVar[bool] = False
    # True for a model outside dpprobe, of which dpprobe has only the vectors.
    takes_vectors: ClassVar[bool] = False
    # Slow-importing modules of the preprocessing; decoding processes inherit them by fork.
    imports: ClassVar[tuple[str, ...]] = ("torchvision.transforms",)

    family: str
    catalog: str | None = Field(
        None,
        description="Entry of resources/backbones.yaml that provides the options which the study "
        "does not set.",
    )
    dimension: int | None = Field(
        None, ge=1, description="Expected number of features per image; another number is an error."
    )
    grey_bits: int = Field(
        MOST_GREY_BITS,
        ge=1,
        le=MOST_GREY_BITS,
        exclude_if=lambda value: value == MOST_GREY_BITS,
        description="Number of bits that grey images of 16 bits use, for example 12 if white is "
        "4,095. Images of 8 bits, DICOM files, and files that state this number do not need the "
        "option.",
    )

    jpeg_decoding: Literal["full", "scaled"] = Field(
        "full",
        exclude_if=lambda value: value == "full",
        description="scaled: decode each JPEG at 1, 1/2, 1/4 or 1/8 of its size, the smallest that "
        "is at least twice the size to which it is resized. Large photographs are decoded faster; "
        "their features change slightly.",
    )

    @model_validator(mode="after")
    def _check_images(self) -> BackboneOptions:
        for name in ("grey_bits", "jpeg_decoding"):
            value = getattr(self, name)
            if self.takes_vectors and value != type(self).model_fields[name].default:
                raise ValueError(f"{name} {value} has no effect on vectors; remove it")
        return self

    @abstractmethod
    def check_files(self) -> None:
        """Raises ConfigError if a named file or model is missing; reads no weights."""

    @property
    def computed_dimension(self) -> int | None:
        """Features per image, computed from the options; None for networks and vectors."""
        return None

    @property
    def fewer_features(self) -> str | None:
        """The study option that reduces the number of features; None if the family has none."""
        return None

    def check_dimension(self, features: int | None) -> None:
        """Raises ConfigError if the number of features differs from `dimension`."""
        if self.dimension not in (None, features):
            raise ConfigError(
                f"dimension: {self.dimension} features per image are expected, but the backbone "
                f"gives {features}; correct dimension or the model's options"
            )

    def input_files(self) -> tuple[str, ...]:
        """Returns the files whose change makes the features stale."""
        return ()

    @property
    def reads_text(self) -> bool:
        """True if the backbone has a text encoder that this environment can run."""
        return False

    @property
    def random_crops(self) -> bool:
        """True if the features of training images come from one random crop."""
        return False

    @property
    def stored_crops(self) -> int:
        """Number of stored random crops per training image, in addition to the central crop."""
        return 0

    def list_warnings(self) -> list[str]:
        """Returns warnings about the options, one line each; reads no weights."""
        return []

    def text_params(self) -> dict[str, Any]:
        """Returns the options that determine text embeddings, JSON-compatible."""
        return self.extraction_params()

    def extraction_params(self) -> dict[str, Any]:
        """Returns the options that determine the features, JSON-compatible, without paths."""
        return self.model_dump(mode="json", exclude=set(BACKBONE_NOTES))


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


def suggest_names(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"write {' or '.join(close)}" if close else "correct it"


def channels_error(name: str, values: int, channels: int) -> str:
    return (
        f"preprocessing.{name}: {values} values for {channels} channels; give one number, or one "
        "per channel"
    )
