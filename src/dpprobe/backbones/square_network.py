"""Networks that dpprobe or a user's function builds, on square images with public constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchvision import transforms

from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.image_preprocessing import Mode, ToBytes, make_train_crop
from dpprobe.backbones.network_forward import Network, prepare_network
from dpprobe.backbones.network_options import NetworkOptions, Views


@dataclass(frozen=True, kw_only=True)
class SquareNetwork:
    """A network before it is moved to its device.

    Attributes:
      views: the crop and mirror options, with a size.
      resized: the size and interpolation of images, as recorded in the preprocessing.
    """

    model: torch.nn.Module
    options: NetworkOptions
    name: str
    channels: int
    views: Views
    resized: dict[str, Any]

    def prepare(self, runtime: Runtime) -> tuple[Network, dict[str, Any]]:
        """Returns the network on its device, and its preprocessing with all defaults filled in."""
        described = {
            **self.resized,
            "mean": self.views.list_constants("mean", self.channels) or [0.0] * self.channels,
            "std": self.views.list_constants("std", self.channels) or [1.0] * self.channels,
            **self.views.resolved_views(),
        }
        network = prepare_network(
            self.model,
            self.options,
            runtime,
            name=self.name,
            channels=self.channels,
            size=(self.resized["size"],) * 2,
            mean=described["mean"],
            std=described["std"],
            flip=self.views.flip,
        )
        return network, described

    def load(
        self,
        runtime: Runtime,
        *,
        weights_sha256: str,
        hashed_weights: str,
        libraries: list[str],
        architecture: str | None = None,
        trained: bool = False,
    ) -> Backbone:
        """Makes the backbone; its fingerprint includes `hashed_weights`."""
        network, described = self.prepare(runtime)
        size = (self.resized["size"],) * 2
        mode: Mode = "L" if self.channels == 1 else "RGB"
        interpolation = transforms.InterpolationMode(self.resized["interpolation"])
        steps = (
            transforms.Resize(self.resized.get("resize") or size, interpolation),
            transforms.CenterCrop(size),
            transforms.PILToTensor(),
        )
        return Backbone(
            **vars(network),
            preprocessing={"color": mode, **described},
            weights_sha256=weights_sha256,
            fingerprint=backbone_fingerprint(
                self.options,
                preprocessing=described,
                weights_sha256=hashed_weights,
                libraries=[*libraries, "pillow", "torch", "torchvision"],
                exclude=frozenset({"preprocessing", *(["checkpoint"] if trained else [])}),
                precision=runtime.precision,
            ),
            transform=ToBytes(mode=mode, steps=transforms.Compose(steps)),
            train_transform=make_train_crop(
                self.views, mode=mode, size=size, interpolation=self.resized["interpolation"]
            ),
            architecture=architecture,
            trained=trained,
        )
