"""Options that every backbone has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from dpprobe.errors import ConfigError
from dpprobe.options import Options

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
