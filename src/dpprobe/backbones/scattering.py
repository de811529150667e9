"""Wavelet scattering (Bruna and Mallat 2013): features without weights.

Tramer and Boneh 2021 (title: see `convolutional`) use scattering as a private baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.projection import ProjectedOptions
from dpprobe.errors import ConfigError

if TYPE_CHECKING:
    import torch


class Options(ProjectedOptions):
    """Scattering coefficients of order 0, 1 and 2, flattened."""

    family: Literal["scattering"] = "scattering"
    J: int = Field(
        2, ge=1, le=8, description="Number of scales: coefficients are 2^J pixels apart."
    )
    L: int = Field(8, ge=1, le=32, description="Number of orientations of the wavelets.")
    size: int = Field(32, ge=2, description="Images are resized to size x size.")
    color: Literal["gray", "rgb"] = Field("gray", description="Number of channels: one or three.")

    @property
    def full_dimension(self) -> int | None:
        channels = 1 if self.color == "gray" else 3
        return channels * count_paths(self.J, self.L) * (self.size // 2**self.J) ** 2

    def check_files(self) -> None:
        if self.size < 2**self.J:
            raise ConfigError(
                f"size: {self.size} is smaller than 2^J = {2**self.J}; set a larger size or a "
                "smaller J"
            )
        self.check_projection()


def count_paths(scales: int, orientations: int) -> int:
    """Returns the coefficients per channel and position: 1 + JL + J(J-1)/2 L^2."""
    return 1 + scales * orientations + scales * (scales - 1) // 2 * orientations**2


def make_transform(*, scales: int, orientations: int, size: int) -> torch.nn.Module:
    """Makes images [m, c, size, size] -> [m, c, paths, size // 2^J, size // 2^J]."""
    # Importing kymatio.torch fails with SciPy >= 1.17, because of kymatio's 3-D part.
    from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D

    transform: torch.nn.Module = ScatteringTorch2D(J=scales, shape=(size,) * 2, L=orientations)
    return transform


def load(options: Options, runtime: Runtime) -> Backbone:
    import torch

    from dpprobe.backbones.image_preprocessing import ToTensor  # slow import: torch

    preprocessing: dict[str, Any] = {
        "color": options.color,
        "size": options.size,
        "interpolation": "bicubic",
    }
    scattering = make_transform(scales=options.J, orientations=options.L, size=options.size)
    scattering = scattering.to(runtime.device).eval()

    @torch.inference_mode()
    def forward(batch: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = scattering(batch.to(runtime.device))
        return features.flatten(1)

    return Backbone(
        dimension=options.computed_dimension,
        preprocessing=preprocessing,
        weights_sha256=None,
        fingerprint=backbone_fingerprint(
            options,
            preprocessing=preprocessing,
            weights_sha256=None,
            libraries=["kymatio", "pillow"],
            exclude=options.unset_options,
        ),
        transform=ToTensor(mode="L" if options.color == "gray" else "RGB", size=options.size),
        forward=torch.inference_mode()(options.add_projection(forward, runtime.device)),
    )
