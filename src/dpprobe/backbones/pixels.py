"""The image itself as features: the baseline that a backbone must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.projection import ProjectedOptions

if TYPE_CHECKING:
    import torch


class Options(ProjectedOptions):
    """Raw pixels in 0..1, flattened."""

    family: Literal["pixels"] = "pixels"
    color: Literal["gray", "rgb"] = Field("gray", description="Number of channels: one or three.")
    size: int | None = Field(
        None,
        ge=1,
        description="Resize to size x size; if absent, all images must have the same size.",
    )
    mean: float = Field(
        0.0,
        allow_inf_nan=False,
        description="Number subtracted from pixels: a public constant, not the dataset's mean.",
    )
    std: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="Number by which pixels are divided: a public constant.",
    )

    @model_validator(mode="after")
    def _check_decoding(self) -> Options:
        if self.jpeg_decoding == "scaled" and self.size is None:
            raise ValueError("jpeg_decoding scaled has no effect without size; set a size")
        return self

    @property
    def full_dimension(self) -> int | None:
        channels = 1 if self.color == "gray" else 3
        return None if self.size is None else channels * self.size**2

    def check_files(self) -> None:
        """Checks that the features can be projected; raw pixels need no files."""
        self.check_projection()


def load(options: Options, runtime: Runtime) -> Backbone:
    from dpprobe.backbones.image_preprocessing import ToTensor  # slow import: torch

    preprocessing: dict[str, Any] = {
        "color": options.color,
        "size": options.size,
        "interpolation": "bicubic",
        "mean": options.mean,
        "std": options.std,
    }

    def forward(batch: torch.Tensor) -> torch.Tensor:
        return batch.to(runtime.device).flatten(1)

    return Backbone(
        dimension=options.computed_dimension,
        preprocessing=preprocessing,
        weights_sha256=None,
        fingerprint=backbone_fingerprint(
            options,
            preprocessing=preprocessing,
            weights_sha256=None,
            libraries=["pillow"],
            exclude=options.unset_options,
        ),
        transform=ToTensor(
            mode="L" if options.color == "gray" else "RGB",
            size=options.size,
            mean=options.mean,
            std=options.std,
        ),
        forward=options.add_projection(forward, runtime.device),
    )
