"""The layers of `convolutional`: scattering, and convolutions with activation and pooling."""

from __future__ import annotations

import torch
from torch import nn

from dpprobe.backbones.scattering import make_transform


class ScatteringMaps(nn.Module):
    """Images [m, c, size, size] -> float32 coefficients [m, c * paths, size / 2^J, size / 2^J]."""

    def __init__(self, *, scales: int, orientations: int, size: int) -> None:
        super().__init__()
        self.transform = make_transform(scales=scales, orientations=orientations, size=size)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # The scattering's Fourier transforms support neither half precision nor channels_last.
        with torch.autocast(images.device.type, enabled=False):
            maps: torch.Tensor = self.transform(images.float().contiguous())
        return maps.flatten(1, 2)


class ConvolutionStage(nn.Module):
    """A convolution, its activation and max pooling: one block."""

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.convolution, self.activation, self.pool = convolution, activation, pool

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.pool(self.activation(self.convolution(maps)))
        return y
